"""Real processes on loopback, real TLS: link, proxy, executor, curator, nodes."""

from __future__ import annotations

import time

import httpx
import numpy as np
import pytest
from flower_trial import SEED, deployed, small_plan, small_tasks

from cloister import run
from cloister.engines import Local
from cloister.nodes.deploy.processes import Processes
from cloister.nodes.deploy.supervisor import curate, status
from cloister.nodes.deploy.trial import start_all


def took_over(address: str, certificate: bytes, seconds: float) -> bool:
    """Try what a stranger can who has nothing but the certificate: to be the executor, and take the task."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    signs = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    wanted = AcquireTaskRequest(supported_task_types=["flwr-serverapp", "serverapp", "server_app"])
    refused, until = set(), time.monotonic() + seconds
    with RuntimeHttpClient.from_server_address(address, False, certificate, signs) as stranger:
        while time.monotonic() < until:
            try:
                if stranger.AcquireTask(wanted).HasField("task"):
                    return True
            except httpx.HTTPStatusError as error:
                refused.add(error.response.status_code)
            time.sleep(0.05)
    assert refused
    assert refused <= {401, 403}
    return False


def test_a_run_over_flower_is_that_of_one_machine_and_a_stranger_gets_nothing(tmp_path):
    plan, tasks = small_plan(2, rounds=2), small_tasks(2)
    made = deployed(tmp_path / "office", plan, tasks)
    certificates = made.folder / "certificates"
    found = []

    def attack(now):
        if not found:  # while the curator's task waits for its executor
            inner, outer = (certificates / f"{name}-ca.crt" for name in ("inner", "trial"))
            found.append(took_over(f"127.0.0.1:{made.settings.link}", inner.read_bytes(), 0.5))
            found.append(took_over(made.settings.address, outer.read_bytes(), 0.5))

    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        now = curate(made, attack, every=0.2)
        kept = {path: path.read_bytes() for path in made.state.rglob("*") if path.is_file()}
    assert any(path.name.startswith("link.db") and data for path, data in kept.items())
    assert not [path for path, data in kept.items() if b"cloister reply" in data]  # none in clear
    assert found == [False, False]
    alone = run(plan, tasks, random_state=SEED, engine=Local(block=1))
    assert now.head == alone.board.head.hex()
    assert now.notes == 0
    assert made.ledger.spent == pytest.approx(plan.guarantee.epsilon)
    for place, name in enumerate(alone.private.ids):
        with np.load(made.folder / "nodes" / name / "runs" / "trial" / "model.npz") as own:
            for key, all_models in alone.private.models.items():
                np.testing.assert_array_equal(own[key], all_models[place])
    assert [node.name for node in status(made).nodes] == list(alone.private.ids)
