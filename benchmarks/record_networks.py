"""Networks of a few institutions, protected by record or by institution: mean test accuracy over them.

Twelve institutions hold the digits of 1 to 40 writers, 20 images of each (2,300 in all), and train a linear
classifier of pixels. *record* is federated averaging where each record sends its clipped gradient, *task*
where each institution sends its clipped update; both end with fine-tuning at home, held near the public
model. *alone* tells nothing. *small* are the six institutions of 1 to 4 writers. Everyone visible,
relation replace, default delta of so many records or institutions, exact noise from a seed. Step size, clip,
rounds and pull of each way and budget are chosen on another split and grouping of the writers (seed 100),
and scored on ten of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from benchmarks import Figures, Table, Targets
from benchmarks.personal import load, task_accuracies
from cloister import Plan, Tasks, Unit
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FineTuning, LocalOnly
from cloister.engines import Batched
from cloister.learners import Descent, Module, Quadratic
from cloister.mechanisms import NoNoise
from harness.cells import Cells, Json

NAME = "record-networks"
DATA = ("mnist_by_writer.npz",)
SEEDS, CHOOSING = range(10), 100
WRITERS = (1, 1, 2, 2, 3, 4, 5, 7, 10, 15, 25, 40)
SMALL = 6
WAYS = [("alone", ""), ("task", "1"), ("task", "8"), *(("record", e) for e in ("1", "2", "8", "inf"))]
#: Step size, clip of a gradient or an update, and rounds; and the pull of the public model at home.
BY_RECORD = [(2.0, 0.5, 20), (4.0, 1.0, 20)]
BY_TASK = [(0.1, 0.5, 3), (0.1, 0.5, 10)]
PULLS = (0.01, 0.1)
ALONE = [Descent(lr, batch=20, steps=300) for lr in (0.03, 0.1)]


def learner() -> Module:
    """Return a linear classifier that starts at zero."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return Module(net)


def institutions(seed: int) -> tuple[Tasks, Tasks]:
    """Return training and test images of writers, put together as institutions."""
    parts = load("mnist20", seed)
    order = np.random.default_rng(seed).permutation(len(parts[0]))[: sum(WRITERS)]
    home = np.repeat(np.arange(len(WRITERS)), WRITERS)

    def merged(part: Tasks) -> Tasks:
        chosen = part.select(order)
        return Tasks.from_arrays(chosen.X, chosen.y, np.repeat(home, chosen.sizes))

    return merged(parts[0]), merged(parts[1])


def plans(way: str, epsilon: str, train: Tasks) -> list[Plan]:
    """Return a way's candidates at a budget."""
    net, count = learner(), len(train)
    if way == "alone":
        return [Plan(LocalOnly(net, solver), n_tasks=count) for solver in ALONE]
    unit = Unit.record(len(train.y)) if way == "record" else Unit.task()
    found = []
    for lr, clip, rounds in BY_RECORD if way == "record" else BY_TASK:
        local = Descent(lr) if way == "record" else Descent(lr, batch=20, steps=10)
        longest = lr * clip if way == "record" else clip
        for pull in PULLS:
            tuning = FineTuning(Descent(0.1, batch=20, steps=100), Quadratic(pull))
            algorithm = FedAvg(net, local, longest, rounds, finetune=tuning)
            if math.isinf(float(epsilon)):
                found.append(Plan(algorithm, NoNoise(), n_tasks=count, unit=unit))
            else:
                found.append(Plan(algorithm, n_tasks=count, unit=unit).calibrate(float(epsilon)))
    return found


def score(plan: Plan, parts: tuple[Tasks, Tasks], seed: int) -> list[float]:
    """Run a plan; return the accuracy over all institutions, and over the small ones."""
    coef = run_plan(plan, parts[0], random_state=seed, engine=Batched("cpu")).private.models["coef"]
    each = task_accuracies(learner(), parts[1], "cpu", coef)
    return [float(each.mean()), float(each[:SMALL].mean())]


def measure(cell: Json) -> list[list[float]]:
    """Return accuracies on each split, with the candidate that does best on another one."""
    way, epsilon, seeds = cell
    torch.set_num_threads(1)
    other = institutions(CHOOSING)
    best = max(plans(way, epsilon, other[0]), key=lambda plan: score(plan, other, CHOOSING)[0])
    return [score(best, institutions(seed), seed) for seed in seeds]


def run(quick: bool, cells: Cells, seeds: Sequence[int] | None = None) -> tuple[Figures, Targets, Table]:
    """Measure all ways; quickly, on one split."""
    splits = list(seeds or (range(1) if quick else SEEDS))
    found = cells.measured(measure, [(*way, splits) for way in WAYS])
    figures: Figures = {}
    rows = [["protected", "epsilon", "accuracy", "small institutions", "better than alone, standard errors"]]
    alone = np.array(found[0])
    for (way, epsilon), values in zip(WAYS, map(np.array, found), strict=True):
        apart = values[:, 0] - alone[:, 0]
        error = np.std(apart, ddof=1) / math.sqrt(len(apart)) if len(apart) > 1 and apart.any() else math.nan
        name = "_".join(filter(None, (way, epsilon)))
        figures |= {name: float(values[:, 0].mean()), f"{name}_small": float(values[:, 1].mean())}
        told = "-" if math.isnan(error) else f"{apart.mean() / error:.1f}"
        rows.append(
            [way, epsilon.replace("inf", "no noise") or "-", *(f"{v:.4f}" for v in values.mean(0)), told]
        )
    return figures, {"record_1": (">=", figures["alone"]), "record_8": (">=", figures["alone"])}, rows
