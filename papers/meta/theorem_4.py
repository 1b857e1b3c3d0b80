"""Theorems 4 and 5, Lemmas 8 and 9: stability and rates of private meta-learning by noisy gradient descent.

Linear regressions of 10 rows in 30 dimensions around one centre, solved exactly (b = 0). *Stability* (Lemma
8): how far the last meta-model moves in 40 rounds without noise if one task of K has other data, against
2LηT/K. *Convergence* (Lemma 9): the mean iterate's distance from the optimum, K = 400, ε = 10, against
M²/(2ηT) + ηL²/2 + ησ²d. *Rates* (Theorems 4 and 5): excess and transfer risk on fresh tasks. "Its method":
a hidden half in a round, a silent neighbour, δ = 1/K; "with the true guarantee": everyone, any other data.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cloister import Plan, Tasks, run
from cloister.channel import Relation
from cloister.datasets import around_centres
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Poisson
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, budget, by, judge, mean, say
from papers.meta.learning import SETTING, fresh_error
from papers.meta.streams import Envelopes, excess_risk, one_centre
from papers.pictures import COLOURS, at, curve, legend

NOT_COVERED = "the values of T, η and b that the theorems plug in, which are in the paper's main text."
COUNTS, LENGTHS, TASKS = (100, 200, 400, 800), (5, 10, 20, 40, 80), 400
EPSILONS: tuple[float | None, ...] = (1.0, 3.0, 10.0, None)
METHODS = ("published", "true")
#: Many, as the least value of the risk is that of their best meta-model.
FRESH = 4000
ETA = SETTING.step / SETTING.lam


def cells(options: Options) -> list[Cell]:
    counts = COUNTS[:3] if options.quick else COUNTS
    seeds = options.replications(full=5, quick=2)
    found: list[Cell] = [{"part": "stability", "tasks": m, "seed": s} for m in counts for s in seeds]
    found += [{"part": "convergence", "rounds": t, "seed": s} for t in LENGTHS for s in seeds]
    rates = [(m, EPSILONS[-2]) for m in counts] + [(m, None) for m in counts]
    rates += [(TASKS, epsilon) for epsilon in EPSILONS[:2]]
    return found + [{"part": "rate", "tasks": m, "epsilon": e, "seed": s} for m, e in rates for s in seeds]


def measure(cell: Cell, options: Options) -> dict[str, Any]:
    return {"stability": stability, "convergence": convergence, "rate": rate}[cell["part"]](cell)


def stability(cell: Cell) -> dict[str, float]:
    """Return how far the meta-model moves if one task has other data, and Lemma 8's bound on the mean."""
    data, m = one_centre(cell["seed"], cell["tasks"]).train, cell["tasks"]
    other = data.y.copy()
    other[: data.offsets[1]] *= -3
    meta = SETTING.meta(data.X.shape[1])
    plan = Plan(meta, NoNoise(), Poisson(0.5), n_tasks=m)
    ends = [
        run(plan, Tasks(data.ids, data.X, y, data.weight, data.offsets), random_state=cell["seed"]).board[
            "mean"
        ]
        for y in (data.y, other)
    ]
    bound = 2 * SETTING.clip * ETA * meta.rounds / m
    return {"moved": float(np.linalg.norm(ends[0] - ends[1])), "bound": bound}


def convergence(cell: Cell) -> dict[str, float]:
    """Return how far the mean iterate is from the optimum, and Lemma 9's bound on its mean."""
    data, rounds = one_centre(cell["seed"], TASKS).train, cell["rounds"]
    meta = replace(SETTING.meta(data.X.shape[1]), rounds=rounds, tail=1.0)
    plan = Plan(meta, Gaussian(exact=False), n_tasks=TASKS).calibrate(10.0)
    envelopes = Envelopes.of(data, SETTING.lam)
    sigma = SETTING.clip * plan.noise(0, plan.rounds[0].channels[0]) / TASKS
    radius, clip = float(np.linalg.norm(envelopes.minimiser())), SETTING.clip
    bound = radius**2 / (2 * ETA * rounds) + ETA * clip**2 / 2 + ETA * sigma**2 * data.X.shape[1]
    done = run(plan, data, random_state=cell["seed"])
    return {"distance": excess_risk(done.board["average"], envelopes), "bound": bound}


