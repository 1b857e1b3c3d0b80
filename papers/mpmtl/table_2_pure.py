"""Table 2 with δ = 0: how fast errors fall with ε and with tasks under purely private noise.

The other half of Table 2 (Theorems 7 to 11): slopes of the distance from the optimum in log ε and log m, at
the best of 1, 4 or 16 rounds, m = 320 for three ε and ε = 1000 for three m. "Its method": the published
noise; "with the true guarantee": the library's noise of length Gamma(d(d+1)/2), which is purely private.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from cloister import Plan
from cloister.learners import LeastSquares
from cloister.mechanisms import L2Laplace
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, count, digits, mean
from papers.mpmtl.instance_level import round_budgets
from papers.mpmtl.table_2 import FAMILIES, HOW, LR, STRONG, TASKS, Objective, drawn, slope
from papers.mpmtl.wishart import PublishedWishart
from papers.pictures import COLOURS, legend

NOT_COVERED = "constants of the bounds, which the paper does not print; 2 draws."
#: Acceleration, strong convexity: the power in Table 2 for delta = 0.
POWERS = {(False, False): 1 / 3, (False, True): 1 / 2, (True, False): 2 / 5, (True, True): 2 / 9}
EPSILONS, COUNTS, ROUNDS, AT = (100.0, 1000.0, 10000.0), (80, 160, 320), (1, 4, 16), 1000.0


def cells(options: Options) -> list[Cell]:
    points = [(epsilon, TASKS) for epsilon in EPSILONS] + [(AT, m) for m in COUNTS]
    kinds = ("problem", "accelerated", "strong", "epsilon", "tasks", "seed")
    return [
        dict(zip(kinds, (problem, fast, strong, epsilon, m, seed), strict=True))
        for seed in options.replications(full=2, quick=1)
        for problem in FAMILIES
        for fast, strong in POWERS
        for epsilon, m in dict.fromkeys(points)
    ]


def measure(cell: Cell, options: Options) -> dict[str, list[float]]:
    """Return the distance from the optimum for each number of rounds."""
    m, seed, epsilon = cell["tasks"], cell["seed"], cell["epsilon"]
    tasks = drawn(cell["problem"], seed, m)
    algorithm = FAMILIES[cell["problem"]](
        LeastSquares(tasks.X.shape[1]),
        lam=0.02 * math.sqrt(m / TASKS),
        clip=2.5,  # more than any model is long
        lr=LR,
        accelerated=cell["accelerated"],
        strong=STRONG if cell["strong"] else 0.0,
        warmup=0,
    )
    objective = Objective(algorithm, tasks)
    found: dict[str, list[float]] = {how: [] for how in HOW}
    for rounds in ROUNDS:
        once = replace(algorithm, rounds=rounds)
        budgets = round_budgets(epsilon, 0.0, np.sqrt(once.shares(pure=True)))
        published = Plan(once, PublishedWishart(budgets, once.features), n_tasks=m)
        private = Plan(replace(once, shift=0.0), L2Laplace(), n_tasks=m, delta=0.0).calibrate(epsilon)
        for how, plan in (("published", published), ("repaired", private)):
            found[how].append(objective.distance(objective.end(plan, seed)))
    return found


def summarise(found: Found) -> Data:
    data: Data = {}
    for (problem, fast, strong), _ in by(found, "problem", "accelerated", "strong").items():
        kind = {"problem": problem, "accelerated": fast, "strong": strong}
        mine = [(cell, value) for cell, value in found if kind.items() <= cell.items()]
        entry: Data = {}
        for axis, fixed, at in (("epsilon", "tasks", TASKS), ("tasks", "epsilon", AT)):
            groups = by([(cell, value) for cell, value in mine if cell[fixed] == at], axis)
            x = entry[axis] = sorted(key for (key,) in groups)
            for how in HOW:
                best = [int(np.mean([v[how] for v in groups[p,]], axis=0).argmin()) for p in x]
                lines = [
                    [groups[p,][draw][how][r] for p, r in zip(x, best, strict=True)]
                    for draw in range(len(groups[x[0],]))
                ]
                entry[f"{how}, {axis}"] = mean([slope(x, line) for line in lines])
                if axis == "epsilon":
                    entry[how] = [digits(float(value)) for value in np.mean(lines, axis=0)]
                    entry[f"{how}, rounds"] = [ROUNDS[r] for r in best]
        data[f"{problem}, {'fast' if fast else 'plain'}, {'strong' if strong else 'convex'}"] = entry
    return data


def titles() -> dict[str, tuple[str, float, float]]:
    """Return, for each line of the table, what it is, and the powers of ε and of m that it states."""
    return {
        f"{problem}, {'fast' if fast else 'plain'}, {'strong' if strong else 'convex'}": (
            f"{title}, {'strongly convex' if strong else 'convex'}, {'' if fast else 'not '}accelerated",
            -power,
            -power * of_m,
        )
        for problem, title, of_m in (("low_rank", "low rank", 0.5), ("group_sparse", "common features", 1.0))
        for (fast, strong), power in POWERS.items()
    }


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for key, (label, epsilon, tasks) in titles().items():
        for axis, symbol, power in (("epsilon", "ε", epsilon), ("tasks", "m", tasks)):
            texts = ["{:.2f} ± {:.2f}".format(*data[key][f"{how}, {axis}"]) for how in HOW]
            rows.append((f"{label}: power of {symbol}", f"≤ {power:.2f}", *texts, ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 3.6)
    places = list(titles().items())
    axes = figure.subplots(1, 2, sharey=True)
    for panel, axis, symbol in zip(axes, ("epsilon", "tasks"), ("ε", "m"), strict=True):
        for place, (key, powers) in enumerate(places):
            stated = powers[1 if axis == "epsilon" else 2]
            panel.plot([stated], [place], "|", color=COLOURS["alone"], markersize=12, label="stated bound")
            for how, colour, shift in (("published", "paper", -0.15), ("repaired", "repaired", 0.15)):
                value, error = data[key][f"{how}, {axis}"]
                label = {"published": "published noise", "repaired": "purely private noise"}[how]
                y = [place + shift]
                panel.errorbar([value], y, xerr=[error], fmt="o", color=COLOURS[colour], label=label)
        panel.set(xlabel=f"power of {symbol} (left: falls faster)")
    axes[0].set_yticks(range(len(places)), [powers[0] for _, powers in places])
    axes[0].invert_yaxis()
    legend(figure, 3)


def claims(data: Data) -> list[Claim]:
    def meets(how: str, axis: str, place: int) -> Outcome:
        met = [data[key][f"{how}, {axis}"][0] <= powers[place] + 0.05 for key, powers in titles().items()]
        return count(met, "slopes")

    return [
        Claim(
            f"Table 2, δ = 0 (Theorems 7 to 11): errors fall with {name} at least as fast as the bounds",
            "",
            meets("published", axis, place),
            meets("repaired", axis, place),
        )
        for axis, place, name in (("epsilon", 1, "ε"), ("tasks", 2, "the number of tasks"))
    ]


def finding(data: Data) -> str:
    falls = [data[key]["repaired, epsilon"][0] for key in titles()]
    ends = [data[f"{problem}, plain, convex"]["repaired"] for problem in FAMILIES]
    return (
        f"With purely private noise the powers of ε are {min(falls):.2f} to {max(falls):.2f}, where the "
        "table "
        f"has {-max(POWERS.values()):.2f} to {-min(POWERS.values()):.2f}. From ε = {EPSILONS[0]:g} to "
        f"{EPSILONS[-1]:g} the distance falls from {ends[0][0]:.1g} to {ends[0][-1]:.1g} on low rank, and "
        "from "
        f"{ends[1][0]:.1g} to {ends[1][-1]:.1g} on common features."
    )
