"""Table 2 with δ = 0: how fast errors fall with ε and with tasks under purely private noise.

The other half of Table 2 (Theorems 7 to 11): slopes of the distance from the optimum in log ε and log m, at
the best of 1, 4 or 16 rounds, m = 320 for three ε and ε = 1000 for three m. "Its method": the published
noise; "with the true guarantee": the library's noise of length Gamma(d(d+1)/2), which is purely private.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cloister import Plan
from cloister.mechanisms import L2Laplace
from papers.figure import Cell, Claim, Data, Options
from papers.mpmtl import table_2
from papers.mpmtl.instance_level import round_budgets
from papers.mpmtl.table_2 import FAMILIES, HOW, TASKS, Powers, meets, objective_of, titles
from papers.mpmtl.wishart import PublishedWishart
from papers.pictures import COLOURS, legend

NOT_COVERED = "constants of the bounds, which the paper does not print; 5 draws."
#: Powers of the table's half for δ = 0.
POWERS: Powers = {(False, False): 1 / 3, (False, True): 1 / 2, (True, False): 2 / 5, (True, True): 2 / 9}
EPSILONS, COUNTS, ROUNDS, AT = (100.0, 1000.0, 10000.0), (80, 160, 320), (1, 4, 16), 1000.0


def cells(options: Options) -> list[Cell]:
    points = [(epsilon, TASKS) for epsilon in EPSILONS] + [(AT, m) for m in COUNTS]
    kinds = ("problem", "accelerated", "strong", "epsilon", "tasks", "seed")
    return [
        dict(zip(kinds, (problem, fast, strong, epsilon, m, seed), strict=True))
        for seed in options.replications(full=5, quick=1)
        for problem in FAMILIES
        for fast, strong in POWERS
        for epsilon, m in dict.fromkeys(points)
    ]


def measure(cell: Cell, options: Options) -> dict[str, list[float]]:
    """Return the distance from the optimum for each number of rounds."""
    objective, m, epsilon = objective_of(cell), cell["tasks"], cell["epsilon"]
    found: dict[str, list[float]] = {how: [] for how in HOW}
    for rounds in ROUNDS:
        once = replace(objective.algorithm, rounds=rounds)
        budgets = round_budgets(epsilon, 0.0, np.sqrt(once.shares(pure=True)))
        published = Plan(once, PublishedWishart(budgets, once.features), n_tasks=m)
        private = Plan(replace(once, shift=0.0), L2Laplace(), n_tasks=m, delta=0.0).calibrate(epsilon)
        for how, plan in (("published", published), ("repaired", private)):
            found[how].append(objective.distance(objective.end(plan, cell["seed"])))
    return found


summarise = partial(table_2.summarise, at=AT, tried=dict.fromkeys(HOW, ROUNDS), scale=float)
table = partial(table_2.table, powers=POWERS, symbol="ε")


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 3.6)
    places = list(titles(POWERS).items())
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
    return [
        Claim(
            f"Table 2, δ = 0 (Theorems 7 to 11): errors fall with {name} at least as fast as the bounds",
            "",
            *(meets(data, how, axis, POWERS) for how in HOW),
        )
        for axis, name in (("epsilon", "ε"), ("tasks", "the number of tasks"))
    ]


def finding(data: Data) -> str:
    powers = [data[key]["repaired, epsilon"][0] for key in titles(POWERS)]
    rank, features = (data[f"{problem}, plain, convex"]["repaired"] for problem in FAMILIES)
    return (
        f"With purely private noise the powers of ε are {min(powers):.2f} to {max(powers):.2f}, where the "
        f"table has {-max(POWERS.values()):.2f} to {-min(POWERS.values()):.2f}. From ε = {EPSILONS[0]:g} to "
        f"{EPSILONS[-1]:g} the distance goes from {rank[0]:.1g} to {rank[-1]:.1g} on low rank, and from "
        f"{features[0]:.1g} to {features[-1]:.1g} on common features."
    )
