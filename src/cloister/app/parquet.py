"""Folders of Parquet files as one table: read in pieces, and dealt out into buckets by the names of tasks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, Integers, Words
from cloister.core.errors import InputError, MissingExtraError
from cloister.core.roster import group_labels, task_ids
from cloister.engines.workers import ShardError
from cloister.store.files import file_digest, storage_errors
from cloister.tables.binary_files import arrow_columns, text_cells
from cloister.tables.codebook import Codebook
from cloister.tables.columns import labels_by_task

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
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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
    if any(pa.types.is_nested(column.type) for column in plain):
        raise ShardError(
            f"Tasks and labels of {path.name} must be text or whole numbers. Got lists or records. Name "
            "other columns."
        )
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
        raise MissingExtraError("pyarrow", "tables", f"Reading {name}") from error
    return pa


def _unreadable(path: Path, error: Exception) -> ShardError:
    return ShardError(f"{path.name} is not a readable Parquet file. {_reason(error)}")


def _reason(error: Exception) -> str:
    """Say what kind of error it was; its text may hold a value."""
    return f"Got {type(error).__name__}. Export it again."


@dataclass(frozen=True)
class FolderSchema:
    """What is public of the columns of some files; no cell is looked at.

    Attributes
    ----------
    arrow : pyarrow.Schema
        Each column that has one type in all files, or types of which one holds the others, as a column that
        is whole numbers in one file and floats in another.
    absent : mapping of str to str
        Of columns that are not in all files: a file without it.
    clashes : mapping of str to str
        Of columns with types that do not go together: what was found where.
    """

    arrow: Any
    absent: Mapping[str, str]
    clashes: Mapping[str, str]

    @classmethod
    def of(cls, pa: Any, files: Mapping[str, Mapping[str, Any]]) -> FolderSchema:
        """Merge the columns of files, each a type by its name."""
        kinds: dict[str, Any] = {}
        first: dict[str, str] = {}
        clashes: dict[str, str] = {}
        for file, columns in files.items():
            for name, kind in columns.items():
                before = kinds.setdefault(name, kind)
                common = _common(pa, before, kind)
                if common is None:
                    clashes.setdefault(name, f"{before} in {first[name]} and {kind} in {file}")
                else:
                    kinds[name] = common
                first.setdefault(name, file)
        absent = {
            name: file
            for name in kinds
            for file, columns in reversed([*files.items()])
            if name not in columns
        }
        return cls(pa.schema([item for item in kinds.items() if item[0] not in clashes]), absent, clashes)

    def check(self, where: str, columns: Sequence[str]) -> None:
        """Refuse a folder of which a file is without one of these columns, or holds it as something else."""
        known = [*self.arrow.names, *self.clashes]
        for name in columns:
            if name not in known:
                shown = ", ".join(known[:20]) + ", ..." * (len(known) > 20)
                raise InputError(f"{where} has no column {name!r}. It has: {shown}.")
            if name in self.absent:
                raise ShardError(
                    f"Column {name!r} must be in every file of {where}. {self.absent[name]} has none. Export "
                    "that file with it, or take the file away."
                )
            if name in self.clashes:
                raise ShardError(
                    f"Column {name!r} of {where} must have one type. It is {self.clashes[name]}. Export it "
                    "as one type in all files."
                )


def _common(pa: Any, one: Any, other: Any) -> Any:
    """Return a type that holds both, or None; a category in one file may be text in another."""
    if one.equals(other):
        return one
    if pa.types.is_dictionary(one) != pa.types.is_dictionary(other):
        one, other = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other))
    try:
        schemas = [pa.schema([("column", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("column").type
    except pa.ArrowException:
        return None


#: Rows of a bucket that wait in memory to be written together.
TOGETHER = 1 << 14
#: Two odd numbers whose bits look random, by which SplitMix64 mixes the bits of a word.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def buckets_of(tasks: Array, buckets: int) -> Integers:
    """Return the bucket of each task: it follows from its name alone, so that all its rows meet.

    Examples
    --------
    >>> buckets_of(np.array(["Elm", "Oak", "Ash", "Elm"]), 4).tolist()
    [1, 3, 1, 1]
    """
    codes = np.ascontiguousarray(tasks, dtype=np.str_).view(np.uint32).reshape(len(tasks), -1)
    mixed = np.zeros(len(tasks), dtype=np.uint64)
    for place in range(codes.shape[1]):
        code = codes[:, place].astype(np.uint64)
        mixed = np.where(code > 0, _mixed(mixed ^ code), mixed)  # none is beyond a name's end
    return (mixed % np.uint64(buckets)).astype(np.int64)


def _mixed(words: Words) -> Words:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        words = (words ^ (words >> np.uint64(shift))) * factor
    return words ^ (words >> np.uint64(31))


def needed_columns(codebook: Codebook) -> list[str]:
    return [str(codebook.task), *codebook.names, codebook.target.name]


@dataclass(frozen=True)
class Dealt:
    """What was done with a share: digests of the files read and of those written."""

    sources: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class FileShare:
    """Some files of the source, to be dealt out into buckets.

    Parameters
    ----------
    table : ParquetFolder
        The source.
    codebook : Codebook
        Which columns are needed.
    folder : Path
        Where the shards are made.
    number : int
        Which share it is.
    files : list of int
        Its files, by their numbers in the source.
    buckets : int
        How many.
    groups : str, optional
        The column of tasks' public labels.
    """

    table: ParquetFolder
    codebook: Codebook
    folder: Path
    number: int
    files: list[int]
    buckets: int
    groups: str | None

    def deal(self) -> Dealt:
        """Write the rows of each bucket to a file of its own, as they come; and how tasks are spelled."""
        pa, column, needed = pyarrow_for("shards"), str(self.codebook.task), needed_columns(self.codebook)
        public = [column] if self.groups is None else [column, self.groups]
        spelled, sources = [], self._digests()
        with storage_errors(self.folder, "then do the same again"):
            out = _Buckets(self.folder, self.number)
            for file in self.files:
                for batch in self.table.batches(file, list(dict.fromkeys([*needed, *public]))):
                    spelled.append(written_once(self.table.path, batch.select(public)))
                    names, row = spellings(self.table.path, column, batch.column(column))
                    known = known_names(self.table.path, column, names)
                    bucket = buckets_of(known, self.buckets)
                    out.add(_with_names(batch.select(needed), column, known, row), bucket[row])
            written = out.close()
            pa.parquet.write_table(each_once(*spelled), self.names)
        for name, digest in self._digests().items():
            if digest != sources[name]:
                raise ShardError(f"{name} has changed while it was read. Do the same again when it is whole.")
        return Dealt(sources, written)

    def _digests(self) -> dict[str, str]:
        found = {}
        for file in self.files:
            name = self._relative(file)
            try:
                found[name] = file_digest(self.table.files[file])
            except OSError as error:
                raise ShardError(
                    f"{name} cannot be read ({type(error).__name__}). Do the same again when it can."
                ) from None
        return found

    @property
    def names(self) -> Path:
        return self.folder / f"names-{self.number:05d}"

    def _relative(self, file: int) -> str:
        path, base = self.table.files[file], self.table.path
        return path.name if path == base else path.relative_to(base).as_posix()


class _Buckets:
    """Files of one share, one for each bucket with rows; some rows of each wait to be written together.

    Their files are read a few times and deleted: numbers are in them as they are, not compressed.
    """

    def __init__(self, folder: Path, share: int) -> None:
        self.folder, self.share = folder, share
        self.waiting: dict[int, list[Any]] = {}
        self.writers: dict[int, Any] = {}

    def add(self, batch: Any, bucket: Integers) -> None:
        order = np.argsort(bucket, kind="stable")
        batch, bucket = batch.take(order), bucket[order]
        ends = [*(np.flatnonzero(np.diff(bucket)) + 1).tolist(), len(bucket)]
        for start, stop in zip([0, *ends], ends, strict=False):
            own = self.waiting.setdefault(int(bucket[start]), [])
            own.append(batch.slice(start, stop - start))
            if sum(map(len, own)) >= TOGETHER:
                self._write(int(bucket[start]))

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{bucket:05d}" / f"{self.share:05d}.parquet"

    def _write(self, bucket: int) -> None:
        pa = pyarrow_for("shards")
        rows = pa.Table.from_batches(self.waiting.pop(bucket)).combine_chunks()
        if bucket not in self.writers:
            self._path(bucket).parent.mkdir(exist_ok=True)
            text = [field.name for field in rows.schema if not pa.types.is_primitive(field.type)]
            self.writers[bucket] = pa.parquet.ParquetWriter(
                self._path(bucket), rows.schema, compression="none", use_dictionary=text
            )
        self.writers[bucket].write_table(rows)

    def close(self) -> dict[str, str]:
        """Write what waits; return the digest of each file."""
        for bucket in list(self.waiting):
            self._write(bucket)
        for writer in self.writers.values():
            writer.close()
        paths = {bucket: self._path(bucket) for bucket in self.writers}
        return {f"{path.parent.name}/{path.name}": file_digest(path) for path in paths.values()}


def list_tasks(shares: Sequence[FileShare]) -> None:
    """Write down who is where, each once; one name in two spellings, or in two groups, is refused."""
    pa, first = pyarrow_for("shards"), shares[0]
    spelled = pa.parquet.read_table(first.names)
    for share in shares[1:]:
        spelled = each_once(spelled, pa.parquet.read_table(share.names))
    listed = first.table.listed(spelled, str(first.codebook.task), first.groups)
    if len(listed.names) < 2:
        raise ShardError("There must be at least 2 tasks. Got 1, with nobody to learn from.")
    columns = {"task": listed.names, "bucket": buckets_of(listed.names, first.buckets)}
    columns |= {} if listed.groups is None else {"group": listed.groups}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    pa.parquet.write_table(table, first.folder / "roster.parquet")
    for share in shares:
        share.names.unlink()


def _with_names(batch: Any, column: str, names: Array, row: Array) -> Any:
    """Put each task's name, as it counts, in place of how the table spells it."""
    pa = pyarrow_for("shards")
    at = batch.schema.get_field_index(column)
    return batch.set_column(at, column, pa.array(names).take(pa.array(row)))
