"""A public mean that moves by what tasks say of it, round by round, and the priors around where it ends.

All of it is post-processing of releases, hence free.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from cloister.algorithms.structures.settled_mean import settled_mean
from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Channel
from cloister.earlier import EarlierPrior
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate, every_class, loose_intercept

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.tasks import Block

__all__ = [
    "MovingMean",
    "descend",
    "found_mean",
    "in_own_units",
    "shared_candidates",
    "shared_weight",
    "short_rounds",
    "standing_still",
]

#: Share of the shared priors' weight for one whose differences from the mean are in the tasks' own units.
OWN_UNITS = 0.1


@dataclass(frozen=True)
class MovingMean(ABC):
    """What structures have in common in which tasks say how far their weights lie from a public mean.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    start_from: EarlierPrior | None = None

    buys_scale = True
    groups = None

    @property
    def for_groups(self) -> Self:
        return self

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return short_rounds(size, n_tasks, mu)

    @abstractmethod
    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]: ...

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return learner.offset(states, block, board["mean"])


def short_rounds(size: int, n_tasks: int, mu: float) -> int:
    return (
        20 if math.isinf(mu) else int(np.clip(round(1.5 * math.sqrt(n_tasks * mu / math.sqrt(size))), 4, 20))
    )


def standing_still(dim: int, start_from: EarlierPrior | None) -> Public:
    zero, mean = np.zeros(()), np.zeros(dim) if start_from is None else np.array(start_from.mean)
    return {
        "mean": mean,
        "offset": np.zeros(dim),
        "offset_variance": zero,
        "since": np.array(0),
        "variance": zero,
        "sum": np.zeros(dim),
        "precision": zero,
        "noise": zero,
    }


def descend(
    learner: BayesianLearner,
    g: Floats,
    s: float,
    weight: float,
    board: BoardView,
    sampling: float = 0.0,
) -> Public:
    """Move the public mean by what the tasks said: gather evidence first, then go where all rounds point.

    Until the average offset is larger than its noise, and than offsets of unrelated tasks would have by
    chance (a variance of `sampling` in each number), the mean stays where it started (`since` 0), at zero or
    at an earlier run's; from then on tasks look from where it settles by all rounds so far, and `variance` is
    that of the noise in it.
    """
    since, dim, clip = int(board["since"]), len(g), learner.clip
    total, precision, noise = board["sum"], float(board["precision"]), float(board["noise"])
    if since == 0:
        total, precision, noise = total + weight * g, precision + weight, noise + (weight * s) ** 2
        g, s = total / precision, math.sqrt(noise) / precision
    # a sd above pure noise (three where an earlier mean would be left), and noise at most twice as long as
    # any mean of clipped offsets can be
    deviations = 3 if board["mean"].any() else 1
    unlikely = (dim + deviations * math.sqrt(2 * dim)) * (s**2 + sampling)
    moves = since > 0 or (float(g @ g) > unlikely and dim * s**2 < 4)
    mean, offset, variance = board["mean"], clip * g, (clip * s) ** 2
    heard = {"offset": offset, "offset_variance": np.array(variance)}
    if moves:
        here = mean, float(board["variance"]) if since else 0.0, offset, variance
        mean, variance = settled_mean(clip, *map(np.array, zip(*_rounds(board), here, strict=True)))
    return heard | {
        "mean": mean,
        "since": np.array(since + moves),
        "variance": np.array(variance),
        "sum": total,
        "precision": np.array(precision),
        "noise": np.array(noise),
    }


def _rounds(board: BoardView) -> Iterator[tuple[Floats, float, Floats, float]]:
    """Yield where tasks looked from in each round that moved the mean, and their mean offset.

    Each with the variance of its noise; where the mean started there is none.
    """
    boards = [*(board.before(number) for number in range(board.rounds)), board]
    for before, after in pairwise(boards):
        since, heard = int(before["since"]), float(after["offset_variance"])
        if int(after["since"]) > since:
            yield before["mean"], float(before["variance"]) if since else 0.0, after["offset"], heard


