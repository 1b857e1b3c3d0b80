"""A run between processes against one process: the same boards and models, seconds and bytes a round.

Real processes on this machine, real TLS: the operator's service, and a process for every node; the curator is
this one. Eight nodes run SharedPrior, MeanRegularized, LowRank and Personalized (a small network); five and
twenty-four run MeanRegularized, for the seconds. Seconds are by the clock, and on processors, all processes
together, between the first and the last release. Bytes are counted at the service, without headers of HTTP
and TLS. Quick: five nodes alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import LowRank, MeanRegularized, Personalized, SharedPrior
from cloister.engines import Local
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian
from cloister.nodes.deploy.deployment import Deployment, DeploymentSettings
from cloister.nodes.deploy.kit import create
from cloister.nodes.deploy.processes import Processes, free_port
from cloister.nodes.deploy.status import Status, shown
from cloister.nodes.deploy.trial import join, start_all
from cloister.store.billboard import Billboard

NAME = "deployed"
PATHS = ("src/cloister/nodes",)
D, ROWS, SEED, ROUNDS = 6, 20, 11, 8
TARGETS: Targets = {
    "boards that differ": ("<=", 0),
    "linear models that differ": ("<=", 0),
    "network's largest difference": ("<=", 1e-5),
    "s a round, 5 nodes": ("<=", 2),
}

#: The network that the plan names, as a file that nodes and curator import.
NETWORK = """
import torch
from torch import nn
from cloister.learners import Module

