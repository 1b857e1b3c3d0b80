r"""The unit of privacy: who is protected by a guarantee, a task or a record.

With the *task* as unit every task sends one message. With the *record* as unit every record sends one: a
record's message follows from the record and the billboard alone, is clipped, put on the grid and lifted by
itself, and is summed with the others at home. Whatever moves one record moves one term of the sum, so that
the sensitivity of a channel is what it is for tasks, and is attained by the same pairs.

A *person* with at most k records is k such terms: with Gaussian noise of :math:`\mu` for one it is exactly
:math:`k\mu`-GDP, as the k terms may all move in the same direction.

References
----------
Dong, Roth, Su, *Gaussian differential privacy*, arXiv:1905.02383, Theorem 2.14.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar

from cloister.core.errors import PlanError
from cloister.core.spec import Sender
from cloister.privacy.events import Cost, Event, GaussianEvent, PureEvent, UnitName
from cloister.privacy.sampling import Everyone, Sampling


class Unit(ABC):
    """Who is protected: a value of a `Plan`.

    Examples
    --------
    >>> Unit.task()
    TaskUnit()
    >>> Unit.record(rows=10_000).count(n_tasks=12), Unit.task().count(n_tasks=12)
    (10000, 12)
    """

    @staticmethod
    def task() -> TaskUnit:
        """Protect whole tasks, with all their records: the strongest promise, and the default."""
        return TaskUnit()

    @staticmethod
    def record(rows: int) -> RecordUnit:
        """Protect each record of any task from all other tasks and the public; not from its own task.

        Parameters
        ----------
        rows : int
            How many records all tasks have together, or a bound on it: a public number, which nobody has
            read off the data. Tasks with more are refused at home.
        """
        return RecordUnit(rows)

    @staticmethod
    def person(rows: int, most: int) -> PersonUnit:
        """Protect each person, of whose records in a task at most so many send: the first ones.

        Parameters
        ----------
        rows : int
            As for `record`.
        most : int
            Of one person's records in a task so many send, and the rest is used at home alone. Whose a row is
            must be known there (`Tasks.from_arrays(..., person=)`). Who is in several tasks is a group.
        """
        return PersonUnit(rows, most)

    @property
    @abstractmethod
    def sender(self) -> Sender:
        """Who sends messages."""

    @property
    def by_record(self) -> bool:
        """Whether records send, and a task the sum of its records' messages."""
        return self.sender is Sender.RECORD

    @property
    def limit(self) -> int | None:
        """How many records of one person in a task send, where the unit is a person."""
        return None

    @property
    def group(self) -> int:
        """How many messages one unit sends in a round, at most."""
        return self.limit or 1

    def among_few(self, rows: int) -> Unit:
        """Return a unit of the same kind for a run of few tasks with so many records, as the auditor's."""
        return self

    @abstractmethod
    def count(self, n_tasks: int) -> int:
        """Return how many messages a sum has at most: a public number."""

    @abstractmethod
    def priced(self, cost: Cost) -> Cost:
        """Return the price for one of the units of what is the price for one sender."""

    @abstractmethod
    def inside(self, cost: Cost) -> Cost:
        """Return the price for one of the units of what is the price for the task that it is in."""

    @abstractmethod
    def accept(self, sampling: Sampling) -> None:
        """Refuse a sampling that is not for this unit."""


@dataclass(frozen=True)
class TaskUnit(Unit):
    """A task, with all its records."""

    @property
    def sender(self) -> Sender:
        return Sender.TASK

    def count(self, n_tasks: int) -> int:
        return n_tasks

    def priced(self, cost: Cost) -> Cost:
        return cost

    def inside(self, cost: Cost) -> Cost:
        return cost

    def accept(self, sampling: Sampling) -> None: ...


@dataclass(frozen=True)
class RecordUnit(Unit):
    """A record of any task.

    Parameters
    ----------
    rows : int
        The public number of records in all, or a bound on it.

    Privacy
    -------
    Under `replace` the two worlds differ in one record, and under `zero_out` it says zeros in one of them.
    How many records a task has is the same in both. A whole task is a group of as many records as it has.
    """

    name: ClassVar[UnitName] = "record"
    rows: int

    def __post_init__(self) -> None:
        _check_count("rows", self.rows)

    @property
    def sender(self) -> Sender:
        return Sender.RECORD

    def among_few(self, rows: int) -> Unit:
        return replace(self, rows=rows)

    def count(self, n_tasks: int) -> int:
        return self.rows

    def priced(self, cost: Cost) -> Cost:
        return self.inside(cost)

    def inside(self, cost: Cost) -> Cost:
        return replace(cost, n_tasks=self.rows, unit=self.name)

    def accept(self, sampling: Sampling) -> None:
        if not isinstance(sampling, Everyone):
            raise PlanError(
                f"A plan by record asks all records in every round. Got {type(sampling).__name__}. Use "
                "Everyone(), or the unit Unit.task()."
            )


@dataclass(frozen=True)
class PersonUnit(RecordUnit):
    """A person in a task, of whose records there at most so many send.

    Parameters
    ----------
    rows : int
        The public number of records in all, or a bound on it.
    most : int
        Records of one person in a task that send, at most.
    """

    name: ClassVar[UnitName] = "person"
    most: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("most", self.most)

    @property
    def limit(self) -> int:
        return self.most

    def priced(self, cost: Cost) -> Cost:
        events = tuple(_times(event, self.most) for event in cost.events)
        return self.inside(replace(cost, events=events))


def _times(event: Event, count: int) -> Event:
    """Return what a release costs so many senders at once, who all change."""
    if isinstance(event, GaussianEvent):
        return GaussianEvent(count * event.mu, count * event.silence)
    if isinstance(event, PureEvent):
        return PureEvent(count * event.epsilon)
    raise PlanError(
        f"A person is priced as a group for Gaussian and pure noise. Got a {type(event).__name__}. Use "
        "Gaussian() in this plan."
    )


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise PlanError(f"{name} must be a whole number of at least 1. Got {value!r}.")
