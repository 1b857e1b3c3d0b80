r"""Federated averaging whose clip follows a quantile of the lengths of updates, found in noisy counts.

A good clip is about as long as most updates, and nobody may look. So each task adds one number to its update:
whether it was clipped. The noisy count of these moves the clip of the next round, which is public. Update and
number are one message with one noise; there is no second release to pay for.

References
----------
G. Andrew, O. Thakkar, H. B. McMahan and S. Ramaswamy, "Differentially private learning with adaptive
clipping", arXiv:1905.03871.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.federated import FedAvg, narrow
from cloister.core.arrays import Array, Public, States, namespace
from cloister.core.channel import Channel
from cloister.core.errors import PlanError
from cloister.core.lifts import Plain

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class AdaptiveFedAvg(FedAvg):
    r"""Federated averaging with a clip that finds its own length.

    Parameters
    ----------
    learner, solver, rounds, server, finetune
        As for `FedAvg`.
    clip : float
        The clip of the first round.
    quantile : float
        Share of updates that should be shorter than the clip.
    speed : float
        The clip of the next round is at most ``exp(speed)`` times longer or shorter.
    vote : float
        Length of the vote whether a task was clipped, against an update of the clip's length. The count gets
        clearer, and the update's noise :math:`\sqrt{1 + vote^2/4}` times larger.

    Privacy
    -------
    A message is an update in units of the clip, of length 1 at most, and :math:`\pm` vote/2 beside it: its
    length is at most :math:`\sqrt{1 + vote^2/4}`, and two such messages are at most twice that apart, which
    opposite ones are. That is the channel's clip, and its sensitivity is exact. The clip in use is computed
    from earlier releases.

    Examples
    --------
    >>> from torch import nn
    >>> from cloister.learners import Descent, Module
    >>> algorithm = AdaptiveFedAvg(Module(nn.Linear(4, 3)), Descent(lr=0.1), clip=0.1, rounds=20)
    >>> algorithm.channel(None).dim, round(algorithm.channel(None).clip, 2)
    (16, 1.01)
    """

    quantile: float = 0.5
    speed: float = 0.3
    vote: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.quantile < 1 and self.speed > 0 and self.vote > 0):
            raise PlanError(
                "quantile must be in (0, 1), speed and vote > 0. "
                f"Got {self.quantile}, {self.speed}, {self.vote}."
            )

    @property
    def _channel(self) -> Channel:
        return Channel(self.learner.shared_size + 1, math.hypot(1, self.vote / 2), Plain())

    def start(self) -> Public:
        return {**super().start(), "clip": np.array([self.clip])}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        """Train from the public model; say how far that got, in units of the clip, and if it was clipped."""
        update, states = super().send(states, block, board)
        clip = board["clip"][0]
        xp = namespace(update)
        wide = xp.asarray(update, dtype=xp.float64)  # where squares of 32-bit numbers do not overflow
        lengths = xp.sqrt((wide * wide).sum(1))
        longer = lengths > clip
        units = update / (lengths * longer + clip * ~longer)[:, None]  # not a number if the update is not
        votes = xp.asarray(self.vote * longer - self.vote / 2, dtype=units.dtype)
        return xp.concatenate([units, votes[:, None]], 1), states

    def update(self, release: Release, board: BoardView) -> Public:
        said = self._channel.clip * release.value / release.denominator
        shorter = np.clip(0.5 - said[-1] / self.vote, 0.0, 1.0)
        clip = board["clip"] * np.exp(self.speed * (self.quantile - shorter))
        moved = narrow(self.server.step(board, float(board["clip"][0]) * said[:-1]))
        return {**moved, "clip": clip}
