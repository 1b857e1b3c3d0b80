"""`Cluster`: an engine of Ray actors, each with some shards of the tasks and an engine of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cloister.arrays import Words
from cloister.doubts import Doubt
from cloister.engines.cluster.actor import silently
from cloister.engines.cluster.actors import Actors, value_of
from cloister.engines.cluster.held import HeldShards
from cloister.engines.cluster.session import session
from cloister.engines.cluster.workers import ClusterWorkers
from cloister.engines.local import Local
from cloister.engines.workers import AnyTasks, Engine, Workers, check_whole
from cloister.errors import InputError, PlanError
from cloister.plan import Plan
from cloister.privacy.candidates import Sampler, on_processor
from cloister.roster import Roster
from cloister.tasks import Tasks

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Cluster:
    """Actors of Ray on one machine or many, each with some shards of the tasks.

    For one operator with more than one machine, or with more rows than memory holds. Needs the extra ``ray``.

    Parameters
    ----------
    actors : int
        Processes that compute.
    cpus, cards : float
        Processors and graphics cards that each actor takes of the cluster.
    engine : Engine
        What computes inside an actor: `Local`, or `Batched` for networks.
    address : str, optional
        A cluster that is there, ``"auto"`` or ``"host:6379"``. By default one is started on this machine for
        the run. A session of Ray that this process has begun is used as it is.
    memory : int
        Bytes of rows and states that an actor keeps in memory between rounds. Shards that do not fit are in
        files without a name on its machine's disk, one at a time in memory.
    shards : int, optional
        Into how many parts tasks are dealt that are given with their rows; by default one an actor.
    models : path, optional
        Folder for the models, one Parquet file a shard, on a disk that all machines share. By default the
        models of tasks that are given with their rows come back, as from `Local`, and those of shards are not
        made: `replay` does.
    progress : callable, optional
        Called with (``"rows"`` or ``"models"``, shards done, shards in all) while rows are read and while
        models are made.

    Privacy
    -------
    What an actor returns is the sum of its tasks' clipped messages; with exact noise whole numbers, so that
    the release does not depend on how many actors there are, on who holds what, or on who was lost. The
    driver checks that a sum is one that so many messages can have. An actor prints nowhere, and the text of
    an error in it, which may hold data, stays there. Whoever runs the cluster holds all rows.

    Examples
    --------
    ``run(plan, tasks, engine=Cluster(actors=4))`` ends with the board and the models of
    ``run(plan, tasks)``.
    """

    actors: int = 2
    cpus: float = 1
    cards: float = 0
    engine: Engine = Local(threads=1)  # noqa: RUF009
    address: str | None = None
    memory: int = 1 << 30
    shards: int | None = None
    models: str | os.PathLike[str] | None = None
    progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        if self.actors < 1 or (self.shards is not None and self.shards < 1):
            raise PlanError(f"A cluster must have an actor and a shard at least. Got {self!r}.")
        if not self.cpus > 0 or not self.cards >= 0:
            raise PlanError(f"cpus must be > 0 and cards >= 0. Got {self.cpus} and {self.cards}.")

    @property
    def remote(self) -> bool:
        return True

    def doubts_of(self, plan: Plan) -> tuple[Doubt, ...]:
        return self.engine.doubts_of(plan)

    def noise_sampler(self) -> Sampler:
        """Return this machine's processor: the curator is here, and need not have the card of an actor."""
        return on_processor

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep one session of Ray for everything that is done meanwhile."""
        with session(self.address, self.actors * self.cpus, self.actors * self.cards):
            yield

    def each(self, function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
        """Call a function for each of some things, in processes of the cluster; yield what it returns.

        What it prints goes nowhere, and what an error in it says stays there.
        """
        with session(self.address, self.cpus, 0) as ray:
            call = ray.remote(num_cpus=self.cpus)(silently)
            waiting = [call.remote(function, thing) for thing in things]
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                yield value_of(ray, done[0]).value

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[Workers]:
        if isinstance(tasks, Roster):
            raise InputError(
                "A cluster reads the rows of tasks, and a roster has none. Pass Tasks or Shards."
            )
        held = isinstance(tasks, Tasks)
        shards = HeldShards(tasks, self.shards or self.actors) if isinstance(tasks, Tasks) else tasks
        check_whole(plan)
        count = min(self.actors, len(shards.positions))
        resources = {"num_cpus": self.cpus, "num_gpus": self.cards}
        with session(self.address, count * self.cpus, count * self.cards) as ray:
            place = None if self.models is None else Path(self.models).resolve()
            silent = self.progress or (lambda what, done, total: None)
            workers = ClusterWorkers(plan, shards, seeds, place, not held, silent)
            arguments = plan, self.engine, self.memory
            actors = Actors(ray, arguments, resources, workers.open)
            try:
                workers.read(actors, count)
                yield workers
            finally:
                actors.stop()
