"""Real processes that are killed, strangers and garbage at the door, and all traffic looked at; slow."""

from __future__ import annotations

import os
import random
import shutil
import signal
import ssl
import sys
import threading
import time
from base64 import b64encode
from pathlib import Path

import httpx
import numpy as np
import pytest
from flower_trial import SEED, deployed, small_plan, small_tasks

from cloister import Tasks, replay, run
from cloister.board.billboard import Billboard
from cloister.deploy.certificates import make_authority
from cloister.deploy.curator import curate
from cloister.deploy.processes import (
    Processes,
    executor_command,
    link_command,
    node_command,
    proxy_command,
    settings,
)
from cloister.deploy.trial import start_all
from cloister.engines import Local
from cloister.engines.flower.identity import Identity, Way
from cloister.engines.flower.resident import Resident
from cloister.engines.node import Home

pytestmark = pytest.mark.slow

KILLS = 20


def check_finished(made, plan, tasks, now) -> None:
    """The run is the one that it would have been: board, both ledgers, every node's model."""
    alone = run(plan, tasks, random_state=SEED, engine=Local(block=1))
    board = Billboard.load(made.journal / "board")
    plan.check(board)
    assert now.head == board.head.hex() == alone.board.head.hex()
    price = pytest.approx(plan.guarantee.epsilon)
    assert made.ledger.spent == price
    assert len(made.ledger.history) == 1
    for place, name in enumerate(alone.private.ids):
        home = Home(made.folder / "nodes" / name)
        assert home.ledger.spent == price
        again = replay(plan, board, tasks.only(name), seeds=np.array([place], np.uint64))
        with np.load(home.folder / "runs" / "trial" / "model.npz") as own:
            for key, model in again.items():
                np.testing.assert_array_equal(own[key], model[0])


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
    check_finished(made, plan, tasks, now)


TAP = """
import sys
from pathlib import Path
from cloister.engines.flower.deployment import Deployment
from cloister.engines.flower.proxy import serve

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


def test_strangers_and_garbage_do_no_harm_and_no_canary_leaves(tmp_path):
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
                found.extend(statuses(made, tmp_path))

        now = curate(made, attack, every=0.2)
    assert found == [403, 403, 413, 413, 403, "wrong authority"] + ["refused"] * 3
    check_finished(made, plan, tasks, now)
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


def statuses(made, tmp_path: Path) -> list[object]:
    """Try the door without a key, with another's, with too much, with garbage; return how each ended."""
    certificate = made.folder / "certificates" / "trial-ca.crt"
    (tmp_path / "stranger").mkdir()
    stranger = Identity.create(tmp_path / "stranger")
    elm = Identity.load(made.folder / "nodes" / "school-0")
    door, call = f"https://{made.settings.address}", "/v1/fleet/push-messages"

    def bears(identity: Identity) -> dict[str, str]:
        return {"flwr-public-key": b64encode(identity.public.encode()).decode()}

    def gigabyte():
        for _ in range(1024):
            yield b"\0" * (1 << 20)

    context = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=door, verify=context) as client:
        told = [
            client.post(call).status_code,
            client.post(call, headers=bears(stranger)).status_code,
            client.post(call, content=b"\0" * 10**6, headers=bears(elm)).status_code,
            _sent(client, call, gigabyte(), bears(elm)),
            client.post("/v1/control/list-nodes", headers=bears(elm)).status_code,
        ]
        make_authority(tmp_path, "other")
        try:
            httpx.post(door + call, verify=ssl.create_default_context(cafile=str(tmp_path / "other.crt")))
        except httpx.ConnectError:
            told.append("wrong authority")
        signed = _signed(elm)
        for headers in ({}, signed, signed | {"flwr-timestamp": "2020-01-01T00:00:00+00:00"}):
            answer = client.post(call, content=b"garbage" * 20, headers=bears(elm) | headers)
            told.append("refused" if answer.status_code >= 400 else answer.status_code)
    return told


def _sent(client: httpx.Client, call: str, content, headers) -> int:
    """Send what has no end that is told; the door may close before it is all there."""
    try:
        return client.post(call, content=content, headers=headers).status_code
    except httpx.HTTPError:
        return 413


def _signed(identity: Identity) -> dict[str, str]:
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import sign_message

    stamp = now().isoformat()
    signature = b64encode(sign_message(identity.key, stamp.encode())).decode()
    return {"flwr-timestamp": stamp, "flwr-signature": signature, "content-type": "application/protobuf"}


def test_a_node_does_not_speak_to_a_curator_of_another_authority(tmp_path):
    plan, tasks = small_plan(2, rounds=2), small_tasks(2)
    made = deployed(tmp_path / "office", plan, tasks)
    make_authority(tmp_path, "other")
    folder = made.folder / "nodes" / "school-0"
    Way(made.settings.address, str(tmp_path / "other.crt")).save(folder)
    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        resident = Resident(folder)
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
    assert found[0] == 413
    assert found[1] >= 400
    assert found[2] == 403
    check_finished(made, plan, tasks, now)
