"""Records as units, against MR-MTL: what each institution's own model is worth, at what epsilon.

MR-MTL (Liu, Hu, Wu, Smith, NeurIPS 2022) trains a model in each institution by gradients that are clipped for
each record and get noise there, and is pulled towards the mean of all models. Institutions send their models,
so that these are private of their records against everybody, whoever sees them; no curator is trusted. Ours
are private against all *others*: what is told of records is noisy, and the last step at home uses them as
they are. The same delta of 1e-6; ours for a record that is replaced; MR-MTL for that and, with half the
noise, for one that says zeros instead (zero_out). Its noise is exactly priced for these, where institutions
have as many records in both worlds; adding or removing one would change divisors and shares too. All records
are in every round, and it may choose step, pull, clip and rounds for each budget on another split, at no
price.

*School*: linear regression of three quarters, or of 15 %, of the rows of 139 schools; the mean over them of
squared errors, over the variance of all. *Turned digits*: forty institutions of 100 digits each, in four
groups by how images are turned; a linear classifier of pixels, accuracy on 100 more. Three splits of each.
The paper has networks, more rows and other splits: its figures are not comparable with these.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from statistics import fmean

import numpy as np
import torch

from benchmarks import Figures, Table, Targets
from benchmarks.personal import task_accuracies
from benchmarks.record_networks import ALONE, PULLS, learner
from benchmarks.record_sources import Floats, Rows, split
from benchmarks.records import fitted
from cloister import Plan, Tasks, Unit, datasets
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FineTuning, LocalOnly
from cloister.engines import Batched
from cloister.estimators import SingleTaskRegressor
from cloister.learners import Descent, Quadratic
from cloister.privacy import tradeoff
from harness.cells import Cells, Json

NAME = "mr-mtl"
DATA = ("school.npz", "mnist_by_writer.npz")
SEEDS, QUICK_SEEDS, CHOOSING = range(3), range(1), 100
EPSILONS = (1.0, 3.0, 8.0)
DELTA = 1e-6
#: Step sizes, parts of the way, clips and rounds that MR-MTL chooses from, on other splits.
SCHOOL_GRID = tuple(product((0.1, 0.3), (0.02, 0.1, 0.5, 1.0), (0.1, 0.3), (15, 60)))
DIGITS_GRID = tuple(product((1.0, 3.0), (0.02, 0.1, 0.5, 1.0), (0.3, 1.0), (10, 30)))
#: How far one record moves a sum of MR-MTL, in clips.
MOVED = {"MR-MTL, replace": 2.0, "MR-MTL, zero_out": 1.0}
PARTS = (0.75, 0.15)
SILOS, EACH = 40, 100


@dataclass(frozen=True)
class Silos:
    """Rows of institutions, padded with zeros; targets are numbers or unit vectors of classes."""

    X: Floats
    Y: Floats
    sizes: Floats


@dataclass(frozen=True)
class MeanRegularizedSilos:
    """MR-MTL by full-batch gradients: step size, part of the way to the mean, clip of a gradient, rounds."""

    lr: float
    part: float
    clip: float
    rounds: int

    def models(self, silos: Silos, mu: float, moved: float, seed: int) -> Floats:
        """Return all models; a record that moves a sum by `moved` clips is mu-GDP over all rounds."""
        rng, (tasks, _, dim), classes = np.random.default_rng(seed), silos.X.shape, silos.Y.shape[2]
        deviation = 0.0 if mu == np.inf else moved * self.clip * self.rounds**0.5 / mu
        weights, share = np.zeros((tasks, dim, classes)), silos.sizes / silos.sizes.sum()
        long = np.linalg.norm(silos.X, axis=2)
        for _ in range(self.rounds):
            mean = np.tensordot(share, weights, 1)
            left = residuals(silos, weights)
            length = long * np.linalg.norm(left, axis=2)
            left *= np.minimum(1, self.clip / np.maximum(length, 1e-12))[:, :, None]
            told = silos.X.swapaxes(1, 2) @ left + deviation * rng.standard_normal(weights.shape)
            weights = weights - self.lr * told / silos.sizes[:, None, None] - self.part * (weights - mean)
        return weights


def residuals(silos: Silos, weights: Floats) -> Floats:
    """Return predictions less targets: of a linear model for one target, else of its softmax."""
    scores = silos.X @ weights
    if silos.Y.shape[2] == 1:
        return scores - silos.Y
    scores -= scores.max(axis=2, keepdims=True)
    odds = np.exp(scores)
    return odds / odds.sum(axis=2, keepdims=True) - silos.Y


def padded(X: Floats, Y: Floats, task: np.ndarray) -> Silos:
    """Put rows of tasks side by side."""
    sizes = np.bincount(task)
    place = np.arange(len(task)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    parts = []
    for rows in (X, Y):
        part = np.zeros((len(sizes), sizes.max(), rows.shape[1]))
        part[task, place] = rows
        parts.append(part)
    return Silos(*parts, sizes.astype(float))


@lru_cache(maxsize=1)
def school() -> datasets.Dataset:
    return datasets.load_school(os.path.join(os.environ["CLOISTER_DATA"], DATA[0]))


def school_error(test: Rows, told: Floats) -> float:
    each = [np.mean(np.square(test.y - told)[test.task == one]) for one in np.unique(test.task)]
    return float(fmean(map(float, each)) / test.y.var())


def encoded(rows: Rows) -> tuple[Floats, Floats]:
    """Return rows with a constant, columns from -1 to 1, and targets in units of half their bounds."""
    book = school().codebook
    X, low, high = book.encode(rows.X), book.target.low, book.target.high
    return X / X[0, 0], ((rows.y - (low + high) / 2) / ((high - low) / 2))[:, None]


def school_silos(part: float, setting: MeanRegularizedSilos, mu: float, moved: float, seed: int) -> float:
    """Train MR-MTL on a split of School; return its error on the rest."""
    data = school()
    train, test = split(Rows(data.X, data.task, data.y), part, seed)
    ids = np.unique(train.task)
    order = np.argsort(train.task, kind="stable")
    X, Y = encoded(train)
    silos = padded(X[order], Y[order], np.searchsorted(ids, train.task[order]))
    weights = setting.models(silos, mu, moved, seed)
    own, target = np.searchsorted(ids, test.task), data.codebook.target
    low, high = target.low, target.high
    half = (high - low) / 2
    told = half * np.einsum("nd,nd->n", encoded(test)[0], weights[own, :, 0]) + (low + high) / 2
    return school_error(test, np.clip(told, low, high))


def measure_school(job: tuple[float, int]) -> dict[str, float]:
    """Split School once; return errors by way and epsilon."""
    (part, seed), data = job, school()
    train, test = split(Rows(data.X, data.task, data.y), part, seed)
    alone = SingleTaskRegressor(bounds=data.codebook).fit(train.X, train.y, tasks=train.task)
    found = {"alone": school_error(test, alone.predict(test.X, tasks=test.task))}
    for epsilon in EPSILONS:
        for name, silo in (("ours, own noise", True), ("ours, curator", False)):
            model = fitted(data.codebook, epsilon, train.X, train.y, train.task, seed, silo)
            found[f"{name} {epsilon:g}"] = school_error(test, model.predict(test.X, tasks=test.task))
    return found


# ------------------------------------------------------------------ rotated digits


@lru_cache(maxsize=2)
def digits(seed: int) -> tuple[Tasks, Tasks]:
    """Return training and test images of institutions; those of a quarter of them are turned alike."""
    with np.load(os.path.join(os.environ["CLOISTER_DATA"], DATA[1])) as stored:
        images, labels = stored["X"], stored["y"]
    order = np.random.default_rng([seed, 7]).permutation(len(labels))[: 2 * SILOS * EACH]
    home = np.repeat(np.arange(SILOS), 2 * EACH)
    pixels = (images[order] / 255).astype(np.float32)
    for quarter in range(4):
        some = home % 4 == quarter
        pixels[some] = np.rot90(pixels[some], quarter, axes=(1, 2))
    first = np.arange(len(home)) % (2 * EACH) < EACH
    parts = (
        Tasks.from_arrays(pixels[one], labels[order][one].astype(int), home[one]) for one in (first, ~first)
    )
    train, test = parts
    return train, test


def digits_silos(setting: MeanRegularizedSilos, mu: float, moved: float, seed: int) -> float:
    """Train MR-MTL on turned digits; return its mean accuracy on others."""

    def flat(part: Tasks) -> Silos:
        X = np.hstack([part.X.reshape(len(part.y), -1), np.ones((len(part.y), 1))])
        return padded(X, np.eye(10)[part.y], np.repeat(np.arange(SILOS), part.sizes))

    train, test = map(flat, digits(seed))
    told = (test.X @ setting.models(train, mu, moved, seed)).argmax(axis=2)
    return float((told == test.Y.argmax(axis=2)).mean())


def digits_ours(epsilon: float, pull: float, seed: int) -> float:
    """Average by record, and fine-tune at home; return the mean accuracy."""
    tuning = FineTuning(Descent(0.1, batch=20, steps=100), Quadratic(pull))
    fedavg = FedAvg(learner(), Descent(4.0), 4.0, 20, finetune=tuning)
    unit = Unit.record(SILOS * EACH)
    plan = Plan(fedavg, n_tasks=SILOS, unit=unit, delta=DELTA).calibrate(epsilon)
    return _accuracy(plan, seed)


def _accuracy(plan: Plan, seed: int) -> float:
    train, test = digits(seed)
    coef = run_plan(plan, train, random_state=seed, engine=Batched("cpu")).private.models["coef"]
    return float(task_accuracies(learner(), test, "cpu", coef).mean())


def measure_digits(job: tuple[float, list[int]]) -> list[float]:
    """Return accuracies of FedAvg by record, with the pull that does best on another draw; 0: alone."""
    epsilon, seeds = job
    torch.set_num_threads(1)
    if epsilon == 0:
        plan = Plan(LocalOnly(learner(), ALONE[1]), n_tasks=SILOS)
        return [_accuracy(plan, seed) for seed in seeds]
    best = max(PULLS, key=lambda pull: digits_ours(epsilon, pull, CHOOSING))
    return [digits_ours(epsilon, best, seed) for seed in seeds]


# ------------------------------------------------------------------ both


def measure_silos(job: Json) -> list[float]:
    """Let MR-MTL choose on one split, and return what it comes to on others; of errors less is better."""
    part, epsilon, moved, seeds = job
    mu = tradeoff.mu(epsilon, DELTA)
    score: Callable[..., float] = partial(school_silos, part) if part else digits_silos
    grid = [MeanRegularizedSilos(*one) for one in (SCHOOL_GRID if part else DIGITS_GRID)]
    best = (min if part else max)(grid, key=lambda one: score(one, mu, moved, CHOOSING))
    return [score(best, mu, moved, seed) for seed in seeds]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure both; quickly, on one split."""
    seeds = list(QUICK_SEEDS if quick else SEEDS)
    found: dict[str, dict[str, float]] = {}
    for part in PARTS:
        ours = cells.measured(measure_school, [(part, seed) for seed in seeds])
        found[f"School, {part:.0%}"] = {way: fmean(one[way] for one in ours) for way in ours[0]}
    values = cells.measured(measure_digits, [(epsilon, seeds) for epsilon in (0, *EPSILONS)])
    ways = ["alone", *(f"ours, curator {epsilon:g}" for epsilon in EPSILONS)]
    found["digits"] = {way: fmean(one) for way, one in zip(ways, values, strict=True)}
    asked = list(product((*PARTS, 0), MOVED, EPSILONS))
    theirs = cells.measured(measure_silos, [[part, e, MOVED[way], seeds] for part, way, e in asked])
    for (part, way, epsilon), one in zip(asked, theirs, strict=True):
        found[f"School, {part:.0%}" if part else "digits"][f"{way} {epsilon:g}"] = fmean(one)
    rows = [["way", *(f"{name}: {epsilon:g}" for name in found for epsilon in EPSILONS)]]
    for way in ("alone", *MOVED, "ours, own noise", "ours, curator"):
        told = [values.get(way, values.get(f"{way} {e:g}")) for values in found.values() for e in EPSILONS]
        rows.append([way, *("-" if value is None else f"{value:.3f}" for value in told)])
    figures = {f"{name}, {way}": value for name, values in found.items() for way, value in values.items()}
    return figures, {}, rows