def rate(cell: Cell) -> dict[str, list[float]]:
    """Return excess and transfer risk under both accountings."""
    data, m = around_centres(cell["seed"], cell["tasks"], centres=1, fresh=FRESH), cell["tasks"]
    epsilon = cell["epsilon"]
    meta, fresh, found = SETTING.meta(data.centres.shape[1]), Envelopes.of(data.fresh, SETTING.lam), {}
    half = Plan(
        meta,
        NoNoise() if epsilon is None else Gaussian(exact=False),
        Poisson(0.5, hidden=True),
        n_tasks=m,
        relation=Relation.ZERO_OUT,
        delta=1 / m,
    )
    every = Plan(meta, NoNoise() if epsilon is None else Gaussian(exact=False), n_tasks=m)
    for name, plan in zip(METHODS, (half, every), strict=True):
        done = run(
            plan if epsilon is None else plan.calibrate(epsilon), data.train, random_state=cell["seed"]
        )
        risk = fresh_error(data, done) - data.noise**2
        found[name] = [excess_risk(done.board["average"], fresh), risk]
    return found


def summarise(found: Found) -> Data:
    parts = by([(cell, (cell, value)) for cell, value in found], "part")
    data: Data = {}
    for (m,), values in by(parts["stability",], "tasks").items():
        for what in ("moved", "bound"):
            data[f"{m} tasks, {what}"] = mean([value[what] for value in values])
    for (rounds,), values in by(parts["convergence",], "rounds").items():
        for what in ("distance", "bound"):
            data[f"{rounds} rounds, {what}"] = mean([value[what] for value in values])
    for (m, epsilon), values in by(parts["rate",], "tasks", "epsilon").items():
        for method in METHODS:
            for place, what in enumerate(("excess", "transfer")):
                key = f"{m} tasks, {budget(epsilon)}, {method}, {what}"
                data[key] = mean([value[method][place] for value in values])
    data["tasks"] = sorted({cell["tasks"] for cell, _ in found if "tasks" in cell})
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for m in data["tasks"]:
        bound, moved = say(data[f"{m} tasks, bound"], ".3g"), say(data[f"{m} tasks, moved"], ".3g")
        rows.append((f"Lemma 8: the last meta-model moves, {m} tasks", f"≤ {bound}", moved, "", ""))
    for t in LENGTHS:
        bound = say(data[f"{t} rounds, bound"], ".3g")
        rows.append(
            (
                f"Lemma 9: distance after {t} rounds",
                f"≤ {bound}",
                "",
                say(data[f"{t} rounds, distance"], ".2g"),
                "",
            )
        )
    for what in ("excess", "transfer"):
        for epsilon in EPSILONS:
            for m in data["tasks"]:
                key = f"{m} tasks, {budget(epsilon)}"
                if f"{key}, true, {what}" in data:
                    texts = [say(data[f"{key}, {method}, {what}"], ".2g") for method in METHODS]
                    rows.append((f"{what} risk, {key}", "", *texts, ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(9.0, 3.3)
    left, middle, right = figure.subplots(1, 3)
    counts = data["tasks"]
    curve(left, counts, [data[f"{m} tasks, moved"] for m in counts], "measured", "repaired")
    curve(left, counts, [data[f"{m} tasks, bound"] for m in counts], "bound", "alone", "--s")
    curve(middle, list(LENGTHS), [data[f"{t} rounds, distance"] for t in LENGTHS], "measured", "repaired")
    curve(middle, list(LENGTHS), [data[f"{t} rounds, bound"] for t in LENGTHS], "bound", "alone", "--s")
    for said, style in (("ε = 10", "-o"), ("no noise", ":s")):
        for method, whose, label in zip(
            METHODS, ("paper", "repaired"), ("its accounting", "true"), strict=True
        ):
            points = [data[f"{m} tasks, {said}, {method}, excess"] for m in counts]
            curve(right, counts, points, f"{said}, {label}", whose, style)
    left.set(title="Lemma 8: one task moves h by", xlabel="tasks", yscale="log")
    middle.set(title="Lemma 9: distance", xlabel="rounds", yscale="log")
    right.set(title="Theorem 4: excess risk", xlabel="tasks", yscale="log")
    at(left, counts)
    at(middle, list(LENGTHS))
    at(right, counts)
    right.axhline(0, color=COLOURS["alone"])
    legend(figure, 3)


def _power(data: Data, keys: list[str], x: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log([data[key][0] for key in keys]), 1)[0])


def claims(data: Data) -> list[Claim]:
    counts = data["tasks"]
    stable = [data[f"{m} tasks, moved"][0] / data[f"{m} tasks, bound"][0] for m in counts]
    near = [data[f"{t} rounds, distance"][0] / data[f"{t} rounds, bound"][0] for t in LENGTHS]

    def falls(method: str, what: str, said: str) -> Outcome:
        power = _power(data, [f"{m} tasks, {said}, {method}, {what}" for m in counts], counts)
        return judge([power <= -0.45], f"K to the {power:.2f}")

    def noise(method: str) -> Outcome:
        keys = [f"{TASKS} tasks, {budget(e)}, {method}, excess" for e in (1.0, 10.0)]
        silent = data[f"{TASKS} tasks, no noise, {method}, excess"][0]
        tight, loose = (max(data[key][0] - silent, 1e-9) for key in keys)
        power = math.log(loose / tight) / math.log(10)
        return judge([power <= -0.9], f"ε to the {power:.2f}, from 1 to 10")

    return [
        Claim(
            "Lemma 8: changing one task moves the meta-model by at most 2LηT/K in the mean",
            "≤ 1 of the bound",
            judge([share <= 1 for share in stable], f"{min(stable):.2g} to {max(stable):.2g} of it"),
        ),
        Claim(
            "Lemma 9: the mean iterate is within M²/(2ηT) + ηL²/2 + ησ²d of the optimum",
            "≤ 1 of the bound",
            None,
            judge([share <= 1 for share in near], f"{min(near):.2g} to {max(near):.2g} of it"),
        ),
        Claim(
            "Theorem 4: excess risk falls at least as 1/√K without noise",
            "power -0.5",
            falls("published", "excess", "no noise"),
            falls("true", "excess", "no noise"),
        ),
        Claim(
            "Theorem 4: and at ε = 10",
            "power -0.5 to -1",
            falls("published", "excess", "ε = 10"),
            falls("true", "excess", "ε = 10"),
        ),
        Claim(
            "Theorem 4: the part of noise falls at least as 1/ε",
            "power -1",
            noise("published"),
            noise("true"),
        ),
        Claim(
            "Theorem 5: transfer risk falls with K as well, at ε = 10",
            "",
            judge_falls(data, "published"),
            judge_falls(data, "true"),
        ),
    ]


def judge_falls(data: Data, method: str) -> Outcome:
    points = [data[f"{m} tasks, ε = 10, {method}, transfer"][0] for m in data["tasks"]]
    told = ", ".join(f"{point:.2g}" for point in points)
    return judge([b < a for a, b in pairwise(points)], told)


def finding(data: Data) -> str:
    last = data["tasks"][-1]
    risk = {method: data[f"{last} tasks, ε = 10, {method}, excess"][0] for method in METHODS}
    return (
        f"At ε = 10 and K = {last} excess risk is {risk['published']:.2g} as "
        f"the paper counts and {risk['true']:.2g} with a true guarantee; without noise it is "
        f"{data[f'{last} tasks, no noise, true, excess'][0]:.2g}."
    )
