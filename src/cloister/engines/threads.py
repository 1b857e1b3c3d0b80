"""Blocks of tasks side by side: each on one thread of the processor, instead of all threads on each product.

Threads that share a product wait for each other after every one, and each wait is as long as the slowest
takes; blocks have nothing to wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Protocol, TypeVar

import torch

__all__ = ["InOrder", "side_by_side"]

T = TypeVar("T")
R = TypeVar("R")
#: Results that wait to be taken, for each thread: more would fill the memory with sums.
AHEAD = 2


class InOrder(Protocol):
    """Applies a function to parts and yields what it returns, in their order."""

    def __call__(self, function: Callable[[T], R], parts: Iterable[T], /) -> Iterator[R]:
        """Yield a result for each part."""


@contextmanager
def side_by_side(threads: int) -> Iterator[InOrder]:
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
