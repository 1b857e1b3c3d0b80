"""Where blocks of tasks are computed: in shapes, in memory, and on threads.

*Shapes.* Tasks of similar size have one shape; their rows and states are on the device, if they fit.

*Memory.* What goes between a graphics card and the processor goes through memory that both have at hand,
without waiting.

*Threads.* On the processor blocks lie side by side, each on one thread. Threads that share a product wait for
each other after every one, and each wait is as long as the slowest takes; blocks have nothing to wait for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Barrier
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloister.core.arrays import Integers, Words, as_array
from cloister.core.spelling import counted
from cloister.core.tasks import Block, Tasks, padded_size
from cloister.networks.network_inputs import tensor_of


class Fetched:
    """A tensor on its way: it becomes an array when it is needed, and the processor goes on meanwhile."""

    def __init__(self, tensor: Tensor) -> None:
        self.size = tensor.numel()
        self.there, self.arrives = tensor, None
        if tensor.is_cuda:
            self.there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.there.copy_(tensor, non_blocking=True)
            self.arrives = torch.cuda.current_stream(tensor.device).record_event()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.arrives is not None:
            self.arrives.synchronize()
        found = self.there.numpy()
        return found.astype(found.dtype if dtype is None else dtype, copy=bool(copy))


def fetched(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, once it is there."""
    return Fetched(tensor).__array__()


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor of 32-bit floats on a device, to which it may still be on its way."""
    here = torch.empty(array.shape, dtype=torch.float32, pin_memory=device.type == "cuda")
    here.numpy()[...] = array
    return here.to(device, non_blocking=True)


T = TypeVar("T")
R = TypeVar("R")
#: Results that wait to be taken, for each thread: more would fill the memory with sums.
AHEAD = 2


class OrderedMap(Protocol):
    """Applies a function to parts and yields what it returns, in their order."""

    def __call__(self, function: Callable[[T], R], parts: Iterable[T], /) -> Iterator[R]:
        """Yield a result for each part."""


@contextmanager
def side_by_side(threads: int) -> Iterator[OrderedMap]:
    """Yield a map over parts that computes so many at once; products within a part keep to one thread.

    What a part comes to is the same to the bit whatever the number of threads, if there are at least two;
    with one, parts are computed here, and their products on as many threads as torch has.

    Examples
    --------
    >>> with side_by_side(2) as each:
    ...     list(each(lambda part: (part, torch.get_num_threads()), [3, 1, 2]))
    [(3, 1), (1, 1), (2, 1)]
    """
    if threads < 2:
        yield map
        return
    before, started = torch.get_num_threads(), Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        for ready in [pool.submit(_keep_to_one, started) for _ in range(threads)]:
            ready.result()
        torch.set_num_threads(before)  # of this thread, and of those that others start
        yield lambda function, parts: _in_order(pool, AHEAD * threads, function, parts)


def _keep_to_one(started: Barrier) -> None:
    """Let torch use this thread alone; it sets the number of a thread that has never asked for it later."""
    torch.get_num_threads()
    torch.set_num_threads(1)
    started.wait()


def _in_order(
    pool: ThreadPoolExecutor, ahead: int, function: Callable[[T], R], parts: Iterable[T]
) -> Iterator[R]:
    """Yield results; who takes them keeps to one thread too: its others would take cores from the pool."""
    waiting: deque[Future[R]] = deque()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for part in parts:
            if len(waiting) == ahead:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, part))
        while waiting:
            yield waiting.popleft().result()
    finally:
        torch.set_num_threads(before)
        for late in waiting:
            late.cancel()


#: How many times larger padded rows may be than those that are.
WASTE = 1.25
#: The shares of a graphics card's free memory that a block may take, and that rows may take which stay there.
BLOCK_SHARE, ROWS_SHARE = 0.5, 0.4


@dataclass(frozen=True)
class Footprint:
    """What a run takes of a graphics card's memory, as far as shapes tell.

    Attributes
    ----------
    tasks : int
        Tasks in a block, computed at once.
    task_bytes : int
        What each of them takes: its parameters a dozen times over, its rows, and what a step keeps of a
        minibatch on the way to its gradient.
    rows_bytes : int
        What the rows of all tasks take that stay on the card; 0 where they pass through it block by block.
    free_bytes : float
        What is free there now; infinite where there is no card to ask.
    """

    tasks: int
    task_bytes: int
    rows_bytes: int
    free_bytes: float

    @property
    def peak_bytes(self) -> int:
        """The most that is taken at once, without what a library keeps for itself."""
        return self.tasks * self.task_bytes + self.rows_bytes

    def __str__(self) -> str:
        stay = "rows stay there" if self.rows_bytes else "rows pass through block by block"
        free = "" if math.isinf(self.free_bytes) else f" of {self.free_bytes / 1e9:.3g} that are free"
        return (
            f"{counted(self.tasks, 'task')} at once take about {self.peak_bytes / 1e9:.3g} GB{free}; {stay}."
        )

    @classmethod
    def of(cls, rows_bytes: int, task_bytes: int, tasks: int, free: float, block: int | None) -> Footprint:
        """Return that of so many tasks, in blocks of that many or of as many as are to fit."""
        fit = tasks if math.isinf(free) else max(1, min(tasks, int(BLOCK_SHARE * free / task_bytes)))
        padded = int(rows_bytes * WASTE)
        return cls(min(block or fit, tasks), task_bytes, padded if padded < ROWS_SHARE * free else 0, free)


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


@dataclass(frozen=True)
class Cut:
    """How tasks are cut into blocks, and where these are.

    Attributes
    ----------
    limit : int
        Tasks in a block, at most.
    rate : float
        The share of tasks that take part in a round.
    device : torch.device
        Where blocks are computed.
    resident : bool
        Whether all rows stay there.
    """

    limit: int
    rate: float
    device: torch.device
    resident: bool

    def buckets(self, tasks: Tasks, seeds: Words, group: Integers) -> list[Bucket]:
        """Group tasks of similar size; cut each group into as few blocks of one shape as the limit allows."""
        found = []
        for index in self._groups(tasks):
            block, width = next(tasks.blocks([index], seeds)), int(tasks.sizes[index].max())
            parts = (block.X[:, :width], block.y[:, :width], block.weight[:, :width])  # `minibatches` pads
            found.append(self._bucket(index, (*parts, block.keys), group[index]))
        return found

    def record_buckets(
        self, tasks: Tasks, seeds: Words, group: Integers, most: int | None = None
    ) -> list[Bucket]:
        """Return the records of tasks, each a task of one row; they are numbered as they come."""
        found, begun = [], 0
        for index in self._groups(tasks):
            block = replace(next(tasks.blocks([index], seeds)), group=group[index]).records(most)
            numbers = begun + np.arange(len(block))
            begun += len(block)
            found.append(self._bucket(numbers, (block.X, block.y, block.weight, block.keys), block.group))
        return found

    def _groups(self, tasks: Tasks) -> Iterator[Integers]:
        padded = padded_size(tasks.sizes)
        return (np.flatnonzero(padded == rows) for rows in np.unique(padded)[::-1])

    def _bucket(self, index: Integers, parts: tuple[NDArray[Any], ...], group: Integers) -> Bucket:
        expected = self.rate * len(index)
        spread = 3 * math.sqrt(expected * (1 - self.rate))
        most = min(len(index), math.ceil(expected + spread))  # more: a block more
        places = math.ceil(most / math.ceil(most / self.limit))
        *rows, words = parts
        columns = [tensor_of(np.ascontiguousarray(part)) for part in (*rows, words.view(np.int64))]
        if self.resident:
            columns = [column.to(self.device) for column in columns]
        elif self.device.type == "cuda":
            columns = [column.pin_memory() for column in columns]
        X, y, weight, keys = columns
        return Bucket(index, places, self.device, X, y, weight, keys, group)


def stored_like(states: Tensor, like: Tensor) -> Tensor:
    there = states.to(like.device)
    return there.pin_memory() if like.is_pinned() else there.clone()


def free_memory(card: torch.device) -> float:
    return float(torch.cuda.mem_get_info(card)[0])
