"""What a public body is worth: heads on its features, alone and shared, mean test accuracy over writers.

Digits of 580 writers, 20 training images each, and the FEMNIST part, 62 classes and 189 writers. A body
that was trained on Omniglot (`python -m benchmarks body`) makes 128 numbers of each image, averaged over
nine views of it and of norm 1 in the end; tasks share a linear head on these by federated averaging and
tune it at home. Beside it: each task alone, on pixels and on features, and `SharedPriorClassifier` on the
32 foremost features (its work grows with the cube of classes times features), with a head on the same.
Everyone visible, relation replace, default delta, exact noise from a seed. Settings were chosen on another
split of the same writers (seed 100), with the card's body. `--body FILE` takes another body, `--seeds 2 3`
other splits.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks import Figures, Table, Targets
from benchmarks.body import BODY, Views
from benchmarks.body import load as load_body
from benchmarks.personal import load, mean_accuracy
from cloister import Plan, SharedPriorClassifier, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FineTuning, LocalOnly, ServerAverage
from cloister.engines import Batched
from cloister.learners import Descent, Module, PublicFeatures, Quadratic
from cloister.mechanisms import NoNoise

NAME = "frozen-accuracy"
DATA = ("femnist_pmtl_test.npz", "mnist_by_writer.npz", ".cache/omniglot_body.npz")
SEEDS = range(5)
EPSILONS = (0.5, 1.0, 2.0, 8.0, math.inf)
#: For `SharedPriorClassifier`: features, and budgets.
FOREMOST, PRIOR_EPSILONS = 32, (1.0, math.inf)


@dataclass(frozen=True)
class Choice:
    """How a head is shared, and how tightly a task is held to it: for budgets up to an epsilon."""

    epsilon: float
    lr: float
    clip: float
    rounds: int
    pull: float


@dataclass(frozen=True)
class Setting:
    """A data set, how large its images are shown to the body, and how a head is shared by budget."""

    name: str
    classes: int
    #: Whether ink is black on white.
    inverted: bool
    zoom: float
    choices: tuple[Choice, ...]
    #: Whether there are few enough classes for `SharedPriorClassifier`.
    prior: bool

    def head(self, features: int) -> Module:
        net = nn.Linear(features, self.classes)
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
        return Module(net)

    def plan(self, learner: Module, n_tasks: int, epsilon: float) -> Plan:
        found = next(choice for choice in self.choices if epsilon <= choice.epsilon)
        tuning = FineTuning(Descent(2.0, batch=20, steps=150), Quadratic(found.pull))
        local = Descent(found.lr, batch=20, steps=10)
        shared = FedAvg(learner, local, found.clip, found.rounds, ServerAverage(2.0), tuning)
        if math.isinf(epsilon):
            return Plan(shared, NoNoise(), n_tasks=n_tasks)
        return Plan(shared, n_tasks=n_tasks).calibrate(epsilon)

    def ink(self, part: Tasks) -> Tasks:
        """Return images with ink 1 on 0."""
        return with_rows(part, 1 - part.X if self.inverted else part.X)

    def features(self, body: Path, device: str) -> PublicFeatures:
        return PublicFeatures(Views(load_body(body), self.zoom), (1, 28, 28), device=device)


SETTINGS = (
    Setting(
        "femnist",
        classes=62,
        inverted=True,
        zoom=1.0,
        choices=(
            Choice(0.2, lr=40.0, clip=0.3, rounds=1, pull=0.002),
            Choice(0.5, lr=40.0, clip=3.0, rounds=2, pull=0.002),
            Choice(1.0, lr=40.0, clip=6.0, rounds=3, pull=0.005),
            Choice(2.0, lr=40.0, clip=10.0, rounds=5, pull=0.005),
            Choice(math.inf, lr=20.0, clip=15.0, rounds=8, pull=0.06),
        ),
        prior=False,
    ),
    Setting(
        "mnist20",
        classes=10,
        inverted=False,
        zoom=0.85,
        choices=(
            Choice(0.2, lr=20.0, clip=1.0, rounds=1, pull=0.005),
            Choice(math.inf, lr=20.0, clip=6.0, rounds=3, pull=0.02),
        ),
        prior=True,
    ),
)
ALONE = Descent(5.0, batch=20, steps=100)
ALONE_ON_PIXELS = Descent(0.1, batch=20, steps=100)


def on(device: str) -> Batched:
    return Batched(device, tf32=True, compiled=False)


def with_rows(tasks: Tasks, X: np.ndarray) -> Tasks:
    return Tasks(tasks.ids, X, tasks.y, tasks.weight, tasks.offsets)


def with_features(setting: Setting, body: PublicFeatures, part: Tasks) -> Tasks:
    """Return features in place of images."""
    return with_rows(part, body.tasks(setting.ink(part)).X.astype(np.float32))


def accuracies(setting: Setting, body: Path, seed: int, device: str) -> Iterator[tuple[str, float]]:
    """Yield what was run, and its mean accuracy over writers on their held-out images."""
    parts = load(setting.name, seed)
    train, test = (with_rows(part, setting.ink(part).X.reshape(len(part.X), -1)) for part in parts)
    yield "alone_pixels", alone(setting, ALONE_ON_PIXELS, train, test, seed, device)
    features = setting.features(body, device)
    train, test = (with_features(setting, features, part) for part in parts)
    yield "alone", alone(setting, ALONE, train, test, seed, device)
    learner, engine = setting.head(features.size), on(device)
    for epsilon in EPSILONS:
        plan = setting.plan(learner, len(train), epsilon)
        coef = run_plan(plan, train, random_state=seed, engine=engine).private.models["coef"]
        yield _called(epsilon), mean_accuracy(learner, test, device, coef)
    if not setting.prior:
        return
    train, test = (with_rows(part, part.X[:, :FOREMOST]) for part in (train, test))
    learner = setting.head(FOREMOST)
    for epsilon in PRIOR_EPSILONS:
        plan = setting.plan(learner, len(train), epsilon)
        coef = run_plan(plan, train, random_state=seed, engine=engine).private.models["coef"]
        yield f"{_called(epsilon)}_foremost", mean_accuracy(learner, test, device, coef)
        start = time.process_time()
        yield f"{_called(epsilon)}_prior", prior(setting, train, test, epsilon, seed)
        yield f"{_called(epsilon)}_prior_seconds", time.process_time() - start


def alone(setting: Setting, solver: Descent, train: Tasks, test: Tasks, seed: int, device: str) -> float:
    """Return how well writers do who train a linear model on their own images, and say nothing."""
    learner = setting.head(train.X.shape[1])
    plan = Plan(LocalOnly(learner, solver), n_tasks=len(train))
    coef = run_plan(plan, train, random_state=seed, engine=on(device)).private.models["coef"]
    return mean_accuracy(learner, test, device, coef)


def prior(setting: Setting, train: Tasks, test: Tasks, epsilon: float, seed: int) -> float:
    """Return how well writers do whose models share a prior."""
    size = train.X.shape[1]
    reach = 3 / math.sqrt(size)
    bounds = dict.fromkeys(range(size), (-reach, reach)) | {"target": list(range(setting.classes))}
    model = SharedPriorClassifier(epsilon=epsilon, bounds=bounds, random_state=seed)
    model.fit(train.X, train.y, tasks=np.repeat(train.ids, train.sizes))
    right = model.predict(test.X, tasks=np.repeat(test.ids, test.sizes)) == test.y
    return float(np.mean([part.mean() for part in np.split(right, test.offsets[1:-1])]))


def _called(epsilon: float) -> str:
    return "no_noise" if math.isinf(epsilon) else f"eps{epsilon:g}"


def run(
    quick: bool, device: str, seeds: Sequence[int] | None = None, body: Path | None = None
) -> tuple[Figures, Targets, Table]:
    """Measure all settings; quickly, one split, and no prior."""
    found: dict[str, list[float]] = {}
    for seed in seeds or (range(1) if quick else SEEDS):
        torch.manual_seed(seed)
        for setting in SETTINGS:
            chosen = replace(setting, prior=setting.prior and not quick)
            for name, value in accuracies(chosen, body or BODY, seed, device):
                found.setdefault(f"{setting.name}_{name}", []).append(value)
                print(f"seed {seed}: {setting.name} {name} {value:.4f}", file=sys.stderr, flush=True)
    figures = {name: float(np.mean(values)) for name, values in found.items()}
    rows = [["", "mean over splits", "standard error", "splits"]]
    error = lambda v: np.std(v, ddof=1) / math.sqrt(len(v)) if len(v) > 1 else 0.0  # noqa: E731
    rows += [[k, f"{np.mean(v):.4f}", f"{error(v):.4f}", str(len(v))] for k, v in found.items()]
    return figures, TARGETS, rows


TARGETS: Targets = {
    "mnist20_eps0.5": (">=", 0.965),
    "mnist20_eps1": (">=", 0.980),
    "femnist_eps2": (">=", 0.62),
    "femnist_eps8": (">=", 0.66),
}
