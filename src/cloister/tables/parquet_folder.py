"""A folder of Parquet files as one table, partitioned or not; read in pieces, never as a whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.arrays import Array
from cloister.engines.shards import ShardError
from cloister.errors import InputError, MissingExtraError
from cloister.roster import task_ids
from cloister.tables.binary_files import arrow_columns, text_cells
from cloister.tables.parquet_schema import FolderSchema

__all__ = ["ParquetFolder", "file_digest", "known_names", "pyarrow_for", "spellings"]

#: Rows that are in memory at a time.
BATCH = 1 << 17


@dataclass(frozen=True)
class ParquetFolder:
    """Parquet files in a folder and the folders in it, in the order of their names.

    Folders called ``column=value`` are columns, as Hive, Spark, polars and DuckDB write them.

    Parameters
    ----------
    path : Path
        The folder, or one file.
    """

    path: Path

    @cached_property
    def dataset(self) -> Any:
        pa = pyarrow_for(self.path.name)
        import pyarrow.dataset as ds

        if not self.path.exists():
            raise InputError(f"There is no folder {self.path}. Check the path.")
        found = sorted(map(str, self.path.rglob("*.parquet"))) if self.path.is_dir() else [str(self.path)]
        if not found:
            raise InputError(f"{self.path} must hold .parquet files, in it or in folders in it. Got none.")
        try:
            base = str(self.path)
            return ds.dataset(found, format="parquet", partitioning="hive", partition_base_dir=base)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.path} must hold readable Parquet files. {_reason(error)}") from None

    @cached_property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(fragment.path) for fragment in self._fragments)

    @property
    def _fragments(self) -> list[Any]:
        return sorted(self.dataset.get_fragments(), key=lambda fragment: str(fragment.path))

    @cached_property
    def schema(self) -> FolderSchema:
        """The columns of all files, folders called ``column=value`` among them."""
        pa = pyarrow_for(self.path.name)
        from pyarrow.dataset import get_partition_keys

        files = {}
        for fragment in self._fragments:
            path, folders = Path(fragment.path), get_partition_keys(fragment.partition_expression)
            try:
                own = fragment.physical_schema
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(path, error) from None
            kinds = dict(zip(own.names, own.types, strict=True))
            kinds |= {name: self.dataset.schema.field(name).type for name in folders}
            files[path.name if self.path.is_file() else os.path.relpath(path, self.path)] = kinds
        return FolderSchema.of(pa, files)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a folder with a file that is without one of these columns, or holds it as something else."""
        self.schema.check(self.path.name, columns)

    def batches(self, number: int, columns: Sequence[str], rows: Any = None) -> Iterator[Any]:
        """Yield the rows of file number so much, in their order, some at a time."""
        pa, fragment = pyarrow_for(self.path.name), self._fragments[number]
        try:
            scanner = fragment.scanner(
                schema=self.schema.arrow,
                columns=list(columns),
                batch_size=BATCH,
                use_threads=False,
                filter=rows,
            )
            yield from (batch for batch in scanner.to_batches() if len(batch))
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(Path(fragment.path), error) from None

    def task_names(self, column: str) -> Array:
        """Return the name of each task once, sorted; no other column is looked at."""
        self.check_columns([column])
        spelled: dict[str, None] = {}
        for number in range(len(self.files)):
            for batch in self.batches(number, [column]):
                spelled.update(dict.fromkeys(spellings(self.path, column, batch.column(column))[0]))
        return np.sort(known_names(self.path, column, [*spelled]))

    def own_rows(self, task: str, column: str, text: Collection[str]) -> dict[str, Array]:
        """Return the rows of one task, from wherever they are; other rows are passed over."""
        pa, found = pyarrow_for(self.path.name), []
        self.check_columns([column])
        for number in range(len(self.files)):
            for batch in self.batches(number, self.schema.arrow.names):
                names, row = spellings(self.path, column, batch.column(column))
                own = known_names(self.path, column, names)[row] == task
                found += [batch.filter(pa.array(own))] if own.any() else []
        if not found:
            raise InputError(f"Column {column!r} of {self.path.name} has no rows of task {task!r}.")
        return arrow_columns(self.path, pa.Table.from_batches(found), text)


def spellings(path: Path, column: str, cells: Any) -> tuple[list[str], Array]:
    """Return how tasks are spelled in a column, each once, and which of these each row has."""
    coded = cells.dictionary_encode()
    names = text_cells(path, coded.dictionary)
    if coded.null_count or "" in names:
        raise ShardError(
            f"Task column {column!r} of {path.name} must have an entry in every row. Drop those rows, or "
            "name their task."
        )
    return names, coded.indices.to_numpy()


def known_names(path: Path, column: str, spelled: ArrayLike) -> Array:
    """Return names as they count; what is no name of a task is refused, and said: names are public."""
    try:
        return task_ids(np.array(spelled, dtype=np.str_))
    except InputError as error:
        raise ShardError(f"Task column {column!r} of {path.name}: {error}") from None


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pyarrow_for(name: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "table", f"Reading {name}") from error
    return pa


def _unreadable(path: Path, error: Exception) -> ShardError:
    return ShardError(f"{path.name} is not a readable Parquet file. {_reason(error)}")


def _reason(error: Exception) -> str:
    """Say what kind of error it was; its text may hold a value."""
    return f"Got {type(error).__name__}. Export it again."
