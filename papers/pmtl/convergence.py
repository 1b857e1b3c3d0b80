"""What Theorems 3 and 5 share: both methods' plans, tasks' models over rounds, and rounds of q of m tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cloister import Plan, Tasks
from cloister.algorithms import Increment, Offset, Personalized
from cloister.channel import Relation
from cloister.core.arrays import Array
from cloister.engines import Run
from cloister.engines.workers import Engine
from cloister.learners import Descent
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Everyone, Poisson
from papers.figure import Cell, Claim, Data, Found, Row, budget, by, judge, mean, say
from papers.pictures import curve

METHODS = ("published", "true")
RATES, BUDGETS = (0.25, 0.5, 1.0), (8.0, None)


def cells(tasks: int, seeds: range, **others: Any) -> list[Cell]:
    """Return the cells with a share of the tasks in a round; of all other cells the rate is None."""
    return [
        {"tasks": tasks, **others, "epsilon": epsilon, "rate": rate, "seed": seed}
        for rate in RATES
        for epsilon in BUDGETS
        for seed in seeds
    ]


def plan_of(
    method: str,
    cell: Cell,
    learner: Any,
    *,
    step: float,
    clip: float,
    lam: float,
    rounds: int,
    delta: float,
) -> Plan:
    """Return a plan of a step a round; as published it has Theorem 1's noise for q = m, or what q needs.

    For q < m the paper prints no constants: the noise is what its accounting asks for, of hidden samples and
    a silent neighbour.
    """
    its, epsilon = method == "published", cell["epsilon"]
    message = Increment(share=1.0) if its else Offset()
    algorithm = Personalized(
        learner, Descent(step, steps=1), clip=clip, rounds=rounds, lam=lam, message=message
    )
    plan = Plan(algorithm, NoNoise(), n_tasks=cell["tasks"], delta=delta)
    if cell["rate"] is not None:
        sampling = Everyone() if cell["rate"] == 1 else Poisson(cell["rate"], hidden=its)
        plan = replace(plan, sampling=sampling, relation=Relation.ZERO_OUT if its else Relation.REPLACE)
    if epsilon is None:
        return plan
    if its and cell["rate"] is None:  # the multiplier of a round is σ m / γ; mu is in units of silence
        multiplier = 4 * math.sqrt(rounds * math.log(1 / delta)) / epsilon
        return replace(plan, mechanism=Gaussian(2 * math.sqrt(rounds) / multiplier, exact=False))
    return replace(plan, mechanism=Gaussian(exact=False)).calibrate(epsilon)


def states_over_rounds(done: Run, tasks: Tasks, engine: Engine) -> Iterator[tuple[Array, Array]]:
    """Yield the public model, and each task's own, before the first round and after every one."""
    with engine.workers(done.plan, tasks, done.private.seeds) as workers:
        workers.start(done.board.before(0))
        for t in range(done.board.rounds + 1):
            board = done.board.before(t)
            yield board["mean"], workers.save_state().states["weights"]
            if t < done.board.rounds:
                workers.listen(board, done.private.coins[t])


def steps_over_rounds(done: Run, tasks: Tasks, engine: Engine) -> Iterator[Array]:
    """Yield each task's step in every round: of those that sit it out the one that they would make."""
    with engine.workers(done.plan, tasks, done.private.seeds) as workers:
        workers.start(done.board.before(0))
        for t, coins in enumerate(done.private.coins):
            before = workers.save_state()
            weights = np.array(before.states["weights"], dtype=np.float64)
            workers.listen(done.board.before(t), np.ones_like(coins))
            yield workers.save_state().states["weights"] - weights
            if not coins.all():
                workers.restore_state(before)
                workers.listen(done.board.before(t), coins)


def share(rate: float, epsilon: float | None, method: str) -> str:
    """Return the key of a share of tasks."""
    return f"q = {rate:g} m, {budget(epsilon)}, {method}"


def summarise(found: Found) -> Data:
    """Return means over seeds of what was found with shares of the tasks, a number a method."""
    there = [(cell, value) for cell, value in found if cell["rate"] is not None]
    return {
        share(rate, epsilon, method): mean([value[method] for value in values])
        for (rate, epsilon), values in by(there, "rate", "epsilon").items()
        for method in METHODS
    }


def table(data: Data, what: str) -> list[Row]:
    """Return a table's rows of shares."""
    return [
        (
            f"q = {rate:g} m, {budget(epsilon)}: {what}",
            "",
            *(say(data[share(rate, epsilon, method)], ".2g") for method in METHODS),
            "",
        )
        for rate in RATES
        for epsilon in BUDGETS
    ]


def draw(axes: Any, data: Data) -> None:
    for epsilon, style in zip(BUDGETS, ("--o", ":s"), strict=True):
        for method, whose in zip(METHODS, ("paper", "repaired"), strict=True):
            points = [data[share(rate, epsilon, method)] for rate in RATES]
            curve(axes, list(RATES), points, "_", whose, style)
    axes.set(title="q of m tasks in a round", xlabel="q / m", yscale="log")
    axes.set_xticks(RATES)


def claims(data: Data, corollary: str, theorem: str) -> list[Claim]:
    """Return what more tasks in a round are worth: without noise, and where noise sets a floor."""

    def line(epsilon: float | None, method: str) -> tuple[list[float], str]:
        points = [data[share(rate, epsilon, method)][0] for rate in RATES]
        return points, ", ".join(f"{point:.2g}" for point in points)

    (its, true), (its_floor, true_floor) = (
        [line(epsilon, method) for method in METHODS] for epsilon in (None, BUDGETS[0])
    )
    return [
        Claim(
            f"{corollary}, without noise: more tasks in a round end nearer (q = m/4, m/2, m)",
            "",
            *(judge([a >= b for a, b in pairwise(points)], told) for points, told in (its, true)),
        ),
        Claim(
            f"{theorem}, at ε = 8: is what is left with samples at most twice that of everyone?",
            "",
            *(
                judge([point < 2 * points[-1] for point in points], told)
                for points, told in (its_floor, true_floor)
            ),
            asked=True,
        ),
    ]
