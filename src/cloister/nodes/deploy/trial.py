"""``deploy try``: the whole of it on this machine, with schools of the demo as nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.errors import InputError
from cloister.core.tasks import Tasks
from cloister.datasets import load
from cloister.estimators.prior import SharedPriorRegressor
from cloister.nodes.deploy.deployment import Deployment, DeploymentSettings
from cloister.nodes.deploy.kit import add_node, create, usual_quorum
from cloister.nodes.deploy.processes import (
    Processes,
    free_port,
    node_command,
    service_command,
)
from cloister.nodes.deploy.status import Status, shown, status
from cloister.nodes.identity import CuratorAddress, Identity
from cloister.nodes.node_folder import NodeFolder, NodeSettings
from cloister.plan.plan import Plan
from cloister.privacy.trust import Trust


def make_trial(folder: Path, nodes: int, epsilon: float, secure: bool = False) -> Deployment:
    """Write an operator's folder, and beside it in ``nodes`` the folders of so many schools, who agree.

    Parameters
    ----------
    folder : Path
        A new folder.
    nodes : int
        How many of the schools of Chem97 take part.
    epsilon : float
        The budget of each.
    secure : bool
        Whether nobody sees a message: a secure sum, of 3 schools or more.
    """
    data = load("chem97")
    schools, counts = np.unique(data.task, return_counts=True)
    if not 2 <= nodes <= len(schools):
        raise InputError(f"nodes must be from 2 to {len(schools)}. Got {nodes}. 5 is a good start.")
    chosen = sorted(schools[np.argsort(-counts, kind="stable")[:nodes]].tolist())
    plan = SharedPriorRegressor(epsilon=epsilon, bounds=data.codebook).plan(nodes)
    if secure:
        plan = replace(plan, trust=Trust.secure_sum())
    here = f"127.0.0.1:{free_port()}"
    told = DeploymentSettings("trial", here, here, deadline=60.0 + 3.0 * nodes)  # all on this machine
    plan = replace(plan, quorum=usual_quorum(plan))
    deployment = create(folder, plan, told, trial=True)
    parts = []
    for school in chosen:
        mine = data.task == school
        columns = {name: column[mine] for name, column in data.X.items()}
        rows, target = data.codebook.encode(columns), data.codebook.encode_target(data.y[mine])
        parts.append(Tasks.from_arrays(rows, target, [school] * len(target)))
    join(deployment, plan, parts)
    return deployment


def join(
    deployment: Deployment, plan: Plan, parts: Sequence[Tasks], seeds: Sequence[int] = (), trial: bool = False
) -> None:
    """Let tasks take part from folders in ``nodes``: what owners and operator do, in one step.

    Parameters
    ----------
    deployment : Deployment
        The operator's folder.
    plan : Plan
        The plan that the owners agree to.
    parts : sequence of Tasks
        The rows of each task.
    seeds : sequence of int, optional
        Of each task's local randomness, for tests and papers.
    trial : bool
        Whether the owners accept boards whose noise comes from a seed.
    """
    told, homes = plan.guarantee, []
    budget: dict[str, Any] = {"epsilon": 1.001 * told.epsilon, "delta": told.delta, "unit": told.unit}
    authority = deployment.folder / "certificates" / "trial-ca.crt"
    for place, rows in enumerate(parts):
        name = rows.ids[0].item()
        seed = int(seeds[place]) if len(seeds) else None
        owner = NodeSettings(task=name, operator=deployment.operator.public.hex(), seed=seed)
        folder = deployment.folder / "nodes" / str(name)
        homes.append(NodeFolder.create(folder, owner, **budget))
        CuratorAddress(deployment.settings.address, str(authority)).save(folder)
        add_node(deployment, name, Identity.create(folder).public)
    roster = deployment.sign_roster()
    for home, rows in zip(homes, parts, strict=True):
        home.approve(plan, rows, trial=trial, roster=roster)


def run_trial(deployment: Deployment, view: Callable[[Status], None], every: float = 1.0) -> Status:
    """Start the service and all nodes on this machine, run the plan, and end them.

    For a run that has ended nothing is started.
    """
    now = status(deployment)
    if not (now.complete and deployment.finished):
        with Processes.at(deployment.state / "logs") as processes, shown(deployment, view, every):
            start_all(deployment, processes)
            with deployment.transport() as transport:
                deployment.curate(transport)
    return status(deployment)


def start_all(deployment: Deployment, processes: Processes, types: Sequence[str] = ()) -> None:
    """Start everything but the curator.

    Parameters
    ----------
    deployment : Deployment
        The operator's folder, with the nodes' folders in it.
    processes : Processes
        Where they are kept.
    types : sequence of str
        Classes of your own that the plan names, ``file.py:Class``.
    """
    processes.start("service", service_command(deployment.folder))
    processes.wait_for("service", int(deployment.settings.listen.rpartition(":")[2]))
    for name in deployment.keys:
        processes.start(f"node-{name}", node_command(deployment.folder / "nodes" / name, types))
