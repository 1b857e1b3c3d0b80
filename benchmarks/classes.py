"""Many classes: processor time, accuracy and log-loss of a shared prior, with all or only useful features.

A made table of 36 tasks, 1,600 rows, 42 features (12 of them matter) and 6 classes, whose tasks have a
common signal and variations of their own; another of that shape, *activities*, whose features are noisy views
of eight factors, the first 12 the clearest; and handwritten digits of 36 writers, 40 images each, whose
features are the means of 4 x 4 pixels (public: no component analysis). Public bounds, relation replace,
default delta, seeded noise; rows held out. Beside it scikit-learn's logistic regression, cross-validated, on
all tasks' rows together (which protects nobody) and on each task's own.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import Figures, Table, Targets
from cloister.core.arrays import Array, Floats
from cloister.estimators import SharedPriorClassifier, SingleTaskClassifier
from harness.cells import track
from harness.sources import data_file

NAME = "classes"
DATA = ("mnist_by_writer.npz",)

TASKS, ROWS, TEST, FEATURES, USEFUL, CLASSES = 36, 1600, 100, 42, 12, 6
WRITERS, IMAGES = 36, 40
SEEDS = 3
#: Deviations of the true weights: of the common ones, of a task's from them, and of its intercepts.
SIGNAL, OWN, INTERCEPT = 1.8, 0.6, 1.0
#: Of activities: factors, deviation of their class means, of a task's own from these, and within a class.
FACTORS, APART, OWN_FACTORS, WITHIN = 8, 1.25, 0.5, 0.8
#: How clearly features show the factors, the useful ones and the others; deviation of a task's own levels.
CLEAR, DIM, LEVELS = 1.5, 0.52, 0.6
EPSILONS = (1.0, 4.0, 8.0, math.inf)


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to learn from and rows held out, each with its task and its class."""

    X: Floats
    y: Array
    task: Array
    test_X: Floats
    test_y: Array
    test_task: Array
    bounds: tuple[float, float]
    classes: int

    def columns(self, count: int) -> Data:
        return replace(self, X=self.X[:, :count], test_X=self.test_X[:, :count])

    @property
    def codebook(self) -> dict[object, object]:
        return dict.fromkeys(range(self.X.shape[1]), self.bounds) | {"target": list(range(self.classes))}


def make(seed: int) -> Data:
    """Draw the made table: the first 12 features matter, in every task a little differently."""
    rng = np.random.default_rng([seed, CLASSES])
    common = SIGNAL * rng.normal(size=(CLASSES, USEFUL))
    sizes = 12 + rng.multinomial(ROWS - 12 * TASKS, rng.dirichlet(np.full(TASKS, 4.0)))
    parts = []
    for name, size in enumerate(sizes):
        weights = common + OWN * rng.normal(size=common.shape)
        shift = INTERCEPT * rng.normal(size=CLASSES)
        X = np.clip(rng.normal(size=(size + TEST, FEATURES)), -4, 4)
        scores = X[:, :USEFUL] @ weights.T + shift + rng.gumbel(size=(len(X), CLASSES))
        parts.append((X, scores.argmax(axis=1), np.full(len(X), name), np.arange(len(X)) < size))
    X, y, task, train = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Data(X[train], y[train], task[train], X[~train], y[~train], task[~train], (-4.0, 4.0), CLASSES)


def activities(seed: int) -> Data:
    """Draw tasks whose classes differ in few factors, of which every feature is a noisy view in [-1, 1]."""
    rng = np.random.default_rng([seed, FEATURES])
    centres = APART * rng.normal(size=(CLASSES, FACTORS))
    clear = np.where(np.arange(FEATURES) < USEFUL, CLEAR, DIM) / math.sqrt(FACTORS)
    views = clear[:, None] * rng.normal(size=(FEATURES, FACTORS))
    parts = []
    for name, size in enumerate(rng.integers(20, 60, TASKS)):
        own = centres + OWN_FACTORS * rng.normal(size=centres.shape)
        y = rng.integers(0, CLASSES, size + TEST)
        factors = own[y] + WITHIN * rng.normal(size=(len(y), FACTORS))
        noise = LEVELS * rng.normal(size=FEATURES) + rng.normal(size=(len(y), FEATURES))
        X = np.tanh((factors @ views.T + noise) / 2.5)
        parts.append((X, y, np.full(len(y), name), np.arange(len(y)) < size))
    X, y, task, train = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Data(X[train], y[train], task[train], X[~train], y[~train], task[~train], (-1.0, 1.0), CLASSES)


def digits(seed: int) -> Data:
    """Draw writers and their images from MNIST by writer; features are means of 4 x 4 pixels."""
    with np.load(data_file("mnist_by_writer.npz")) as file:
        writers, images, labels = file["writer"], file["X"], file["y"]
    rng = np.random.default_rng(seed)
    names, counts = np.unique(writers, return_counts=True)
    chosen = rng.choice(names[counts >= 2 * IMAGES], WRITERS, replace=False)
    order = [rng.permutation(np.flatnonzero(writers == name)) for name in chosen]
    train, test = (
        np.concatenate([index[part] for index in order]) for part in (slice(IMAGES), slice(IMAGES, None))
    )
    blocks = images.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(len(images), -1) / 255
    return Data(
        blocks[train],
        labels[train],
        writers[train],
        blocks[test],
        labels[test],
        writers[test],
        (0.0, 1.0),
        10,
    )


