"""Runs that are killed, at chosen points or at random times, and then go on; prints what was found as JSON.

One process imports everything and forks a child for each run. A point is a call that changes or opens a file
of the run (or locks it): the child counts them and sends SIGKILL to itself just before the n-th; if that one
is a write, also after half of its bytes. A stream also loses its power then: of what was written to its
board (or its roster) since the last sync some bytes never arrive.

    python tests/faults/killing.py WORK KIND {seeded,secure} {points,times} RUNS

where KIND is one of engine, stream, sums, arrivals, network, cli, nodes, node.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np

import cloister.board.billboard
import cloister.board.record_store
import cloister.engines.checkpoints
from cloister import Billboard, Ledger, Plan, Tasks, run
from cloister.algorithms import FTMRL, MeanRegularized
from cloister.board.signatures import Operator
from cloister.board.storage import write_file
from cloister.cli import app
from cloister.engines import Asked, TaskStream
from cloister.engines.local import Local
from cloister.engines.node import Home, InProcess, Node, Settings
from cloister.engines.workers import Engine
from cloister.errors import InputError
from cloister.learners import Convex, ExactSolver, LeastSquares
from cloister.mechanisms import BLT, Gaussian, Toeplitz
from cloister.sampling import Epochs, InOrder, Poisson
from cloister.tables.files import write_csv

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"}
SEED = 7
BOOK = 'task = "t"\n[target]\nname = "y"\nbounds = [-1, 1]\n[features.x]\nbounds = [0, 1]\n'


def count_points(work: Path, kill_at: int | None, torn: bool, power: bool = False) -> list[str]:
    """From now on list every point this process passes; at the given one, end, perhaps with the power."""
    passed: list[str] = []
    synced = {path.stat().st_ino: path.stat().st_size for path in appended(work)}
    write, write_at, sync = os.write, os.pwrite, os.fsync

    def die() -> None:
        if power:
            for path in appended(work):
                lose(path, synced.get(path.stat().st_ino, 0), random.Random(kill_at), write)
        os.kill(os.getpid(), signal.SIGKILL)

    def noted(file: int) -> None:
        sync(file)
        synced[os.fstat(file).st_ino] = os.fstat(file).st_size

    def point(kind: str) -> bool:
        passed.append(kind)
        return len(passed) - 1 == kill_at

    def hook(event: str, arguments: tuple) -> None:
        inside = arguments and (isinstance(arguments[0], int) or str(arguments[0]).startswith(str(work)))
        if event in EVENTS and inside and point(event):
            die()

    def wrap(function: Callable, kind: str) -> Callable:
        def called(file: int, *rest):
            if point(kind):
                if torn and rest:
                    function(file, rest[0][: len(rest[0]) // 2], *rest[1:])
                die()
            return function(file, *rest)

        return called

    sys.addaudithook(hook)
    os.write, os.pwrite, os.fsync = wrap(write, "write"), wrap(write_at, "write"), wrap(noted, "fsync")
    return passed


def appended(work: Path) -> list[Path]:
    return [*work.rglob("board"), *work.rglob("roster")]


def lose(path: Path, synced: int, rng: random.Random, write: Callable) -> None:
    """Leave of a file what was synced, and of the rest as much as there happens to be, with a hole."""
    synced = min(synced, path.stat().st_size)
    rest = bytearray(path.read_bytes()[synced:])
    hole = rng.randint(0, len(rest))
    rest[hole : hole + 200] = bytes(len(rest[hole : hole + 200]))
    os.truncate(path, synced)
    with path.open("ab", buffering=0) as file:
        write(file.fileno(), rest[: rng.randint(0, len(rest))])


def charges(work: Path) -> list[str]:
    return [charge.run for charge in Ledger.open(work / "ledger").history]


class EngineRun:
    """The library's `run` with a journal; sampled, and with tasks that draw at home and keep a state."""

    power = False
    engine: Engine = Local()

    def __init__(self, seed: int | None) -> None:
        cloister.engines.checkpoints.SHARE = 0
        rng = np.random.default_rng(0)
        ids = np.repeat(np.arange(12), rng.integers(1, 6, 12))
        X = rng.uniform(-0.5, 0.5, (len(ids), 3))
        self.tasks = Tasks.from_arrays(X, X.sum(axis=1), ids)
        algorithm = MeanRegularized(LeastSquares(3), rounds=5, steps=2, batch=2, finetune=1)
        self.plan = Plan(algorithm, Gaussian(), Poisson(0.6), n_tasks=12).calibrate(1.0)
        self.seed = seed
        self.checkpoint = math.inf if seed is not None else 0.0  # none at all, or after every round
        self.names = {"board", "plan.toml", "models"}

    def prepare(self, work: Path) -> None:
        Ledger.create(work / "ledger", "tasks", epsilon=3.0, delta=1e-3)

    def go(self, work: Path) -> None:
        def save(done):
            write_file(work / "run" / "models", done.private.models["coef"].tobytes())

        if (work / "run" / "models").exists() and not (work / "run" / "secret").exists():
            return  # it is complete: there is nothing to go on with
        run(
            self.plan,
            self.tasks,
            random_state=self.seed,
            ledger=Ledger.open(work / "ledger"),
            journal=work / "run",
            save=save,
            engine=self.engine,
            checkpoint=self.checkpoint,
        )

    def folder(self, work: Path) -> Path:
        return work / "run"

    def models(self, work: Path) -> bytes:
        return (work / "run" / "models").read_bytes()

    def strays(self, work: Path) -> set[str]:
        found = {path.name for path in work.iterdir() if not path.name.startswith("ledger")}
        return {path.name for path in (work / "run").iterdir()} ^ self.names | found ^ {"run"}


