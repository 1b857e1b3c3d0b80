"""What the figures of real writers share: two data sets, the network, and public settings of all runs.

Digits of 580 writers of MNIST, 20 training images each, and the part of FEMNIST that the authors publish
(189 writers, 62 classes, 22 training images on average). The network is the paper's for FEMNIST with a
quarter of its channels. Every seed is another split of a writer's images, another start and other noise.

``--data celeba=DIR`` and ``stackoverflow=DIR`` run the same on LEAF's files, which cannot be handed on: DIR
has the folders ``train`` and ``test`` of JSON files, of the same users. Of CelebA their pixels are in the
files, or in ``images`` as .npy arrays (`cloister.datasets.leaf.leaf_celeba`); of StackOverflow the public
vocabularies are ``words.txt`` and ``tags.txt``, a word a line. A network of two convolutions sees faces;
one layer, the paper's logistic regression, tells tags, and is scored by whether the likeliest tag is one of
the question's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.clients import cnn
from benchmarks.personal import load, task_accuracies
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FedProx, LocalOnly, Personalized
from cloister.channel import Relation
from cloister.datasets.leaf import leaf_celeba, leaf_stackoverflow
from cloister.engines import Batched, Run
from cloister.learners import Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.metrics import spread
from cloister.plan.algorithm import Algorithm
from cloister.sampling import Poisson
from harness.sources import data_file
from papers.figure import Options, Skipped
from papers.pmtl.runs import CELEBA, STACK_OVERFLOW, Published

#: As in Figure 3, the largest added; None is without noise.
EPSILONS: tuple[float | None, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 4.0, 8.0, None)
ROUNDS, STEPS = 10, 10
LOCAL = Descent(0.1, batch=20, steps=STEPS)
LAM = 0.1
#: The longest message at ε = 1 and above; below it is shortened with ε, so that noise does not swamp models.
CLIP = 0.4
DATA = ("femnist_pmtl_test.npz", "mnist_by_writer.npz")
FILES = {"mnist20": "mnist_by_writer.npz", "femnist": "femnist_pmtl_test.npz"}
TITLES = {
    "mnist20": "MNIST by writer",
    "femnist": "FEMNIST part",
    "celeba": "CelebA",
    "stackoverflow": "StackOverflow",
}
#: What only a user has.
OWN = ("celeba", "stackoverflow")


@dataclass(frozen=True)
class Writers:
    """A data set: its classes, and the run of Figure 2."""

    classes: int
    panel: Published


SETS = {
    "mnist20": Writers(10, Published(n_tasks=580, per_round=290, rounds=1000, clip=0.4, sigma=0.01)),
    "femnist": Writers(62, Published(n_tasks=189, per_round=92, rounds=1000, clip=0.2, sigma=0.01)),
    "celeba": Writers(2, CELEBA),
    "stackoverflow": Writers(0, STACK_OVERFLOW),
}


def own(options: Options) -> list[str]:
    """Return the data sets that a user names."""
    return [name for name in OWN if name in options.data]


def chosen(options: Options) -> list[str]:
    """Return the data sets to run: those that the user names, or writers if there are none."""
    if names := own(options):
        return [name for name in names if options.path(name)]
    for name in FILES.values():
        if not data_file(name).exists():
            raise Skipped(f"{name} is not at {data_file(name)}: see docs/datasets.md, and set CLOISTER_DATA.")
    return list(FILES)


def split(name: str, seed: int, quick: bool, options: Options) -> tuple[Tasks, Tasks]:
    """Return training and test rows, of writers with ink 1 on 0; quickly, of twenty tasks."""
    train, test = leaf(name, options.path(name)) if name in OWN else writers(name, seed)
    return (
        (train.select(range(min(20, len(train)))), test.select(range(min(20, len(train)))))
        if quick
        else (train, test)
    )


@cache
def writers(name: str, seed: int) -> tuple[Tasks, Tasks]:
    train, test = (ink(name, part) for part in load(name, seed))
    return train, test


@cache
def leaf(name: str, folder: Path) -> tuple[Tasks, Tasks]:
    """Read a user's copy of CelebA or StackOverflow; users must be in both parts."""
    if name == "celeba":
        images = folder / "images" if (folder / "images").is_dir() else None
        parts = [leaf_celeba(folder / part, images) for part in ("train", "test")]
    else:
        words, tags = (
            (folder / f"{what}.txt").read_text(encoding="utf-8").split() for what in ("words", "tags")
        )
        parts = [leaf_stackoverflow(folder / part, words, tags) for part in ("train", "test")]
    both = np.intersect1d(*(part.ids for part in parts))
    if not len(both):
        raise Skipped(f"{folder}/train and {folder}/test have no user in common: cut LEAF's data by sample.")
    train, test = (part.select(np.searchsorted(part.ids, both)) for part in parts)
    return train, test


