"""The actors of a run as the driver sees them: who holds which shard, who is lost, and who steps in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.engines.cluster.actor import Answer, Failure, ShardActor
from cloister.errors import ClusterError

#: Seconds until an actor that takes another's place must have started; else the others share its shards.
PATIENCE = 60.0
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
    """

    ray: Any
    arguments: tuple[Any, ...]
    resources: Mapping[str, float]
    open: Call
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
        patience = PATIENCE if others else 10 * PATIENCE
        if self._has_room() or not others:
            ready, _ = self.ray.wait([new.handle.ready.remote()], timeout=patience)
            if ready:
                self.holders = [new if holder is lost else holder for holder in self.holders]
                return {new: new.numbers}
        self.ray.kill(new.handle)
        if not others:
            raise ClusterError(
                "All actors were lost, and the cluster has no room for another. Add machines, then do the "
                "same again: a run with a journal goes on."
            )
        self.holders = others
        shares = {holder: lost.numbers[i :: len(others)] for i, holder in enumerate(others)}
        for holder, share in shares.items():
            holder.numbers = [*holder.numbers, *share]
        return shares

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
