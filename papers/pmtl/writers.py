"""What the figures of real writers share: two data sets, the network, and public settings of all runs.

Digits of 580 writers of MNIST, 20 training images each, and the part of FEMNIST that the authors publish
(189 writers, 62 classes, 22 training images on average). The network is the paper's for FEMNIST with a
quarter of its channels. Every seed is another split of a writer's images, another start and other noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from benchmarks.clients import cnn
from benchmarks.personal import load, task_accuracies
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FedProx, LocalOnly, Personalized
from cloister.channel import Relation
from cloister.engines import Batched, Run
from cloister.learners import Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.metrics import spread
from cloister.plan.algorithm import Algorithm
from cloister.sampling import Poisson
from harness.sources import data_file
from papers.figure import Skipped
from papers.pmtl.runs import Published

#: As in Figure 3, the largest added; None is without noise.
EPSILONS: tuple[float | None, ...] = (0.05, 0.1, 0.4, 0.8, 2.0, 8.0, None)
ROUNDS, STEPS = 10, 10
LOCAL = Descent(0.1, batch=20, steps=STEPS)
LAM = 0.1
#: The longest message at ε = 1 and above; below it is shortened with ε, so that noise does not swamp models.
CLIP = 0.4
DATA = ("femnist_pmtl_test.npz", "mnist_by_writer.npz")
FILES = {"mnist20": "mnist_by_writer.npz", "femnist": "femnist_pmtl_test.npz"}
TITLES = {"mnist20": "MNIST by writer", "femnist": "FEMNIST part"}


@dataclass(frozen=True)
class Writers:
    """A data set: its classes, and the run of Figure 2."""

    classes: int
    panel: Published


SETS = {
    "mnist20": Writers(10, Published(n_tasks=580, per_round=290, rounds=20, clip=0.4, sigma=0.01)),
    "femnist": Writers(62, Published(n_tasks=189, per_round=92, rounds=20, clip=0.2, sigma=0.01)),
}


def require_data() -> None:
    """Skip the figure where a file is not there."""
    for name in FILES.values():
        if not data_file(name).exists():
            raise Skipped(f"{name} is not at {data_file(name)}: see docs/datasets.md, and set CLOISTER_DATA.")


@cache
def split(name: str, seed: int, quick: bool) -> tuple[Tasks, Tasks]:
    """Return training and test images with ink 1 on 0; quickly, of twenty writers."""
    train, test = (ink(name, part) for part in load(name, seed))
    return (train.select(range(20)), test.select(range(20))) if quick else (train, test)


def ink(name: str, part: Tasks) -> Tasks:
    """Turn FEMNIST's images, black on white, into what MNIST's are."""
    X = 1 - part.X if name == "femnist" else part.X
    return Tasks(part.ids, X, part.y, part.weight, part.offsets)


def network(name: str, seed: int) -> Module:
    torch.manual_seed(seed)
    return Module(cnn(8, 16, SETS[name].classes))


def engine(device: str) -> Batched:
    return Batched(device, tf32=True, compiled=False)


def said_of(epsilon: float | None) -> str:
    """Return how keys of results name a budget."""
    return "no noise" if epsilon is None else f"{epsilon:g}"


def clip(epsilon: float | None) -> float:
    return CLIP * min(1.0, math.inf if epsilon is None else epsilon)


def methods(name: str, seed: int, quick: bool, epsilon: float | None) -> dict[str, Algorithm]:
    """Return what is compared: private MTL, and two ways to one public model for all."""
    rounds = 2 if quick else ROUNDS
    shared = (network(name, seed), LOCAL, clip(epsilon), rounds)
    return {
        "mtl": Personalized(*shared, lam=LAM),
        "fedavg": FedAvg(*shared),
        "fedprox": FedProx(*shared, lam=LAM),
    }


def alone(name: str, seed: int, quick: bool) -> LocalOnly:
    """Return learning alone, with as many steps as a task of the others has."""
    rounds = 2 if quick else ROUNDS
    return LocalOnly(network(name, seed), replace(LOCAL, steps=STEPS * rounds))


def true_plan(algorithm: Algorithm, n_tasks: int, epsilon: float | None) -> Plan:
    """Return a plan priced by the paper's definition: any data in place of a task's, and all others see."""
    if epsilon is None:
        return Plan(algorithm, NoNoise(), n_tasks=n_tasks)
    return Plan(algorithm, n_tasks=n_tasks).calibrate(epsilon)


def published_plan(algorithm: Algorithm, n_tasks: int, epsilon: float) -> Plan:
    """Return a plan as the paper counts: a hidden half of the tasks, a silent neighbour, delta 1 / tasks."""
    sampling, relation = Poisson(0.5, hidden=True), Relation.ZERO_OUT
    plan = Plan(algorithm, Gaussian(), sampling, n_tasks=n_tasks, relation=relation, delta=1 / n_tasks)
    return plan.calibrate(epsilon)


def trained(plan: Plan, train: Tasks, seed: int, device: str) -> Run:
    return run_plan(plan, train, random_state=seed, engine=engine(device))


def scored(done: Run, test: Tasks, device: str) -> list[float]:
    """Return mean test accuracy over tasks, and over the tenth that it is lowest for."""
    algorithm: Any = done.plan.algorithm
    found = spread(task_accuracies(algorithm.learner, test, device, done.private.models["coef"]))
    return [float(found.mean), float(found.worst_decile)]
