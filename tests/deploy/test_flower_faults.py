"""Real processes that are killed, other certificates and proxies, and all traffic looked at; slow."""

from __future__ import annotations

import os
import random
import shutil
import signal
import ssl
import sys
import threading
import time
from pathlib import Path

import hostile
import httpx
import numpy as np
import pytest
from flower_trial import check_finished, deployed, small_plan, small_tasks

from cloister import Tasks
from cloister.nodes.deploy.kit import make_authority
from cloister.nodes.deploy.processes import (
    Processes,
    executor_command,
    link_command,
    node_command,
    proxy_command,
    settings,
)
from cloister.nodes.deploy.supervisor import curate
from cloister.nodes.deploy.trial import start_all
from cloister.nodes.flower.agent import NodeAgent
from cloister.nodes.flower.transport import CuratorAddress

pytestmark = pytest.mark.slow

KILLS = 20


def test_whatever_is_killed_the_run_completes(tmp_path):
    plan, tasks = small_plan(3, rounds=20), small_tasks(3)
    made = deployed(tmp_path / "office", plan, tasks, deadline=300.0)
    office, chance, killed = settings(made), random.Random(5), []
    commands = {
        "link": link_command(made),
        "proxy": proxy_command(made),
        "executor": executor_command(made),
        **{f"node-{name}": node_command(made.folder / "nodes" / name) for name in tasks.ids},
    }
    over = threading.Event()

    def kill(processes: Processes) -> None:
        while len(killed) < KILLS and not over.wait(chance.uniform(2.0, 8.0)):
            what = chance.choice([*commands, "curator", "node-school-0", "curator"])
            if what != "curator":
                processes.end(what, signal.SIGKILL)
                processes.start(what, commands[what], office)
            elif not made.curated:
                continue
            else:
                try:
                    os.kill(int((made.state / "curator.lock").read_text()), signal.SIGKILL)
                except (OSError, ValueError):
                    continue
            killed.append(what)

    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        killer = threading.Thread(target=kill, args=(processes,))
        killer.start()
        try:
            now = curate(made, lambda now: None, patience=60, every=0.5)
        finally:
            over.set()
            killer.join()
    print(f"{len(killed)} killed: {sorted(killed)}")
    assert len(killed) == KILLS
    check_finished(made, plan, tasks, now.head)


TAP = """
import sys
from pathlib import Path
from cloister.nodes.flower.deployment import Deployment
from cloister.nodes.flower.proxy import serve

def watch(app):
    async def tapped(scope, receive, send):
        if scope["type"] != "http":
            return await app(scope, receive, send)
        seen = open(sys.argv[2], "ab")
        seen.write(scope["raw_path"] + repr(scope["headers"]).encode())
        async def told():
            message = await receive()
            seen.write(message.get("body", b""))
            return message
        try:
            return await app(scope, told, send)
        finally:
            seen.close()
    return tapped

serve(Deployment(Path(sys.argv[1])), watch)
"""


def test_no_canary_leaves_also_while_strangers_try(tmp_path):
    """A canary stands in a node's rows; it is in nothing that leaves the node, and in nobody else's files."""
    canary = 0.1234567890123
    plan, tasks = small_plan(2, rounds=8), small_tasks(2)
    X, y = tasks.X.copy(), tasks.y.copy()
    X[:3], y[:3] = canary, canary
    tasks = Tasks(tasks.ids, X, y, tasks.weight, tasks.offsets)
    made = deployed(tmp_path / "office", plan, tasks)
    found = []
    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        processes.end("proxy")
        script = tmp_path / "tap.py"
        script.write_text(TAP)
        tapped = [sys.executable, str(script), str(made.folder), str(tmp_path / "traffic")]
        processes.start("proxy", tapped, settings(made))

        def attack(now) -> None:
            if now.done >= 1 and not found:
                found.append(hostile.attack(made, tmp_path))

        now = curate(made, attack, every=0.2)
    assert found == [hostile.ENDS]
    check_finished(made, plan, tasks, now.head)
    secrets = [
        np.float64(canary).tobytes(),
        str(canary).encode(),
        np.float32(canary).tobytes(),
        (made.folder / "nodes" / "school-0" / "key").read_bytes(),
    ]
    assert secrets[0] in (next((made.folder / "nodes" / "school-0").rglob("rows.npz"))).read_bytes()
    traffic = (tmp_path / "traffic").read_bytes()
    assert len(traffic) > 10_000
    elsewhere = [path for path in made.folder.rglob("*") if path.is_file() and "school-0" not in str(path)]
    assert len(elsewhere) > 20
    for secret in secrets:
        assert secret not in traffic
        assert not [path for path in elsewhere if secret in path.read_bytes()]


def test_a_node_does_not_speak_to_a_curator_of_another_authority(tmp_path):
    plan, tasks = small_plan(2, rounds=2), small_tasks(2)
    made = deployed(tmp_path / "office", plan, tasks)
    make_authority(tmp_path, "other")
    folder = made.folder / "nodes" / "school-0"
    CuratorAddress(made.settings.address, str(tmp_path / "other.crt")).save(folder)
    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        resident = NodeAgent(folder)
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"), resident._connected():
            pass
        until = time.monotonic() + 30
        while "ConnectError" not in (folder / "log").read_text() and time.monotonic() < until:
            time.sleep(0.2)
    assert "CERTIFICATE_VERIFY_FAILED" in (folder / "log").read_text()


def test_nginx_can_stand_in_the_proxys_place(tmp_path):
    nginx = Path(shutil.which("nginx") or "/usr/sbin/nginx")
    if not nginx.exists():
        pytest.skip("needs nginx")
    plan, tasks = small_plan(2, rounds=2), small_tasks(2)
    made = deployed(tmp_path / "office", plan, tasks)
    found: list[int] = []

    def look(now) -> None:
        if now.done and not found:
            context = ssl.create_default_context(cafile=str(made.folder / "certificates" / "trial-ca.crt"))
            with httpx.Client(base_url=f"https://{made.settings.address}", verify=context) as client:
                for path, size in (
                    ("fleet/push-object", 10**6),
                    ("fleet/push-object", 1),
                    ("control/list-nodes", 1),
                ):
                    found.append(client.post(f"/v1/{path}", content=b"x" * size).status_code)

    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        processes.end("proxy")
        processes.start("proxy", [str(nginx), "-c", str(made.folder / "nginx.conf")], {})
        now = curate(made, look, every=0.2)
    assert found == [413, 415, 403]
    check_finished(made, plan, tasks, now.head)