def scores(chances: Floats, y: Array) -> tuple[float, float]:
    """Return accuracy and log-loss of class probabilities."""
    chosen = np.maximum(chances[np.arange(len(y)), y], 1e-12)
    return float((chances.argmax(axis=1) == y).mean()), float(-np.log(chosen).mean())


def private(data: Data, epsilon: float, seed: int) -> Floats:
    """Return the class probabilities of a shared prior; at epsilon 0 every task is alone."""
    model: SingleTaskClassifier | SharedPriorClassifier = SingleTaskClassifier(bounds=data.codebook)
    if epsilon > 0:
        model = SharedPriorClassifier(epsilon=epsilon, bounds=data.codebook, random_state=seed)
    model.fit(data.X, data.y, tasks=data.task)
    return np.asarray(model.predict_proba(data.test_X, tasks=data.test_task))


def pooled(X: Floats, y: Array, test_X: Floats, classes: int) -> Floats:
    """Return scikit-learn's class probabilities; smoothed rates where it cannot cross-validate."""
    present, counts = np.unique(y, return_counts=True)
    folds = min(3, int(counts.min())) if len(present) > 1 else 0
    chances = np.full((len(test_X), classes), 1e-12)
    if folds < 2:
        rates = (np.bincount(y, minlength=classes) + 1) / (len(y) + classes)
        return np.tile(rates, (len(test_X), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(
            StandardScaler(), LogisticRegressionCV(cv=folds, scoring="neg_log_loss", max_iter=300)
        ).fit(X, y)
    chances[:, present] = model.predict_proba(test_X)
    return chances


def alone(data: Data) -> Floats:
    """Return scikit-learn's class probabilities, every task on its own; a class seen once is left out."""
    chances = np.empty((len(data.test_y), data.classes))
    for name in np.unique(data.task):
        own, test = data.task == name, data.test_task == name
        seen, counts = np.unique(data.y[own], return_counts=True)
        own &= np.isin(data.y, seen[counts > 1])
        chances[test] = pooled(data.X[own], data.y[own], data.test_X[test], data.classes)
    return chances


def measure(data: Data, seed: int) -> dict[str, tuple[float, float, float]]:
    """Return accuracy, log-loss and seconds of every method."""
    methods = {f"eps {epsilon:g}": lambda e=epsilon: private(data, e, seed) for epsilon in EPSILONS}
    methods |= {
        "single-task": lambda: private(data, 0.0, seed),
        "sklearn, pooled": lambda: pooled(data.X, data.y, data.test_X, data.classes),
        "sklearn, alone": lambda: alone(data),
    }
    found = {}
    for label, predict in methods.items():
        start = time.process_time()
        chances = predict()
        found[label] = (*scores(chances, data.test_y), time.process_time() - start)
    return found


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Measure both tables.

    Parameters
    ----------
    quick : bool
        One draw of the made table, without targets.
    """
    seeds = range(1 if quick else SEEDS)
    jobs = [
        (name, seed)
        for name in (("all", "useful") if quick else ("all", "useful", "activities", "digits"))
        for seed in seeds
    ]
    if not data_file("mnist_by_writer.npz").exists():
        jobs = [job for job in jobs if job[0] != "digits"]

    def table(name: str, seed: int) -> Data:
        if name == "digits":
            return digits(seed)
        if name == "activities":
            return activities(seed)
        return make(seed).columns(FEATURES if name == "all" else USEFUL)

    drawn = list(track((measure(table(*job), job[1]) for job in jobs), len(jobs), NAME))
    figures: Figures = {}
    rows = [["table", "method", "accuracy", "log-loss", "processor s"]]
    for name in dict.fromkeys(name for name, _ in jobs):
        found = [one for one, job in zip(drawn, jobs, strict=True) if job[0] == name]
        for label in found[0]:
            cells = []
            for figure, values in zip(
                ("accuracy", "log_loss", "seconds"),
                zip(*(one[label] for one in found), strict=True),
                strict=True,
            ):
                error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
                key = f"{name}_{label.replace(', ', '_').replace(' ', '').replace('-', '_')}_{figure}"
                figures |= {key: fmean(values), f"{key}_se": error}
                cells.append(f"{fmean(values):.3f} ± {error:.3f}")
            rows.append([name, label, *cells])
    for epsilon in EPSILONS:
        label = f"eps{epsilon:g}"
        slow = figures["all_sklearn_alone_seconds"]
        figures[f"all_{label}_over_sklearn_alone"] = figures[f"all_{label}_seconds"] / slow
        figures[f"{label}_all_less_useful"] = (
            figures[f"all_{label}_accuracy"] - figures[f"useful_{label}_accuracy"]
        )
    return figures, {} if quick else goals(), rows


def goals() -> Targets:
    """Return what the figures should be."""
    return {
        "all_eps1_over_sklearn_alone": ("<=", 1.0),
        "all_epsinf_over_sklearn_alone": ("<=", 1.0),
        "epsinf_all_less_useful": (">=", 0.0),
        "activities_eps4_accuracy": (">=", 0.82),
        "activities_eps4_seconds": ("<=", 8.0),
    }
