r"""Where tasks' weights lie: a public mean that moves round by round, and the priors around it.

In each round tasks look from a public point :math:`x_t` and say how far from it their weights lie, clipped.
Around the point :math:`\nu` where that is zero on average, the mean of their messages is

.. math:: g_t = a\,(\nu - x_t) + e_t

with noise :math:`e_t` of known variance and :math:`a \le 1`: tasks of few rows, or far away, move by less
than the point does. Both :math:`\nu` and a are fitted to all rounds, so that their noise averages out. Rounds
that looked from far away, where the line is none, count for less.

The points have noise of their own, from the rounds before. It cancels only if tasks' answers correct it: a
point that is too high is answered by lower offsets. Where clipping hides that, because the mean is so far
away that clipped offsets go one way whatever the point, it does not, and to that extent is in the variance.

All of it is post-processing of releases, hence free.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cloister.algorithms.constants import BUDGET, GROUPS, MEAN, WEIGHTS
from cloister.algorithms.prior.groups import GroupMeans
from cloister.algorithms.prior.noisy_covariance import covariance_factors, only, placed, widened
from cloister.algorithms.prior.structure import Structure
from cloister.core.arrays import Array, Floats, Public
from cloister.core.channel import Channel
from cloister.core.findings import EarlierPrior
from cloister.core.lifts import MeanAndOuter, Plain, unsvec
from cloister.core.roster import Groups
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate, every_class, loose_intercept
from cloister.learners.linear.home_constants import TRUST

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release

#: Covariances that differ by no more than this part of their largest number are the same but for rounding.
SAME = 1e-14


def estimate_root(
    clip: float, points: Floats, noise: Floats, offsets: Floats, variances: Floats
) -> tuple[Floats, float]:
    """Return where offsets would be zero on average, and the variance of the noise in each number of it.

    Parameters
    ----------
    clip : float
        The longest offset that a task says.
    points, noise : arrays of shapes (rounds, weights) and (rounds,)
        Where tasks looked from, and the variance of the noise in each number of it.
    offsets, variances : arrays of shapes (rounds, weights) and (rounds,)
        Their mean offset, and the variance of the noise in each number of it.

    Examples
    --------
    Tasks whose weights are 0.3 on average move by four tenths of what a point is off:

    >>> points, sure = np.array([[0.0], [0.2]]), np.full(2, 1e-4)
    >>> mean, variance = estimate_root(0.5, points, 0 * sure, 0.4 * (0.3 - points), sure)
    >>> mean.round(2).tolist()
    [0.3]
    """
    line, size = Line.through(clip, points, offsets, variances), points.shape[1]
    one_way = min(1.0, max(0.0, float(line.middle @ line.middle) - size * line.unsure) / clip**2)
    return line.root(clip), line.gain(clip) ** 2 * line.unsure + one_way * float(line.share @ noise)


class Line(NamedTuple):
    """How offsets answer to the point that tasks look from: a line through center and middle."""

    weight: Floats
    share: Floats
    center: Floats
    middle: Floats
    slope: float
    unsure: float

    @classmethod
    def through(cls, clip: float, points: Floats, offsets: Floats, variances: Floats) -> Line:
        """Fit a line, one slope for all weights, to rounds by their precision.

        Rounds that looked from far away, where clipping bends the line, count for less; how far that is
        depends on where offsets are zero.
        """
        root = points[-1]
        for _ in range(MEAN.steps):
            away = np.square(points - root).sum(axis=1) / clip
            bent = np.square(MEAN.curved * away) / points.shape[1] + np.square(MEAN.finest * clip)
            weight = 1 / (variances + bent)
            share = weight / weight.sum()
            center, middle = share @ points, share @ offsets
            x, g = points - center, offsets - middle
            slope = MEAN.usual / MEAN.usual_sd**2 - float(weight @ (x * g).sum(axis=1))
            slope /= 1 / MEAN.usual_sd**2 + float(weight @ np.square(x).sum(axis=1))
            unsure = float(np.square(share) @ variances)
            line = cls(weight, share, center, middle, min(max(slope, MEAN.least), 1.0), unsure)
            root = line.root(clip)
        return line

    def gain(self, clip: float) -> float:
        """Return how far the root is from the center, by the offset there."""
        return self.slope / (self.slope**2 + self.unsure / (MEAN.far * clip) ** 2)

    def root(self, clip: float) -> Floats:
        """Return where offsets would be zero."""
        return self.center + self.gain(clip) * self.middle


@dataclass(frozen=True)
class MovingMean(Structure):
    """What structures have in common in which tasks say how far their weights lie from a public mean.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    start_from: EarlierPrior | None = None

    about = "where weights lie"
    for_groups = True

    def grouped(self, groups: Groups) -> GroupMeans:
        return GroupMeans(self, groups)

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return short_rounds(size, n_tasks, mu)

    @abstractmethod
    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        """Return the public state after a release; its mean has a part of the precision it could have."""

    def message(self, learner: BayesianLearner, home: Home, board: BoardView) -> Array:
        return learner.offset(home, board["mean"])

    def message_variance(self, learner: BayesianLearner, board: BoardView) -> Floats:
        """Return the variance of one task's message around its group's mean, in each coordinate."""
        return np.full(learner.size, GROUPS.message * learner.clip**2 / learner.size)

    def group_candidates(
        self, learner: BayesianLearner, located: int | None, offset: Floats, board: BoardView
    ) -> list[Candidate]:
        """Return the common priors, and the shared ones around the group's own mean."""
        common = board.derive(self.candidates, learner, located)
        if not any(c.shared for c in common):  # no common mean stood out, but this group's did
            return shared_candidates(learner, offset, [], located, board)
        there = [replace(c, weight=WEIGHTS.group * c.weight, mean=c.mean + offset) for c in common]
        return [replace(c, weight=(1 - WEIGHTS.group) * c.weight) for c in common] + there


