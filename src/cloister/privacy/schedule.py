"""What a mechanism is told before a run: its rounds, who takes part, and against which neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from cloister.channel import Channel, Relation, Round
from cloister.errors import PlanError
from cloister.privacy.sampling import Sampling, passes_of

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """The public frame of a run: nothing in it depends on data.

    Parameters
    ----------
    rounds : tuple of Round
        Each with its share of the squared budget and the channels it may use.
    sampling : Sampling
        Who takes part.
    n_tasks : int
        Public number of tasks.
    relation : Relation
        The neighbours for which the noise is set.

    Examples
    --------
    >>> from cloister.channel import Channel
    >>> from cloister.sampling import Everyone
    >>> from cloister.channel import equal_rounds
    >>> len(Schedule(equal_rounds(4, [Channel(3)]), Everyone(), 100, Relation.REPLACE))
    4
    """

    rounds: tuple[Round, ...]
    sampling: Sampling
    n_tasks: int
    relation: Relation

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def passes(self) -> int:
        """How often a task may take part, at worst."""
        return passes_of(self.sampling, len(self))

    @cached_property
    def channel(self) -> Channel:
        """The channel that all rounds use, with equal shares; a schedule that differs is refused."""
        channels = {channel for round in self.rounds for channel in round.channels}
        shares = [round.share for round in self.rounds]
        if len(channels) != 1 or not math.isclose(min(shares), max(shares), rel_tol=1e-9):
            raise PlanError(
                "Correlated noise needs one channel and equal shares in all rounds. "
                f"Got {len(channels)} channels, and shares from {min(shares):.3g} to {max(shares):.3g}. "
                "Use Gaussian()."
            )
        return channels.pop()
