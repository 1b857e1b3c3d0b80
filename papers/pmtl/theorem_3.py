"""Theorem 3: on losses that are not convex, mean squared gradients fall with rounds and tasks.

Regressions through networks of four hidden units (20 rows in 5 dimensions, 29 parameters), λ = 0.1, one
gradient step a round, everyone in every round. Shown is the mean over rounds and tasks of the squared
gradient of f_k at the task's own model, which is what the theorem bounds. "With the true guarantee" is the
paper's definition at δ = 1/m. With q of m tasks in a round (200 tasks, 30 rounds) increments are divided by
q, as printed, with the noise of hidden samples that the paper's accounting asks for; offsets are priced for
coins that others know.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from cloister import Tasks, run
from cloister.engines import Batched
from cloister.learners import Module
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
from papers.pictures import at, curve, legend
from papers.pmtl import convergence

NOT_COVERED = "constants of the bound, which the paper does not print; other q than m/4, m/2 and m."
DIM, ROWS, HIDDEN, LAM, STEP = 5, 20, 4, 0.1, 0.1
CLIP = 2.0
LENGTHS, COUNTS = (10, 30, 100), (50, 200, 800)
EPSILONS: tuple[float | None, ...] = (1.0, 8.0, None)


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=5, quick=1)
    over = [(200, length) for length in LENGTHS] + [(count, 30) for count in COUNTS if count != 200]
    found: list[Cell] = [
        {"tasks": tasks, "rounds": rounds, "epsilon": epsilon, "rate": None, "seed": seed}
        for tasks, rounds in over
        for epsilon in EPSILONS
        for seed in seeds
    ]
    return found + convergence.cells(200, seeds, rounds=30)


def regressions(tasks: int, seed: int) -> Tasks:
    rng = np.random.default_rng(seed)
    weights = np.ones(DIM) / math.sqrt(DIM) + 0.3 * rng.normal(size=(tasks, DIM)) / math.sqrt(DIM)
    X = rng.normal(size=(tasks, ROWS, DIM)).astype(np.float32)
    y = np.tanh(2 * np.einsum("knd,kd->kn", X, weights)) + 0.1 * rng.normal(size=(tasks, ROWS))
    return Tasks.from_list(list(X), list(y.astype(np.float32)))


def measure(cell: Cell, options: Options) -> dict[str, float]:
    """Return the mean over rounds and tasks of a squared gradient: a step is the gradient times its size."""
    torch.manual_seed(cell["seed"])
    learner = Module(nn.Sequential(nn.Linear(DIM, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)), nn.MSELoss())
    tasks, found = regressions(cell["tasks"], cell["seed"]), {}
    numbers = {"step": STEP, "clip": CLIP, "lam": LAM, "delta": 1 / cell["tasks"]}
    plan = partial(convergence.plan_of, cell=cell, learner=learner, rounds=cell["rounds"], **numbers)
    for method in convergence.METHODS:
        done = run(plan(method), tasks, random_state=cell["seed"], engine=Batched("cpu"))
        steps = convergence.steps_over_rounds(done, tasks, Batched("cpu"))
        found[method] = digits(float(np.mean([((step / STEP) ** 2).sum(axis=1).mean() for step in steps])))
    return found


def summarise(found: Found) -> Data:
    data = convergence.summarise(found)
    everyone = [(cell, value) for cell, value in found if cell["rate"] is None]
    for (tasks, rounds, epsilon), values in by(everyone, "tasks", "rounds", "epsilon").items():
        said = budget(epsilon)
        for method in convergence.METHODS:
            data[f"{tasks} tasks, {rounds} rounds, {said}, {method}"] = mean(
                [value[method] for value in values]
            )
    return data


def table(data: Data) -> list[Row]:
    keys = [key.removesuffix(", true") for key in data if key.endswith(", true") and "tasks" in key]
    texts = [(key, *(say(data[f"{key}, {method}"], ".3g") for method in convergence.METHODS)) for key in keys]
    rows: list[Row] = [
        (f"{key}: mean squared gradient", "", published, true, "") for key, published, true in texts
    ]
    return rows + convergence.table(data, "mean squared gradient")


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(9.0, 3.6)
    left, middle, right = figure.subplots(1, 3)
    for said, style in (("ε = 1", "-o"), ("ε = 8", "--o"), ("no noise", ":s")):
        for method, whose in zip(convergence.METHODS, ("paper", "repaired"), strict=True):
            label = f"{'as printed' if method == 'published' else 'true'}, {said}"
            points = [data[f"200 tasks, {T} rounds, {said}, {method}"] for T in LENGTHS]
            curve(left, list(LENGTHS), points, label, whose, style)
            points = [data[f"{m} tasks, 30 rounds, {said}, {method}"] for m in COUNTS]
            curve(middle, list(COUNTS), points, "_", whose, style)
    left.set(xlabel="rounds", ylabel="mean squared gradient", yscale="log", title="200 tasks")
    middle.set(xlabel="tasks", yscale="log", title="30 rounds")
    at(left, list(LENGTHS))
    at(middle, list(COUNTS))
    convergence.draw(right, data)
    right.set(yscale="linear", ylim=(0, None))
    legend(figure, 3)


def claims(data: Data) -> list[Claim]:
    def value(m: int, rounds: int, said: str, how: str) -> float:
        return float(data[f"{m} tasks, {rounds} rounds, {said}, {how}"][0])

    def line(how: str, said: str, over: str) -> list[float]:
        if over == "rounds":
            return [value(200, rounds, said, how) for rounds in LENGTHS]
        return [value(m, 30, said, how) for m in COUNTS]

    def falls(how: str, over: str, saids: tuple[str, ...]) -> Outcome:
        lines = [line(how, said, over) for said in saids]
        told = "; ".join(
            f"{', '.join(f'{point:.2g}' for point in each)} at {said}"
            for each, said in zip(lines, saids, strict=True)
        )
        return judge([a > b for each in lines for a, b in pairwise(each)], told)

    quiet, noisy = ("no noise",), ("ε = 1", "ε = 8")
    return [
        Claim(
            "Corollary 4: without noise the mean squared gradient falls with rounds (10, 30, 100)",
            "",
            falls("published", "rounds", quiet),
            falls("true", "rounds", quiet),
        ),
        Claim(
            "Theorem 3: at a fixed ε it falls with the number of tasks (50, 200, 800)",
            "",
            falls("published", "tasks", noisy),
            falls("true", "tasks", noisy),
        ),
        Claim(
            "Theorem 3: at a fixed ε more rounds need not help: there is a best number of them",
            "",
            grows([line("published", said, "rounds") for said in noisy]),
            grows([line("true", said, "rounds") for said in noisy]),
        ),
        *convergence.claims(data, "Corollary 4", "Theorem 3"),
    ]


def grows(lines: list[list[float]]) -> Outcome:
    told = " and ".join(f"{each[0]:.2g} to {each[-1]:.2g}" for each in lines)
    return judge([each[-1] > min(each) for each in lines], told)


def finding(data: Data) -> str:
    its = [data[f"200 tasks, {rounds} rounds, ε = 1, published"][0] for rounds in LENGTHS]
    true = [data[f"200 tasks, {rounds} rounds, ε = 1, true"][0] for rounds in LENGTHS]
    return (
        "Gradients fall with rounds without noise, and with tasks. At ε = 1 the published noise, in "
        f"increments, adds up over rounds (from {its[0]:.2g} to {its[-1]:.2g}); in offsets it does not "
        f"({true[0]:.2g} to {true[-1]:.2g})."
    )
