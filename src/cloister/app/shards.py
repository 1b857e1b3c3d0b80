"""Shards of a table in Parquet: one pass deals rows out into buckets, by a hash of the name of their task.

=============== =======================================================================================
shards.json     what the shards were made of, and a digest of every file; written last
roster.parquet  the name of each task, its bucket, and its group if it has one; public
00007/00002     the rows of bucket 7 that are from the third share of the source's files
=============== =======================================================================================

Whoever has the folder has all rows: it is for its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cloister.app.folder import unfinished_folder
from cloister.app.parquet import FileShare, ParquetFolder, list_tasks, needed_columns, pyarrow_for
from cloister.app.source import Move, TableFile
from cloister.core.arrays import Array, Integers
from cloister.core.document import check_format
from cloister.core.errors import InputError
from cloister.core.roster import Roster
from cloister.core.tasks import Tasks
from cloister.engines.workers import ShardError, Shards, ShardSource
from cloister.store.files import private_folder, write_file
from cloister.tables.binary_files import arrow_columns
from cloister.tables.codebook import Codebook
from cloister.tables.rows import encode_table, text_columns

if TYPE_CHECKING:
    from cloister.cluster import Cluster

#: How the files of shards are called: a bucket, and a file in it.
_NAME = re.compile(r"\d{5,}/[\w.-]+")
FORMAT = "cloister shards 1"
#: A file by which a folder of shards is known that is not complete yet.
MARK = ".cloister-shards"


class ParallelMap(Protocol):
    """Calls a function for each of some things, here or in other processes; yields what it returns."""

    def __call__(self, function: Callable[[Any], Any], things: Sequence[Any], /) -> Iterable[Any]: ...


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
        groups: str | None = None,
        spread: ParallelMap = map,
        shares: int = 1,
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
        groups : str, optional
            The column of each task's PUBLIC group, such as its district; the same in all rows of a task.
        spread : callable
            ``Cluster(...).each`` lets actors do it; by default it is done here.
        shares : int
            Shares of the files that are dealt out at the same time.
        progress : callable, optional
            Called with (shares done, shares in all).
        """
        place, table = Path(folder).resolve(), ParquetFolder(Path(source).resolve())
        if codebook.task is None:
            raise InputError("The codebook must name the task column, by which rows are dealt out.")
        _check_counts(buckets, shares)
        table.check_columns([*needed_columns(codebook), *([] if groups is None else [groups])])
        made_of = _made_of(table, codebook, buckets, groups)
        if (place / "shards.json").exists():
            found = cls.open(place, codebook)
            if found.manifest["made_of"] == made_of:
                return found
        elif place.exists() and any(place.iterdir()) and not (place / MARK).exists():
            raise InputError(f"{place} is already there and is left as it is. Choose another folder.")
        shutil.rmtree(place, ignore_errors=True)
        private_folder(place)
        (place / MARK).touch()
        files = np.array_split(np.arange(len(table.files)), min(shares, len(table.files)))
        jobs = [
            FileShare(table, codebook, place, number, at.tolist(), buckets, groups)
            for number, at in enumerate(files)
        ]
        sources: dict[str, str] = {}
        written: dict[str, str] = {}
        for number, dealt in enumerate(spread(FileShare.deal, jobs), start=1):
            sources, written = sources | dealt.sources, written | dealt.files
            if progress is not None:
                progress(number, len(jobs))
        list(spread(list_tasks, [jobs]))
        manifest = {
            "format": FORMAT,
            "buckets": buckets,
            "made_of": made_of,
            "sources": dict(sorted(sources.items())),
            "files": dict(sorted(written.items())),
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
            files = manifest["files"]
            names = isinstance(files, dict) and all(map(_NAME.fullmatch, files))
            whole = names and all(isinstance(digest, str) for digest in files.values())
            whole = whole and int(manifest["buckets"]) > 0 and "sources" in manifest
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            whole = False
        if not whole:
            raise InputError(f"{path} must list the files of shards. Make them with ParquetShards.split.")
        return cls(path.parent, codebook, manifest)

    @cached_property
    def _listed(self) -> _Listed:
        pa = pyarrow_for(self.folder.name)
        path = self.folder / "roster.parquet"
        try:
            table = pa.parquet.read_table(path)
            columns = {name: table[name].to_pylist() for name in table.column_names}
            kinds = {"task": str, "bucket": int, "group": str}
            if not all(isinstance(cell, kinds[name]) for name, cells in columns.items() for cell in cells):
                raise TypeError(columns.keys())
            groups = np.array(columns["group"], dtype=np.str_) if "group" in columns else None
            bucket = np.array(columns["bucket"], dtype=np.int64)
            return _Listed(np.array(columns["task"], dtype=np.str_), bucket, groups)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ShardError(
                f"{path} is not as it was made ({type(error).__name__}). Make the shards anew."
            ) from None

    @cached_property
    def roster(self) -> Roster:
        return Roster.written(self._listed.names, self._listed.groups)  # type: ignore[arg-type]

    @property
    def names(self) -> Array:
        return self._listed.names

    @property
    def groups(self) -> Array | None:
        return self._listed.groups

    @cached_property
    def _buckets(self) -> Integers:
        return np.unique(self._listed.bucket)

    @cached_property
    def positions(self) -> Sequence[Integers]:
        bucket = self._listed.bucket
        if not len(bucket):
            return []
        order = np.argsort(bucket, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(bucket[order])) + 1)

    def part(self, number: int) -> ShardSource:
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
        return Tasks(nobody, np.zeros((0, book.row_width)), target, np.zeros(0), np.zeros(1, dtype=np.int64))

    def remove(self) -> None:
        """Delete the folder, with the copy of all rows that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, eq=False, repr=False)
class _Listed:
    """The names of all tasks, sorted, the bucket of each, and its group; empty buckets are no shards."""

    names: Array
    bucket: Integers
    groups: Array | None


@dataclass(frozen=True)
class ParquetPart:
    """The files of one bucket, each with its digest, and how to encode them."""

    folder: Path
    codebook: Codebook
    files: Mapping[str, str]

    def load(self) -> Tasks:
        """Read, check and encode the rows; sorted by task, and in their order within it."""
        parts = [self._read(self.folder / name, digest) for name, digest in sorted(self.files.items())]
        if not parts:
            raise ShardError(f"{self.folder} lacks a shard's files. Make the shards anew.")
        ids = np.unique(np.concatenate([known for known, _, _ in parts]))
        code = np.concatenate([np.searchsorted(ids, known)[at] for known, at, _ in parts])
        table = {name: np.concatenate([part[2][name] for part in parts]) for name in parts[0][2]}
        book, at = self.codebook, lambda row: f"Row {row + 1} of a shard"
        X, y = encode_table(book, table, table[book.target.name], at)
        assert y is not None
        order = np.argsort(code, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=len(ids)))])
        return Tasks(ids, X[order], y[order], np.ones(len(y)), offsets)

    def _read(self, path: Path, digest: str) -> tuple[Array, Integers, dict[str, Array]]:
        """Read a file once: what is checked is what is used."""
        pa, book = pyarrow_for(path.name), self.codebook
        assert book.task is not None
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError
            file = pa.parquet.ParquetFile(pa.BufferReader(content), read_dictionary=[book.task])
            rows = file.read(use_threads=False)
            coded = rows[book.task].combine_chunks()
            text = text_columns(book, target=True)
            table = arrow_columns(path, rows.select([*book.names, book.target.name]), text)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise ShardError(
                f"{path.parent.name}/{path.name} of the shards is not as it was made. Make the shards anew."
            ) from None
        known = np.array(coded.dictionary.to_pylist(), dtype=np.str_)
        return known, coded.indices.to_numpy().astype(np.int64), table


def remove_shards(folder: Path) -> None:
    """Delete a folder of shards, with the copy of all rows that is in it; any other folder is left."""
    if (folder / MARK).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _check_counts(buckets: int, shares: int) -> None:
    if buckets < 1 or shares < 1:
        raise InputError(f"buckets and shares must be 1 at least. Got {buckets} and {shares}.")


def _made_of(table: ParquetFolder, codebook: Codebook, buckets: int, groups: str | None) -> list[Any]:
    """Return what tells whether shards are of the same files: their names, sizes and times."""
    listed = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in table.files]
    return [buckets, needed_columns(codebook), groups, listed]


@dataclass(frozen=True, kw_only=True)
class TableFolder(TableFile):
    """A folder of Parquet files, and the cluster that reads it.

    Until the run is in place, its shards are in a folder beside its own, for their owner alone.
    """

    cluster: Cluster
    shards: int
    folder: Path
    advance: Callable[[str], AbstractContextManager[Move]] = field(
        default=lambda label: nullcontext(lambda done, total: None), repr=False
    )

    @classmethod
    def of(
        cls,
        table: TableFile,
        folder: Path,
        cluster: Cluster,
        shards: int,
        advance: Callable[[str], AbstractContextManager[Move]],
    ) -> TableFolder:
        """Return the same table as a folder, to be computed on by a cluster."""
        if table.file.is_file() and table.file.suffix.lower() not in (".parquet", ".pq"):
            raise InputError(
                f"--engine ray reads a folder of Parquet files. Got {table.file}. Leave --engine ray out."
            )
        return cls(
            table.file,
            table.codebook,
            table.groups,
            note=table.note,
            cluster=cluster,
            shards=shards,
            folder=folder,
            advance=advance,
        )

    def _listed(self) -> Array:
        if self.labels is not None:
            return np.array([*self.labels])
        return self._source.task_names(self.task)

    @cached_property
    def labels(self) -> dict[Any, str] | None:
        return None if self.groups is None else self._source.task_labels(self.task, self.groups)

    @cached_property
    def _source(self) -> ParquetFolder:
        folder, book = ParquetFolder(self.file.resolve()), self.codebook
        folder.check_columns([self.task, *book.names, book.target.name])
        return folder

    def check(self) -> None:
        """Leave it to the actors, which read the rows."""

    def engine(self, draft: Path, bar: Callable[[str], Move]) -> Cluster:
        def progress(what: str, done: int, total: int) -> None:
            bar(f"Shards, {what}")(done, total)

        return replace(self.cluster, models=draft / "models", progress=progress)

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Let actors deal rows out into shards, and keep the session of Ray; delete the shards at the end.

        They stay for a run that was begun and can go on; not behind one that was refused.
        """
        try:
            with self.cluster.connected():
                with self.advance("Shares of the files") as progress:
                    self._split(progress)
                yield
        except BaseException:
            if unfinished_folder(self.folder).exists() and self._place.exists():
                self.note(
                    f"{self._place} stays, a copy of all rows for its owner alone, until the same command "
                    "has ended. Remove it if you give the run up."
                )
            else:
                remove_shards(self._place)
            raise
        remove_shards(self._place)

    @property
    def _place(self) -> Path:
        whole = self.folder.resolve()
        return whole.with_name(f".{whole.name}.shards")

    def data(self) -> ParquetShards:
        return self._split()

    def _split(self, progress: Callable[[int, int], None] | None = None) -> ParquetShards:
        return ParquetShards.split(
            self.file,
            self.codebook,
            self._place,
            buckets=self.shards,
            groups=self.groups,
            spread=self.cluster.each,
            shares=4 * self.cluster.actors,
            progress=progress,
        )
