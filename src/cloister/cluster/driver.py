"""A cluster as the driver sees it: actors that hold shards and may be lost, and one `Workers` of them all.

The driver has names, coins, seeds and the board, and gets sums.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloister.cluster.actor import Answer, Failure, ShardActor
from cloister.cluster.shard import Missed, packed, unpacked
from cloister.core.arrays import Array, States, Words
from cloister.core.channel import GRID, Channel
from cloister.core.errors import ClusterError
from cloister.engines.workers import Coins, Shards, names_digest
from cloister.plan.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import CheckpointFile, SavedState
from cloister.store.model_store import ModelFile, ModelStore

#: Seconds until an actor that takes another's place must have started; else the others share its shards.
PATIENCE = 60.0
#: Seconds after which it is said that none has.
SOON = 10.0
#: So many actors may be lost one after the other, without an answer in between.
LOSSES = 5
#: Calls that are under way at an actor at a time: it need not wait for the next.
AHEAD = 2


@dataclass(eq=False)
class Holder:
    """An actor: its handle, the shards it holds, and how many records of the board it was sent."""

    handle: Any
    numbers: list[int]
    records: int = 0


#: Sends a holder a call about some of its shards; returns what to wait for.
Call = Callable[[Holder, list[int]], Any]
#: Told of which shards an answer is, and the answer.
Done = Callable[[list[int], Any], None]


@dataclass(frozen=True, eq=False)
class _Job:
    call: Call
    numbers: list[int]
    done: Done
    again: bool = False  # whether it only makes good a loss


@dataclass(eq=False)
class Actors:
    """All actors of a run.

    Parameters
    ----------
    ray : module
        Connected to a cluster.
    arguments : tuple
        Those of each `ShardActor`.
    resources : mapping
        What an actor takes of the cluster, as Ray names it.
    open : callable
        The call by which an actor reads one shard's rows.
    grows : bool
        Whether machines may be added to the cluster, which is worth a longer wait.
    """

    ray: Any
    arguments: tuple[Any, ...]
    resources: Mapping[str, float]
    open: Call
    grows: bool = False
    holders: list[Holder] = field(default_factory=list)
    losses: int = 0

    def start(self, shares: Iterable[list[int]], done: Callable[[], None]) -> None:
        """Start an actor for each share of the shards, and let it read their rows."""
        self.holders = [Holder(self._new(), numbers) for numbers in shares]
        self._work({holder: self._opening(holder.numbers, done) for holder in self.holders})

    def stop(self) -> None:
        for holder in self.holders:
            self.ray.kill(holder.handle)

    def ask(self, call: Call, done: Done) -> None:
        """Let every actor answer for all its shards at once."""
        self._work({holder: [_Job(call, holder.numbers, done)] for holder in self.holders})

    def ask_each(self, call: Call, done: Done) -> None:
        """Let every actor answer for one of its shards after the other."""
        self._work({holder: [_Job(call, [n], done) for n in holder.numbers] for holder in self.holders})

    def _work(self, jobs: Mapping[Holder, list[_Job]]) -> None:
        """Do all jobs; those of an actor that is lost, by who takes its place and has read the rows again."""
        left = {holder: deque(own) for holder, own in jobs.items()}
        under_way: dict[Any, tuple[Holder, _Job]] = {}
        while any(left.values()) or under_way:
            busy = [holder for holder, _ in under_way.values()]
            for holder, own in left.items():
                for _ in range(AHEAD - busy.count(holder)):
                    if own:
                        job = own.popleft()
                        under_way[self._sent(job, holder)] = holder, job
            promise = self._first(list(under_way))
            holder, job = under_way.pop(promise)
            answer = self._got(promise)
            if answer is not None:
                self.losses = self.losses if job.again else 0
                job.done(job.numbers, answer.value)
                continue
            unfinished = [job, *(other for owner, other in under_way.values() if owner is holder)]
            unfinished += left.pop(holder, ())
            under_way = {p: work for p, work in under_way.items() if work[0] is not holder}
            for other, due in self._replaced(holder, unfinished).items():
                left.setdefault(other, deque()).extend(due)

    def _opening(self, numbers: Iterable[int], done: Callable[[], None], again: bool = False) -> list[_Job]:
        return [_Job(self.open, [number], lambda numbers, found: done(), again) for number in numbers]

    def _new(self) -> Any:
        made = self.ray.remote(max_restarts=0, max_task_retries=0, **self.resources)(ShardActor)
        return made.remote(*self.arguments)

    def _sent(self, job: _Job, holder: Holder) -> Any:
        try:
            return job.call(holder, job.numbers)
        except self.ray.exceptions.RayError:
            return object()  # it is lost already: there is nothing to wait for

    def _first(self, promises: list[Any]) -> Any:
        for promise in promises:
            if not isinstance(promise, self.ray.ObjectRef):
                return promise
        return self.ray.wait(promises, num_returns=1)[0][0]

    def _got(self, promise: Any) -> Answer | None:
        """Return an answer; None if the actor is lost. What went wrong at an actor is raised here."""
        if not isinstance(promise, self.ray.ObjectRef):
            return None
        lost = self.ray.exceptions
        try:
            return value_of(self.ray, promise)
        except (lost.RayActorError, lost.ObjectLostError, lost.OutOfMemoryError, lost.NodeDiedError):
            return None

    def _replaced(self, lost: Holder, unfinished: list[_Job]) -> dict[Holder, list[_Job]]:
        """Put an actor in a lost one's place, or let the others share its shards; return who does what."""
        self.losses += 1
        if self.losses > LOSSES:
            raise ClusterError(
                f"{self.losses} actors were lost one after the other. If memory was full, make more shards "
                "or lower memory=; then do the same again: a run with a journal goes on."
            )
        self.ray.kill(lost.handle)
        reading = [job.numbers[0] for job in unfinished if job.call is self.open]
        unread = [job for job in unfinished if job.call is self.open]
        read = [number for number in lost.numbers if number not in reading]
        again = [*self._opening(read, lambda: None, again=True), *unread]
        rest = [job for job in unfinished if job.call is not self.open]
        heirs = self._heirs(lost)
        given: dict[Holder, list[_Job]] = {holder: [] for holder in heirs}
        home = {number: holder for holder, numbers in heirs.items() for number in numbers}
        for job in again:
            given[home[job.numbers[0]]].append(job)
        for job in rest:
            for holder in heirs:
                part = [number for number in job.numbers if home[number] is holder]
                given[holder] += [_Job(job.call, part, job.done)] * bool(part)
        return given

    def _heirs(self, lost: Holder) -> dict[Holder, list[int]]:
        """Return who holds the shards of a lost actor from now on: one in its place, if there is room."""
        others = [holder for holder in self.holders if holder is not lost]
        new = Holder(self._new(), list(lost.numbers))
        patience = PATIENCE if others or not self.grows else 10 * PATIENCE
        if (self._has_room() or not others) and self._ready(new, patience):
            self.holders = [new if holder is lost else holder for holder in self.holders]
            return {new: new.numbers}
        self.ray.kill(new.handle)
        if not others:
            raise ClusterError(
                f"All actors were lost, and no other has started within {patience:g} seconds: machines are "
                "gone, or Ray on them no longer starts processes. Start Ray anew, then do the same again: a "
                "run with a journal goes on."
            )
        self.holders = others
        shares = {holder: lost.numbers[i :: len(others)] for i, holder in enumerate(others)}
        for holder, share in shares.items():
            holder.numbers = [*holder.numbers, *share]
        return shares

    def _ready(self, new: Holder, patience: float) -> bool:
        """Wait until an actor has started; say so when that takes longer than it should."""
        promise = new.handle.ready.remote()
        if self.ray.wait([promise], timeout=min(SOON, patience))[0]:
            return True
        logging.getLogger("cloister.cluster").warning(
            "An actor was lost, and none has started in its place for %g seconds: machines are gone, or Ray "
            "on them no longer starts processes. It is waited for, %g seconds in all.",
            min(SOON, patience),
            patience,
        )
        return bool(self.ray.wait([promise], timeout=max(patience - SOON, 0.0))[0])

    def _has_room(self) -> bool:
        there, count = self.ray.cluster_resources(), len(self.holders)
        needed = {"CPU": self.resources["num_cpus"], "GPU": self.resources["num_gpus"]}
        return all(there.get(name, 0.0) >= count * each for name, each in needed.items())