torch.manual_seed(0)
net = Module(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
"""

#: A service that counts the bytes of what it carries.
COUNTING = """
import sys
from pathlib import Path
from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.service import serve

count = [0, 0]

def watch(app):
    async def counted(scope, receive, send):
        async def told():
            message = await receive()
            if b"ask" not in scope["raw_path"]:
                count[0] += len(message.get("body", b""))
            return message
        async def says(message):
            if b"ask" not in scope["raw_path"]:
                count[1] += len(message.get("body", b""))
                Path(sys.argv[2]).write_text(repr(count))
            await send(message)
        if scope["type"] != "http":
            return await app(scope, receive, send)
        await app(scope, told, says)
    return counted

made = Deployment(Path(sys.argv[1]))
serve(made.service(print), print, watch)
"""


def make_tasks(m: int, labels: bool = False) -> Tasks:
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(m), ROWS)
    X = rng.uniform(-0.4, 0.4, (len(ids), D))
    if labels:
        return Tasks.from_arrays(X.astype(np.float32), rng.integers(0, 3, len(ids)), ids)
    return Tasks.from_arrays(X, np.clip(X @ rng.normal(0, 0.6, D) + rng.normal(0, 0.3, m)[ids], -1, 1), ids)


def mean_plan(m: int) -> Plan:
    return Plan(MeanRegularized(LeastSquares(D), rounds=ROUNDS, batch=3), Gaussian(0.9), n_tasks=m)


def plans(m: int) -> Iterator[tuple[str, Plan, Tasks]]:
    numbers, noise = make_tasks(m), Gaussian(0.9)
    yield "MeanRegularized", mean_plan(m), numbers
    yield "SharedPrior", Plan(SharedPrior(Regression(D)), noise, n_tasks=m), numbers
    yield "LowRank", Plan(LowRank(LeastSquares(D), rounds=6), noise, n_tasks=m), numbers
    import torch
    from torch import nn

    from cloister.learners import Descent, Module

    torch.manual_seed(0)
    net = Module(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 3)))
    own = Personalized(net, Descent(0.1, batch=4), clip=0.3, rounds=6)
    yield "Personalized", Plan(own, noise, n_tasks=m), make_tasks(m, labels=True)


def processor_seconds(processes: Processes) -> float:
    """Return the seconds on processors of this process and of those that it has started, so far."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for each in processes.running.values():
        times = Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        total += sum(map(int, times)) / tick
    return total


def deployed(plan: Plan, tasks: Tasks, folder: Path, seeds: Any, network: bool) -> tuple[Deployment, Figures]:
    """Run a plan between nodes on this machine; return the folder, and seconds and bytes a round."""
    here = f"127.0.0.1:{free_port()}"
    told = DeploymentSettings("benchmark", here, here, deadline=600.0, seed=SEED)
    made = create(folder / "office", plan, told, trial=True)
    join(made, plan, [tasks.only(name) for name in tasks.ids], [int(seed) for seed in seeds], trial=True)
    named: tuple[str, ...] = ()
    types: tuple[Any, ...] = ()
    if network:
        (folder / "small_net.py").write_text(NETWORK)
        named, types = (f"{folder / 'small_net.py'}:net",), (plan.algorithm.learner,)  # type: ignore[attr-defined]
    (folder / "counting.py").write_text(COUNTING)
    moments: dict[int, tuple[float, float]] = {}
    with Processes.at(made.state / "logs") as processes:

        def note(now: Status) -> None:
            moments.setdefault(now.done, (time.monotonic(), processor_seconds(processes)))

        start_all(made, processes, named)
        processes.end("service")
        command = [sys.executable, str(folder / "counting.py"), str(made.folder), str(folder / "bytes")]
        processes.start("service", command)
        processes.wait_for("service", int(here.rpartition(":")[2]))
        with shown(made, note, 0.05), made.transport() as transport:
            made.curate(transport, types)
    counted = json.loads((folder / "bytes").read_text())
    first, last = min(done for done in moments if done), max(moments)
    rounds, (began, before), (ended, after) = max(last - first, 1), moments[first], moments[last]
    return made, {
        "s a round": (ended - began) / rounds,
        "CPU s a round": (after - before) / rounds,
        "kB a round, up": counted[0] / len(plan.rounds) / 1e3,
        "kB a round, down": counted[1] / len(plan.rounds) / 1e3,
    }


def differences(made: Deployment, alone: Any, network: bool) -> tuple[bool, float]:
    """Say whether the boards are the same, and how far models are apart at most.

    Of a network all releases are compared: the first record has a doubt that nodes have no reason for.
    """
    board = Billboard.load(made.journal / "board")
    same = board.head == alone.board.head
    if network:
        pairs = zip(board.releases, alone.board.releases, strict=True)
        same = all(np.array_equal(one.value, other.value) for one, other in pairs)
    largest = 0.0
    for place, name in enumerate(alone.private.ids):
        with np.load(made.folder / "nodes" / str(name) / "runs" / "benchmark" / "model.npz") as own:
            for key, models in alone.private.models.items():
                largest = max(largest, float(np.abs(own[key] - models[place]).max(initial=0.0)))
    return same, largest


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    figures: Figures = {"boards that differ": 0, "linear models that differ": 0}
    rows = [
        [
            "plan",
            "nodes",
            "rounds",
            "s a round",
            "CPU s a round",
            "kB up",
            "kB down",
            "same board",
            "models apart",
        ]
    ]
    todo = [("MeanRegularized", mean_plan(5), make_tasks(5))]
    if not quick:
        todo += [*plans(8), ("MeanRegularized", mean_plan(24), make_tasks(24))]
    for name, plan, tasks in todo:
        alone = run_plan(plan, tasks, random_state=SEED, engine=Local(block=1))
        network = name == "Personalized"
        with tempfile.TemporaryDirectory() as folder:
            made, found = deployed(plan, tasks, Path(folder), alone.private.seeds, network)
            same, apart = differences(made, alone, network)
        m = plan.n_tasks
        figures["boards that differ"] += not same
        if network:
            figures["network's largest difference"] = apart
        else:
            figures["linear models that differ"] += apart > 0
        if name == "MeanRegularized":
            figures |= {f"{key}, {m} nodes": value for key, value in found.items()}
        numbers = [f"{value:.2f}" for value in found.values()]
        rows.append([name, str(m), str(len(plan.rounds)), *numbers, "yes" if same else "no", f"{apart:.1e}"])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return figures, TARGETS, rows
