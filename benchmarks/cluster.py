"""Actors of Ray against one process: the same boards whoever is killed, the cost of a round, memory.

Every plan is run by `Local()` and by 2 and 4 actors, of which some are killed at random: SharedPrior, LowRank
and MeanRegularized (Poisson) in NumPy, FedAvg and MetaSGD (Poisson) as networks. Of a cluster of two nodes,
real processes of Ray on this machine, one node is killed in each of them; and so is the driver, twice. A
round with next to no work shows what actors cost. Last, tables in Parquet of 10,000 to 1,000,000 tasks, by
two actors, against one of 100,000 in memory. Quick: fewer kills, and 10,000 tasks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks import Figures, Table, Tables, Targets
from benchmarks.cluster_kills import actors_killed, driver_killed, node_killed, on_this_machine
from benchmarks.cluster_scale import Processes, own_seconds
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import MeanRegularized
from cloister.engines import Cluster, Local
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian

NAME = "cluster"
PATHS = (
    "src/cloister/cluster",
    "src/cloister/engines/workers.py",
)
TARGETS: Targets = {
    "boards that differ": ("<=", 0),
    "linear models that differ": ("<=", 0),
    "networks' largest difference": ("<=", 1e-4),
    "CPU a round, 2 actors against Local": ("<=", 20),
    "driver GB": ("<=", 0.6),
    "worker GB": ("<=", 3.0),
    "CPU a task, against in memory": ("<=", 1.3),
}
#: What the table shows of a run over many tasks.
SHOWN = {
    "cpu_ms_a_task": "processor ms a task",
    "ms_a_task": "ms a task",
    "driver_gb": "driver, peak GB",
    "worker_gb": "larger actor, peak GB",
    "models_gb": "models, GB",
}


def round_milliseconds(engine: Any, rounds: int) -> tuple[float, float]:
    """Return what a round with next to no work takes: on processors (driver and actors), and by the clock."""
    tasks = Tasks.from_arrays(np.ones((64, 1)), np.ones(64), np.arange(64))
    plan = Plan(MeanRegularized(LeastSquares(1), rounds=rounds, steps=1), Gaussian(1.0), n_tasks=64)
    actors, stamps, used = Processes(), [], []

    def step(posted: Any) -> None:
        stamps.append(time.perf_counter())
        if posted.done in (6, rounds):
            used.append(own_seconds() + actors.look())

    run_plan(plan, tasks, engine=engine, progress=step)
    return 1000 * (used[1] - used[0]) / (rounds - 6), 1000 * float(np.median(np.diff(stamps)[5:]))


def overhead(rows: Table, quick: bool) -> Figures:
    rounds = 60 if quick else 200
    found = {"Local": round_milliseconds(Local(threads=1), rounds)}
    with on_this_machine(8):
        for actors in (2,) if quick else (2, 8):
            found[f"{actors} actors"] = round_milliseconds(Cluster(actors), rounds)
    for name, (processor, wall) in found.items():
        rows.append([name, f"{processor:.1f}", f"{wall:.1f}"])
    figures = {f"CPU ms a round, {name}": processor for name, (processor, _) in found.items()}
    return figures | {"CPU a round, 2 actors against Local": found["2 actors"][0] / found["Local"][0]}


def scale(rows: Table, counts: tuple[int, ...], in_memory: int) -> Figures:
    """Run over tables of more and more tasks, and over one in memory, each in a process of its own."""

    def measured(*arguments: str) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.cluster_scale", *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        where = "one process" if arguments[0] == "--in-memory" else "2 actors"
        shown = (f"{found[key]:.3g}" if key in found else "" for key in SHOWN)
        rows.append([f"{found['tasks']:,.0f}", where, *shown])
        return found

    whole = measured("--in-memory", str(in_memory))["cpu_ms_a_task"]
    last = [measured(str(tasks)) for tasks in counts][-1]
    figures = {"driver GB": last["driver_gb"], "worker GB": last["worker_gb"]}
    return figures | {"CPU a task, against in memory": last["cpu_ms_a_task"] / whole}


def run(quick: bool) -> tuple[Figures, Targets, Tables]:
    """Measure everything; what is said of a kill is (round, actor)."""
    kills: Table = [["plan", "where", "how", "found"]]
    rounds: Table = [["a round with next to no work", "ms on processors", "ms by the clock"]]
    sizes: Table = [["tasks", "where", *SHOWN.values()]]
    figures = actors_killed(quick, kills)
    if not quick:
        for more in (node_killed(kills), driver_killed(kills)):
            figures = {
                name: max(figures[name], more[name]) if "largest" in name else figures[name] + more[name]
                for name in figures
            }
    figures |= overhead(rounds, quick)
    counts = (10_000,) if quick else (10_000, 100_000, 1_000_000)
    figures |= scale(sizes, counts, 10_000 if quick else 100_000)
    targets = {k: v for k, v in TARGETS.items() if not quick or "in memory" not in k}
    return figures, targets, {NAME: sizes, "rounds": rounds, "kills": kills}
