"""Cuts between ordered classes: probabilities from a score and the increments between cuts."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, logit

from cloister.core.arrays import Floats

#: Logarithms of increments are not told apart beyond this.
FARTHEST = 30.0


def usual_cuts(classes: int) -> tuple[float, Floats]:
    """Return the score at which all classes are as likely, and the logarithms of their increments."""
    log_odds = logit(np.arange(classes - 1, 0, -1) / classes)
    return float(log_odds[0]), np.log(log_odds[:-1] - log_odds[1:])


def at_least(scores: Floats, steps: Floats) -> Floats:
    """Return the log-odds of each class but the first, or more: (..., K - 1) from scores (...)."""
    start = np.zeros_like(steps[..., :1])
    return np.asarray(scores[..., None] - np.concatenate([start, np.cumsum(steps, axis=-1)], axis=-1))


def class_shares(log_odds: Floats) -> Floats:
    """Return probabilities of classes (..., K) from the log-odds of each but the first, or more.

    Examples
    --------
    >>> class_shares(np.array([0.0, -2.0])).round(3)
    array([0.5  , 0.381, 0.119])
    """
    up = expit(log_odds)
    ends = np.ones_like(up[..., :1]), np.zeros_like(up[..., :1])
    whole = np.concatenate([ends[0], up, ends[1]], axis=-1)
    return np.asarray(whole[..., :-1] - whole[..., 1:])


def ordered_steps(increments: Floats, width: int, logs: Floats) -> Floats:
    """Return a task's increments of cuts from its weights for them."""
    return np.asarray(np.exp(np.clip(logs + increments / math.sqrt(width), -FARTHEST, FARTHEST)))
