"""Several engines side by side, each with its share of the tasks: one process, several graphics cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import States, Words
from cloister.core.channel import Channel
from cloister.core.errors import PlanError
from cloister.engines.workers import AnyTasks, Coins, Collected, Engine, Workers, checked_rows, summed
from cloister.plan.plan import Plan
from cloister.privacy.caveats import Caveat, merged
from cloister.privacy.chacha_proposals import Sampler
from cloister.privacy.noise_states import TaskSum
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import SavedState
from cloister.store.model_store import ModelStore

Shares = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class MultiDevice:
    """Tasks dealt out in turn to several engines.

    ``MultiDevice((Batched("cuda:0"), Batched("cuda:1")))`` keeps two cards busy from one process: a card
    takes its orders and computes while the other is given its own, and sums are fetched when noise is added.

    Parameters
    ----------
    engines : tuple of Engine
        Such as `Batched` on one card each.

    Privacy
    -------
    The sum of the engines' sums is released, as if there were one engine. With exact noise these are whole
    numbers, and it does not matter who adds them up, or in which order.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.engines import Local
    >>> from cloister.learners import LeastSquares
    >>> from cloister.mechanisms import Gaussian
    >>> rng = np.random.default_rng(0)
    >>> tasks = Tasks.from_arrays(rng.uniform(size=(90, 3)), rng.uniform(size=90), np.arange(90) % 30)
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), Gaussian(1.0), n_tasks=30)
    >>> engines = Local(), MultiDevice((Local(), Local()))
    >>> one, two = (run(plan, tasks, random_state=0, engine=engine).board for engine in engines)
    >>> one.head == two.head
    True
    """

    engines: tuple[Engine, ...]

    def __post_init__(self) -> None:
        if not self.engines or not all(hasattr(engine, "workers") for engine in self.engines):
            raise PlanError(f"engines must be a tuple of engines, one at least. Got {self.engines!r}.")

    @property
    def remote(self) -> bool:
        return any(engine.remote for engine in self.engines)

    def doubts_of(self, plan: Plan) -> tuple[Caveat, ...]:
        return merged(*(engine.doubts_of(plan) for engine in self.engines))

    def noise_sampler(self) -> Sampler:
        return self.engines[0].noise_sampler()

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[Workers]:
        rows = checked_rows(plan, tasks, self)
        shares = deal(len(tasks), min(len(self.engines), len(tasks)))
        with ExitStack() as stack:
            parts = [
                stack.enter_context(engine.workers(plan, rows.select(share), seeds[share]))
                for engine, share in zip(self.engines, shares, strict=False)
            ]
            yield SeveralWorkers(parts, shares)


@dataclass
class SeveralWorkers:
    """Workers of parts of the tasks, as one."""

    parts: list[Workers]
    shares: Shares

    def start(self, board: Billboard) -> None:
        for workers in self.parts:
            workers.start(board)

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> TaskSum:
        return LazySum.of(workers.collect(board, channel, coins[at]) for workers, at in self._each())

    def listen(self, board: Billboard, coins: Coins) -> None:
        for workers, at in self._each():
            workers.listen(board, coins[at])

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        return self._gathered((workers.finish(board) for workers in self.parts), folder)

    def rejected(self) -> int:
        return sum(workers.rejected() for workers in self.parts)

    def save_state(self, folder: Path | None = None) -> SavedState:
        saved = [workers.save_state(folder) for workers in self.parts]
        states = self._gathered((part.states for part in saved), folder)
        return SavedState(states, sum(part.rejected for part in saved))

    def restore_state(self, saved: SavedState) -> None:
        for number, (workers, at) in enumerate(self._each()):
            rows = {name: array[at] for name, array in saved.states.items()}
            workers.restore_state(SavedState(rows, 0 if number else saved.rejected))

    def _each(self) -> Iterator[tuple[Workers, NDArray[np.int64]]]:
        return zip(self.parts, self.shares, strict=True)

    def _gathered(self, parts: Iterable[States], folder: Path | None = None) -> States:
        storage = ModelStore(sum(map(len, self.shares)), folder)
        for at, part in zip(self.shares, parts, strict=True):
            storage.put(at, part)
        return storage.arrays()


class LazySum:
    """A sum of sums that may still be being computed; added up when it is looked at."""

    def __init__(self, parts: list[TaskSum]) -> None:
        self.parts = parts
        self.size = parts[0].size

    @classmethod
    def of(cls, collected: Iterable[Collected]) -> TaskSum:
        """Return the sum of what engines in this process have collected: at once, if all of it is there."""
        parts = [summed(part) for part in collected]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        return np.asarray(sum(arrays)) if len(arrays) == len(parts) else cls(parts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        total = np.asarray(self.parts[0])
        for part in self.parts[1:]:
            total = total + np.asarray(part)
        return total if dtype is None else total.astype(dtype)


def deal(tasks: int, engines: int) -> list[NDArray[np.int64]]:
    """Deal tasks out in turn, whatever their sizes, so that no size shows in where others are computed.

    Examples
    --------
    >>> [share.tolist() for share in deal(5, 2)]
    [[0, 2, 4], [1, 3]]
    """
    return [np.arange(first, tasks, engines) for first in range(engines)]
