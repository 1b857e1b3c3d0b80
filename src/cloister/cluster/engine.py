"""`Cluster`: an engine of Ray actors, each with some shards of the tasks and an engine of its own.

Its session of Ray is one that is there already, a cluster at an address, or one of our own on this machine.
Whether anybody answers at an address is found out first: Ray alone would try for minutes. Shards that the
driver holds are dealt out in turn, and sent to the actors.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cloister.cluster.actor import silently
from cloister.cluster.driver import Actors, ClusterWorkers, value_of
from cloister.cluster.remains import ended_with_this_process
from cloister.core.arrays import Integers, Words
from cloister.core.errors import ClusterError, InputError, MissingExtraError, PlanError
from cloister.core.roster import Roster
from cloister.core.tasks import Tasks
from cloister.engines.devices import deal
from cloister.engines.local import Local
from cloister.engines.workers import AnyTasks, Engine, Shards, ShardSource, Workers, check_whole
from cloister.plan.plan import Plan
from cloister.privacy.caveats import Caveat
from cloister.privacy.chacha_proposals import Sampler, on_processor

#: Seconds that a cluster has to answer.
WAIT = 3.0


def check_answers(address: str) -> None:
    """Refuse ``host:port`` or ``ray://host:port`` where nobody answers; other addresses are Ray's to find."""
    found = re.fullmatch(r"(?:ray://)?\[?(?P<host>.+?)\]?:(?P<port>\d+)", address)
    if found is None:
        return
    try:
        socket.create_connection((found["host"], int(found["port"])), timeout=WAIT).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"Nobody answers at {address}.") from error


#: Bytes of the store through which messages between processes go, where the cluster is our own.
STORE = 1 << 28
#: Seconds that a process of Ray that was told to end may take.
PATIENCE = 20.0
#: Attempts to start Ray on a busy machine.
STARTS = 3


@contextmanager
def session(address: str | None, cpus: float, cards: float) -> Iterator[Any]:
    """Yield the module `ray`, connected; what was connected here is shut down, what was before stays.

    What processes print is not sent here, and nothing is reported to Ray's makers. A session of our own has a
    token that nobody else knows, and what it writes is for this user alone.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # on this machine actors are the work
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster", "A cluster") from error
    if ray.is_initialized():
        _check_room(ray, cpus, cards)
        yield ray
        return
    with _own_token(ray) if address is None else nullcontext():
        _connect(ray, address, cpus, cards)
        try:
            _check_room(ray, cpus, cards)
            with _watched(ray) if address is None else nullcontext():
                yield ray
        finally:
            _shut_down(ray)


def _watched(ray: Any) -> AbstractContextManager[None]:
    """Have what Ray started here end with this process, however that ends."""
    node = getattr(ray._private.worker, "_global_node", None)
    return nullcontext() if node is None else ended_with_this_process(node.get_session_dir_path())


def _connect(ray: Any, address: str | None, cpus: float, cards: float) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address is None:
            own: dict[str, Any] = {"num_cpus": max(1, int(-(-cpus // 1))), "object_store_memory": STORE}
            own |= {"num_gpus": int(-(-cards // 1))} if cards else {}
            _start(ray, own | quiet)
        else:
            check_answers(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"There must be a cluster of Ray at {address or 'this machine'} that can be reached. "
            f"Got {type(error).__name__}. Start one with `ray start --head`, and name its address."
        ) from error


def _start(ray: Any, options: dict[str, Any]) -> None:
    """Start Ray on this machine; again, where that is too busy for the half minute that Ray has for it."""
    for _ in range(STARTS):
        try:
            with _own_files():
                ray.init(address="local", include_dashboard=False, **options)
            return
        except Exception as error:
            if type(error) is not Exception or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    raise ClusterError(
        f"Ray did not start on this machine in {STARTS} attempts of half a minute. Wait until other work has "
        "ended, then do the same again."
    )


def _shut_down(ray: Any) -> None:
    """Disconnect; return when the processes have ended that were started here: Ray does not wait for all."""
    node = getattr(ray._private.worker, "_global_node", None)
    started = [one.process for kind in getattr(node, "all_processes", {}).values() for one in kind]
    ray.shutdown()
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


@contextmanager
def _own_files() -> Iterator[None]:
    """Let processes that start meanwhile write files for this user alone: Ray puts rows there.

    It does when its store is full, and by default everybody on the machine could read them.
    """
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


@contextmanager
def _own_token(ray: Any) -> Iterator[None]:
    """Let nobody into a session that starts meanwhile who does not have its token, a fresh one."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ |= dict(zip(names, ("token", secrets.token_hex(32)), strict=True))
    _read_token_again(ray)
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ |= before
        _read_token_again(ray)


def _read_token_again(ray: Any) -> None:
    """Let Ray forget the token that this process had before; versions without tokens know none."""
    loader = getattr(ray._raylet, "AuthenticationTokenLoader", None)
    if loader is not None:
        ray._raylet.Config.initialize("")
        loader.instance().reset_cache()


def _check_room(ray: Any, cpus: float, cards: float) -> None:
    """Refuse more actors than the cluster has room for: they would wait for ever."""
    found = ray.cluster_resources()
    for name, due in (("CPU", cpus), ("GPU", cards)):
        if found.get(name, 0.0) < due:
            raise InputError(
                f"The actors need {due:g} of {name}, and the cluster has {found.get(name, 0.0):g}. Ask for "
                "fewer actors, or for less for each, or add machines."
            )


@dataclass(frozen=True, eq=False, repr=False)
class HeldShards(Shards):
    """Shards of tasks that are in memory here, dealt out in turn.

    Parameters
    ----------
    tasks : Tasks
        All of them.
    count : int
        How many shards, at most one a task.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0]], [[2.0]], [[3.0]]], [[2.0], [4.0], [6.0]], ["a", "b", "c"])
    >>> shards = HeldShards(tasks, 2)
    >>> shards, shards.part(0).load().ids.tolist()
    (HeldShards(3 tasks in 2 shards, private), ['a', 'c'])
    """

    tasks: Tasks
    count: int

    @cached_property
    def roster(self) -> Roster:
        return self.tasks.roster

    @cached_property
    def positions(self) -> Sequence[Integers]:
        return deal(len(self.tasks), min(self.count, len(self.tasks)))

    def part(self, number: int) -> ShardSource:
        return _HeldPart(self.tasks.select(self.positions[number]))

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for array in (self.tasks.X, self.tasks.y, self.tasks.weight, self.tasks.offsets):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def shape(self) -> Tasks:
        return self.tasks.select([])


@dataclass(frozen=True, eq=False, repr=False)
class _HeldPart:
    tasks: Tasks

    def load(self) -> Tasks:
        return self.tasks


T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Cluster:
    """Actors of Ray on one machine or many, each with some shards of the tasks.

    For one operator with more than one machine, or with more rows than memory holds. It needs the extra
    ``cluster``.

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

    def doubts_of(self, plan: Plan) -> tuple[Caveat, ...]:
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
            actors = Actors(ray, arguments, resources, workers.open, grows=self.address is not None)
            try:
                workers.read(actors, count)
                yield workers
            finally:
                actors.stop()
