"""Who takes part in which round, drawn when it is asked for: a long run does not hold all its coins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Participation"]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Participation:
    """A table of ``rounds`` rows and ``n_tasks`` columns of which one row at a time exists. Secret.

    ``table[t]`` says which tasks take part in round t: a boolean array, the same whenever it is asked for.
    ``table[t, task]`` and ``table[:, tasks]`` read as with an array, and the latter draws nothing yet;
    ``numpy.asarray(table)`` is the whole of it.

    Parameters
    ----------
    row : callable
        Returns the row of a round; gives the same again for the same round.
    rounds, n_tasks : int
        The shape.

    Examples
    --------
    >>> table = Participation(lambda t: np.arange(3) == t, rounds=2, n_tasks=3)
    >>> table[1].tolist(), bool(table[1, 0]), np.asarray(table[:, [1, 2]]).tolist()
    ([False, True, False], False, [[False, False], [True, False]])
    """

    row: Callable[[int], Mask] = field(repr=False)
    rounds: int
    n_tasks: int

    @classmethod
    def always(cls, n_tasks: int, rounds: int) -> Participation:
        return cls(partial(_alike, n_tasks, True), rounds, n_tasks)

    @classmethod
    def never(cls, n_tasks: int, rounds: int) -> Participation:
        return cls(partial(_alike, n_tasks, False), rounds, n_tasks)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rounds, self.n_tasks

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Mask]:
        return map(self.row, range(self.rounds))

    def __getitem__(self, at: Any) -> Any:
        rounds, tasks = at if isinstance(at, tuple) else (at, slice(None))
        if isinstance(rounds, slice) and rounds == slice(None) and not isinstance(tasks, int | np.integer):
            chosen = np.arange(self.n_tasks)[tasks]
            return Participation(partial(_chosen, self.row, chosen), self.rounds, len(chosen))
        if isinstance(rounds, int | np.integer):
            return self.row(range(self.rounds)[rounds])[tasks]
        return np.asarray(self)[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = np.empty(self.shape, dtype=np.bool_)
        for t, row in enumerate(self):
            whole[t] = row
        return whole if dtype is None else whole.astype(dtype)


def _alike(n_tasks: int, value: bool, _: int) -> Mask:
    return np.full(n_tasks, value)


def _chosen(row: Callable[[int], Mask], tasks: npt.NDArray[np.int64], t: int) -> Mask:
    return row(t)[tasks]
