"""Dealing the rows of a table in Parquet out into buckets: by the name of their task, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloister.arrays import Array, Integers, Words
from cloister.engines.sharded_tasks import ShardError
from cloister.store.files import file_digest, storage_errors
from cloister.tables.codebook import Codebook
from cloister.tables.parquet_folder import (
    ParquetFolder,
    each_once,
    known_names,
    pyarrow_for,
    spellings,
    written_once,
)

__all__ = ["Dealt", "Share", "buckets_of", "list_tasks", "needed_columns"]

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
class Share:
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


def list_tasks(shares: Sequence[Share]) -> None:
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