def short_rounds(size: int, n_tasks: int, mu: float) -> int:
    if math.isinf(mu):
        return BUDGET.most
    stands_out = math.sqrt(n_tasks * mu / math.sqrt(size))
    return int(np.clip(round(BUDGET.rounds * stands_out), BUDGET.fewest, BUDGET.most))


def initial_mean(dim: int, start_from: EarlierPrior | None) -> Public:
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


def update_mean(
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
    deviations = MEAN.surprise_later if board["mean"].any() else MEAN.surprise
    unlikely = (dim + deviations * math.sqrt(2 * dim)) * (s**2 + sampling)
    moves = since > 0 or (float(g @ g) > unlikely and dim * s**2 < MEAN.longest)
    mean, offset, variance = board["mean"], clip * g, (clip * s) ** 2
    public = {"offset": offset, "offset_variance": np.array(variance)}
    if moves:
        here = mean, float(board["variance"]) if since else 0.0, offset, variance
        mean, variance = estimate_root(clip, *map(np.array, zip(*_rounds(board), here, strict=True)))
    return public | {
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
        since, noise = int(before["since"]), float(after["offset_variance"])
        if int(after["since"]) > since:
            yield before["mean"], float(before["variance"]) if since else 0.0, after["offset"], noise


def shrunk_mean(
    learner: BayesianLearner, board: BoardView, start_from: EarlierPrior | None, sampling: float = 0.0
) -> tuple[Floats, float]:
    """Return the prior's mean and the variance of its noise: shrunk, or weighed against an earlier one.

    What is noise, or luck in which tasks there are (variance `sampling`), is taken off intercepts and slopes
    apart: an intercept far from zero says nothing about how much of the slopes is noise.
    """
    mean, variance = board["mean"], float(board["variance"])
    if start_from is not None and any(start_from.mean):
        return start_from.combined_mean(mean, variance)
    by_class, uncertain = mean.reshape(-1, learner.dim), variance + sampling
    shrunk, first = np.zeros_like(by_class), 1 if learner.intercept else 0
    for part in (slice(0, first), slice(first, learner.dim)):
        square, size = float(np.square(by_class[:, part]).sum()), by_class[:, part].size
        if square > (size + math.sqrt(2 * size)) * uncertain:
            shrunk[:, part] = by_class[:, part] * (1 - MEAN.shrinkage * size * uncertain / square)
    return shrunk.ravel(), variance


def shared_candidates(
    learner: BayesianLearner,
    mean: Floats,
    factors: list[Floats],
    located: int | None,
    board: BoardView,
    varying: tuple[int, ...] | None = None,
) -> list[Candidate]:
    """Return priors around the mean, and as many around it with a covariance, if one was heard.

    For classes two fifths of the weight are that of a prior around the mean in own units, which stands for
    the isotropic one in public units. A tenth is left to the task's own prior, and up to half the more of the
    mean is noise; what tasks differ by is seen from a noisy mean, so that its variance is added to all in
    public units, in every direction. Where neither a mean nor a covariance stands out from the noise, nor
    targets were located so that zero is where they are, tasks keep to themselves.
    """
    if not (mean.any() or factors or located):
        return []
    plain, loose, full = learner.prior_scales
    around = [math.sqrt(plain) * np.eye(learner.size)]
    if learner.intercept:
        levels = loose_intercept(learner.dim, learner.loose, True)
        around.append(math.sqrt(loose) * every_class(levels, learner.size))
    wider = learner.widening * float(board["variance"])
    around = [widened(only(factor, varying), wider) for factor in around]
    factors = [widened(math.sqrt(full) * factor, wider) for factor in factors]
    noise = noise_share(learner, mean, board)
    heard, total = 0.0 if located in (0, 1) else 1 - noise, shared_weight(noise)
    shared = in_own_units(learner, mean, WEIGHTS.by_class * total)
    if shared:
        shared = [replace(one, factor=only(one.factor, varying)) for one in shared]
        total -= shared[0].weight
        around = around[-1:]
    plainly = total / 2 if factors else total
    shared += [Candidate(plainly / len(around), mean, factor, True) for factor in around]
    rest = (total - plainly) / max(len(factors), 1)
    shared += [Candidate(rest, mean, factor, True) for factor in factors]
    return [replace(candidate, heard=heard) for candidate in _once_each(shared)]


def _once_each(candidates: list[Candidate]) -> list[Candidate]:
    """Return candidates no two of which are the same but for rounding; one for several has all their weight.

    A covariance from which no direction stands out is the identity in more than one way.
    """
    found: dict[int, Candidate] = {}
    squares = [candidate.factor @ candidate.factor.T for candidate in candidates]
    for number, candidate in enumerate(candidates):
        near = [
            other
            for other, kept in found.items()
            if kept.shared == candidate.shared
            and np.abs(squares[other] - squares[number]).max() <= SAME * np.abs(squares[other]).max()
        ]
        if near:
            kept = found[near[0]]
            found[near[0]] = replace(kept, weight=kept.weight + candidate.weight)
        else:
            found[number] = candidate
    return list(found.values())


def noise_share(learner: BayesianLearner, mean: Floats, board: BoardView) -> float:
    """Return how much of the mean's square is noise; of the intercept alone, where there is nothing else."""
    slopes = mean.reshape(-1, learner.dim)[:, int(learner.intercept and learner.dim > 1) :].ravel()
    square = float(slopes @ slopes)  # zero where it did not stand out: all of it is noise
    return min(1.0, len(slopes) * float(board["variance"]) / square) if square > 0 else 1.0


def shared_weight(noise: float) -> float:
    """Return the weight of all shared priors together: .9, and down to .5 the more of the mean is noise."""
    return TRUST.usual - (TRUST.usual - WEIGHTS.even) * noise


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


@dataclass(frozen=True)
class Mean(MovingMean):
    """Tasks say where their weights lie from the public mean: the offset, clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    several_classes = True

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, learner.clip, Plain()),)

    def start(self, learner: BayesianLearner) -> Public:
        return initial_mean(learner.size, self.start_from)

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        m = release.denominator * math.sqrt(part)
        return update_mean(learner, learner.weights_of(release.value / m), release.noise / m, part, board)

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return shrunk_mean(learner, board, self.start_from)[0]

    def prior(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = shrunk_mean(learner, board, self.start_from)
        return EarlierPrior(tuple(mean.tolist()), variance)

    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        return shared_candidates(learner, self.mean(learner, board), [], located, board)


@dataclass(frozen=True)
class Joint(MovingMean):
    """Mean and covariance in one message a round: the offset and its outer product, jointly clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    varying : tuple of int
        Columns whose weights differ between tasks, if that is known beforehand (random slopes). What
        tasks say of weights stays: half of the shared priors then know it, and half are the usual ones.
    """

    varying: tuple[int, ...] | None = None

    about = "where weights lie, and how they vary"
    #: Share of the message that is the mean: while the mean moves (or at first), and while it stands still.
    moving, standing = MEAN.moving, MEAN.standing

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return tuple(
            Channel(learner.size, learner.clip, MeanAndOuter(a)) for a in (self.moving, self.standing)
        )

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        """Listen more to the mean at first and while it moves, more to the covariance otherwise."""
        moving = int(board["since"]) > 0 or float(board["precision"]) == 0
        return self.channels(learner)[0 if moving else 1]

    def start(self, learner: BayesianLearner) -> Public:
        dim = learner.size
        return initial_mean(dim, self.start_from) | {
            "moment": np.zeros((dim, dim)),
            "moment_weight": np.zeros(()),
            "moment_noise": np.zeros(()),
        }

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        a = (self.moving, self.standing)[release.channel]
        dim, m = learner.size, release.denominator
        mean_share = math.sqrt(a * part)
        g, s = release.value[:dim] / (mean_share * m), release.noise / (mean_share * m)
        outer = unsvec(release.value[dim:], dim) / (math.sqrt(1 - a) * m)
        outer_noise = release.noise / (math.sqrt(1 - a) * m)
        precision = 1 / (2 + a**2 / (2 * (1 - a)))  # of the release; the same shape under either relation
        shrunk = g * max(0.0, 1 - dim * s**2 / max(float(g @ g), 1e-300))  # as much of g as is not noise
        covariance = outer - np.outer(shrunk, shrunk)
        weight = precision * (1 - a)
        sampling = min(1.0, max(0.0, float(np.trace(outer)))) / (dim * m)
        moved = update_mean(learner, g, s, precision * a * part, board, sampling)
        return moved | {
            "moment": board["moment"] + weight * covariance,
            "moment_weight": board["moment_weight"] + weight,
            "moment_noise": board["moment_noise"] + (weight * outer_noise) ** 2,
        }

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return self._mean(learner, board)[0]

    def _mean(self, learner: BayesianLearner, board: BoardView) -> tuple[Floats, float]:
        sampling = learner.clip**2 * self._spread(board) / (learner.size * board.releases[-1].denominator)
        return shrunk_mean(learner, board, self.start_from, sampling)

    def _spread(self, board: BoardView) -> float:
        """Return the mean squared length of tasks' offsets from their mean, in clips."""
        weight = float(board["moment_weight"])
        return min(1.0, max(0.0, float(np.trace(board["moment"])) / weight)) if weight > 0 else 0.0

    def covariance(self, board: BoardView) -> tuple[Floats, float]:
        r"""Return the covariance of clipped weights, with an earlier one's, and its noise's deviation.

        The second moment of m tasks is uncertain without any noise: for offsets of all directions its entries
        vary as if noise of :math:`t \sqrt{2 / (m d (d + 2))}` were added, t being their mean squared length;
        the largest eigenvalue is larger than that noise's by :math:`1 + \sqrt{d/m}/2` (Marchenko-Pastur).
        """
        weight, dim, m = float(board["moment_weight"]), len(board["mean"]), board.releases[-1].denominator
        noise = math.sqrt(float(board["moment_noise"])) / weight
        sampling = self._spread(board) * math.sqrt(2 / (m * dim * (dim + 2))) * (1 + math.sqrt(dim / m) / 2)
        noise = math.hypot(noise, sampling)
        found = board["moment"] / weight, noise
        return found if self.start_from is None else self.start_from.combined_covariance(*found)

    def prior(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = self._mean(learner, board)
        covariance, noise = self.covariance(board)
        return EarlierPrior(tuple(mean.tolist()), variance, tuple(covariance.ravel().tolist()), noise)

    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        """Return priors around the mean, and with the covariance where it is significant."""
        matrix, noise = self.covariance(board)
        mean = self.mean(learner, board)
        found = shared_candidates(learner, mean, covariance_factors(matrix, noise), located, board)
        if self.varying is None:
            return found
        own = np.ix_(self.varying, self.varying)
        factors = [placed(factor, own, learner.size) for factor in covariance_factors(matrix[own], noise)]
        known = shared_candidates(learner, mean, factors, located, board, self.varying)
        return [replace(one, weight=one.weight / 2) for one in (*known, *found)]

    def message_variance(self, learner: BayesianLearner, board: BoardView) -> Floats:
        if float(board["moment_weight"]) == 0:
            return super().message_variance(learner, board)
        inside = np.diag(board["moment"]) / float(board["moment_weight"])
        return np.asarray(learner.clip**2 * np.clip(inside, 0.0, 1.0))
