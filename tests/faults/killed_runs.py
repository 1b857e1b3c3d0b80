"""The runs that are killed, each in a folder: how it is begun and goes on, and what it must leave there."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import cloister.store.checkpoints
import cloister.store.files
import cloister.store.records
from cloister import Billboard, Ledger, Plan, Tasks, run
from cloister.algorithms import FTMRL, MeanRegularized
from cloister.app.predict import write_csv
from cloister.cli import app
from cloister.engines import RemoteNodes, TaskStream
from cloister.engines.local import Local
from cloister.engines.workers import Engine
from cloister.errors import InputError
from cloister.learners import Convex, ExactSolver, LeastSquares
from cloister.mechanisms import BLT, Gaussian, Toeplitz
from cloister.nodes import InProcess, Node, NodeFolder, NodeSettings
from cloister.sampling import Epochs, InOrder, Poisson
from cloister.store.files import write_file
from cloister.store.signatures import Operator

SEED = 7
BOOK = 'task = "t"\n[target]\nname = "y"\nbounds = [-1, 1]\n[features.x]\nbounds = [0, 1]\n'
NODE_FILES = {"board", "signatures", "roster.json", "data", "charged", "model.npz"}


def whole_board(path: Path) -> Billboard | None:
    found = path.exists() and path.stat().st_size
    try:
        return Billboard.recover(path) if found else None
    except Exception:
        return None


class EngineRun:
    """The library's `run` with a journal; sampled, and with tasks that draw at home and keep a state."""

    power = False
    engine: Engine = Local()

    def __init__(self, seed: int | None) -> None:
        cloister.store.checkpoints.SHARE = 0
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
        cloister.store.records.SYNCS, cloister.store.files.CACHE_BYTES = 4, 1000
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
            *("README.txt", "estimator.toml", "manifest.txt", "models", "run.toml"),
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
        from cloister.app.folder import tidy

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
            settings = NodeSettings(name, self.operator.public.hex(), seed=5)
            home = NodeFolder.create(work / "nodes" / str(name), settings, epsilon=3.0, delta=1e-2)
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
            engine=RemoteNodes(InProcess(self.nodes(work)), self.operator, log=print),
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

            engine = RemoteNodes(Listening(nodes), self.operator, log=print)
            run(self.plan, self.tasks.roster, random_state=SEED, engine=engine)

    def prepare(self, work: Path) -> None:
        home = NodeFolder.create(
            work, NodeSettings(0, self.operator.public.hex(), seed=5), epsilon=3.0, delta=1e-2
        )
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


KINDS = {
    "engine": EngineRun,
    "stream": StreamRun,
    "sums": SumsRun,
    "arrivals": ArrivalsRun,
    "network": NetworkRun,
    "cli": CommandRun,
    "nodes": NodesRun,
    "node": NodeRun,
}
