"""Flower's simulation of 200 nodes against one process and against actors of Ray: the same board, its cost.

Every node is a folder with its rows, ledger and copy of the board; Flower's simulation carries signed
questions and encrypted answers between them and the curator, on this machine. The same plan is run by
`Local()`, by `Local(block=1)`, which computes as nodes do, and by two actors of `Cluster`. Seconds are those
of a round, on processors (driver and actors) and by the clock. Needs the extra ``simulation``, whose Ray is
an older one. Quick: 10 nodes.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import Figures, Table, Targets
from benchmarks.cluster_scale import Processes, own_seconds
from benchmarks.flower import SEED, make_tasks, mean_plan
from cloister import run as run_plan
from cloister.engines import Cluster, Local
from cloister.nodes.deploy.kit import create
from cloister.nodes.deploy.trial import join
from cloister.nodes.flower import Deployment, simulate
from cloister.nodes.flower.deployment import DeploymentSettings

NAME = "flower-simulation"
PATHS = (
    "src/cloister/nodes/deploy",
    "src/cloister/nodes/remote.py",
    "src/cloister/cluster",
    "src/cloister/nodes/flower",
    "src/cloister/engines/local.py",
    "src/cloister/nodes",
)
ACTORS = 2
TARGETS: Targets = {"boards that differ": ("<=", 0), "nodes that completed": (">=", 200)}


class Rounds:
    """When the first and the last round were posted, by the clock and by seconds on processors."""

    def __init__(self, count: int) -> None:
        self.count, self.actors, self.moments = count, Processes(), dict[int, tuple[float, float]]()

    def note(self, done: int) -> None:
        if done not in self.moments and (not self.moments or done == self.count):
            self.moments[done] = time.perf_counter(), own_seconds() + self.actors.look()

    def watch(self, deployment: Deployment, over: threading.Event) -> None:
        """Note the rounds that a curator has posted, until it is over."""
        while not over.wait(0.05):
            try:
                self.note(json.loads((deployment.state / "rounds.json").read_text())["done"])
            except (OSError, ValueError):
                continue

    def seconds(self) -> tuple[float, float]:
        """Return seconds a round, on processors and by the clock."""
        first, last = min(self.moments), max(self.moments)
        (began, before), (ended, after) = self.moments[first], self.moments[last]
        return (after - before) / (last - first), (ended - began) / (last - first)


def timed(plan: Any, tasks: Any, engine: Any) -> tuple[Any, tuple[float, float]]:
    rounds = Rounds(len(plan.rounds))
    done = run_plan(
        plan, tasks, random_state=SEED, engine=engine, progress=lambda posted: rounds.note(posted.done)
    )
    return done.board.head, rounds.seconds()


def simulated(plan: Any, tasks: Any, seeds: Any, folder: Path) -> tuple[Any, tuple[float, float], int]:
    """Run a plan in Flower's simulation; return head, seconds a round, and how many nodes have a model."""
    here = "127.0.0.1:1"  # nobody listens: Flower's simulation has no network
    told = DeploymentSettings("simulation", here, here, 1, deadline=3600.0, seed=SEED)
    made = create(folder, plan, told, trial=True)
    for place, name in enumerate(tasks.ids):
        join(made, plan, tasks.only(name), seed=int(seeds[place]), trial=True)
    rounds, over = Rounds(len(plan.rounds)), threading.Event()
    looks = threading.Thread(target=rounds.watch, args=(made, over), daemon=True)
    looks.start()
    done = simulate(made.folder, actors=ACTORS)
    over.set()
    looks.join()
    assert done is not None
    return done.board.head, rounds.seconds(), len(list(made.folder.glob("nodes/*/runs/*/model.npz")))


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    m = 10 if quick else 200
    plan, tasks = mean_plan(m), make_tasks(m)
    alone = run_plan(plan, tasks, random_state=SEED, engine=Local(block=1))
    heads, cost = {}, {}
    for name, engine in (
        ("Local", Local(threads=1)),
        ("Local, block=1", Local(threads=1, block=1)),
        (f"Cluster, {ACTORS} actors", Cluster(ACTORS)),
    ):
        heads[name], cost[name] = timed(plan, tasks, engine)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        heads["simulation"], cost["simulation"], completed = simulated(
            plan, tasks, alone.private.seeds, Path(folder) / "office"
        )
    figures: Figures = {
        "boards that differ": sum(head != alone.board.head for head in heads.values()),
        "nodes that completed": completed,
    }
    rows: Table = [["engine", "nodes", "CPU ms a round", "ms a round", "same head"]]
    for name, (processor, clock) in cost.items():
        figures |= {f"CPU ms a round, {name}": 1e3 * processor, f"ms a round, {name}": 1e3 * clock}
        same = "yes" if heads[name] == alone.board.head else "no"
        rows.append([name, str(m), f"{1e3 * processor:.1f}", f"{1e3 * clock:.1f}", same])
    return figures, TARGETS, rows
