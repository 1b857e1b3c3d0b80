r"""What tasks tell each other about how they are alike: the structures of a shared prior.

`Joint`, `Mean` and `FeatureRelevance` take a few short rounds in which each task says where its weights lie
from a public point; `Subspace` and `Support` take one round in which it says the direction of its own
weights. The functions at the end clean a noisy covariance up for candidate priors: post-processing, hence
free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cloister.arrays import Array, Floats, Public, States
from cloister.channel import Absolute, Channel, MeanAndOuter, MeanAndSquares, Outer, Plain, unsvec
from cloister.earlier import EarlierPrior
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate, every_class, loose_intercept

if TYPE_CHECKING:
    from cloister.board.billboard import BoardView, Release
    from cloister.tasks import Block

__all__ = [
    "FeatureRelevance",
    "Joint",
    "Mean",
    "Structure",
    "Subspace",
    "Support",
    "looked_from",
    "shared_candidates",
]


class Structure(Protocol):
    """How a shared prior is learned and what candidates come of it; all but `message` is public."""

    #: Whether a small share of the budget buys the scale of the prior.
    buys_scale: bool

    @property
    def start_from(self) -> EarlierPrior | None:
        """What an earlier board says, which rounds start from."""

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        """Return how many rounds to take."""

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        """Return the channels a round may use."""

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        """Return the one it uses next."""

    def start(self, learner: BayesianLearner) -> Public:
        """Return the public start."""

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        """Return what each task says."""

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        """Return the public state after a release."""

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        """Return the prior's mean."""

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior | None:
        """Return the prior on a finished board, for a later plan; None if it has none to start from."""

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return the candidate priors."""


def _descend(
    learner: BayesianLearner, g: Floats, s: float, weight: float, board: BoardView, sampling: float = 0.0
) -> Public:
    """Move the public mean by what the tasks said: gather evidence first, then accelerated steps.

    Until the average offset is larger than its noise, and than offsets of unrelated tasks would have by
    chance (a variance of `sampling` in each number), the mean stays where it started (`since` 0), at zero or
    at an earlier run's; from then on each round is a step from the point tasks were looking from, and
    `variance` follows the noise in the mean.
    """
    since, dim = int(board["since"]), len(g)
    if since > 0:
        point, clip = looked_from(board), learner.clip
        variance = 0.49 * float(board["variance"]) + (clip * s) ** 2
        return {
            "mean": point + clip * g,
            "previous": board["mean"],
            "since": np.array(since + 1),
            "variance": np.array(variance),
            "sum": board["sum"],
            "precision": board["precision"],
            "noise": board["noise"],
        }
    total, precision = board["sum"] + weight * g, float(board["precision"]) + weight
    noise = float(board["noise"]) + (weight * s) ** 2
    average, variance = total / precision, noise / precision**2
    squared = float(average @ average)
    # a sd above pure noise (three where an earlier mean would be left), and noise at most twice as long as
    # any mean of clipped offsets can be
    deviations = 3 if board["mean"].any() else 1
    unlikely = (dim + deviations * math.sqrt(2 * dim)) * (variance + sampling)
    moves = squared > unlikely and dim * variance < 4
    mean = board["mean"] + learner.clip * average if moves else board["mean"]
    return {
        "mean": mean,
        "previous": mean,
        "since": np.array(int(moves)),
        "variance": np.array(learner.clip**2 * variance),
        "sum": total,
        "precision": np.array(precision),
        "noise": np.array(noise),
    }


def _still(dim: int, start_from: EarlierPrior | None) -> Public:
    zero, mean = np.zeros(()), np.zeros(dim) if start_from is None else np.array(start_from.mean)
    return {
        "mean": mean,
        "previous": mean,
        "since": np.array(0),
        "variance": zero,
        "sum": np.zeros(dim),
        "precision": zero,
        "noise": zero,
    }


def looked_from(board: BoardView) -> Floats:
    """Return the point tasks look from: the mean with Nesterov's momentum."""
    since = int(board["since"])
    momentum = (since - 1) / (since + 2) if since > 0 else 0.0
    point: Floats = board["mean"] + momentum * (board["mean"] - board["previous"])
    return point


