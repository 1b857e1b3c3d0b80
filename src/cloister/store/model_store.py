"""Models of all tasks: put together from blocks, in memory or in a file; and in Parquet, one file a shard."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, States
from cloister.core.errors import InputError, MissingExtraError
from cloister.store.files import private_folder, storage_errors, write_at, write_private

#: An array with more bytes goes to a file, where there is a folder for it.
LARGE = 1 << 28
#: Tasks that are read together, where one is looked for; a file has them sorted.
ROW_GROUP = 1024
_SHAPES = b"cloister model shapes"
_AGAIN = "then run the same again"


class ModelStore:
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
    >>> models = ModelStore(3)
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


@dataclass(frozen=True)
class ModelFile:
    """Where the models of one shard go: ``shard-00007.parquet``, with a column ``task``.

    Scalars are columns of numbers; vectors and matrices are lists, flat, with their shapes in the schema.
    """

    folder: Path
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"shard-{self.number:05d}.parquet"

    def write(self, ids: Array, models: States) -> None:
        """Write all of it or nothing, for this user alone."""
        pa, pq = _pyarrow()
        shapes = {name: list(array.shape[1:]) for name, array in models.items()}
        columns = {"task": pa.array(ids.tolist())}
        columns |= {name: _column(pa, array) for name, array in models.items()}
        table = pa.table(columns).replace_schema_metadata({_SHAPES: json.dumps(shapes).encode()})
        draft = self.path.with_suffix(f".{os.getpid()}.draft")
        with storage_errors(self.folder, "then do the same again: every release is posted"):
            private_folder(self.folder)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                pq.write_table(table.sort_by("task"), file, row_group_size=ROW_GROUP)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)

    @staticmethod
    def tidy(folder: Path, count: int) -> None:
        """Remove what is none of so many shards' models: of lost actors, and of a call with more shards."""
        due = {ModelFile(folder, number).path for number in range(count)}
        for path in folder.glob("shard-*"):
            if path.suffix in (".draft", ".parquet") and path not in due:
                path.unlink(missing_ok=True)


def read_models(path: Path, tasks: Array | None = None) -> tuple[Array, States]:
    """Read the models of a file, of all its tasks or of some; return whose they are, and the arrays."""
    pa, pq = _pyarrow()
    try:
        filters = None if tasks is None else [("task", "in", tasks.tolist())]
        table = pq.read_table(path, filters=filters)
        shapes = json.loads(table.schema.metadata[_SHAPES])
        ids = np.array(table["task"].to_pylist())
        if ids.dtype.kind not in "Uiu" and len(ids):
            raise TypeError(ids.dtype)
        return ids, {name: _rows(table[name], len(ids), shape) for name, shape in shapes.items()}
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise InputError(f"{path} is not a file of models, or was edited. Restore it.") from None


def _rows(column: Any, count: int, shape: Sequence[int]) -> Array:
    """Return a column as an array of numbers with a row for each task."""
    chunks = column.combine_chunks()
    flat: Array = (chunks.flatten() if shape else chunks).to_numpy(zero_copy_only=False)
    if flat.dtype.kind not in "biuf":
        raise TypeError(flat.dtype)
    return flat.reshape(count, *shape)


def remove_model(path: Path, task: str) -> None:
    """Write a file of models anew without one task's."""
    pa, pq = _pyarrow()
    table = pq.read_table(path)
    kept = table.filter(pa.compute.not_equal(table["task"], task))
    buffer = pa.BufferOutputStream()
    pq.write_table(kept, buffer)
    write_private(path, buffer.getvalue().to_pybytes())


def _column(pa: Any, array: Array) -> Any:
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    size = int(np.prod(array.shape[1:]))
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, size)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables", "Writing models to Parquet") from error
    return pa, pq
