"""What a mechanism is told before a run: its rounds, who takes part, and against which neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.channel import Relation, Round
from cloister.privacy.sampling import Sampling

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
    >>> from cloister import Channel, Everyone
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
