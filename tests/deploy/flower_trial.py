"""A small run between nodes, link, proxy and curator, all real processes of this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister import Plan, replay, run
from cloister.algorithms import MeanRegularized
from cloister.core.tasks import Tasks
from cloister.engines import Local
from cloister.learners import LeastSquares
from cloister.nodes import NodeFolder
from cloister.nodes.deploy.kit import create
from cloister.nodes.deploy.processes import free_port
from cloister.nodes.deploy.trial import join
from cloister.nodes.flower.deployment import Deployment, DeploymentSettings
from cloister.store.billboard import Billboard

pytest.importorskip("flwr", reason="needs the extra flower")
SEED = 7


def small_plan(n_tasks: int, rounds: int, epsilon: float = 2.0) -> Plan:
    return Plan(MeanRegularized(LeastSquares(3), rounds=rounds, steps=2), n_tasks=n_tasks).calibrate(
        epsilon=epsilon
    )


def small_tasks(n_tasks: int) -> Tasks:
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, size=(n_tasks, 12, 3))
    y = np.clip(X.sum(2) + 0.1 * rng.standard_normal((n_tasks, 12)), -1, 1)
    names = np.repeat([f"school-{k}" for k in range(n_tasks)], 12)
    return Tasks.from_arrays(X.reshape(-1, 3), y.ravel(), names)


def deployed(folder: Path, plan: Plan, tasks: Tasks, deadline: float = 60.0) -> Deployment:
    """Set a run up on this machine, whose noise comes from a seed, and let every task join."""
    here = f"127.0.0.1:{free_port()}"
    settings = DeploymentSettings("trial", here, here, free_port(), deadline=deadline, seed=SEED)
    deployment = create(folder, plan, settings, trial=True)
    for place, name in enumerate(tasks.ids):
        join(deployment, plan, tasks.only(name), seed=place, trial=True)
    return deployment


def check_finished(made: Deployment, plan: Plan, tasks: Tasks, head: str) -> None:
    """The run is the one that it would have been: board, both ledgers, every node's model."""
    alone = run(plan, tasks, random_state=SEED, engine=Local(block=1))
    board = Billboard.load(made.journal / "board")
    plan.check(board)
    assert head == board.head.hex() == alone.board.head.hex()
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
