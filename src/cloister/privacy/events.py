r"""Privacy cost as data: what one task is exposed to, in a form that accountants read.

A mechanism says what a release costs by returning an event; a plan gathers them in a :class:`Cost`; how to
turn that into an epsilon is the business of :mod:`cloister.privacy.accounting` alone. A new kind of event
is a new frozen class here and an accountant that supports it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from cloister.errors import InputError
from cloister.privacy.sampling import Sampling

__all__ = ["Cost", "GaussianEvent", "RelationName"]

RelationName: TypeAlias = Literal["replace", "zero_out"]
"""Neighbours: a task's data replaced by any other data, or all its messages replaced by zero."""


@dataclass(frozen=True)
class GaussianEvent:
    r"""One Gaussian release, for a task that takes part in it.

    Parameters
    ----------
    mu : float
        Sensitivity of the release under the plan's relation, divided by the standard deviation of its noise:
        the release is ``mu``-GDP. Infinity means no noise; 0 means that nothing is said.
    zero_out_mu : float, optional
        The same for silence: largest norm of one message over the noise. It is at most ``mu``, because
        silence is a possible message, and is taken equal to ``mu`` where not given, which is always safe.
        Under ``replace`` with hidden participation it makes the price much smaller.

    Examples
    --------
    >>> GaussianEvent(mu=2 / 5, zero_out_mu=1 / 5).silence
    0.2
    """

    mu: float
    zero_out_mu: float | None = None

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise InputError(f"mu must be at least 0. Got {self.mu!r}. It is sensitivity over noise.")
        if self.zero_out_mu is not None and not 0 <= self.zero_out_mu <= self.mu:
            raise InputError(
                f"zero_out_mu must lie between 0 and mu = {self.mu!r}. Got {self.zero_out_mu!r}. "
                "It is the largest message norm over the noise."
            )

    @property
    def silence(self) -> float:
        """GDP parameter of this release against silence."""
        return float(self.mu if self.zero_out_mu is None else self.zero_out_mu)


@dataclass(frozen=True)
class Cost:
    r"""Everything one task is exposed to: one event for each round, and how rounds are sampled.

    Parameters
    ----------
    events : tuple of GaussianEvent
        What each round costs a task that takes part in it. Channels that share a round share its coin:
        fold them into one event with :math:`\mu = \sqrt{\sum \mu_i^2}`.
    sampling : Sampling
        Who takes part.
    n_tasks : int
        Public number of tasks.
    relation : {"replace", "zero_out"}, default="replace"
        The relation for which ``mu`` was computed. It matters only under hidden Poisson sampling, where the
        two worlds of ``zero_out`` are not symmetric and a tighter pair is proven.

    Examples
    --------
    >>> from cloister.privacy.sampling import Everyone
    >>> cost = Cost((GaussianEvent(0.1),) * 3 + (GaussianEvent(0.2),), Everyone(), n_tasks=100)
    >>> cost.rounds, cost.groups
    (4, ((0.1, 0.1, 3), (0.2, 0.2, 1)))
    """

    events: tuple[GaussianEvent, ...]
    sampling: Sampling
    n_tasks: int
    relation: RelationName = "replace"

    def __post_init__(self) -> None:
        if self.n_tasks < 1:
            raise InputError(f"n_tasks must be at least 1. Got {self.n_tasks!r}. Pass the number of tasks.")
        if self.relation not in ("replace", "zero_out"):
            raise InputError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}. Choose one.")

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.events)

    @property
    def probability(self) -> float:
        """Probability that one given task takes part in one given round."""
        return self.sampling.probability(self.n_tasks, max(1, self.rounds))

    @cached_property
    def groups(self) -> tuple[tuple[float, float, int], ...]:
        """Rounds that say something, equal ones together: ``(mu, mu against silence, count)``."""
        counts = Counter((float(e.mu), e.silence) for e in self.events if e.mu > 0)
        return tuple((mu, silence, n) for (mu, silence), n in sorted(counts.items()))

    @cached_property
    def private(self) -> bool:
        """Whether every round has noise."""
        return all(math.isfinite(e.mu) for e in self.events)
