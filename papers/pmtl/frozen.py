"""Heads on a frozen public body, as `frozen-accuracy` shares and tunes them."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from benchmarks.body import BODY
from benchmarks.frozen_accuracy import SETTINGS, with_rows
from cloister import Tasks
from papers.figure import Skipped
from papers.pmtl.writers import scored, split, trained

__all__ = ["BODY", "accuracy", "require_body"]


def require_body() -> None:
    if not BODY.exists():
        raise Skipped(
            f"There is no public body at {BODY}: python -m benchmarks body --device cuda trains one."
        )


@cache
def features(name: str, seed: int, quick: bool, device: str) -> tuple[Tasks, Tasks]:
    """Return a split with features in place of images."""
    setting = next(setting for setting in SETTINGS if setting.name == name)
    body = setting.features(BODY, device)
    train, test = split(name, seed, quick)
    return with_rows(train, body.tasks(train).X.astype(np.float32)), with_rows(
        test, body.tasks(test).X.astype(np.float32)
    )


def accuracy(name: str, epsilon: float | None, seed: int, quick: bool, device: str) -> list[float]:
    """Return mean test accuracy over tasks, and over the tenth that it is lowest for."""
    setting = next(setting for setting in SETTINGS if setting.name == name)
    train, test = features(name, seed, quick, device)
    learner = setting.head(train.X.shape[1])
    plan = setting.plan(learner, len(train), math.inf if epsilon is None else epsilon)
    return scored(trained(plan, train, seed, device), test, device)
