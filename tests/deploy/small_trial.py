"""A small run between nodes: the operator's folder, the service as a process, and nodes in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from cloister import Plan, replay, run
from cloister.algorithms import MeanRegularized
from cloister.core.tasks import Tasks
from cloister.engines import Local
from cloister.learners import LeastSquares
from cloister.nodes import NodeFolder
from cloister.nodes.agent import NodeAgent
from cloister.nodes.deploy.deployment import Deployment, DeploymentSettings
from cloister.nodes.deploy.kit import create
from cloister.nodes.deploy.processes import Processes, free_port, service_command
from cloister.nodes.deploy.trial import join
from cloister.store.billboard import Billboard

pytest.importorskip("uvicorn", reason="needs the extra nodes")
SEED = 7


def small_plan(n_tasks: int, rounds: int, epsilon: float = 2.0, quorum: int | None = None) -> Plan:
    algorithm = MeanRegularized(LeastSquares(3), rounds=rounds, steps=2)
    return replace(Plan(algorithm, n_tasks=n_tasks).calibrate(epsilon=epsilon), quorum=quorum)


def small_tasks(n_tasks: int) -> Tasks:
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, size=(n_tasks, 12, 3))
    y = np.clip(X.sum(2) + 0.1 * rng.standard_normal((n_tasks, 12)), -1, 1)
    names = np.repeat([f"school-{k}" for k in range(n_tasks)], 12)
    return Tasks.from_arrays(X.reshape(-1, 3), y.ravel(), names)


def deployed(folder: Path, plan: Plan, tasks: Tasks, deadline: float = 60.0) -> Deployment:
    """Set a run up on this machine, whose noise comes from a seed, and let every task join."""
    here = f"127.0.0.1:{free_port()}"
    settings = DeploymentSettings("trial", here, here, deadline=deadline, seed=SEED)
    deployment = create(folder, plan, settings, trial=True)
    join(deployment, plan, list(map(tasks.only, tasks.ids)), range(len(tasks.ids)), trial=True)
    return deployment


def node(made: Deployment, name: str) -> NodeAgent:
    return NodeAgent(made.folder / "nodes" / name)


@contextmanager
def service(made: Deployment) -> Iterator[Processes]:
    """Run the service as a process of its own."""
    with Processes.at(made.state / "logs") as processes:
        processes.start("service", service_command(made.folder))
        processes.wait_for("service", int(made.settings.listen.rpartition(":")[2]))
        yield processes


def service_log(made: Deployment) -> str:
    return (made.state / "logs" / "service.log").read_text()


@contextmanager
def answering(agents: list[NodeAgent]) -> Iterator[None]:
    """Let nodes answer, each in a thread, until the block is left."""
    over = threading.Event()

    def serve(agent: NodeAgent) -> None:
        while not over.is_set():
            try:
                with agent.connected() as client:
                    while not over.is_set():
                        agent.step(client, wait=1.0)
            except httpx.HTTPError:
                over.wait(0.2)

    threads = [threading.Thread(target=serve, args=(agent,)) for agent in agents]
    with ExitStack() as stack:
        stack.callback(lambda: [thread.join() for thread in threads])
        stack.callback(over.set)
        for thread in threads:
            thread.start()
        yield


def check_finished(made: Deployment, plan: Plan, tasks: Tasks) -> None:
    """The run is the one that it would have been: board, both ledgers, every node's model."""
    alone = run(plan, tasks, random_state=SEED, engine=Local(block=1))
    board = Billboard.load(made.journal / "board")
    plan.check(board)
    assert board.head == alone.board.head
    price = pytest.approx(plan.guarantee.epsilon)
    assert made.ledger.spent == price
    assert len(made.ledger.history) == 1
    for place, name in enumerate(alone.private.ids):
        home = NodeFolder(made.folder / "nodes" / name)
        assert home.ledger.spent == price
        again = replay(plan, board, tasks.only(name), seeds=np.array([place], np.uint64))
        with np.load(home.folder / "runs" / "trial" / "model.npz") as own:
            for key, model in again.items():
                np.testing.assert_array_equal(own[key], model[0])
