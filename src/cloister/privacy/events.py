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

from cloister.core.errors import InputError, PlanError
from cloister.privacy.sampling import Sampling

RelationName: TypeAlias = Literal["replace", "zero_out"]
"""Neighbours: a task's data replaced by any other data, or all its messages replaced by zero."""
UnitName: TypeAlias = Literal["task", "record", "person"]
"""Whose data differ between neighbours: a task's, one record of a task, or a person's few records."""


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

    @property
    def exposure(self) -> float:
        """0 if nothing is said, infinity if there is no noise."""
        return float(self.mu)


@dataclass(frozen=True)
class GammaEvent:
    r"""One release with chi-square noise: a number that silence leaves at 0 and a task moves by ``shift``.

    A release with Wishart noise is exactly that: see :mod:`cloister.privacy.wishart`.

    Parameters
    ----------
    degrees : float
        Degrees of freedom of the noise, above 2, where its density is log-concave and vanishes at 0.
    shift : float
        Largest change against silence over the scale of the noise.

    Examples
    --------
    >>> GammaEvent(degrees=300, shift=2.5).exposure
    2.5
    """

    degrees: float
    shift: float

    def __post_init__(self) -> None:
        if not (self.degrees > 2 and self.shift >= 0):
            raise InputError(
                "A gamma event needs degrees above 2 and a shift of at least 0. "
                f"Got {self.degrees!r} and {self.shift!r}."
            )

    @property
    def exposure(self) -> float:
        """0 if nothing is said, infinity if there is no noise."""
        return float(self.shift)


@dataclass(frozen=True)
class PureEvent:
    """One release that is purely ``epsilon``-differentially private under the plan's relation.

    Examples
    --------
    >>> PureEvent(0.5).exposure
    0.5
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InputError(f"epsilon must be at least 0. Got {self.epsilon!r}.")

    @property
    def exposure(self) -> float:
        """0 if nothing is said, infinity if there is no noise."""
        return float(self.epsilon)


Event: TypeAlias = GaussianEvent | GammaEvent | PureEvent
"""What one round costs a task that takes part in it."""


@dataclass(frozen=True)
class Cost:
    r"""Everything one task is exposed to: one event for each round, and how rounds are sampled.

    Parameters
    ----------
    events : tuple of Event
        What each round costs a task that takes part in it. Gaussian channels that share a round share its
        coin: fold them into one event with :math:`\mu = \sqrt{\sum \mu_i^2}`.
    sampling : Sampling
        Who takes part.
    n_tasks : int
        Public number of tasks, or of whatever is the unit.
    relation : {"replace", "zero_out"}, default="replace"
        The relation that the cost is for. Gaussian and pure events carry it in their numbers, so that it
        matters only under hidden Poisson sampling, where the two worlds of ``zero_out`` are not symmetric and
        a tighter pair is proven. Gamma events are against silence and are doubled for ``replace``.
    unit : {"task", "record", "person"}, default="task"
        Who is exposed.

    Examples
    --------
    >>> from cloister.privacy.sampling import Everyone
    >>> cost = Cost((GaussianEvent(0.1),) * 3 + (GaussianEvent(0.2),), Everyone(), n_tasks=100)
    >>> cost.rounds, cost.groups
    (4, ((0.1, 0.1, 3), (0.2, 0.2, 1)))
    """

    events: tuple[Event, ...]
    sampling: Sampling
    n_tasks: int
    relation: RelationName = "replace"
    unit: UnitName = "task"

    def __post_init__(self) -> None:
        if self.n_tasks < 1:
            raise InputError(f"n_tasks must be at least 1. Got {self.n_tasks!r}. Pass the number of tasks.")
        if self.relation not in ("replace", "zero_out"):
            raise InputError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}. Choose one.")

    @property
    def rounds(self) -> int:
        return len(self.events)

    @property
    def probability(self) -> float:
        """Probability that one given task takes part in one given round."""
        return self.sampling.probability(self.n_tasks, max(1, self.rounds))

    def only(self, kind: type[Event]) -> bool:
        return all(isinstance(event, kind) for event in self.events)

    @cached_property
    def groups(self) -> tuple[tuple[float, float, int], ...]:
        """Gaussian rounds with a release, equal ones together: ``(mu, mu against silence, count)``."""
        counts: Counter[tuple[float, float]] = Counter()
        for event in self.events:
            if not isinstance(event, GaussianEvent):
                raise PlanError(
                    "Only Gaussian noise can be priced in this way. "
                    f"Got a {type(event).__name__}. Use Gaussian()."
                )
            if event.mu > 0:
                counts[float(event.mu), event.silence] += 1
        return tuple((mu, silence, n) for (mu, silence), n in sorted(counts.items()))

    @cached_property
    def silent(self) -> bool:
        """Whether nothing is ever said."""
        return all(event.exposure == 0 for event in self.events)

    @cached_property
    def private(self) -> bool:
        """Whether every round has noise."""
        return all(math.isfinite(event.exposure) for event in self.events)
