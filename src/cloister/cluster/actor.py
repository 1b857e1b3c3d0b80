"""What runs at an actor: some shards of tasks, the board so far, and answers without anybody's data in them.

Ray writes what a process prints to files and sends it to the driver, and an exception travels with its text
and its traceback, which may hold rows. So an actor prints nowhere, and raises nothing: it answers with a
`Failure`, which has a sentence only where that is known to be public.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import numpy as np

from cloister.cluster.shard import HeldShard, Missed
from cloister.core.arrays import Array, States, Words
from cloister.core.channel import Channel
from cloister.core.errors import (
    AlgorithmError,
    BillboardError,
    CloisterError,
    InputError,
    MissingExtraError,
    PlanError,
    PrivateDataError,
    StorageError,
)
from cloister.engines.workers import Engine, ShardError, ShardSource, names_digest
from cloister.plan.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import CheckpointFile, SavedState
from cloister.store.model_store import ModelFile

P = ParamSpec("P")
#: Errors whose sentences are never about a row: while nothing is computed on rows yet, and always.
BEFORE: tuple[type[CloisterError], ...] = (MissingExtraError, BillboardError, PlanError)
ALWAYS: tuple[type[CloisterError], ...] = (ShardError, StorageError)
#: What glibc calls M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


@dataclass(frozen=True)
class Failure:
    """What went wrong at an actor, as far as it may be said elsewhere.

    Attributes
    ----------
    kind : str
        The name of the error's class.
    sentence : str
        What it says, if that is public; else nothing.
    rows : bool
        Whether the rows of a shard are to blame.
    shard : int, optional
        Where it happened.
    """

    kind: str
    sentence: str
    rows: bool
    shard: int | None

    @classmethod
    def of(cls, error: BaseException, shard: int | None, computing: bool) -> Failure:
        public = isinstance(error, ALWAYS) or (isinstance(error, BEFORE) and not computing)
        rows = isinstance(error, InputError) and not public and not computing
        return cls(type(error).__name__, str(error) if public else "", rows, shard)

    def raised(self) -> CloisterError:
        """Return the error that the driver raises in its place."""
        where = "" if self.shard is None else f" of shard {self.shard}"
        if self.rows:
            look = "" if self.shard is None else f", shards.part({self.shard}).load()"
            return PrivateDataError(
                f"The rows{where} cannot be used. What is wrong with them stays there; to see it, read them "
                f"yourself{look}."
            )
        if self.sentence:
            known = {kind.__name__: kind for kind in (BillboardError, StorageError, PlanError, ShardError)}
            return known.get(self.kind, InputError)(self.sentence)
        return AlgorithmError(
            f"A computation{where} failed with {self.kind}. What it says may hold data and stays there; "
            "to see it, replay that shard on Local()."
        )


@dataclass(frozen=True)
class Answer:
    """What an actor found."""

    value: Any


def answered(
    method: Callable[Concatenate[ShardActor, P], Any],
) -> Callable[Concatenate[ShardActor, P], Answer | Failure]:
    """Let a method answer, whatever happens in it."""

    @wraps(method)
    def answer(self: ShardActor, /, *args: P.args, **kwargs: P.kwargs) -> Answer | Failure:
        self.working_on, self.computing = None, False
        try:
            return Answer(method(self, *args, **kwargs))
        except Exception as error:
            return Failure.of(error, self.working_on, self.computing)

    return answer


class ShardActor:
    """Some shards, and the board as far as this actor was sent it.

    Parameters
    ----------
    plan, engine : Plan, Engine
        What is computed, and by what.
    memory : int
        Bytes of rows and states that stay in memory between rounds; what does not fit is on disk.
    """

    def __init__(self, plan: Plan, engine: Engine, memory: int) -> None:
        _prepare_process()
        self.plan, self.engine, self.memory = plan, engine, memory
        self.board: Billboard | None = None
        self.shards: dict[int, HeldShard] = {}
        self.working_on: int | None = None
        self.computing = False

    @answered
    def open(
        self,
        number: int,
        part: ShardSource,
        names: bytes,
        labels: Array | None,
        seeds: Words,
        saved: SavedState | None,
        records: Sequence[bytes],
        file: CheckpointFile | None,
    ) -> None:
        """Read a shard's rows; refuse other tasks than those that the roster lists for it.

        It goes on from states that are saved, or from what it kept last on the board; else it has none.
        """
        self.working_on = number
        tasks = part.load()
        if names_digest(tasks.ids) != names:
            raise ShardError(
                f"Shard {number} must hold the tasks that the roster lists for it, and holds others. Make "
                "the shards anew."
            )
        if labels is not None:
            tasks = replace(tasks, groups=labels)
        shard = HeldShard(self.engine, self.plan, tasks, seeds)
        if saved is not None:
            shard.restore(saved)
        if file is not None:
            self._load(shard, records, file)
        self.shards[number] = shard
        self._make_room(shard)

    @answered
    def collect(
        self,
        numbers: Sequence[int],
        channel: Channel,
        records: Sequence[bytes],
        missed: Mapping[int, Missed],
        coins: Mapping[int, bytes | None],
    ) -> Array:
        """Return the sum of the messages of the sampled tasks of some shards in the coming round."""
        board = self._up_to(records)
        total: Array | int = 0  # of one shard after the other: sums of networks are long
        for number in numbers:
            shard = self._shard(number)
            total = total + shard.collect(board, channel, missed[number], coins[number])
            self._make_room(shard)
        return np.asarray(total)

    @answered
    def finish(
        self, number: int, records: Sequence[bytes], missed: Missed, file: ModelFile | None
    ) -> States | None:
        """Make the models of a shard's tasks; write them to a file, or return them."""
        board, shard = self._up_to(records), self._shard(number)
        models = shard.finish(board, missed)
        if file is None:
            return models
        file.write(shard.ids, models)
        return None

    @answered
    def rejected(self, numbers: Sequence[int], records: Sequence[bytes], missed: Mapping[int, Missed]) -> int:
        """Return how many messages of these shards were not finite."""
        board = self._up_to(records)
        for number in numbers:
            self._shard(number).catch_up(board, missed[number])
        return sum(self.shards[number].rejected for number in numbers)

    @answered
    def save_state(self, number: int, records: Sequence[bytes], missed: Missed) -> SavedState:
        """Return what a shard's tasks know between two rounds."""
        board, shard = self._up_to(records), self._shard(number)
        shard.catch_up(board, missed)
        return shard.save()

    @answered
    def save_checkpoint(
        self, number: int, records: Sequence[bytes], missed: Missed, file: CheckpointFile
    ) -> None:
        """Write what a shard's tasks know between two rounds, to where it is found again."""
        board, shard = self._up_to(records), self._shard(number)
        shard.catch_up(board, missed)
        assert shard.done <= board.rounds
        file.write(shard.save(), board.before(shard.done))
        self._make_room(shard)

    @answered
    def load_checkpoint(self, number: int, records: Sequence[bytes], file: CheckpointFile) -> None:
        """Let a shard's tasks go on from what was kept, if that is of this board."""
        shard = self._shard(number)
        self._load(shard, records, file)
        self._make_room(shard)

    def _load(self, shard: HeldShard, records: Sequence[bytes], file: CheckpointFile) -> None:
        found = file.read(self._up_to(records))
        if found is not None:
            rounds, saved = found
            shard.restore(saved, rounds)

    @answered
    def restore_state(self, number: int, saved: SavedState) -> None:
        """Let a shard's tasks go on from what was saved."""
        self._shard(number).restore(saved)

    @answered
    def ready(self) -> None:
        """Say that this actor has started."""

    def _up_to(self, records: Sequence[bytes]) -> Billboard:
        """Take in the records that are new here; each is verified, against all before it."""
        for record in records:
            if self.board is None:
                self.board = Billboard.from_bytes(record)
                if self.board.plan != self.plan.fingerprint:
                    raise BillboardError("The board is of another plan than the one that this actor has.")
            else:
                self.board = self.board.append_bytes(record)
        assert self.board is not None
        return self.board

    def _shard(self, number: int) -> HeldShard:
        self.working_on, self.computing = number, True
        return self.shards[number]

    def _make_room(self, shard: HeldShard) -> None:
        """Put a shard on disk if all that is in memory, with its states if it has any, is too much."""
        if sum(other.size for other in self.shards.values() if other.in_memory) > self.memory:
            shard.put_on_disk()


def silently(function: Callable[[Any], Any], thing: Any) -> Answer | Failure:
    """Call a function on rows in a process of its own; answer, whatever happens in it."""
    _prepare_process()
    try:
        return Answer(function(thing))
    except Exception as error:
        return Failure.of(error, None, computing=False)


def _prepare_process() -> None:
    """Let this process, which computes and nothing else, print nowhere, and use freed memory again."""
    _print_nowhere()
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Tell glibc's allocator to keep what is freed, where that is the allocator.

    By default arrays of some megabytes are given back when they are freed, and fetched again page by page: a
    third of the time of shards that are on disk between rounds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most there is
        mallopt(_TRIM_THRESHOLD, 1 << 30)


def _print_nowhere() -> None:
    """Send to nowhere what this process, its threads and its libraries print."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