def found_mean(
    learner: BayesianLearner, board: BoardView, start_from: EarlierPrior | None, sampling: float = 0.0
) -> tuple[Floats, float]:
    """Return the prior's mean and the variance of its noise: shrunk, or weighed against an earlier one.

    What is noise, or luck in which tasks there are (variance `sampling`), is taken off intercepts and slopes
    apart: an intercept far from zero says nothing about how much of the slopes is noise.
    """
    mean, variance = board["mean"], float(board["variance"])
    if start_from is not None and any(start_from.mean):
        return start_from.combined_mean(mean, variance)
    by_class, uncertain = mean.reshape(-1, learner.dim), variance + 2 * sampling
    shrunk, first = np.zeros_like(by_class), 1 if learner.intercept else 0
    for part in (slice(0, first), slice(first, learner.dim)):
        square, size = float(np.square(by_class[:, part]).sum()), by_class[:, part].size
        if square > (size + math.sqrt(2 * size)) * uncertain:
            shrunk[:, part] = by_class[:, part] * (1 - size * uncertain / (2 * square))
    return shrunk.ravel(), variance


def shared_candidates(
    learner: BayesianLearner, mean: Floats, factors: list[Floats], board: BoardView
) -> list[Candidate]:
    """Return priors around the mean (two thirds of the weight) and around it with a covariance (a third).

    For classes a tenth of the weight is that of a prior around the mean in own units, which stands for the
    isotropic one in public units. A tenth is left to the task's own prior, and up to half the more of the
    mean is noise; what tasks differ by is seen from a noisy mean, so that its variance is added to all in
    public units, in every direction. Where neither a mean nor a covariance stands out of the noise, nor
    targets were located so that zero is where they are, tasks keep to themselves.
    """
    located = "located_found" in board and int(board["located_found"]) > 0
    if not (mean.any() or factors or located):
        return []
    plain, loose, full = learner.prior_scales
    around = [math.sqrt(plain) * np.eye(learner.size)]
    if learner.intercept:
        levels = loose_intercept(learner.dim, learner.loose, True)
        around.append(math.sqrt(loose) * every_class(levels, learner.size))
    noise = learner.widening * float(board["variance"])
    around = [_widened(factor, noise) for factor in around]
    factors = [_widened(math.sqrt(full) * factor, noise) for factor in factors]
    total = shared_weight(learner, mean, board)
    shared = in_own_units(learner, mean, OWN_UNITS * total)
    if shared:
        total -= shared[0].weight
        around = around[-1:]
    plainly = 2 / 3 * total if factors else total
    shared += [Candidate(plainly / len(around), mean, factor, True) for factor in around]
    rest = (total - plainly) / max(len(factors), 1)
    return shared + [Candidate(rest, mean, factor, True) for factor in factors]


def _widened(factor: Floats, noise: float) -> Floats:
    """Return the factor of a covariance to which so much is added in every direction.

    By the roots: a singular covariance and little noise may sum, rounded, to what has no Cholesky factor.
    """
    if noise == 0:
        return factor
    both = np.concatenate([factor.T, math.sqrt(noise) * np.eye(len(factor))])
    upper = np.linalg.qr(both).R
    return np.asarray(upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0))


def shared_weight(learner: BayesianLearner, mean: Floats, board: BoardView) -> float:
    """Return the weight of all shared priors together: .9, and down to .5 the more of the mean is noise."""
    slopes = mean[1:] if learner.intercept and learner.size > 1 else mean
    square = float(slopes @ slopes)  # zero where nothing was heard of it: all of it is noise
    noise = min(1.0, len(slopes) * float(board["variance"]) / square) if square > 0 else 1.0
    return 0.9 - 0.4 * noise


def in_own_units(learner: BayesianLearner, mean: Floats, weight: float) -> list[Candidate]:
    """Return the prior around the mean in own units, in which features have spread 1, if the learner has one.

    Bounds that are too wide then cost no slopes.
    """
    if learner.own_scales is None:
        return []
    first, others = learner.own_scales
    diagonal = np.full(learner.dim, math.sqrt(others))
    if learner.intercept:
        diagonal[0] = math.sqrt(first)
    factor = every_class(np.diag(diagonal), learner.size)
    return [Candidate(weight, mean, factor, False, own_units=True)]
