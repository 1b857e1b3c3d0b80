r"""Tasks nested in public groups: each draws its prior from its group's, which is drawn from the common one.

.. math::
    w_i \sim N(\mu + \delta_{g(i)}, \Sigma), \qquad \delta_{gj} \sim N(0, \tau_j^2)

A task says where its weights lie from its group's point, to all and to its group, in one message
(`cloister.channel.Grouped`). From what all hear comes the common mean, as without groups; from what each
group hears more than that, its offset, of which as much is kept as is not noise. All of it is public
post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cloister.algorithms.constants import GROUPS
from cloister.algorithms.prior.structure import Structure, no_group_means
from cloister.core.arrays import Array, Floats, Integers, Public, States
from cloister.core.channel import Channel
from cloister.core.findings import EarlierPrior
from cloister.core.lifts import Grouped, Relation
from cloister.core.roster import NO_GROUP, Groups
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.question import Candidates

if TYPE_CHECKING:
    from cloister.algorithms.prior.mean import MovingMean
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class GroupMeans(Structure):
    r"""Mean or mean and covariance, of all tasks and of public groups of them.

    Parameters
    ----------
    structure : Mean or Joint
        What tasks would tell each other without groups.
    groups : Groups
        The groups, and how many tasks each has.

    Privacy
    -------
    The price of every round is that of the structure inside: see `cloister.channel.Grouped`. Which group a
    task is in is public.

    Notes
    -----
    Half of the message about the mean goes to the groups' slots, from the second round on, if the group that
    a task is in, of :math:`n = \sum_g m_g^2 / m` tasks on average, can be expected to end with noise of at
    most 0.4 clips in each number; from half of the rounds on, only if groups were found to differ.
    Otherwise, and with one group, everything is as without groups. All of this follows from public numbers
    and the board.

    Examples
    --------
    >>> from cloister.learners import Regression
    >>> from cloister.algorithms import Joint
    >>> structure = GroupMeans(Joint(), Groups.of(["north", "south", "north"]))
    >>> [type(channel.lift).__name__ for channel in structure.channels(Regression(3))]
    ['MeanAndOuter', 'MeanAndOuter', 'Grouped', 'Grouped']
    """

    structure: MovingMean
    groups: Groups = field()

    #: Share of the common slot in the message about the mean.
    share: ClassVar[float] = GROUPS.share

    def __post_init__(self) -> None:
        if not self.structure.for_groups:
            raise no_group_means(self.structure)

    @property
    def about(self) -> str:  # type: ignore[override]
        return f"{self.structure.about}, of all tasks and of {len(self.groups)} groups"

    @property
    def several_classes(self) -> bool:  # type: ignore[override]
        return self.structure.several_classes

    @property
    def start_from(self) -> EarlierPrior | None:  # type: ignore[override]
        return self.structure.start_from

    def grouped(self, groups: Groups) -> Structure:
        return self.structure.grouped(groups)

    def rounds(self, size: int, n_tasks: int, mu: float) -> int:
        return self.structure.rounds(size, n_tasks, mu)

    def channels(self, learner: BayesianLearner) -> tuple[Channel, ...]:
        plain = self.structure.channels(learner)
        if len(self.groups) == 1:
            return plain
        return plain + tuple(replace(c, lift=Grouped(c.lift, len(self.groups), self.share)) for c in plain)

    def channel(self, learner: BayesianLearner, board: BoardView) -> Channel:
        """Speak to groups as well where they can be expected to hear something."""
        plain = self.structure.channel(learner, board)
        if len(self.groups) == 1 or not self._worth_asking(learner, plain, board):
            return plain
        return replace(plain, lift=Grouped(plain.lift, len(self.groups), self.share))

    def _worth_asking(self, learner: BayesianLearner, plain: Channel, board: BoardView) -> bool:
        left = board.capacity - board.rounds
        if 2 * left < board.capacity and not self.offsets(learner, board).any():
            return False
        loudness = float(board["loudness"]) * plain.sensitivity(Relation.REPLACE)
        typical = float(self.groups.counts @ self.groups.counts) / self.groups.tasks
        expected = loudness / math.sqrt(_mean_share(plain) * (1 - self.share) * max(1, left))
        return expected <= GROUPS.most_noise * typical

    def start(self, learner: BayesianLearner) -> Public:
        count = len(self.groups)
        return self.structure.start(learner) | {
            "loudness": np.array(math.inf),
            "group_sum": np.zeros((count, learner.size)),
            "group_weight": np.zeros(()),
            "group_noise": np.zeros(count),
        }

    def message(self, learner: BayesianLearner, home: Home, board: BoardView) -> Array:
        point, offsets = board["mean"], self.offsets(learner, board)

        def offset(home: Home, group: int) -> States:
            return {"offset": learner.offset(home, point if group == NO_GROUP else point + offsets[group])}

        return home.apart(_telling(home.block.group, offsets), offset)["offset"]

    def update(self, learner: BayesianLearner, release: Release, board: BoardView) -> Public:
        """Take the common mean from all slots, by their precision, and add up what groups hear beyond it."""
        channels, plain = self.channels(learner), len(self.structure.channels(learner))
        inside = channels[release.channel % plain]
        a = _mean_share(inside)
        unit = release.noise / inside.sensitivity(Relation.REPLACE)
        loudness = {"loudness": np.array(unit * self.groups.tasks / release.denominator)}
        if release.channel < plain:
            kept = {name: board[name] for name in ("group_sum", "group_weight", "group_noise")}
            return self.structure.update(learner, release, board) | kept | loudness
        common, part = self._common(learner, release)
        mean, slots = common.value[: learner.size], self._slots(learner, release)
        b, count, m = self.share, len(self.groups), release.denominator
        members = m * self.groups.counts / self.groups.tasks
        beyond = slots / (math.sqrt(a * (1 - b)) * members[:, None]) - mean / (math.sqrt(a * part) * m)
        noise = 1 / ((1 - b) * members**2) + 1 / (part * m**2) - 2 / (part * count * m * members)
        noise *= release.noise**2 / a
        weight = a / inside.sensitivity(Relation.REPLACE) ** 2  # precision, the same under either relation
        position = self.offsets(learner, board) + learner.clip * learner.weights_of(beyond)
        return (
            self.structure.update(learner, common, board, part)
            | loudness
            | {
                "group_sum": board["group_sum"] + weight * position,
                "group_weight": board["group_weight"] + weight,
                "group_noise": board["group_noise"] + weight**2 * learner.clip**2 * noise,
            }
        )

    def _slots(self, learner: BayesianLearner, release: Release) -> Floats:
        """Return what each group hears of the mean."""
        return release.value[-len(self.groups) * learner.size :].reshape(len(self.groups), learner.size)

    def without_groups(
        self, learner: BayesianLearner, release: Release, before: BoardView
    ) -> tuple[Floats, Release, float]:
        share = self.groups.counts / self.groups.tasks
        return before["mean"] + share @ self.offsets(learner, before), *self._common(learner, release)

    def _common(self, learner: BayesianLearner, release: Release) -> tuple[Release, float]:
        """Return what a release says without groups, and which part of the mean's precision it then has."""
        plain, b, count = len(self.structure.channels(learner)), self.share, len(self.groups)
        if release.channel < plain:
            return release, 1.0
        part, slots = b + (1 - b) / count, self._slots(learner, release)
        common = release.value[: -slots.size]
        mean = math.sqrt(b) * common[: learner.size] + math.sqrt(1 - b) / count * slots.sum(axis=0)
        value = np.concatenate([mean / math.sqrt(part), common[learner.size :]])
        return replace(release, value=value, channel=release.channel - plain), part

    def offsets(self, learner: BayesianLearner, board: BoardView) -> Floats:
        r"""Return how far each group's mean lies from the common one: as much of it as stands out.

        Of a coordinate j, :math:`D_{gj}` was estimated with variance :math:`W_{gj}`, the noise's and that of
        a mean of :math:`m_g` tasks. The spread between groups is :math:`\tau_j^2`, the mean of
        :math:`D_{gj}^2 - W_{gj}` weighted by :math:`W_{gj}^{-2}`, less two deviations
        :math:`(2 / \sum_g W_{gj}^{-2})^{1/2}` of what pure noise gives, and not below 0: where noise could
        have made it, groups do not differ. :math:`D_{gj}` is shrunk by
        :math:`\tau_j^2 / (\tau_j^2 + W_{gj})`.
        """
        weight = float(board["group_weight"])
        if weight == 0:
            return np.zeros((len(self.groups), learner.size))
        found = board["group_sum"] / weight
        variance = self.structure.message_variance(learner, board) / self.groups.counts[:, None]
        variance = variance + (board["group_noise"] / weight**2)[:, None] + 1e-12
        precision = 1 / variance**2
        total = precision.sum(axis=0)
        between = (precision * (found**2 - variance)).sum(axis=0) / total
        between = np.maximum(between - GROUPS.deviations * np.sqrt(2 / total), 0.0)
        return np.asarray(found * between / (between + variance))

    def mean(self, learner: BayesianLearner, board: BoardView) -> Floats:
        return self.structure.mean(learner, board)

    def prior(self, learner: BayesianLearner, board: BoardView) -> EarlierPrior | None:
        """Return the common prior; what groups were found to differ by is not handed on."""
        return self.structure.prior(learner, board)

    def candidates(self, learner: BayesianLearner, located: int | None, board: BoardView) -> list[Candidate]:
        return self.structure.candidates(learner, located, board)

    def group_candidates(
        self, learner: BayesianLearner, located: int | None, offset: Floats, board: BoardView
    ) -> list[Candidate]:
        return self.structure.group_candidates(learner, located, offset, board)


def _mean_share(channel: Channel) -> float:
    """Return the share of the mean in a message: the square of its weight."""
    return float(channel.lift.weights(channel.dim)[0][0]) ** 2


Solve = Callable[["Home", "Candidates"], "States"]


def solve_by_group(
    structure: Structure,
    learner: BayesianLearner,
    located: int | None,
    home: Home,
    board: BoardView,
    solve: Solve,
) -> States:
    """Let tasks with the same candidate priors solve together: all of them, or group by group."""
    common, offsets = board.derive(structure.candidates, learner, located), structure.offsets(learner, board)

    def own(home: Home, group: int) -> States:
        if group == NO_GROUP:
            return solve(home, common)
        return solve(home, structure.group_candidates(learner, located, offsets[group], board))

    return home.apart(_telling(home.block.group, offsets), own)


def _telling(groups: Integers, offsets: Floats) -> Integers:
    """Return each task's group, or none if its group's offset is zero."""
    if not offsets.any():
        return np.full(len(groups), NO_GROUP)
    differs = np.asarray(offsets.any(axis=1))
    return np.where((groups != NO_GROUP) & differs[groups], groups, NO_GROUP)
