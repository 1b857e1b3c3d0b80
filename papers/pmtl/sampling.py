"""Theorems 3 and 5, Corollaries 4 and 6: convergence with q of m tasks in a round.

The regressions of Theorem 5 (400 linear ones, 40 rounds) and of Theorem 3 (200 small networks, 30 rounds)
with a quarter, half and all of the tasks in a round. "Its method" are increments divided by the tasks in a
round, as printed, with the noise of hidden samples that the paper's accounting asks for; "with the true
guarantee" are offsets, priced for coins that the others know and any data in a task's place. δ is 1/1600
and 1/m.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cloister import Plan, run
from cloister.channel import Relation
from cloister.engines import Batched, Local
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Everyone, Poisson
from papers.figure import (
    Cell,
    Claim,
    Data,
    Found,
    Options,
    Outcome,
    Row,
    budget,
    by,
    digits,
    judge,
    mean,
    say,
)
from papers.pictures import curve, legend
from papers.pmtl import theorem_3, theorem_5
from papers.pmtl.states import states_over_rounds

NOT_COVERED = "constants of the bounds, which the paper does not print; other q than m/4, m/2 and m."
RATES, EPSILONS = (0.25, 0.5, 1.0), (8.0, None)
METHODS = ("published", "true")
CONVEX, NETWORKS = 400, 200


def cells(options: Options) -> list[Cell]:
    return [
        {"loss": loss, "rate": rate, "epsilon": epsilon, "seed": seed}
        for seed in options.replications(full=5, quick=1)
        for loss in ("convex", "networks")
        for rate in RATES
        for epsilon in EPSILONS
    ]


def plan_of(cell: Cell, method: str) -> Plan:
    """Return the theorem's plan with so many tasks in a round, and the noise that this asks for."""
    if cell["loss"] == "convex":
        plan = theorem_5.plan_of(method, CONVEX, None)
        plan = replace(plan, delta=theorem_5.DELTA)
    else:
        whole = {"tasks": NETWORKS, "rounds": 30, "epsilon": None, "seed": cell["seed"]}
        plan = replace(theorem_3.plan_of(method, whole), delta=1 / NETWORKS)
    hidden, rate = method == "published", cell["rate"]
    sampling = Everyone() if rate == 1 else Poisson(rate, hidden=hidden)
    plan = replace(plan, sampling=sampling, relation=Relation.ZERO_OUT if hidden else Relation.REPLACE)
    if cell["epsilon"] is None:
        return replace(plan, mechanism=NoNoise())
    return replace(plan, mechanism=Gaussian(exact=False)).calibrate(cell["epsilon"])


def measure(cell: Cell, options: Options) -> dict[str, float]:
    """Return what is above the least value at the end; of networks the mean squared gradient."""
    found, seed = {}, cell["seed"]
    convex = cell["loss"] == "convex"
    tasks = theorem_5.regressions(CONVEX, seed) if convex else theorem_3.regressions(NETWORKS, seed)
    engine: Any = Local() if convex else Batched("cpu")
    for method in METHODS:
        done = run(plan_of(cell, method), tasks, random_state=seed, engine=engine)
        walk = list(states_over_rounds(done, tasks, engine))
        if convex:
            public, own = walk[-1]
            value = theorem_5.objective(tasks, np.asarray(own), np.asarray(public)) - theorem_5.least(tasks)
        else:  # a step is the gradient times its size, for those that take part
            steps = np.diff(np.asarray([own for _, own in walk], dtype=np.float64), axis=0) / theorem_3.STEP
            value = (steps**2).sum(axis=2).sum() / np.asarray(done.private.coins).sum()
        found[method] = digits(float(value))
    return found


def summarise(found: Found) -> Data:
    return {
        f"{loss}, q = {rate:g} m, {budget(epsilon)}, {method}": mean([value[method] for value in values])
        for (loss, rate, epsilon), values in by(found, "loss", "rate", "epsilon").items()
        for method in METHODS
    }


WHAT = {"convex": "Theorem 5: above the least value", "networks": "Theorem 3: mean squared gradient"}


def table(data: Data) -> list[Row]:
    return [
        (
            f"{title}, q = {rate:g} m, {budget(epsilon)}",
            "",
            *(say(data[f"{loss}, q = {rate:g} m, {budget(epsilon)}, {method}"], ".2g") for method in METHODS),
            "",
        )
        for loss, title in WHAT.items()
        for rate in RATES
        for epsilon in EPSILONS
    ]


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 3.4)
    for axes, (loss, title) in zip(figure.subplots(1, 2), WHAT.items(), strict=True):
        for epsilon, style in zip(EPSILONS, ("-o", ":s"), strict=True):
            for method, whose, label in zip(
                METHODS, ("paper", "repaired"), ("as printed", "true"), strict=True
            ):
                points = [data[f"{loss}, q = {rate:g} m, {budget(epsilon)}, {method}"] for rate in RATES]
                curve(axes, list(RATES), points, f"{label}, {budget(epsilon)}", whose, style)
        axes.set(title=title, xlabel="share of the tasks in a round, q/m", yscale="log")
        axes.set_xticks(RATES)
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    def line(loss: str, said: str, method: str) -> list[float]:
        return [data[f"{loss}, q = {rate:g} m, {said}, {method}"][0] for rate in RATES]

    def more(loss: str, method: str, said: str) -> Outcome:
        points = line(loss, said, method)
        told = ", ".join(f"{point:.2g}" for point in points)
        return judge([a >= b for a, b in pairwise(points)], f"{told} at {said}")

    return [
        Claim(
            f"{name}, without noise: more tasks in a round end nearer (q = m/4, m/2, m)",
            "",
            more(loss, "published", "no noise"),
            more(loss, "true", "no noise"),
        )
        for loss, name in (("convex", "Corollary 6"), ("networks", "Corollary 4"))
    ] + [
        Claim(
            f"{name}, at ε = 8: is the floor of sampling at most twice that of everyone?",
            "",
            *(
                judge(
                    [point < 2 * line(loss, "ε = 8", method)[-1] for point in line(loss, "ε = 8", method)],
                    ", ".join(f"{point:.2g}" for point in line(loss, "ε = 8", method)),
                )
                for method in METHODS
            ),
            asked=True,
        )
        for loss, name in (("convex", "Theorem 5"), ("networks", "Theorem 3"))
    ]


def finding(data: Data) -> str:
    its, true = (data[f"convex, q = 0.25 m, no noise, {method}"][0] for method in METHODS)
    return (
        f"With a quarter of the tasks in a round the printed increments end {its / true:.0f} times as far "
        "from the "
        "optimum as offsets, without any noise: they are divided by q and not by m, so that the public "
        "model is not "
        "the mean."
    )
