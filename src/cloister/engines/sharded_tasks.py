"""Shards: all tasks of one operator, in parts that are read where they are computed on.

Who runs a plan over shards holds the public names of the tasks and which part each is in. Rows are read by
whoever computes on a part. That is not the same as tasks that live apart (a `Roster`): here one operator
answers for all rows, draws the coins, and has a seed for each task.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cloister.arrays import Array, Integers
from cloister.errors import InputError
from cloister.roster import Roster
from cloister.tasks import Tasks


class ShardError(InputError):
    """Files that cannot be read, or are not as they were made; says nothing of what is in a row."""


class Part(Protocol):
    """Where the rows of one shard are; small, and sent to who computes on them."""

    def load(self) -> Tasks:
        """Read and encode the rows; refuse those that do not fit, to the operator alone."""


class Shards(ABC):
    """All tasks of one operator, in parts."""

    @property
    @abstractmethod
    def roster(self) -> Roster:
        """The public list of all tasks."""

    @property
    @abstractmethod
    def positions(self) -> Sequence[Integers]:
        """The positions on the roster of each part's tasks, in the order in which `Part.load` has them."""

    @abstractmethod
    def part(self, number: int) -> Part:
        """Return where the rows of a part are."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that stands for all rows and how they are encoded. Private."""

    @property
    @abstractmethod
    def shape(self) -> Tasks:
        """Tasks like these, without a row: how many features, and what kind of targets."""

    @property
    def names(self) -> Array:
        """The names on the roster, as an array."""
        return np.array(self.roster.names)

    def __len__(self) -> int:
        return len(self.roster)

    @property
    def groups(self) -> Array | None:
        """The public label of each task, if they have any."""
        return None if self.roster.groups is None else np.array(self.roster.groups)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tasks in {len(self.positions)} shards, private)"


def names_digest(names: Array) -> bytes:
    """Return a hash of names in their order, to tell whether a part holds the tasks that it should."""
    return hashlib.blake2b(repr(names.tolist()).encode(), digest_size=16).digest()
