"""Shards of tasks that the driver holds: dealt out in turn, and sent to the actors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloister.arrays import Integers
from cloister.engines.devices import deal
from cloister.engines.sharded_tasks import Part, Shards
from cloister.roster import Roster
from cloister.tasks import Tasks


@dataclass(frozen=True, eq=False, repr=False)
class HeldShards(Shards):
    """Shards of tasks that are in memory here, dealt out in turn.

    Parameters
    ----------
    tasks : Tasks
        All of them.
    count : int
        How many shards, at most one a task.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0]], [[2.0]], [[3.0]]], [[2.0], [4.0], [6.0]], ["a", "b", "c"])
    >>> shards = HeldShards(tasks, 2)
    >>> shards, shards.part(0).load().ids.tolist()
    (HeldShards(3 tasks in 2 shards, private), ['a', 'c'])
    """

    tasks: Tasks
    count: int

    @cached_property
    def roster(self) -> Roster:
        return self.tasks.roster

    @cached_property
    def positions(self) -> Sequence[Integers]:
        return deal(len(self.tasks), min(self.count, len(self.tasks)))

    def part(self, number: int) -> Part:
        return _HeldPart(self.tasks.select(self.positions[number]))

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for array in (self.tasks.X, self.tasks.y, self.tasks.weight, self.tasks.offsets):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def shape(self) -> Tasks:
        return self.tasks.select([])


@dataclass(frozen=True, eq=False, repr=False)
class _HeldPart:
    tasks: Tasks

    def load(self) -> Tasks:
        return self.tasks
