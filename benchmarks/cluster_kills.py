"""Runs of five algorithms of which actors, a node or the driver are killed, against `Local()`.

``python -m benchmarks.cluster_kills NAME JOURNAL ROUND`` is a driver that kills itself after a round, without
a word; with round 0 it goes on to the end, and writes what it found beside the journal.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster as Nodes
from torch import nn

from benchmarks import Figures, Table
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, LowRank, MeanRegularized, MetaSGD, SharedPrior
from cloister.engines import Cluster, Local
from cloister.engines.workers import Workers
from cloister.learners import Descent, LeastSquares, Module, Regression
from cloister.mechanisms import Gaussian
from cloister.sampling import Poisson

M, D, CLASSES = 120, 6, 3


def make_tasks(labels: bool) -> Tasks:
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(M), rng.integers(2, 30, M))
    X = rng.uniform(-0.4, 0.4, (len(ids), D))
    if labels:
        return Tasks.from_arrays(X.astype(np.float32), rng.integers(0, CLASSES, len(ids)), ids)
    return Tasks.from_arrays(X, np.clip(X @ rng.normal(0, 0.6, D) + rng.normal(0, 0.3, M)[ids], -1, 1), ids)


def plans() -> Iterator[tuple[str, Plan, Tasks]]:
    numbers, labels = make_tasks(False), make_tasks(True)
    torch.manual_seed(0)
    net = Module(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    noise, some = Gaussian(0.9), Poisson(0.3)
    yield "SharedPrior", Plan(SharedPrior(Regression(D)), noise, n_tasks=M), numbers
    yield "LowRank", Plan(LowRank(LeastSquares(D)), noise, n_tasks=M), numbers
    mean = MeanRegularized(LeastSquares(D), rounds=15, batch=3)
    yield "MeanRegularized", Plan(mean, noise, some, n_tasks=M), numbers
    home = Descent(0.1, batch=4)
    yield "FedAvg", Plan(FedAvg(net, home, clip=0.3, rounds=8), noise, some, n_tasks=M), labels
    yield "MetaSGD", Plan(MetaSGD(net, home, clip=0.3, rounds=8), noise, some, n_tasks=M), labels


@dataclass(frozen=True)
class Killing(Cluster):
    """A cluster of which an actor is killed before each of some rounds: (round, which of them)."""

    kills: tuple[tuple[int, int], ...] = ()

    @contextmanager
    def workers(self, plan: Plan, tasks: Any, seeds: Any) -> Iterator[Workers]:
        with super().workers(plan, tasks, seeds) as workers:
            collect = workers.collect

            def killing(board: Any, *given: Any) -> Any:
                for t, which in self.kills:
                    if t == board.rounds:
                        holders = workers.actors.holders  # type: ignore[attr-defined]
                        ray.kill(holders[which % len(holders)].handle)
                return collect(board, *given)

            workers.collect = killing  # type: ignore[method-assign]
            yield workers


@contextmanager
def on_this_machine(cpus: int) -> Iterator[None]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error",
        object_store_memory=10**8,
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def two_nodes() -> Iterator[tuple[Nodes, Any]]:
    """Start a cluster of two nodes, and be quiet: Ray prints the last lines of a lost node's log."""
    size = {"num_cpus": 2, "object_store_memory": 10**8}
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        nodes = Nodes(initialize_head=True, head_node_args=size)
        second = nodes.add_node(**size)
        try:
            nodes.wait_for_nodes()
            ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
            yield nodes, second
        finally:
            ray.shutdown()
            nodes.shutdown()


@dataclass
class Compared:
    """How runs differ from those of one process."""

    rows: Table
    boards: int = 0
    models: int = 0
    network: float = 0.0
    alone: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, where: str, how: str, head: bytes, models: dict[str, Any]) -> None:
        plan, tasks = next((plan, tasks) for other, plan, tasks in plans() if other == name)
        if name not in self.alone:
            self.alone[name] = run_plan(plan, tasks, random_state=3, engine=Local(threads=1))
        one = self.alone[name]
        far = max(float(np.abs(models[k] - a).max()) for k, a in one.private.models.items())
        same = head == one.board.head
        if plan.algorithm.network is None:
            self.boards, self.models = self.boards + (not same), self.models + (far > 0)
        else:
            self.network = max(self.network, far)
        self.rows.append([name, where, how, f"head {same}, models {far:.1e}"])

    @property
    def figures(self) -> Figures:
        return {
            "boards that differ": self.boards,
            "linear models that differ": self.models,
            "networks' largest difference": self.network,
        }


def actors_killed(quick: bool, rows: Table) -> Figures:
    """Run every plan with random kills, 20 in all or (quick) one each."""
    rng, found = np.random.default_rng(1), Compared(rows)
    with on_this_machine(4):
        for name, plan, tasks in plans():
            for actors in (2,) if quick else (2, 4):
                at = rng.integers(0, len(plan.rounds), 1 if quick else 2)
                kills = tuple((int(t), int(rng.integers(actors))) for t in at)
                two = run_plan(plan, tasks, random_state=3, engine=Killing(actors, kills=kills))
                found.add(name, f"{actors} actors", f"killed {kills}", two.board.head, two.private.models)
    return found.figures


def node_killed(rows: Table) -> Figures:
    """Kill one of two nodes in a run of four actors of each plan, after a random round."""
    rng, found = np.random.default_rng(2), Compared(rows)
    for name, plan, tasks in plans():
        last = int(rng.integers(1, len(plan.rounds)))
        with two_nodes() as (nodes, second):

            def step(posted: Any, last: int = last, nodes: Nodes = nodes, second: Any = second) -> None:
                if posted.done == last:
                    nodes.remove_node(second, allow_graceful=False)

            two = run_plan(plan, tasks, random_state=3, engine=Cluster(4), progress=step)
        how = f"node killed after {last}"
        found.add(name, "4 actors, 2 nodes", how, two.board.head, two.private.models)
    return found.figures


def driver_killed(rows: Table) -> Figures:
    """Kill the driver after two random rounds of each plan; then let it end."""
    rng, found = np.random.default_rng(3), Compared(rows)
    for name, plan, _ in plans():
        rounds = sorted(int(t) for t in rng.choice(np.arange(1, len(plan.rounds)), 2, replace=False))
        with tempfile.TemporaryDirectory() as home:
            for last in (*rounds, 0):
                command = [sys.executable, "-m", "benchmarks.cluster_kills", name, f"{home}/run", str(last)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != (-signal.SIGKILL if last else 0):
                    raise RuntimeError(done.stderr)
            head, models = pickle.loads(Path(home, "run.found").read_bytes())
        found.add(name, "2 actors", f"driver killed after {rounds}", head, models)
    return found.figures


def drive(name: str, journal: str, last: int) -> None:
    plan, tasks = next((plan, tasks) for other, plan, tasks in plans() if other == name)

    def step(posted: Any) -> None:
        if posted.done == last:
            os.kill(os.getpid(), signal.SIGKILL)

    done = run_plan(
        plan, tasks, random_state=3, engine=Cluster(2), journal=journal, progress=step, checkpoint=0.5
    )
    Path(f"{journal}.found").write_bytes(pickle.dumps((done.board.head, done.private.models)))


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], int(sys.argv[3]))
