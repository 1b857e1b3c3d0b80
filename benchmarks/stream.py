"""How much memory a stream of 100,000 rounds over 100,000 tasks takes, with 10,000 numbers a release.

One task a round, each with one row of 100 features and one of 101 classes. `FTMRL` follows the stream at
epsilon 2, with `BLT` noise in exact integers; every release is in a journal on disk. Then, in processes of
their own, the board is read and verified, its digests are recomputed, and some tasks' models are computed
again from it. Needs 25 GB in the folder for temporary files (16 GB the board, 8 GB the models), and deletes
all of it.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Figures, Table, Targets
from cloister import Billboard, Plan, Tasks, replay
from cloister import run as run_plan
from cloister.algorithms import FTMRL
from cloister.engines import Run
from cloister.engines.curator import Posted, Progress
from cloister.learners import Convex, Descent, Softmax
from cloister.mechanisms import BLT
from cloister.sampling import OnePass

NAME = "stream"
PATHS = (
    "src/cloister/algorithms/meta.py",
    "src/cloister/store",
    "src/cloister/privacy/prefix.py",
)

FEATURES, CLASSES = 100, 101
ROUNDS, QUICK_ROUNDS = 100_000, 2_000
DIM = FEATURES * (CLASSES - 1)
#: Bytes a round: a release in 64 bits, iterate and total in 32; and a model in 64.
BOARD_BYTES, MODEL_BYTES = 16 * DIM + 500, 8 * DIM
REPLAYED = 3


@dataclass(frozen=True)
class Single(Convex):
    """A convex loss whose public arrays have 32 bits, as those of networks have."""

    def start(self) -> NDArray[Any]:
        """Return zeros."""
        return np.zeros(self.size, dtype=np.float32)


def make(n_tasks: int, seed: int = 0) -> Tasks:
    """Draw one row a task: unit features, and a class that they tell something about."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_tasks, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    teacher = rng.standard_normal((FEATURES, CLASSES))
    y = np.empty(n_tasks, dtype=np.int64)
    for at in range(0, n_tasks, 1000):
        scores = 10 * X[at : at + 1000] @ teacher
        y[at : at + 1000] = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    return Tasks.from_arrays(X, y, np.arange(n_tasks))


def make_plan(n_tasks: int) -> Plan:
    """Return one pass over so many tasks, one a round."""
    stream = FTMRL(
        Single(Softmax(FEATURES, CLASSES)),
        Descent(lr=0.5, steps=1),
        rounds=n_tasks,
        tail=0.0,
        lam_meta=float(n_tasks) ** 0.5,
    )
    return Plan(stream, BLT(), OnePass(), n_tasks=n_tasks).calibrate(epsilon=2.0)


def memory() -> float:
    """Return the most memory this process has had, in MB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1.024e-3 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # not Linux: what getrusage says may include the parent's
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def logged(start: float) -> Progress:
    """Return a progress function that says every twentieth part how it goes, on stderr."""

    def progress(posted: Posted) -> None:
        if posted.done % max(1, posted.total // 20) == 0:
            said = f"{(time.perf_counter() - start) / 60:.1f} min, {memory():.0f} MB"
            print(f"{NAME}: {posted.done:,} of {posted.total:,} rounds, {said}", file=sys.stderr, flush=True)

    return progress


def fit(folder: Path, n_tasks: int) -> Figures:
    """Run the stream; keep what some tasks need to compute their models again."""
    start = time.perf_counter()
    tasks, plan = make(n_tasks), make_plan(n_tasks)
    planned = time.perf_counter() - start

    def keep(done: Run) -> None:
        some = np.linspace(0, n_tasks - 1, REPLAYED).astype(int)
        models = np.array(done.private.models["coef"][some])
        private = (some, done.private.coins[:, some], done.private.seeds[some], models)
        (folder / "private").write_bytes(pickle.dumps(private))

    run_plan(plan, tasks, journal=folder / "journal", progress=logged(start), save=keep)
    seconds = time.perf_counter() - start
    size = (folder / "journal" / "board").stat().st_size
    return {"plan_seconds": planned, "minutes": seconds / 60, "memory_mb": memory(), "board_gb": size / 1e9}


def verify(folder: Path, n_tasks: int) -> Figures:
    """Read the board, which verifies every hash, and recompute every digest from its release."""
    plan, start = make_plan(n_tasks), time.perf_counter()
    board = Billboard.load(folder / "journal" / "board")
    loaded = time.perf_counter() - start
    plan.check(board)
    seconds = time.perf_counter() - start - loaded
    return {"load_minutes": loaded / 60, "verify_minutes": seconds / 60, "verify_memory_mb": memory()}


def recompute(folder: Path, n_tasks: int) -> Figures:
    """Compute some tasks' models from the board and their own rows; return how far off they are."""
    some, coins, seeds, models = pickle.loads((folder / "private").read_bytes())
    plan, tasks, start = make_plan(n_tasks), make(n_tasks).select(some), time.perf_counter()
    board = Billboard.load(folder / "journal" / "board")
    found = replay(plan, board, tasks, coins=coins, seeds=seeds)["coef"]
    gap = float(np.abs(found - models).max())
    minutes = (time.perf_counter() - start) / 60
    return {"replay_minutes": minutes, "replay_memory_mb": memory(), "replay_largest_difference": gap}


JOBS: dict[str, Callable[[Path, int], Figures]] = {"fit": fit, "verify": verify, "replay": recompute}


def apart(job: str, folder: Path, n_tasks: int) -> Figures:
    """Measure in a process of its own; what it says on stderr is shown."""
    command = [sys.executable, "-m", "benchmarks.stream", job, str(folder), str(n_tasks)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    result: Figures = json.loads(done.stdout.splitlines()[-1])
    return result


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Run, verify and replay one stream.

    Parameters
    ----------
    quick : bool
        2,000 rounds over as many tasks.
    """
    n_tasks = QUICK_ROUNDS if quick else ROUNDS
    home = Path(tempfile.gettempdir())
    need, free = 1.05 * n_tasks * (BOARD_BYTES + MODEL_BYTES), shutil.disk_usage(home).free
    if need > free:
        sys.exit(f"{NAME} needs {need / 1e9:.0f} GB in {home}, which has {free / 1e9:.0f}. Set TMPDIR.")
    figures: Figures = {"rounds": n_tasks, "numbers": DIM}
    with tempfile.TemporaryDirectory(prefix="cloister-stream-") as folder:
        for job in JOBS:
            figures |= apart(job, Path(folder), n_tasks)
    targets: Targets = {
        "memory_mb": ("<", 1000.0),
        "verify_memory_mb": ("<", 1000.0),
        "replay_memory_mb": ("<", 1000.0),
        "replay_largest_difference": ("<=", 1e-9),
    }
    rows = [["what", "minutes", "peak memory MB"]]
    rows += [
        [f"{n_tasks:,} rounds, {figures['board_gb']:.1f} GB", *_cells(figures, "minutes", "memory_mb")],
        ["reading it, hashes verified", f"{figures['load_minutes']:.1f}", ""],
        ["recomputing every digest", *_cells(figures, "verify_minutes", "verify_memory_mb")],
        [f"replaying {REPLAYED} tasks", *_cells(figures, "replay_minutes", "replay_memory_mb")],
    ]
    return figures, targets, rows


def _cells(figures: Figures, minutes: str, megabytes: str) -> list[str]:
    return [f"{figures[minutes]:.1f}", f"{figures[megabytes]:.0f}"]


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
