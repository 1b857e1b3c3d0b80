"""Actors of Ray against one process: the same boards whoever is killed, the cost of a round, memory.

Every plan is run by `Local()` and by 2 and 4 actors, of which some are killed at random: SharedPrior, LowRank
and MeanRegularized (Poisson) in NumPy, FedAvg and MetaSGD (Poisson) as networks. Of a cluster of two nodes,
real processes of Ray on this machine, one node is killed. A round with next to no work shows what they cost.
Last, tables in Parquet of 10,000 to 1,000,000 tasks, by two actors. Quick: fewer kills, and 10,000 tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster as Nodes
from torch import nn

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, LowRank, MeanRegularized, MetaSGD, SharedPrior
from cloister.engines import Cluster, Local
from cloister.engines.workers import Workers
from cloister.learners import Descent, LeastSquares, Module, Regression
from cloister.mechanisms import Gaussian
from cloister.sampling import Poisson

NAME = "cluster"
M, D, CLASSES = 120, 6, 3
TARGETS: Targets = {
    "boards that differ": ("<=", 0),
    "linear models that differ": ("<=", 0),
    "networks' largest difference": ("<=", 1e-4),
    "ms a round, 2 actors": ("<=", 30),
    "driver GB": ("<=", 0.6),
    "worker GB": ("<=", 3.0),
    "slope": ("<=", 1.3),
}


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

            def killing(board: Any, coins: Any) -> Any:
                for t, which in self.kills:
                    if t == board.rounds:
                        holders = workers.actors.holders  # type: ignore[attr-defined]
                        ray.kill(holders[which % len(holders)].handle)
                return collect(board, coins)

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


def difference(one: Any, two: Any) -> float:
    return max(float(np.abs(two.private.models[k] - a).max()) for k, a in one.private.models.items())


def under_kills(quick: bool, rows: Table) -> Figures:
    """Run every plan with random kills, 20 in all or (quick) one each."""
    rng = np.random.default_rng(1)
    boards = models = 0
    network = 0.0
    with on_this_machine(4):
        for name, plan, tasks in plans():
            one = run_plan(plan, tasks, random_state=3, engine=Local(threads=1))
            for actors in (2,) if quick else (2, 4):
                at = rng.integers(0, len(plan.rounds), 1 if quick else 2)
                kills = tuple((int(t), int(rng.integers(actors))) for t in at)
                two = run_plan(plan, tasks, random_state=3, engine=Killing(actors, kills=kills))
                far, same = difference(one, two), two.board.head == one.board.head
                if plan.algorithm.network is None:
                    boards, models = boards + (not same), models + (far > 0)
                else:
                    network = max(network, far)
                rows.append([name, f"{actors} actors", f"killed {kills}", f"head {same}, models {far:.1e}"])
    return {
        "boards that differ": boards,
        "linear models that differ": models,
        "networks' largest difference": network,
    }


def node_killed(rows: Table) -> float:
    """Kill one of two nodes in a run of four actors; return how many boards differ."""
    _, plan, tasks = next(item for item in plans() if item[0] == "MeanRegularized")
    one = run_plan(plan, tasks, random_state=3)
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 10**8})
    second = nodes.add_node(num_cpus=2, object_store_memory=10**8)
    try:
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        begun = time.perf_counter()

        def step(posted: Any) -> None:
            if posted.done == 5:
                nodes.remove_node(second, allow_graceful=False)

        two = run_plan(plan, tasks, random_state=3, engine=Cluster(4), progress=step)
        took = time.perf_counter() - begun
    finally:
        ray.shutdown()
        nodes.shutdown()
    same = two.board.head == one.board.head
    far = difference(one, two)
    rows.append([
        "MeanRegularized", "4 actors, 2 nodes", "node killed", f"head {same}, models {far:.1e}, {took:.0f} s"
    ])  # fmt: skip
    return float(not same)


def round_milliseconds(engine: Any) -> float:
    """Return the median time of a round with next to no work."""
    tasks = Tasks.from_arrays(np.ones((64, 1)), np.ones(64), np.arange(64))
    plan = Plan(MeanRegularized(LeastSquares(1), rounds=60, steps=1), Gaussian(1.0), n_tasks=64)
    stamps: list[float] = []
    run_plan(plan, tasks, engine=engine, progress=lambda posted: stamps.append(time.perf_counter()))
    return 1000 * float(np.median(np.diff(stamps)[5:]))


def overhead(rows: Table, quick: bool) -> Figures:
    found = {"ms a round, Local": round_milliseconds(Local(threads=1))}
    with on_this_machine(8):
        for actors in (2,) if quick else (2, 8):
            found[f"ms a round, {actors} actors"] = round_milliseconds(Cluster(actors))
    rows.extend([name, "", "", f"{value:.2f}"] for name, value in found.items())
    return found


def scale(rows: Table, counts: tuple[int, ...]) -> Figures:
    """Run over tables of more and more tasks, each in a process of its own."""
    found = []
    for tasks in counts:
        command = [sys.executable, "-m", "benchmarks.cluster_scale", str(tasks)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        shown = (f"{key} {value:.3g}" for key, value in found[-1].items() if key != "tasks")
        rows.append([f"{tasks} tasks", "2 actors", "Parquet", ", ".join(shown)])
    last = found[-1]
    figures = {"driver GB": last["driver_gb"], "worker GB": last["worker_gb"]}
    return figures | ({"slope": last["ms_a_task"] / found[-2]["ms_a_task"]} if len(found) > 1 else {})


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Measure everything; what is said of a kill is (round, actor)."""
    rows: Table = [["what", "where", "how", "found"]]
    figures = under_kills(quick, rows)
    if not quick:
        figures["boards that differ"] += node_killed(rows)
    figures |= overhead(rows, quick)
    figures |= scale(rows, (10_000,) if quick else (10_000, 100_000, 1_000_000))
    return figures, TARGETS, rows
