"""Shards of a table in Parquet: one pass deals rows out into buckets, by a hash of the name of their task.

=============== =======================================================================================
shards.json     what the shards were made of, and a digest of every file; written last
roster.parquet  the name of each task, and its bucket; public
00007/00002     the rows of bucket 7 that are from the third share of the source's files
=============== =======================================================================================

Whoever has the folder has all rows: it is for its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cloister.arrays import Array, Integers
from cloister.board.storage import private_folder, storage_errors, write_file
from cloister.document import check_format
from cloister.engines.shards import Part, ShardError, Shards
from cloister.errors import InputError
from cloister.roster import Roster
from cloister.tables.binary_files import read_parquet
from cloister.tables.codebook import Codebook
from cloister.tables.parquet_folder import ParquetFolder, file_digest, known_names, pyarrow_for, spellings
from cloister.tables.rows import text_columns
from cloister.tasks import Tasks

__all__ = ["ParquetShards", "bucket_of", "remove_shards"]

FORMAT = "cloister shards 1"
#: A file by which a folder of shards is known that is not complete yet.
MARK = ".cloister-shards"
#: Rows of a bucket that wait in memory to be written together.
TOGETHER = 1 << 14


class Spread(Protocol):
    """Calls a function for each of some things, here or in other processes; yields what it returns."""

    def __call__(self, function: Callable[[Any], Any], things: Sequence[Any], /) -> Iterable[Any]: ...


def bucket_of(task: str, buckets: int) -> int:
    """Return the bucket of a task: it follows from its name, so that all its rows meet.

    Examples
    --------
    >>> [bucket_of(name, 4) for name in ("Elm", "Oak", "Ash")]
    [1, 3, 1]
    """
    digest = hashlib.blake2b(task.encode(), digest_size=8, person=b"cloister bucket").digest()
    return int.from_bytes(digest, "little") % buckets


@dataclass(frozen=True, eq=False, repr=False)
class ParquetShards(Shards):
    """The tasks of a table in Parquet, in shards that are read where they are computed on.

    Make them with `split`; `open` takes those that are there.

    Parameters
    ----------
    folder : Path
        Where the shards are.
    codebook : Codebook
        How rows are encoded; it names the task column.
    """

    folder: Path
    codebook: Codebook
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def split(
        cls,
        source: str | os.PathLike[str],
        codebook: Codebook,
        folder: str | os.PathLike[str],
        *,
        buckets: int = 64,
        spread: Spread = map,
        groups: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> ParquetShards:
        """Deal the rows of a folder of Parquet files out into buckets; in one pass, some at a time.

        Parameters
        ----------
        source : path
            A folder of Parquet files, partitioned or not; or one file.
        codebook : Codebook
            The public schema, with the task column. Other columns are left behind.
        folder : path
            A folder for the shards, on a disk that all machines share. Shards that are there and were made of
            the same files are taken as they are.
        buckets : int
            How many shards. Each must fit into an actor's memory, with room for a copy.
        spread : callable
            ``Cluster(...).each`` lets actors do it; by default it is done here.
        groups : int
            Shares of the files that are dealt out at the same time.
        progress : callable, optional
            Called with (shares done, shares in all).
        """
        place, table = Path(folder).resolve(), ParquetFolder(Path(source).resolve())
        if codebook.task is None:
            raise InputError("The codebook must name the task column, by which rows are dealt out.")
        table.check_columns(_columns(codebook))
        made_of = _made_of(table, codebook, buckets)
        if (place / "shards.json").exists():
            found = cls.open(place, codebook)
            if found.manifest["made_of"] == made_of:
                return found
        elif place.exists() and any(place.iterdir()) and not (place / MARK).exists():
            raise InputError(f"{place} is already there and is left as it is. Choose another folder.")
        shutil.rmtree(place, ignore_errors=True)
        private_folder(place)
        (place / MARK).touch()
        shares = np.array_split(np.arange(len(table.files)), min(groups, len(table.files)))
        jobs = [
            _Share(table, codebook, place, number, at.tolist(), buckets) for number, at in enumerate(shares)
        ]
        sources: dict[str, str] = {}
        files: dict[str, str] = {}
        for number, dealt in enumerate(spread(_Share.deal, jobs), start=1):
            sources, files = sources | dealt.sources, files | dealt.files
            if progress is not None:
                progress(number, len(jobs))
        list(spread(_list_tasks, [jobs]))
        manifest = {
            "format": FORMAT,
            "buckets": buckets,
            "made_of": made_of,
            "sources": dict(sorted(sources.items())),
            "files": dict(sorted(files.items())),
        }
        write_file(place / "shards.json", json.dumps(manifest, indent=1).encode(), mode=0o600)
        return cls.open(place, codebook)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], codebook: Codebook) -> ParquetShards:
        """Take the shards that `split` has made in a folder."""
        path = Path(folder).resolve() / "shards.json"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            check_format(manifest.get("format"), FORMAT, path)
            whole = isinstance(manifest["files"], dict) and int(manifest["buckets"]) > 0
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise InputError(f"{path} must list the files of shards. Make them with ParquetShards.split.")
        return cls(path.parent, codebook, manifest)

    @cached_property
    def _listed(self) -> tuple[Array, Integers]:
        """The names of all tasks, sorted, and the shard of each; empty buckets are no shards."""
        pa = pyarrow_for(self.folder.name)
        path = self.folder / "roster.parquet"
        try:
            table = pa.parquet.read_table(path)
            names = np.array(table["task"].to_pylist(), dtype=np.str_)
            bucket = table["bucket"].to_numpy()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ShardError(
                f"{path} is not as it was made ({type(error).__name__}). Make the shards anew."
            ) from None
        return names, np.asarray(bucket, dtype=np.int64)

    @cached_property
    def roster(self) -> Roster:
        return Roster(self._listed[0])  # type: ignore[arg-type]

    @property
    def names(self) -> Array:
        return self._listed[0]

    @cached_property
    def _buckets(self) -> Integers:
        return np.unique(self._listed[1])

    @cached_property
    def positions(self) -> Sequence[Integers]:
        bucket = self._listed[1]
        order = np.argsort(bucket, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(bucket[order])) + 1)

    def part(self, number: int) -> Part:
        bucket = f"{self._buckets[number]:05d}/"
        own = {name: digest for name, digest in self.manifest["files"].items() if name.startswith(bucket)}
        return ParquetPart(self.folder, self.codebook, own)

    @cached_property
    def fingerprint(self) -> str:
        """Of the source's files and of the codebook, not of how rows were dealt out."""
        document = json.dumps([self.manifest["sources"], self.codebook.to_dict()], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()

    @property
    def shape(self) -> Tasks:
        book = self.codebook
        target = np.zeros(0) if book.classes is None else np.zeros(0, dtype=np.int64)
        nobody = np.zeros(0, dtype=np.int64)
        return Tasks(nobody, np.zeros((0, book.width)), target, np.zeros(0), np.zeros(1, dtype=np.int64))

    def remove(self) -> None:
        """Delete the folder, with the copy of all rows that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class ParquetPart:
    """The files of one bucket, each with its digest, and how to encode them."""

    folder: Path
    codebook: Codebook
    files: Mapping[str, str]

    def load(self) -> Tasks:
        """Read, check and encode the rows; sorted by task, and in their order within it."""
        parts = [self._read(self.folder / name, digest) for name, digest in sorted(self.files.items())]
        ids = np.unique(np.concatenate([known for known, _, _ in parts]))
        code = np.concatenate([np.searchsorted(ids, known)[at] for known, at, _ in parts])
        table = {name: np.concatenate([part[2][name] for part in parts]) for name in parts[0][2]}
        book, at = self.codebook, lambda row: f"Row {row + 1} of a shard"
        X = book.encode({name: table[name] for name in book.names}, at)
        y = book.encode_target(table[book.target.name], at)
        order = np.argsort(code, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=len(ids)))])
        return Tasks(ids, X[order], y[order], np.ones(len(y)), offsets)

    def _read(self, path: Path, digest: str) -> tuple[Array, Integers, dict[str, Array]]:
        pa, book = pyarrow_for(path.name), self.codebook
        assert book.task is not None
        try:
            if file_digest(path) != digest:
                raise ValueError
            names = pa.parquet.read_table(path, columns=[book.task], read_dictionary=[book.task])
            coded = names[book.task].combine_chunks()
            columns = [*book.names, book.target.name]
            table = read_parquet(path, text_columns(book, target=True), columns)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise ShardError(
                f"{path.parent.name}/{path.name} of the shards is not as it was made. Make the shards anew."
            ) from None
        known = np.array(coded.dictionary.to_pylist(), dtype=np.str_)
        return known, coded.indices.to_numpy().astype(np.int64), table


@dataclass(frozen=True)
class _Dealt:
    """What was done with a share: digests of the files read and of those written."""

    sources: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class _Share:
    """Some files of the source, to be dealt out into buckets."""

    table: ParquetFolder
    codebook: Codebook
    folder: Path
    number: int
    files: list[int]
    buckets: int

    def deal(self) -> _Dealt:
        """Write the rows of each bucket to a file of its own, as they come; and how tasks are spelled."""
        column = str(self.codebook.task)
        spelled: dict[str, int] = {}
        sources = self._digests()
        with storage_errors(self.folder, "then do the same again"):
            out = _Buckets(self.folder, self.number)
            for file in self.files:
                for batch in self.table.batches(file, _columns(self.codebook)):
                    names, row = spellings(self.table.path, column, batch.column(column))
                    known = known_names(self.table.path, column, names).tolist()
                    for spelling, name in zip(names, known, strict=True):
                        if spelling not in spelled:
                            spelled[spelling] = bucket_of(name, self.buckets)
                    bucket = np.array([spelled[name] for name in names])[row]
                    out.add(_with_names(batch, column, known, row), bucket)
            written = out.close()
            pa = pyarrow_for("shards")
            pa.parquet.write_table(pa.table({"task": pa.array([*spelled])}), self.names)
        for name, digest in self._digests().items():
            if digest != sources[name]:
                raise ShardError(f"{name} has changed while it was read. Do the same again when it is whole.")
        return _Dealt(sources, written)

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
    """Files of one share, one for each bucket with rows; some rows of each wait to be written together."""

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
            self.writers[bucket] = pa.parquet.ParquetWriter(self._path(bucket), rows.schema)
        self.writers[bucket].write_table(rows)

    def close(self) -> dict[str, str]:
        """Write what waits; return the digest of each file."""
        for bucket in list(self.waiting):
            self._write(bucket)
        for writer in self.writers.values():
            writer.close()
        paths = {bucket: self._path(bucket) for bucket in self.writers}
        return {f"{path.parent.name}/{path.name}": file_digest(path) for path in paths.values()}


def remove_shards(folder: Path) -> None:
    """Delete a folder of shards, with the copy of all rows that is in it; any other folder is left."""
    if (folder / MARK).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _with_names(batch: Any, column: str, names: list[str], row: Array) -> Any:
    """Put each task's name, as it counts, in place of how the table spells it."""
    pa = pyarrow_for("shards")
    at = batch.schema.get_field_index(column)
    return batch.set_column(at, column, pa.array(names).take(pa.array(row)))


def _columns(codebook: Codebook) -> list[str]:
    return [str(codebook.task), *codebook.names, codebook.target.name]


def _made_of(table: ParquetFolder, codebook: Codebook, buckets: int) -> list[Any]:
    """Return what tells whether shards are of the same files: their names, sizes and times."""
    listed = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in table.files]
    return [buckets, _columns(codebook), listed]


def _list_tasks(shares: Sequence[_Share]) -> None:
    """Write down who is where, each once; one name in two spellings is refused."""
    pa, spelled, first = pyarrow_for("shards"), np.array([], dtype=np.str_), shares[0]
    for share in shares:
        found = pa.parquet.read_table(share.names)["task"].to_pylist()
        spelled = np.union1d(spelled, np.array(found, dtype=np.str_))
    names = np.unique(known_names(first.table.path, str(first.codebook.task), spelled))
    if len(names) < 2:
        raise ShardError("There must be at least 2 tasks. Got 1, with nobody to learn from.")
    bucket = np.fromiter((bucket_of(str(name), first.buckets) for name in names), np.int32, len(names))
    listed = pa.table({"task": pa.array(names), "bucket": pa.array(bucket)})
    pa.parquet.write_table(listed, first.folder / "roster.parquet")
    for share in shares:
        share.names.unlink()