class StreamRun(EngineRun):
    """Noise that is correlated over rounds, in two passes; old releases are read back from the file.

    It is synced after every third release, and loses the rest with its power.
    """

    power = True

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        cloister.board.billboard.SYNCS, cloister.board.record_store.CACHE_BYTES = 4, 1000
        algorithm = replace(self.plan.algorithm, rounds=12)
        self.plan = Plan(algorithm, Toeplitz(), Epochs(2), n_tasks=12).calibrate(1.0)


class SumsRun(EngineRun):
    """Noise that remembers decaying sums, and is synced after every release: nobody speaks a second time."""

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        algorithm = replace(self.plan.algorithm, rounds=12)
        self.plan = Plan(algorithm, BLT(), Epochs(2), n_tasks=12).calibrate(1.0)


class ArrivalsRun(EngineRun):
    """A stream of tasks, three a round, that join one by one; it ends before its last round is full."""

    power = True

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        algorithm = FTMRL(Convex(LeastSquares(3)), ExactSolver(), rounds=4)
        self.plan = Plan(algorithm, Toeplitz(), InOrder(), n_tasks=12).calibrate(1.0)
        self.tasks = self.tasks.select(range(11))
        self.names = {"board", "plan.toml", "roster", "models"}

    def go(self, work: Path) -> None:
        folder, ledger = work / "run", Ledger.open(work / "ledger")
        if (folder / "models").exists() and not (folder / "secret").exists():
            return  # it has ended
        rows = [(i, self.tasks.X[slice(*self.tasks.offsets[i : i + 2])]) for i in range(11)]
        try:
            stream = TaskStream(self.plan, random_state=self.seed, ledger=ledger, journal=folder)
        except InputError:  # it had ended, and now its secret is deleted
            assert (folder / "models").exists()
            return
        for i, X in rows:
            if i not in stream.roster:
                stream.join(i, X, X.sum(axis=1))
        models = [stream.model(i, X, X.sum(axis=1))["coef"] for i, X in rows]
        if not (folder / "models").exists():  # the end may be posted already
            write_file(folder / "models", np.array(models).tobytes())
        stream.finish()


