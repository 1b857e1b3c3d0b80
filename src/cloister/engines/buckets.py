"""Tasks of similar size in one shape, and where their rows and states are: on the device, if they fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloister.arrays import Integers, Words, as_array
from cloister.groups import NO_GROUP
from cloister.learners.network.module import kind_of
from cloister.tasks import Block, Tasks, padded_size

__all__ = ["Bucket", "buckets_of", "free_memory", "home_of"]

#: How many times larger padded rows may be than those that are.
WASTE = 1.25


@dataclass
class Bucket:
    """Tasks of similar size, and one shape for all their blocks: `places` tasks of `width` rows."""

    index: NDArray[np.int64]
    places: int
    device: torch.device
    X: Tensor
    y: Tensor
    weight: Tensor
    keys: Tensor
    group: Integers
    states: dict[str, Tensor] = field(default_factory=dict)

    def chunks(self, members: NDArray[np.int64]) -> Iterator[tuple[slice | Tensor, int]]:
        """Cut members into blocks, slices where nothing need be moved; say how many places they really fill.

        On a graphics card all blocks have the bucket's shape: the last is filled up with the first member.
        """
        for start in range(0, len(members), self.places):
            part = members[start : start + self.places]
            fill = self.places - len(part) if self.device.type == "cuda" else 0
            if fill or self.X.device != self.device or part[-1] - part[0] >= len(part):
                yield torch.from_numpy(np.concatenate([part, np.full(fill, members[0])])), len(part)
            else:
                yield slice(int(part[0]), int(part[-1]) + 1), len(part)

    def members(self, at: slice | Tensor, real: int) -> NDArray[np.int64]:
        return self.index[at if isinstance(at, slice) else at[:real].numpy()]

    def block(self, at: slice | Tensor, real: int) -> Block:
        X, y, weight, keys = (self._fetch(column, at) for column in (self.X, self.y, self.weight, self.keys))
        if real < len(weight):
            weight[real:] = 0
        block = Block(np.arange(len(weight)), *map(as_array, (X, y, weight, keys)))
        return replace(block, group=self.group[at if isinstance(at, slice) else at.numpy()])

    def states_of(self, at: slice | Tensor) -> dict[str, Tensor]:
        """Return the states of a block: on a processor a copy, as threads put others in place meanwhile."""
        found = {name: self._fetch(array, at) for name, array in self.states.items()}
        return {n: x.clone() for n, x in found.items()} if self.device.type == "cpu" else found

    def keep(self, states: dict[str, Tensor], at: slice | Tensor, real: int) -> None:
        if isinstance(at, slice) and real == len(self.index):
            self.states = states
            return
        for name, array in states.items():
            home = self.states[name]
            where = at if isinstance(at, slice) else at[:real].to(home.device)
            home[where] = array[:real].to(home.device)

    def _fetch(self, home: Tensor, at: slice | Tensor) -> Tensor:
        if isinstance(at, slice):
            return home[at]
        return home[at.to(home.device)].to(self.device, non_blocking=True)


def buckets_of(
    tasks: Tasks, limit: int, rate: float, seeds: Words, group: Integers, device: torch.device
) -> list[Bucket]:
    """Group tasks of similar size; cut each group into as few blocks of one shape as the limit allows."""
    padded = padded_size(tasks.sizes)
    groups = [np.flatnonzero(padded == rows) for rows in np.unique(padded)[::-1]]
    resident = tasks.X.nbytes * WASTE < free_memory(device) * 0.4
    buckets = [_bucket(tasks, index, limit, rate, seeds, device, resident) for index in groups]
    return [replace(bucket, group=group[bucket.index]) for bucket in buckets]


def _bucket(
    tasks: Tasks,
    index: NDArray[np.int64],
    limit: int,
    rate: float,
    seeds: Words,
    device: torch.device,
    resident: bool,
) -> Bucket:
    expected = rate * len(index)
    most = min(len(index), math.ceil(expected + 3 * math.sqrt(expected * (1 - rate))))  # more: a block more
    places = math.ceil(most / math.ceil(most / limit))
    block, width = next(tasks.blocks([index], seeds)), int(tasks.sizes[index].max())
    columns = [
        torch.as_tensor(np.ascontiguousarray(column)).to(kind)
        for column, kind in (
            (block.X[:, :width], kind_of(block.X)),  # `minibatches` pads where it matters
            (block.y[:, :width], kind_of(block.y)),
            (block.weight[:, :width], torch.float32),
            (block.keys.view(np.int64), torch.int64),
        )
    ]
    if resident:
        columns = [column.to(device) for column in columns]
    elif device.type == "cuda":
        columns = [column.pin_memory() for column in columns]
    X, y, weight, keys = columns
    return Bucket(index, places, device, X, y, weight, keys, np.full(len(index), NO_GROUP))


def home_of(states: Tensor, like: Tensor) -> Tensor:
    there = states.to(like.device)
    return there.pin_memory() if like.is_pinned() else there.clone()


def free_memory(device: torch.device) -> float:
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 8e9
