r"""SharedPrior: a few short rounds of one bounded message, then a Bayesian average at home.

Everything after a release is post-processing and everything a task does with the board and its own data is
free under joint differential privacy. So the budget goes into a handful of releases that say how tasks are
alike, and each task solves at home with that as its prior: private empirical Bayes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.structures import Joint, Mean, Structure
from cloister.channel import Channel, Round
from cloister.errors import PlanError
from cloister.learners.learner import BayesianLearner, States
from cloister.tasks import Block

if TYPE_CHECKING:
    from cloister.billboard import Billboard, Release

__all__ = ["SharedPrior"]

#: Share of the squared budget that buys the scale of the prior.
SCALE_SHARE = 0.06


@dataclass(frozen=True)
class SharedPrior:
    """Private empirical Bayes.

    Parameters
    ----------
    learner : Regression or Classification
        What a task does at home.
    structure : Joint, Mean, Subspace or Support
        What tasks tell each other.
    """

    learner: BayesianLearner
    structure: Structure = field(default_factory=Joint)

    def __post_init__(self) -> None:
        if self.learner.size != self.learner.dim and not isinstance(self.structure, Mean):
            raise PlanError(
                f"With more than two classes tasks share a mean only. Got {type(self.structure).__name__}(). "
                "Use structure=Mean()."
            )

    def schedule(self, n_tasks: int, mu: float) -> tuple[Round, ...]:
        """Return the rounds; with a scale message, 6 % of the squared budget goes to it."""
        channels = self.structure.channels(self.learner)
        if not self.structure.buys_scale:
            return (Round(1.0, channels),)
        rest = 1 - SCALE_SHARE
        count = self.structure.rounds(self.learner.size, n_tasks, math.sqrt(rest) * mu)
        rounds = (Round(rest / count, channels),) * count
        scale = (Round(SCALE_SHARE, (self.learner.scale_channel,)),)
        return scale + rounds if self.learner.scale_first else rounds + scale

    def open(self) -> dict[str, NDArray[Any]]:
        """Return the public start."""
        return {"scale": np.array([0.0, np.inf])} | dict(self.structure.open(self.learner))

    def _asks_scale(self, board: Billboard) -> bool:
        last = 0 if self.learner.scale_first else board.capacity - 1
        return self.structure.buys_scale and board.rounds == last

    def channel(self, board: Billboard) -> Channel:
        """Return the scale's channel in its round, the structure's in all others."""
        if self._asks_scale(board):
            return self.learner.scale_channel
        return self.structure.channel(self.learner, board)

    def init(self, block: Block, board: Billboard) -> States:
        """Return what the task keeps of its data."""
        return self.learner.prepare(block)

    def send(self, states: States, block: Block, board: Billboard) -> tuple[NDArray[Any], States]:
        """Say the scale in its round, the structure's message in all others."""
        if self._asks_scale(board):
            mean = self.structure.mean(self.learner, board)
            return self.learner.scale_message(states, block, mean), states
        return self.structure.message(self.learner, states, block, board), states

    def digest(self, release: Release, board: Billboard) -> dict[str, NDArray[Any]]:
        """Post the scale, or what the structure makes of its release."""
        posted = dict(board.records[-1].digest)
        if self._asks_scale(board):
            clip = self.learner.scale_channel.clip
            scale = self.learner.scale_digest(clip * release.value, clip * release.noise)
            return posted | {"scale": scale}
        return posted | dict(self.structure.digest(self.learner, release, board))

    def finish(self, states: States, block: Block, board: Billboard) -> States:
        """Average over the board's candidate priors by the task's own evidence."""
        candidates = self.structure.candidates(self.learner, board)
        scale = board["scale"] if self.structure.buys_scale else None
        return self.learner.finish(states, block, candidates, scale)

    def newcomer(self, board: Billboard) -> States:
        """Return the model of a task without data, from the board alone: the shared prior itself."""
        nothing = np.zeros((1, 1))
        empty = Block(
            np.zeros(1), np.zeros((1, 1, self.learner.dim)), nothing, nothing, np.zeros(1, np.uint64)
        )
        candidates = self.structure.candidates(self.learner, board)
        shared = [c for c in candidates if c.shared] or candidates
        scale = board["scale"] if self.structure.buys_scale else None
        return self.learner.finish(self.learner.prepare(empty), empty, shared, scale)