def value_of(ray: Any, promise: Any) -> Answer:
    """Return an answer; raise what went wrong where it was made, as far as it may be said, or its loss."""
    lost = ray.exceptions
    try:
        found: Answer | Failure = ray.get(promise)
    except (lost.RayActorError, lost.ObjectLostError, lost.OutOfMemoryError, lost.NodeDiedError):
        raise
    except lost.RayError as error:
        raise ClusterError(
            f"A process of the cluster could not be asked, with {type(error).__name__}. See that every "
            "machine has the same Python, cloister and ray, then do the same again."
        ) from None
    if isinstance(found, Failure):
        raise found.raised()
    return found


#: How far floating-point sums may be beyond what their exact values can be.
ROUNDING = 1 + 1e-6


@dataclass(eq=False)
class ClusterWorkers:
    """All shards of a run, held by actors.

    A shard that missed the last rounds, because it was read again or because a run goes on, is sent them with
    the next request: `start` and `listen` only note them.

    Parameters
    ----------
    plan, shards, seeds : Plan, Shards, uint64 array
        What is run, over which tasks, each with its own seed.
    models : Path, optional
        Where models go, one file a shard; without, they come back.
    away : bool
        Whether models that would come back are not made at all.
    progress : callable
        Called with ("rows" or "models", shards done, shards in all).
    """

    plan: Plan
    shards: Shards
    seeds: Words
    models: Path | None
    away: bool
    progress: Callable[[str, int, int], None]
    actors: Actors = field(init=False)
    board: Billboard | None = field(default=None, init=False)
    #: The coins of each round; how many rounds each shard was sent; and what they went on from.
    past: list[bytes | None] = field(default_factory=list, init=False)
    rounds: dict[int, int] = field(default_factory=dict, init=False)
    saved: SavedState | None = field(default=None, init=False)
    base: int | None = field(default=-1, init=False)
    #: Where shards keep their states for themselves, if they do.
    file: CheckpointFile | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.names, self.labels = self.shards.names, self.shards.groups

    def read(self, actors: Actors, count: int) -> None:
        """Start so many actors, and let each read its share of the shards; nothing is computed yet."""
        self.actors = actors
        shards = range(len(self.shards.positions))
        actors.start([list(shards[first::count]) for first in range(count)], self._counting("rows"))

    def open(self, holder: Holder, numbers: list[int]) -> Any:
        """Let an actor read the rows of one shard, which then knows nothing but what it goes on from."""
        (number,) = numbers
        self.rounds[number] = -1 if self.base is None else self.base
        at = self.shards.positions[number]
        labels = None if self.labels is None else self.labels[at]
        names, part = names_digest(self.names[at]), self.shards.part(number)
        given = number, part, names, labels, self.seeds[at], self._saved_part(number)
        if self.file is None:
            return holder.handle.open.remote(*given, [], None)
        return holder.handle.open.remote(*given, self._news(holder), self._file_of(number))

    def start(self, board: Billboard) -> None:
        self.board = board

    def listen(self, board: Billboard, coins: Coins) -> None:
        self._note(board, coins)

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> Array:
        self._note(board, coins)
        t, sums = board.rounds, {}

        def call(holder: Holder, numbers: list[int]) -> Any:
            news = self._news(holder), self._missed(numbers, t), self._dealt(self.past[t], numbers)
            return holder.handle.collect.remote(numbers, channel, *news)

        def done(numbers: list[int], found: Array) -> None:
            count = sum(len(self.shards.positions[number]) for number in numbers)
            self._check(channel, found, count)
            sums[min(numbers)] = found
            self.rounds |= dict.fromkeys(numbers, t + 1)

        self.actors.ask(call, done)
        return np.asarray(sum(sums[first] for first in sorted(sums)))

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        self._settle(board)
        if self.away and self.models is None:
            return {}
        gathered, count = ModelStore(len(self.names), folder), self._counting("models")

        def call(holder: Holder, numbers: list[int]) -> Any:
            file = None if self.models is None else ModelFile(self.models, numbers[0])
            return holder.handle.finish.remote(numbers[0], *self._news_for(holder, numbers[0]), file)

        def done(numbers: list[int], found: States | None) -> None:
            self.rounds[numbers[0]] = len(self.past)
            if found is not None:
                gathered.put(self.shards.positions[numbers[0]], found)
            count()

        self.actors.ask_each(call, done)
        if self.models is not None:
            ModelFile.tidy(self.models, len(self.shards.positions))
        return gathered.arrays()

    def rejected(self) -> int:
        if self.base is None and self.saved is not None:
            return self.saved.rejected
        counts: list[int] = []

        def call(holder: Holder, numbers: list[int]) -> Any:
            missed = self._missed(numbers, len(self.past))
            return holder.handle.rejected.remote(numbers, self._news(holder), missed)

        def done(numbers: list[int], found: int) -> None:
            self.rounds |= dict.fromkeys(numbers, len(self.past))
            counts.append(found)

        self.actors.ask(call, done)
        return sum(counts)

    def save_state(self, folder: Path | None = None) -> SavedState:
        if self.base is None and self.saved is not None:
            return self.saved
        states, counts = ModelStore(len(self.names), folder), []

        def call(holder: Holder, numbers: list[int]) -> Any:
            return holder.handle.save_state.remote(numbers[0], *self._news_for(holder, numbers[0]))

        def done(numbers: list[int], found: SavedState) -> None:
            self.rounds[numbers[0]] = len(self.past)
            states.put(self.shards.positions[numbers[0]], found.states)
            counts.append(found.rejected)

        self.actors.ask_each(call, done)
        return SavedState(states.arrays(), sum(counts))

    def save_checkpoint(self, file: CheckpointFile, board: Billboard) -> None:
        self._settle(board)
        self.file = file

        def call(holder: Holder, numbers: list[int]) -> Any:
            news = self._news_for(holder, numbers[0])
            return holder.handle.save_checkpoint.remote(numbers[0], *news, self._file_of(numbers[0]))

        def done(numbers: list[int], found: None) -> None:
            self.rounds[numbers[0]] = len(self.past)

        self.actors.ask_each(call, done)

    def load_checkpoint(self, file: CheckpointFile, posted: Billboard) -> None:
        self.file, self.board = file, posted

        def call(holder: Holder, numbers: list[int]) -> Any:
            given = self._news(holder), self._file_of(numbers[0])
            return holder.handle.load_checkpoint.remote(numbers[0], *given)

        if posted.rounds:
            self.actors.ask_each(call, lambda numbers, found: None)

    def restore_state(self, saved: SavedState) -> None:
        self.saved, self.base = saved, None

        def call(holder: Holder, numbers: list[int]) -> Any:
            return holder.handle.restore_state.remote(numbers[0], self._saved_part(numbers[0]))

        self.actors.ask_each(call, lambda numbers, found: None)

    def _note(self, board: Billboard, coins: Coins) -> None:
        """Note who takes part in the coming round, so that a shard can be sent it at any time."""
        self._settle(board)
        t = board.rounds
        assert t <= len(self.past)
        self.past[t:] = [packed(coins)]

    def _settle(self, board: Billboard) -> None:
        """Take a board; the first that comes after restored states is the one they were saved at."""
        if self.board is None or board.rounds > self.board.rounds:
            self.board = board
        if self.base is None:
            self.base, self.past = board.rounds, [None] * board.rounds
            self.rounds = dict.fromkeys(self.rounds, board.rounds)

    def _news_for(self, holder: Holder, number: int) -> tuple[list[bytes], Missed]:
        return self._news(holder), self._missed([number], len(self.past))[number]

    def _news(self, holder: Holder) -> list[bytes]:
        """Return the records that an actor was not sent."""
        assert self.board is not None
        start, holder.records = holder.records, max(holder.records, len(self.board.records))
        return [self.board.record_bytes(number) for number in range(start, holder.records)]

    def _missed(self, numbers: Sequence[int], rounds: int) -> dict[int, Missed]:
        """Return the rounds, of so many, that shards have missed."""
        firsts = {number: max(0, self.rounds[number]) for number in numbers}
        coins: dict[int, list[bytes | None]] = {number: [] for number in numbers}
        for t in range(min(firsts.values(), default=rounds), rounds):
            for number, own in self._dealt(self.past[t], [n for n in numbers if firsts[n] <= t]).items():
                coins[number].append(own)
        return {number: Missed(self.rounds[number], tuple(coins[number])) for number in numbers}

    def _dealt(self, coins: bytes | None, numbers: Sequence[int]) -> dict[int, bytes | None]:
        """Return each shard's part of a round's coins."""
        if coins is None:
            return dict.fromkeys(numbers)
        whole = unpacked(coins, len(self.names))
        return {number: packed(whole[self.shards.positions[number]]) for number in numbers}

    def _saved_part(self, number: int) -> SavedState | None:
        if self.saved is None:
            return None
        at = self.shards.positions[number]
        rows = {name: array[at] for name, array in self.saved.states.items()}
        return SavedState(rows, 0 if number else self.saved.rejected)

    def _file_of(self, number: int) -> CheckpointFile:
        assert self.file is not None
        return self.file.of_shard(number, names_digest(self.names[self.shards.positions[number]]))

    def _counting(self, what: str) -> Callable[[], None]:
        numbers = itertools.count(1)
        return lambda: self.progress(what, next(numbers), len(self.shards.positions))

    def _check(self, channel: Channel, total: Array, count: int) -> None:
        """Refuse a sum that so many clipped messages cannot have."""
        weights, degrees = channel.lift.weights(channel.dim)
        count = self.plan.senders if self.plan.unit.by_record else count
        exact = self.plan.mechanism.exact
        most = count * (GRID**degrees if exact else ROUNDING * np.abs(weights))
        right = total.shape == degrees.shape and total.dtype == (np.int64 if exact else np.float64)
        if not right or not ((-most <= total) & (total <= most)).all():
            raise ClusterError(
                "The sum of an actor is none that its tasks can have made, and is not used. See that every "
                "machine of the cluster has the same cloister, then do the same again."
            )
