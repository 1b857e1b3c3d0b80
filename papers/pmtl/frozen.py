"""Heads on a frozen public body, as `frozen-accuracy` shares and tunes them."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from benchmarks.body import BODY
from benchmarks.frozen_accuracy import SETTINGS, Setting, with_rows
from cloister import SharedPriorClassifier, Tasks
from cloister.metrics import spread
from papers.figure import Options, Skipped
from papers.pmtl.writers import scored, split, trained

__all__ = ["BODY", "accuracy", "prior", "require_body"]

#: Features that a shared prior has: its work grows with the cube of classes times features.
FOREMOST = 16


def require_body() -> None:
    if not BODY.exists():
        raise Skipped(
            f"There is no public body at {BODY}: python -m benchmarks body --device cuda trains one."
        )


def setting_of(name: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.name == name)


@cache
def features(name: str, seed: int, quick: bool, device: str) -> tuple[Tasks, Tasks]:
    """Return a split with features in place of images."""
    body = setting_of(name).features(BODY, device)
    train, test = split(name, seed, quick, Options())
    return with_rows(train, body.tasks(train).X.astype(np.float32)), with_rows(
        test, body.tasks(test).X.astype(np.float32)
    )


def accuracy(
    name: str, epsilon: float | None, seed: int, quick: bool, device: str, foremost: int | None = None
) -> list[float]:
    """Return mean test accuracy over tasks, and over the tenth that it is lowest for."""
    setting = setting_of(name)
    train, test = (with_rows(part, part.X[:, :foremost]) for part in features(name, seed, quick, device))
    learner = setting.head(train.X.shape[1])
    plan = setting.plan(learner, len(train), math.inf if epsilon is None else epsilon)
    return scored(trained(plan, train, seed, device), test, device)


def prior(name: str, epsilon: float | None, seed: int, quick: bool, device: str) -> list[float]:
    """Return the same of models that share a prior, on the foremost features."""
    train, test = (with_rows(part, part.X[:, :FOREMOST]) for part in features(name, seed, quick, device))
    reach = 3 / math.sqrt(FOREMOST)
    bounds = dict.fromkeys(range(FOREMOST), (-reach, reach))
    classes = list(range(setting_of(name).classes))
    model = SharedPriorClassifier(
        epsilon=math.inf if epsilon is None else epsilon,
        bounds=bounds | {"target": classes},
        random_state=seed,
    )
    model.fit(train.X, train.y, tasks=np.repeat(train.ids, train.sizes))
    right = model.predict(test.X, tasks=np.repeat(test.ids, test.sizes)) == test.y
    found = spread([part.mean() for part in np.split(right, test.offsets[1:-1])])
    return [float(found.mean), float(found.worst_decile)]
