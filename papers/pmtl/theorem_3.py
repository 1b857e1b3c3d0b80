"""Theorem 3: on losses that are not convex, mean squared gradients fall with rounds and tasks.

Regressions through networks of four hidden units (20 rows in 5 dimensions, 29 parameters), λ = 0.1, one
gradient step a round, everyone in every round. Shown is the mean over rounds and tasks of the squared
gradient of f_k at the task's own model, which is what the theorem bounds. At a fixed ε the noise of a round
grows with the number of rounds. "With the true guarantee" is the paper's definition at δ = 1/m.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import Increment, Offset, Personalized
from cloister.engines import Batched
from cloister.learners import Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, budget, by, digits, mean, say
from papers.pictures import at, curve
from papers.pmtl.states import states_over_rounds

CLAIM = (
    "The mean squared gradient is bounded by terms that fall with rounds, and one of noise that falls "
    "with the "
    "number of tasks."
)
DIM, ROWS, HIDDEN, LAM, STEP = 5, 20, 4, 0.1, 0.1
CLIP = 2.0
LENGTHS, COUNTS = (10, 30, 100), (50, 200, 800)
EPSILONS: tuple[float | None, ...] = (1.0, 8.0, None)
METHODS = ("published", "true")


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=5, quick=1)
    over = [(200, length) for length in LENGTHS] + [(count, 30) for count in COUNTS if count != 200]
    return [
        {"tasks": tasks, "rounds": rounds, "epsilon": epsilon, "seed": seed}
        for tasks, rounds in over
        for epsilon in EPSILONS
        for seed in seeds
    ]


def regressions(tasks: int, seed: int) -> Tasks:
    rng = np.random.default_rng(seed)
    weights = np.ones(DIM) / math.sqrt(DIM) + 0.3 * rng.normal(size=(tasks, DIM)) / math.sqrt(DIM)
    X = rng.normal(size=(tasks, ROWS, DIM)).astype(np.float32)
    y = np.tanh(2 * np.einsum("knd,kd->kn", X, weights)) + 0.1 * rng.normal(size=(tasks, ROWS))
    return Tasks.from_list(list(X), list(y.astype(np.float32)))


def plan_of(method: str, cell: Cell) -> Plan:
    torch.manual_seed(cell["seed"])
    learner = Module(nn.Sequential(nn.Linear(DIM, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)), nn.MSELoss())
    message = Increment(share=1.0) if method == "published" else Offset()
    rounds, tasks, epsilon = cell["rounds"], cell["tasks"], cell["epsilon"]
    algorithm = Personalized(
        learner, Descent(STEP, steps=1), clip=CLIP, rounds=rounds, lam=LAM, message=message
    )
    if epsilon is None:
        return Plan(algorithm, NoNoise(), n_tasks=tasks)
    if method == "published":
        multiplier = 4 * math.sqrt(rounds * math.log(tasks)) / epsilon
        return Plan(
            algorithm,
            Gaussian(2 * math.sqrt(rounds) / multiplier, exact=False),
            n_tasks=tasks,
            delta=1 / tasks,
        )
    return Plan(algorithm, Gaussian(exact=False), n_tasks=tasks, delta=1 / tasks).calibrate(epsilon)


def measure(cell: Cell, options: Options) -> dict[str, float]:
    """Return the mean over rounds and tasks of a squared gradient: a step is the gradient times its size."""
    tasks, found = regressions(cell["tasks"], cell["seed"]), {}
    for method in METHODS:
        done = run_plan(plan_of(method, cell), tasks, random_state=cell["seed"], engine=Batched("cpu"))
        walk = [own for _, own in states_over_rounds(done, tasks, Batched("cpu"))]
        steps = np.diff(np.asarray(walk, dtype=np.float64), axis=0) / STEP
        found[method] = digits(float((steps**2).sum(axis=2).mean()))
    return found


def summarise(found: Found) -> Data:
    data: Data = {}
    for (tasks, rounds, epsilon), values in by(found, "tasks", "rounds", "epsilon").items():
        said = budget(epsilon)
        for method in METHODS:
            data[f"{tasks} tasks, {rounds} rounds, {said}, {method}"] = mean(
                [value[method] for value in values]
            )
    return data


def table(data: Data) -> list[Row]:
    keys = [key.removesuffix(", true") for key in data if key.endswith(", true")]
    texts = [(key, *(say(data[f"{key}, {method}"], ".3g") for method in METHODS)) for key in keys]
    return [(f"{key}: mean squared gradient", "", published, true, "") for key, published, true in texts]


def draw(data: Data, figure: Any) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for said, whose in (("ε = 1", "paper"), ("ε = 8", "repaired"), ("no noise", "no noise")):
        curve(
            left, list(LENGTHS), [data[f"200 tasks, {T} rounds, {said}, true"] for T in LENGTHS], said, whose
        )
        curve(right, list(COUNTS), [data[f"{m} tasks, 30 rounds, {said}, true"] for m in COUNTS], said, whose)
    left.set(xlabel="rounds", ylabel="mean squared gradient", yscale="log", title="200 tasks")
    right.set(xlabel="tasks", title="30 rounds")
    at(left, list(LENGTHS))
    at(right, list(COUNTS))
    left.legend()


def finding(data: Data) -> Finding:
    value = lambda m, T, said: data[f"{m} tasks, {T} rounds, {said}, true"][0]  # noqa: E731
    rounds = value(200, LENGTHS[-1], "no noise") < value(200, LENGTHS[0], "no noise")
    tasks = value(COUNTS[-1], 30, "ε = 1") < value(COUNTS[0], 30, "ε = 1")
    grows = value(200, LENGTHS[-1], "ε = 1") > value(200, LENGTHS[0], "ε = 1")
    sentence = (
        f"Without noise it goes from {value(200, LENGTHS[0], 'no noise'):.2g} to "
        f"{value(200, LENGTHS[-1], 'no noise'):.2g} with ten times the rounds; at ε = 1 from "
        f"{value(COUNTS[0], 30, 'ε = 1'):.2g} to {value(COUNTS[-1], 30, 'ε = 1'):.2g} with sixteen times "
        "the tasks" + (", and more rounds at the same ε make it larger." if grows else ".")
    )
    return Finding(Verdict.YES if rounds and tasks else Verdict.PARTLY, sentence)