class NetworkRun(EngineRun):
    """A recurrent network on the batched engine: minibatches, momentum, several buckets."""

    def __init__(self, seed: int | None) -> None:
        import torch
        from torch import nn

        from cloister.algorithms import FineTuning, Personalized
        from cloister.engines import Batched
        from cloister.learners import Descent, Module

        super().__init__(seed)
        torch.set_num_threads(1)
        torch.manual_seed(0)

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.read, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.read(x[..., None])[0][:, -1])

        self.engine = Batched("cpu", block=3)
        self.tasks = replace(self.tasks, y=(self.tasks.y > 0).astype(np.int64))
        solver = Descent(0.3, batch=2, epochs=2, momentum=0.5)
        algorithm = Personalized(Module(Net()), solver, clip=0.5, rounds=4, finetune=FineTuning(solver))
        self.plan = Plan(algorithm, Gaussian(), Poisson(0.6), n_tasks=12).calibrate(1.0)


class CommandRun:
    """`cloister fit`, which replaces an older run."""

    power = False

    def __init__(self, seed: int | None) -> None:
        assert seed is None, "the command has no seed"
        rng = np.random.default_rng(0)
        t, x = np.repeat(np.arange(6), 4).astype(str), rng.uniform(size=24).round(3)
        self.table = {"t": t, "x": x, "y": (x - 0.5).round(3)}
        self.names = {
            *("board", "plan.toml", "codebook.toml", "guarantee.json", "guarantee.txt", "head.txt"),
            *("README.txt", "estimator.toml", "manifest.txt", "models"),
        }

    def prepare(self, work: Path) -> None:
        write_csv(work / "data.csv", self.table)
        (work / "book.toml").write_text(BOOK)
        (work / "run").mkdir()
        for name in ("plan.toml", "board"):
            (work / "run" / name).write_text("an older run")
        Ledger.create(work / "ledger", "tasks", epsilon=3.0, delta=1e-3)

    def go(self, work: Path) -> None:
        command = ["fit", work / "data.csv", "--codebook", work / "book.toml", "-o", work / "run", "--force"]
        command += ["--ledger", work / "ledger", "--population", "tasks"]
        if (work / "run" / "head.txt").exists():
            return  # it is in place: there is nothing to go on with
        app([str(part) for part in command], standalone_mode=False)

    def folder(self, work: Path) -> Path:
        done = (work / "run" / "head.txt").exists()
        return work / "run" if done else work / ".run.unfinished"

    def models(self, work: Path) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((work / "run" / "models").iterdir()))

    def strays(self, work: Path) -> set[str]:
        from cloister.tables.folder import tidy

        tidy(work / "run")  # as the next command does
        found = {path.name for path in work.iterdir() if not path.name.startswith("ledger")}
        return {path.name for path in (work / "run").iterdir()} ^ self.names | (
            found ^ {"run", "data.csv", "book.toml"}
        )


