"""``deploy try``: the whole of it on this machine, with schools of the demo as nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cloister.core.errors import InputError
from cloister.core.tasks import Tasks
from cloister.datasets import load
from cloister.estimators.prior import SharedPriorRegressor
from cloister.nodes import NodeFolder, NodeSettings
from cloister.nodes.deploy.kit import add_node, create
from cloister.nodes.deploy.processes import (
    Processes,
    executor_command,
    forget_traffic,
    free_port,
    link_command,
    node_command,
    proxy_command,
    settings,
)
from cloister.nodes.deploy.supervisor import Status, curate, status
from cloister.nodes.flower.apps import simulate
from cloister.nodes.flower.deployment import Deployment, DeploymentSettings
from cloister.nodes.flower.transport import CuratorAddress, Identity
from cloister.plan.plan import Plan


def make_trial(folder: Path, nodes: int, epsilon: float) -> Deployment:
    """Write an operator's folder, and beside it in ``nodes`` the folders of so many schools, who agree.

    Parameters
    ----------
    folder : Path
        A new folder.
    nodes : int
        How many of the schools of Chem97 take part.
    epsilon : float
        The budget of each.
    """
    data = load("chem97")
    schools, counts = np.unique(data.task, return_counts=True)
    if not 2 <= nodes <= len(schools):
        raise InputError(f"nodes must be from 2 to {len(schools)}. Got {nodes}. 5 is a good start.")
    chosen = sorted(schools[np.argsort(-counts, kind="stable")[:nodes]].tolist())
    plan = SharedPriorRegressor(epsilon=epsilon, bounds=data.codebook).plan(nodes)
    port = free_port()
    here = f"127.0.0.1:{port}"
    told = DeploymentSettings(
        "trial", here, here, free_port(), deadline=60.0 + 3.0 * nodes
    )  # all on this machine
    deployment = create(folder, plan, told, trial=True)
    for school in chosen:
        mine = data.task == school
        columns = {name: column[mine] for name, column in data.X.items()}
        rows, target = data.codebook.encode(columns), data.codebook.encode_target(data.y[mine])
        join(deployment, plan, Tasks.from_arrays(rows, target, [school] * len(target)))
    return deployment


def join(
    deployment: Deployment, plan: Plan, rows: Tasks, seed: int | None = None, trial: bool = False
) -> Path:
    """Let a task take part from a folder in ``nodes``: what its owner and the operator do, in one step.

    Parameters
    ----------
    deployment : Deployment
        The operator's folder.
    plan : Plan
        The plan that the owner agrees to.
    rows : Tasks
        The task's rows.
    seed : int, optional
        Of the task's local randomness, for tests and papers.
    trial : bool
        Whether the owner accepts boards whose noise comes from a seed.
    """
    name, told = rows.ids[0].item(), plan.guarantee
    folder = deployment.folder / "nodes" / str(name)
    owner = NodeSettings(task=name, operator=deployment.operator.public.hex(), seed=seed)
    home = NodeFolder.create(folder, owner, epsilon=1.001 * told.epsilon, delta=told.delta)
    home.approve(plan, rows, trial=trial)
    authority = deployment.folder / "certificates" / "trial-ca.crt"
    CuratorAddress(deployment.settings.address, str(authority)).save(folder)
    add_node(deployment, name, Identity.create(folder).public)
    return folder


def run_trial(deployment: Deployment, view: Callable[[Status], None], every: float = 1.0) -> Status:
    """Start link, proxy, executor and all nodes on this machine, run the plan, end them, and clear up.

    For a run that has ended nothing is started.
    """
    now = status(deployment)
    if not (now.complete and deployment.finished):
        with Processes.at(deployment.state / "logs") as processes:
            start_all(deployment, processes)
            now = curate(deployment, view, every=every)
    forget_traffic(deployment)
    return now


def simulate_trial(deployment: Deployment, view: Callable[[Status], None], every: float = 1.0) -> Status:
    """Run the plan in Flower's simulation, on this machine; for a run that has ended nothing is started."""
    with _shown(deployment, view, every):
        simulate(deployment.folder)
    return status(deployment)


@contextmanager
def _shown(deployment: Deployment, view: Callable[[Status], None], every: float) -> Iterator[None]:
    """Show where a run stands meanwhile, every now and then."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            view(status(deployment))

    looks = threading.Thread(target=look, daemon=True)
    looks.start()
    try:
        yield
    finally:
        over.set()
        looks.join()


def start_all(deployment: Deployment, processes: Processes, types: Sequence[str] = ()) -> None:
    """Start everything but the curator, which the executor starts when it is asked to.

    Parameters
    ----------
    deployment : Deployment
        The operator's folder, with the nodes' folders in it.
    processes : Processes
        Where they are kept.
    types : sequence of str
        Classes of your own that the plan names, ``file.py:Class``, for the nodes; the curator's are in the
        folder's app.
    """
    office = settings(deployment)
    processes.start("link", link_command(deployment), office)
    processes.start("proxy", proxy_command(deployment), office)
    for name in deployment.keys:
        processes.start(f"node-{name}", node_command(deployment.folder / "nodes" / name, types), {})
    processes.wait_for("link", deployment.settings.link)
    processes.start("executor", executor_command(deployment), office)
    processes.wait_for("proxy", int(deployment.settings.listen.rpartition(":")[2]))
