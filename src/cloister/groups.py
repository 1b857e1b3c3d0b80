"""Public groups of tasks: districts of schools, countries of hospitals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from cloister.arrays import Floats, Integers
from cloister.errors import InputError, PlanError
from cloister.roster import group_labels

__all__ = ["NO_GROUP", "Groups"]

#: The position of a task that belongs to no group: one that comes later, and does not say.
NO_GROUP = -1


@dataclass(frozen=True)
class Groups:
    """The groups that a plan knows, and how many tasks each has.

    Parameters
    ----------
    names : tuple of str
        Their names, each once.
    sizes : tuple of int
        How many tasks of the run are in each.

    Privacy
    -------
    All of it is public, and so is which group a task is in (see `Roster`). A guarantee says what can be
    learned of a task's *data*; that it is in this group and not in another is known to everybody.

    Examples
    --------
    >>> districts = Groups.of(["north", "south", "north"])
    >>> districts
    Groups(names=('north', 'south'), sizes=(2, 1))
    >>> districts.positions(["south", "north"]).tolist()
    [1, 0]
    >>> districts.positions(["east"])
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: There is no group 'east' in this plan. It has: north, south. Mend the label.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise PlanError(f"Groups must have different names, one at least. Got {self.names}.")
        if len(self.sizes) != len(self.names) or min(self.sizes) < 1:
            raise PlanError(
                f"Every group must have tasks: sizes must be {len(self.names)} whole numbers of at least 1. "
                f"Got {self.sizes}."
            )

    @classmethod
    def of(cls, labels: ArrayLike | Sequence[object]) -> Groups:
        """Return the groups of a run, from the label of each of its tasks."""
        names, sizes = np.unique(group_labels(labels), return_counts=True)
        return cls(tuple(names.tolist()), tuple(sizes.tolist()))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def tasks(self) -> int:
        """How many tasks there are in all groups together."""
        return sum(self.sizes)

    @property
    def counts(self) -> Floats:
        return np.array(self.sizes, dtype=np.float64)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def positions(self, labels: ArrayLike | Sequence[object]) -> Integers:
        """Return which group each label names; refuse one that names none."""
        found = group_labels(labels).tolist()
        for label in found:
            if label not in self._places:
                known = ", ".join(self.names[:10]) + ", ..." * (len(self) > 10)
                raise InputError(
                    f"There is no group {label!r} in this plan. It has: {known}. Mend the label."
                )
        return np.array([self._places[label] for label in found], dtype=np.int64)