class NodesRun(EngineRun):
    """A curator and its nodes, which are killed together."""

    run = "exam"

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        self.tasks = self.tasks.select(range(2))
        algorithm = replace(self.plan.algorithm, rounds=3)
        self.plan = Plan(algorithm, n_tasks=2, delta=1e-2).calibrate(1.0)
        self.operator = Operator(self.run, bytes(32))
        self.names = {"board", "plan.toml"}

    def prepare(self, work: Path) -> None:
        Ledger.create(work / "ledger", "tasks", epsilon=3.0, delta=1e-2)
        for name in self.tasks.ids.tolist():
            settings = Settings(name, self.operator.public.hex(), seed=5)
            home = Home.create(work / "nodes" / str(name), settings, epsilon=3.0, delta=1e-2)
            home.approve(self.plan, self.tasks.only(name), trial=True)

    def nodes(self, work: Path) -> dict[str, Node]:
        return {str(name): Node(work / "nodes" / str(name)) for name in self.tasks.ids.tolist()}

    def go(self, work: Path) -> None:
        board = whole_board(work / "run" / "board")
        if board is not None and board.complete and not (work / "run" / "secret").exists():
            return  # there is nothing to go on with
        run(
            self.plan,
            self.tasks.roster,
            random_state=self.seed,
            ledger=Ledger.open(work / "ledger"),
            journal=work / "run",
            engine=Asked(InProcess(self.nodes(work)), self.operator, log=print),
        )

    def models(self, work: Path) -> bytes:
        return b"".join(node.model(self.run)["coef"].tobytes() for node in self.nodes(work).values())

    def strays(self, work: Path) -> set[str]:
        wrong = {path.name for path in (work / "run").iterdir()} ^ self.names
        for name, node in self.nodes(work).items():
            wrong |= {
                path.name for path in (work / "nodes" / name / "runs" / self.run).iterdir()
            } ^ NODE_FILES
            wrong |= {f"charges of {name}" for _ in node.home.ledger.history[1:]}
        return wrong


class NodeRun(NodesRun):
    """One node, killed while it answers, with its power; who asks lives on, and asks the same again."""

    power = True

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        self.requests: list[bytes] = []
        with tempfile.TemporaryDirectory() as folder:
            super().prepare(Path(folder))
            nodes, job = self.nodes(Path(folder)), self

            class Listening(InProcess):
                def ask(self, requests, deadline):
                    job.requests += [requests["0"]]
                    return super().ask(requests, deadline)

            engine = Asked(Listening(nodes), self.operator, log=print)
            run(self.plan, self.tasks.roster, random_state=SEED, engine=engine)

    def prepare(self, work: Path) -> None:
        home = Home.create(work, Settings(0, self.operator.public.hex(), seed=5), epsilon=3.0, delta=1e-2)
        home.approve(self.plan, self.tasks.only(0), trial=True)
        (work / "heard").mkdir()

    def go(self, work: Path) -> None:
        for number, request in enumerate(self.requests):
            if not (work / "heard" / str(number)).exists():
                write_file(work / "heard" / str(number), Node(work).answer(request))

    def folder(self, work: Path) -> Path:
        return work / "runs" / self.run

    def models(self, work: Path) -> bytes:
        heard = b"".join((work / "heard" / str(number)).read_bytes() for number in range(len(self.requests)))
        return heard + Node(work).model(self.run)["coef"].tobytes()

    def strays(self, work: Path) -> set[str]:
        log = {"log"} if (work / "log").exists() else set()
        return log | {path.name for path in (work / "runs" / self.run).iterdir()} ^ NODE_FILES


NODE_FILES = {"board", "signatures", "roster.json", "data", "charged", "model.npz"}