def ink(name: str, part: Tasks) -> Tasks:
    """Turn FEMNIST's images, black on white, into what MNIST's are."""
    X = 1 - part.X if name == "femnist" else part.X
    return Tasks(part.ids, X, part.y, part.weight, part.offsets)


def network(name: str, seed: int, train: Tasks) -> Module:
    torch.manual_seed(seed)
    if name == "stackoverflow":
        return Module(nn.Linear(train.X.shape[1], train.y.shape[1]), nn.BCEWithLogitsLoss())
    if name == "celeba":
        pooled = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU())
        pooled.extend([nn.MaxPool2d(2), nn.Flatten()])
        size = pooled(torch.zeros(1, *train.X.shape[1:])).shape[1]
        return Module(nn.Sequential(*pooled, nn.Linear(size, 2)))
    return Module(cnn(8, 16, SETS[name].classes))


def engine(device: str) -> Batched:
    return Batched(device, tf32=True, compiled=False)


def said_of(epsilon: float | None) -> str:
    """Return how keys of results name a budget."""
    return "no noise" if epsilon is None else f"{epsilon:g}"


def clip(epsilon: float | None) -> float:
    return CLIP * min(1.0, math.inf if epsilon is None else epsilon)


def methods(name: str, seed: int, quick: bool, epsilon: float | None, train: Tasks) -> dict[str, Algorithm]:
    """Return what is compared: private MTL, and two ways to one public model for all."""
    rounds = 2 if quick else ROUNDS
    shared = (network(name, seed, train), LOCAL, clip(epsilon), rounds)
    return {
        "mtl": Personalized(*shared, lam=LAM),
        "fedavg": FedAvg(*shared),
        "fedprox": FedProx(*shared, lam=LAM),
    }


def alone(name: str, seed: int, quick: bool, train: Tasks) -> LocalOnly:
    """Return learning alone, with as many steps as a task of the others has."""
    rounds = 2 if quick else ROUNDS
    return LocalOnly(network(name, seed, train), replace(LOCAL, steps=STEPS * rounds))


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
    coef = done.private.models["coef"]
    if test.y.ndim == 2:  # tags: one layer, and any of the row's will do
        found = spread(tag_accuracies(test, coef))
    else:
        found = spread(task_accuracies(algorithm.learner, test, device, coef))
    return [float(found.mean), float(found.worst_decile)]


def tag_accuracies(test: Tasks, coef: np.ndarray) -> np.ndarray:
    """Return for each task the share of rows whose likeliest tag is one of theirs."""
    words, tags = test.X.shape[1], test.y.shape[1]
    right = []
    for model, start, stop in zip(coef, test.offsets[:-1], test.offsets[1:], strict=True):
        weights, bias = model[: tags * words].reshape(tags, words), model[tags * words :]
        likeliest = (test.X[start:stop] @ weights.T + bias).argmax(axis=1)
        right.append(float(test.y[start:stop][np.arange(stop - start), likeliest].mean()))
    return np.array(right)
