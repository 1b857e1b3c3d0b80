"""A folder of Parquet files as one table, partitioned or not; read in pieces, never as a whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.arrays import Array
from cloister.engines.sharded_tasks import ShardError
from cloister.errors import InputError, MissingExtraError
from cloister.roster import group_labels, task_ids
from cloister.tables.binary_files import arrow_columns, text_cells
from cloister.tables.columns import labels_by_task
from cloister.tables.parquet_schema import FolderSchema

__all__ = [
    "Listed",
    "ParquetFolder",
    "each_once",
    "known_names",
    "pyarrow_for",
    "spellings",
    "written_once",
]

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
        return self.listed(self._spelled([column]), column, None).names

    def task_labels(self, column: str, groups: str) -> dict[str, str]:
        """Return the public group of each task; no other columns are looked at."""
        found = self.listed(self._spelled([column, groups]), column, groups)
        assert found.groups is not None
        return dict(zip(found.names.tolist(), found.groups.tolist(), strict=True))

    def _spelled(self, columns: Sequence[str]) -> Any:
        self.check_columns(columns)
        found = None
        for number in range(len(self.files)):
            for batch in self.batches(number, columns):
                written = written_once(self.path, batch)
                found = written if found is None else each_once(found, written)
        return found

    def listed(self, spelled: Any, column: str, groups: str | None) -> Listed:
        """Return tasks by the names that count, sorted, from how the table writes them, each once.

        One name in two spellings is refused, and so is a task in two groups.
        """
        names = known_names(self.path, column, spelled[column].to_pylist())
        if groups is None:
            return Listed(np.unique(names), None)
        try:  # what the column holds is not said: it may be another than was meant, and private
            labels = group_labels(np.array(spelled[groups].to_pylist(), dtype=np.str_))
        except InputError:
            raise ShardError(
                f"Column {groups!r} of {self.path.name} must hold public labels, written like names of "
                "tasks. Some are not. Mend the column, or name another."
            ) from None
        try:
            found = labels_by_task(names, labels)
        except InputError:
            raise ShardError(
                f"Column {groups!r} of {self.path.name} must have one public label for all rows of a task. "
                "Some task has several. Mend the column, or name another."
            ) from None
        return Listed(np.array([*found]), np.array([*found.values()]))

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


@dataclass(frozen=True)
class Listed:
    """Names of tasks, sorted, and the public label of each if they have any."""

    names: Array
    groups: Array | None


def written_once(path: Path, batch: Any) -> Any:
    """Return what is written in some public columns, each combination once, as text."""
    pa = pyarrow_for(path.name)
    plain = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    found = pa.table(plain, batch.schema.names).group_by(batch.schema.names).aggregate([])
    return pa.table({name: pa.array(_entries(path, name, found[name])) for name in found.column_names})


def each_once(*tables: Any) -> Any:
    """Return the rows of some tables, each once."""
    pa = pyarrow_for("names")
    return pa.concat_tables(tables).group_by(tables[0].column_names).aggregate([])


def spellings(path: Path, column: str, cells: Any) -> tuple[list[str], Array]:
    """Return how tasks are spelled in a column, each once, and which of these each row has."""
    coded = cells.dictionary_encode()
    return _entries(path, column, coded.dictionary, coded.null_count), coded.indices.to_numpy()


def _entries(path: Path, column: str, cells: Any, missing: int = 0) -> list[str]:
    names = text_cells(path, cells)
    if missing or "" in names:
        raise ShardError(
            f"Column {column!r} of {path.name} must have an entry in every row. Drop those rows, or name "
            "their task or group."
        )
    return names


def known_names(path: Path, column: str, spelled: ArrayLike) -> Array:
    """Return names as they count; what is no name of a task is refused, and said: names are public."""
    try:
        return task_ids(np.array(spelled, dtype=np.str_))
    except InputError as error:
        raise ShardError(f"Task column {column!r} of {path.name}: {error}") from None


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
