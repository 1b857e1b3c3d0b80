"""A folder of Parquet files with its codebook, as `fit --engine ray` reads it: rows never come here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cloister.cli.shell import Move, advance, note, positive
from cloister.cli.table import Table
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.arrays import Array
    from cloister.engines.cluster import Cluster
    from cloister.tables.parquet_folder import ParquetFolder
    from cloister.tables.parquet_shards import ParquetShards

__all__ = ["Actors", "Address", "EngineName", "OnEngine", "ShardCount", "ShardedTable"]


class EngineName(StrEnum):
    """Where tasks are computed on."""

    local = "local"
    ray = "ray"


OnEngine = Annotated[
    EngineName,
    typer.Option("--engine", help="ray: actors that read a folder of Parquet."),
]
Actors = Annotated[int, typer.Option(help="Of Ray: how many.")]
Address = Annotated[str | None, typer.Option(help="Of Ray: a cluster that is there.")]
ShardCount = Annotated[int, typer.Option("--shards", help="Of Ray: parts of the rows.")]


@dataclass(frozen=True, kw_only=True)
class ShardedTable(Table):
    """A folder of Parquet files, and the cluster that reads it.

    Until the run is in place, its shards are in a folder beside its own, for their owner alone.
    """

    cluster: Cluster
    shards: int
    folder: Path

    @classmethod
    def of(cls, table: Table, folder: Path, actors: int, address: str | None, shards: int) -> ShardedTable:
        from cloister.engines.cluster import Cluster

        positive("--actors", actors)
        positive("--shards", shards)
        if table.file.is_file() and table.file.suffix.lower() not in (".parquet", ".pq"):
            raise InputError(
                f"--engine ray reads a folder of Parquet files. Got {table.file}. Leave --engine ray out."
            )
        cluster = Cluster(actors, address=address)
        return cls(table.file, table.codebook, table.groups, cluster=cluster, shards=shards, folder=folder)

    @cached_property
    def ids(self) -> Array:
        if self.labels is not None:
            return np.array([*self.labels])
        return self._source.task_names(self.task)

    @cached_property
    def labels(self) -> dict[Any, str] | None:
        return None if self.groups is None else self._source.task_labels(self.task, self.groups)

    @cached_property
    def _source(self) -> ParquetFolder:
        from cloister.tables.parquet_folder import ParquetFolder

        folder, book = ParquetFolder(self.file.resolve()), self.codebook
        folder.check_columns([self.task, *book.names, book.target.name])
        return folder

    def engine(self, draft: Path, bar: Callable[[str], Move]) -> Cluster:
        def progress(what: str, done: int, total: int) -> None:
            bar(f"Shards, {what}")(done, total)

        return replace(self.cluster, models=draft / "models", progress=progress)

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Let actors deal rows out into shards, and keep the session of Ray; delete the shards at the end.

        They stay for a run that was begun and can go on; not behind one that was refused.
        """
        from cloister.tables.folder import unfinished_folder
        from cloister.tables.parquet_shards import remove_shards

        try:
            with self.cluster.connected():
                with advance("Shares of the files") as progress:
                    self._split(progress)
                yield
        except BaseException:
            if unfinished_folder(self.folder).exists() and self._place.exists():
                note(
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
        from cloister.tables.parquet_shards import ParquetShards

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