def child(action: Callable[[], object], kill_after: float | None = None) -> int:
    """Run an action in a child; return its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2) if not os.environ.get("LOUD") else None
            action()
            code = 0
        except BaseException as error:
            if os.environ.get("LOUD"):
                print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)  # still ours: it is not waited for yet
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def whole_board(path: Path) -> Billboard | None:
    found = path.exists() and path.stat().st_size
    try:
        return Billboard.recover(path) if found else None
    except Exception:
        return None


def uninterrupted(job, work: Path) -> tuple[bytes, bytes] | None:
    """Run with the same secret from the beginning to the end, elsewhere; return its board and models."""
    secret = job.folder(work) / "secret"
    if not secret.exists():
        return None
    twin = work.with_name(f"{work.name}-twin")
    twin.mkdir()
    job.prepare(twin)
    folder = job.folder(twin)
    folder.mkdir(exist_ok=True)
    for name in ("secret", "plan.toml"):
        shutil.copy(job.folder(work) / name, folder / name)
    (folder / "board").touch()
    assert child(lambda: job.go(twin)) == 0
    result = ((job.folder(twin) / "board").read_bytes(), job.models(twin))
    shutil.rmtree(twin)
    return result


def go_on(job, work: Path, expected: tuple[bytes, bytes] | None) -> list[str]:
    """Let a run that was killed go on to its end; return what is wrong."""
    wrong = []
    before, early = whole_board(job.folder(work) / "board"), charges(work)
    twin = uninterrupted(job, work) if expected is None else expected
    if before is not None and before.rounds and len(early) != 1:
        wrong.append("released before it was charged")
    if child(lambda: job.go(work)) != 0:
        return [*wrong, "it does not go on"]
    path = job.folder(work) / "board"
    board = Billboard.load(path)
    if not board.complete:
        wrong.append("not complete")
    posted = [] if before is None else [record.hash for record in before.records]
    if posted != [record.hash for record in board.records[: len(posted)]]:
        wrong.append("a posted record was changed")
    if twin is not None and twin != (path.read_bytes(), job.models(work)):
        wrong.append("another board or other models than without interruption")
    late = charges(work)
    if len(late) != 1 or (early and late != early):
        wrong.append(f"charged {early}, then {late}")
    if job.strays(work):
        wrong.append(f"stray files {job.strays(work)}")
    return wrong


Kill = Callable[[Path], int]


def plan_kills(job, how: str, count: int, points: list[str], seconds: float) -> list[list[Kill]]:
    """Return for each run how it is killed, once or (every other run) twice."""
    rng = random.Random(0)

    def by_point(at: int, torn: bool) -> Kill:
        return lambda work: child(lambda: (count_points(work, at, torn, job.power), job.go(work)))

    def by_time(after: float) -> Kill:
        return lambda work: child(lambda: job.go(work), kill_after=after)

    def any_time() -> Kill:
        return by_time(rng.uniform(0, seconds))

    if how == "times":
        return [[any_time() for _ in range(1 + number % 2)] for number in range(count)]
    every = [(at, torn) for at, name in enumerate(points) for torn in (False, True)[: 1 + (name == "write")]]
    chosen = rng.sample(every, min(count, len(every)))
    second = [by_point(*rng.choice(every)) for _ in chosen]
    return [[by_point(*one), second[k]][: 1 + k % 2] for k, one in enumerate(chosen)]


def main() -> None:
    work, kind, noise, how, count = Path(sys.argv[1]).resolve(), *sys.argv[2:5], int(sys.argv[5])
    kinds = {
        "engine": EngineRun,
        "stream": StreamRun,
        "sums": SumsRun,
        "arrivals": ArrivalsRun,
        "network": NetworkRun,
        "cli": CommandRun,
        "nodes": NodesRun,
        "node": NodeRun,
    }
    job = kinds[kind](SEED if noise == "seeded" else None)
    first, listing = work / "first", work / "points.json"
    for folder in (work / "warm", first):
        folder.mkdir(parents=True)
        job.prepare(folder)
    with redirect_stdout(io.StringIO()):
        job.go(work / "warm")  # children inherit what is imported and computed here

    def count_all() -> None:
        points = count_points(first, None, False)
        job.go(first)
        listing.write_text(json.dumps(points[:]))

    start = time.perf_counter()
    assert child(count_all) == 0, "it does not run at all"
    seconds = time.perf_counter() - start
    points = json.loads(listing.read_text())
    expected = ((job.folder(first) / "board").read_bytes(), job.models(first)) if noise == "seeded" else None
    problems, kills = [], 0
    runs = plan_kills(job, how, count, points, seconds)
    for number, deaths in enumerate(runs):
        folder = work / f"run{number}"
        folder.mkdir()
        job.prepare(folder)
        kills += sum(kill(folder) == -signal.SIGKILL for kill in deaths)
        problems += [f"{number}: {wrong}" for wrong in go_on(job, folder, expected)]
        shutil.rmtree(folder)
    print(json.dumps({"points": len(points), "runs": len(runs), "kills": kills, "problems": problems}))


if __name__ == "__main__":
    main()
