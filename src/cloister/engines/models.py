"""Every task's model, put together from blocks: in memory, or in a file if there are too many numbers."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import States
from cloister.board.storage import storage_errors, write_at

__all__ = ["Models"]

#: An array with more bytes goes to a file, where there is a folder for it.
LARGE = 1 << 28
_AGAIN = "then run the same again"


class Models:
    """Storage for the models of all tasks.

    Parameters
    ----------
    count : int
        How many tasks.
    folder : path, optional
        Where a file may be made for an array that is too large for memory. It has no name, so that nobody
        else finds it and it goes with the process.

    Examples
    --------
    >>> models = Models(3)
    >>> models.put(np.array([2, 0]), {"coef": np.array([[5.0], [7.0]])})
    >>> models.put(np.array([1]), {"coef": np.array([[6.0]])})
    >>> models.arrays()["coef"].tolist()
    [[7.0], [6.0], [5.0]]
    """

    def __init__(self, count: int, folder: Path | None = None) -> None:
        self.count, self.folder = count, folder
        self.tables: dict[str, _Table | NDArray[Any]] = {}

    def put(self, index: NDArray[np.int64], part: Mapping[str, NDArray[Any]]) -> None:
        for name, rows in part.items():
            if name not in self.tables:
                self.tables[name] = self._table((self.count, *rows.shape[1:]), rows.dtype)
            self.tables[name][index] = rows

    def arrays(self) -> States:
        """Return all rows, in the order of the tasks; those in a file are read when they are looked at."""
        found = self.tables.items()
        return {name: table.array() if isinstance(table, _Table) else table for name, table in found}

    def _table(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Table | NDArray[Any]:
        size = dtype.itemsize * int(np.prod(shape))
        if self.folder is None or size <= LARGE:
            return np.empty(shape, dtype)
        return _Table(self.folder, shape, dtype)


class _Table:
    """An array in a file without a name; written row by row, so that memory holds none of it."""

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.folder, self.shape, self.dtype = folder, shape, dtype
        self.row = dtype.itemsize * int(np.prod(shape[1:]))
        with storage_errors(folder, _AGAIN), tempfile.TemporaryFile(dir=folder) as file:
            self.file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self.file)
            os.ftruncate(self.file, self.row * shape[0])

    def __setitem__(self, index: NDArray[np.int64], rows: NDArray[Any]) -> None:
        with storage_errors(self.folder, _AGAIN):
            for at, row in zip(index.tolist(), np.ascontiguousarray(rows, self.dtype), strict=True):
                write_at(self.file, at * self.row, row.tobytes())

    def array(self) -> NDArray[Any]:
        """Return the array; changes to it stay in memory."""
        mapped = mmap.mmap(self.file, self.row * self.shape[0], access=mmap.ACCESS_COPY)
        return np.frombuffer(mapped, self.dtype).reshape(self.shape)