def _found_mean(
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

    A tenth of the weight is left to the task's own prior, and up to half the more of the mean is noise.
    Where neither a mean nor a covariance stands out of the noise, nor targets were located so that zero is
    where they are, tasks keep to themselves.
    """
    located = "located_found" in board and int(board["located_found"]) > 0
    if not (mean.any() or factors or located):
        return []
    plain, loose, full = learner.prior_scales
    isotropic = math.sqrt(plain) * np.eye(learner.size)
    around = [isotropic]
    if learner.intercept:
        around.append(math.sqrt(loose) * every_class(loose_intercept(learner.dim, 30.0, True), learner.size))
    slopes = mean[1:] if learner.intercept and learner.size > 1 else mean
    noise = min(1.0, len(slopes) * float(board["variance"]) / max(float(slopes @ slopes), 1e-300))
    total = 0.9 - 0.4 * noise
    plainly = 2 / 3 * total if factors else total
    shared = [Candidate(plainly / len(around), mean, factor, True) for factor in around]
    rest = (total - plainly) / max(len(factors), 1)
    return shared + [Candidate(rest, mean, math.sqrt(full) * f, True) for f in factors]


def _short_rounds(size: int, n_tasks: int, mu: float) -> int:
    return (
        20 if math.isinf(mu) else int(np.clip(round(1.5 * math.sqrt(n_tasks * mu / math.sqrt(size))), 4, 20))
    )


@dataclass(frozen=True)
class Mean:
    """Tasks say where their weights lie from the public mean: the offset, clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    start_from: EarlierPrior | None = None

    buys_scale = True

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return _short_rounds(size, n_tasks, mu)

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, learner.clip, Plain()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return _still(learner.size, self.start_from)

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return learner.offset(states, block, looked_from(board))

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        """Return the public state after a release; its mean has a part of the precision it could have."""
        m = release.denominator * math.sqrt(part)
        return _descend(learner, release.value / m, release.noise / m, part, board)

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return _found_mean(learner, board, self.start_from)[0]

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = _found_mean(learner, board, self.start_from)
        return EarlierPrior(tuple(mean.tolist()), variance)

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        return shared_candidates(learner, self.mean(learner, board), [], board)


@dataclass(frozen=True)
class FeatureRelevance:
    r"""Mean and each feature's variance over tasks in one message a round, for several classes.

    The variances say which part of the mean is chance. With :math:`|m_j|^2` the squared length of feature j's
    means over the q classes, :math:`v` the noise's variance and :math:`s_j^2` the squared standard error that
    the scatter of tasks leaves, the feature keeps

    .. math:: \max(0, 1 - (q v / 2 + s_j^2) / |m_j|^2)

    of its mean (James and Stein's shrinkage, feature by feature): one that matters to nobody is left out, and
    a prior whose variances follow what is left is one more candidate. So is one around zero in public units.

    Privacy
    -------
    The message is that of `Mean`, lifted by `MeanAndSquares` with two thirds for the mean: under replace the
    mean is as precise as it is in `Mean`, under zero-out its noise is 1.22 times as large.
    """

    buys_scale = True
    start_from = None
    #: Share of the message that is the mean: from here on it does not pay for the squares, under replace.
    share = 2 / 3
    #: Least variance of a feature's prior, of an average of 1.
    floor = 0.03

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return _short_rounds(size, n_tasks, mu)

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        lift = MeanAndSquares(self.share, learner.size // learner.dim)
        return (Channel(learner.size, learner.clip, lift),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return _still(learner.size, None) | {"chance": np.zeros(learner.dim), "spoken": np.zeros(())}

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return learner.offset(states, block, looked_from(board))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        m, mean_share = release.denominator, math.sqrt(self.share)
        g, s = release.value[: learner.size] / (mean_share * m), release.noise / (mean_share * m)
        squares = release.value[learner.size :] / (math.sqrt(1 - self.share) * m)
        means = _by_feature(learner, g) - learner.size // learner.dim * s**2
        sampling = min(1.0, max(0.0, float(squares.sum()))) / (learner.size * m)
        return _descend(learner, g, s, 1.0, board, sampling) | {
            "chance": board["chance"] + (squares - np.maximum(means, 0.0)) / m,
            "spoken": board["spoken"] + 1,
        }

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        mean = board["mean"]
        if not mean.any():
            return np.zeros(learner.size)
        heard = board["sum"] / float(board["precision"])  # what the mean moved by at first, in clips
        steps = float(mean @ mean) / float(heard @ heard)
        chance = steps * np.maximum(board["chance"], 0.0) / float(board["spoken"])
        noise = learner.size // learner.dim * float(board["variance"])
        left = 1 - (noise / 2 + chance) / np.maximum(_by_feature(learner, mean), 1e-300)
        return np.asarray(np.tile(np.maximum(left, 0.0), learner.size // learner.dim) * mean)

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        return EarlierPrior(tuple(self.mean(learner, board).tolist()), float(board["variance"]))

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return a prior around zero in public units, and around the mean, one that follows its features.

        Public units may suit a task better than its own, as those of pixels do. Where no mean is heard nobody
        can tell, and tasks keep to themselves.
        """
        mean, zero = self.mean(learner, board), np.zeros(learner.size)
        factor = math.sqrt(learner.prior_scales[0]) * np.eye(learner.size)
        sizes = _by_feature(learner, mean)
        if not sizes.any():
            return []
        diagonal = (1 - self.floor) * sizes / sizes.mean() + self.floor
        relevant = every_class(np.diag(np.sqrt(diagonal)), learner.size)
        around = shared_candidates(learner, mean, [relevant], board)
        return [Candidate(0.2, zero, factor, False), *(replace(c, weight=0.8 * c.weight) for c in around)]


def _by_feature(learner: BayesianLearner, flat: Floats) -> Floats:
    """Return the squared length of every feature's weights over the classes."""
    return np.asarray(np.square(flat.reshape(-1, learner.dim)).sum(axis=0))


@dataclass(frozen=True)
class Joint:
    """Mean and covariance in one message a round: the offset and its outer product, jointly clipped.

    Parameters
    ----------
    start_from : EarlierPrior, optional
        What an earlier board says, in place of zero.
    """

    start_from: EarlierPrior | None = None

    buys_scale = True
    #: Share of the message that is the mean: while the mean moves (or at first), and while it stands still.
    moving, standing = 0.4, 0.15

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return _short_rounds(size, n_tasks, mu)

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
        return _still(dim, self.start_from) | {
            "moment": np.zeros((dim, dim)),
            "moment_weight": np.zeros(()),
            "moment_noise": np.zeros(()),
        }

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return learner.offset(states, block, looked_from(board))

    def update(
        self, learner: BayesianLearner, release: Release, board: BoardView, part: float = 1.0
    ) -> Public:
        """Return the public state after a release; its mean has a part of the precision it could have."""
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
        moved = _descend(learner, g, s, precision * a * part, board, sampling)
        return moved | {
            "moment": board["moment"] + weight * covariance,
            "moment_weight": board["moment_weight"] + weight,
            "moment_noise": board["moment_noise"] + (weight * outer_noise) ** 2,
        }

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return self._mean(learner, board)[0]

    def _mean(self, learner: BayesianLearner, board: BoardView) -> tuple[Floats, float]:
        sampling = learner.clip**2 * self._spread(board) / (learner.size * board.releases[-1].denominator)
        return _found_mean(learner, board, self.start_from, sampling)

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

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior:
        mean, variance = self._mean(learner, board)
        covariance, noise = self.covariance(board)
        return EarlierPrior(tuple(mean.tolist()), variance, tuple(covariance.ravel().tolist()), noise)

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return priors around the mean, and with the covariance where it is significant."""
        factors = covariance_factors(*self.covariance(board))
        return shared_candidates(learner, self.mean(learner, board), factors, board)


def _unit(weights: Floats) -> Floats:
    return np.asarray(weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-300))


@dataclass(frozen=True)
class Subspace:
    """Tasks say the outer product of their own direction: for weights in a common subspace, mean useless."""

    buys_scale = False
    start_from = None

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return 1

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, 1.0, Outer()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return {"moment": np.zeros((learner.size, learner.size)), "noise": np.zeros(())}

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        """Return each task's unit-normalised own weights: nothing is clipped."""
        return _unit(learner.own_weights(states, block))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        m = release.denominator
        return {"moment": unsvec(release.value / m, learner.size), "noise": np.array(release.noise / m)}

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return np.zeros(learner.size)

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> None:
        return None

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return shrunk covariances mixed with identity, and unshrunk ones lifted by the noise's edge."""
        dim, noise, total = learner.size, float(board["noise"]), board["moment"]
        kept, vectors = spikes(total, noise)
        raised = edge(noise, dim)
        matrices = [compose(kept, vectors, r) for r in (0.003, 0.01, 0.03, 0.1, 0.3) if kept.any()]
        matrices += [lifted(total, raised), lifted(total, raised / 2)]
        zero, weight = np.zeros(dim), 1.0 / (1 + len(matrices))
        return [Candidate(weight, zero, factor_of(m), False) for m in matrices]


@dataclass(frozen=True)
class Support:
    """Tasks say how much of their own direction lies on each coordinate: for a common support."""

    buys_scale = False
    start_from = None

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return 1

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        return (Channel(learner.size, 1.0, Absolute()),)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        return self.channels(learner)[0]

    def start(self, learner: BayesianLearner) -> Public:
        return {"size": np.zeros(learner.size), "noise": np.zeros(())}

    def message(self, learner: BayesianLearner, states: States, block: Block, board: BoardView) -> Array:
        return _unit(learner.own_weights(states, block))

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        return {"size": release.value, "noise": np.array(release.noise)}

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return np.zeros(learner.size)

    def prior_on(self, learner: BayesianLearner, board: BoardView) -> None:
        return None

    def candidates(self, learner: BayesianLearner, board: BoardView) -> list[Candidate]:
        """Return diagonal priors at three thresholds."""
        dim, noise = learner.size, float(board["noise"])
        above = board["size"] - np.median(board["size"])
        diagonals = []
        for threshold in (0.0, 1.0, math.sqrt(2 * math.log(max(dim, 2)))):
            kept = np.where(above > threshold * noise, np.maximum(above, 0.0) ** 2, 0.0)
            if kept.sum() > 0:
                diagonals.append(np.sqrt(np.maximum(kept * dim / kept.sum(), 1e-6)))
        zero, weight = np.zeros(dim), 1.0 / (1 + len(diagonals))
        return [Candidate(weight, zero, np.diag(d), False) for d in diagonals]


def significant(matrix: Floats, noise: float) -> bool:
    """Say whether a noisy symmetric matrix differs from a multiple of the identity beyond GOE noise."""
    dim = len(matrix)
    freedom = dim * (dim + 1) / 2 - 1
    if freedom < 1:
        return False
    excess = np.linalg.norm(matrix - np.trace(matrix) / dim * np.eye(dim)) ** 2
    return bool(excess >= noise**2 * freedom * (1 + 2 * math.sqrt(2 / freedom)) and excess > 0)


def edge(noise: float, dim: int) -> float:
    """Return the largest eigenvalue that GOE noise alone typically has."""
    return noise * math.sqrt(2 * dim)


def spikes(matrix: Floats, noise: float) -> tuple[Floats, Floats]:
    r"""Return what of the eigenvalues stands out of GOE noise, and the eigenvectors.

    Beyond the noise's edge :math:`2A`, :math:`A = s\sqrt{d/2}`, an eigenvalue l over the median b becomes
    :math:`\sqrt{(l-b)^2 - 4A^2}`; all others become 0.
    """
    dim = len(matrix)
    values, vectors = np.linalg.eigh(matrix)
    base = float(np.median(values)) if dim > 5 else 0.0
    over = np.maximum(values - min(max(base, 0.0), 1 / dim), 0.0)
    return np.sqrt(np.maximum(over**2 - edge(noise, dim) ** 2, 0.0)), vectors


def leak(kept: Floats, noise: float) -> float:
    r"""Return which share of the spikes' variance lies outside their eigenvectors, which noise has turned.

    Of a spike :math:`\theta` beyond the noise's edge 2A, the eigenvector holds :math:`1 - A^2/\theta^2`;
    what `spikes` keeps of it is :math:`\theta - A^2/\theta`.
    """
    half = edge(noise, len(kept)) / 2
    theta = (kept + np.sqrt(kept**2 + 4 * half**2))[kept > 0] / 2
    return float((half**2 / theta).sum() / theta.sum()) if len(theta) else 0.0


def compose(values: Floats, vectors: Floats, mix: float = 0.0) -> Floats:
    """Return the matrix with these eigenvalues, scaled to trace d and mixed with the identity."""
    dim, total = len(values), float(values.sum())
    scaled = values * dim / total if total > 0 else np.ones(dim)
    return (vectors * ((1 - mix) * scaled + mix)) @ vectors.T


def lifted(matrix: Floats, lift: float) -> Floats:
    """Return a noisy matrix raised by a multiple of the identity, so that noise leaves it positive."""
    values, vectors = np.linalg.eigh(matrix)
    floor = max(0.02 * lift, 1e-6 * float(np.abs(values).max()), 1e-300)
    return compose(np.maximum(values + lift, floor), vectors)


def factor_of(matrix: Floats) -> Floats:
    """Return a factor L with LL' equal to a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 1e-12)))


def support(matrix: Floats, noise: float) -> Floats:
    """Return what of the diagonal stands out: over the median, beyond the largest of d noises."""
    over = np.diag(matrix) - np.median(np.diag(matrix))
    return np.where(over > math.sqrt(2 * math.log(max(len(matrix), 2))) * noise, np.maximum(over, 0.0), 0.0)


def covariance_factors(matrix: Floats, noise: float) -> list[Floats]:
    """Return the candidate factors that a noisy covariance supports; none if nothing in it is significant.

    Spikes on top of what the trace leaves over, spikes mixed with as much identity as leaked out of them (a
    tenth at most), the whole matrix raised by the noise's edge; and the coordinates that stand out, for tasks
    with a common support.
    """
    candidates = []
    if significant(matrix, noise):
        kept, vectors = spikes(matrix, noise)
        left = max(float(np.trace(matrix)) - float(kept.sum()), 0.0) / len(matrix)
        candidates += [
            compose(kept + left, vectors, mix=0.01),
            compose(kept, vectors, mix=min(0.1, max(0.003, leak(kept, noise)))),
            lifted(matrix, edge(noise, len(matrix))),
        ]
    chosen = support(matrix, noise)
    if chosen.any():
        candidates.append(compose(chosen, np.eye(len(matrix)), mix=0.01))
    return [factor_of(candidate) for candidate in candidates]
