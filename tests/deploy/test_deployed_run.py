"""The whole of it with real processes: the run of one machine, whatever dies, and nothing left behind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_trial import check_finished, deployed, small_plan, small_tasks

from cloister import Tasks
from cloister.nodes.deploy.processes import (
    ONE_THREAD,
    Processes,
    curator_command,
    node_command,
    script,
    service_command,
)
from cloister.nodes.deploy.status import status
from cloister.nodes.deploy.trial import run_trial, start_all


def test_a_run_between_processes_is_that_of_one_machine(tmp_path):
    plan, tasks = small_plan(2, rounds=3, quorum=2), small_tasks(2)
    made = deployed(tmp_path / "office", plan, tasks)
    seen = []
    now = run_trial(made, seen.append, every=0.1)
    check_finished(made, plan, tasks)
    assert now.complete
    assert now.answered == (2, 2, 2)
    assert now.notes == 0
    assert {node.link for node in now.nodes} == {"ended"}
    assert "here" in {node.link for state in seen for node in state.nodes}
    assert seen[0].done == 0  # shown from the start
    kept = b"".join(path.read_bytes() for path in made.state.rglob("*") if path.is_file())
    assert b"cloister reply" not in kept
    assert made.curate(None) is None  # type: ignore[arg-type]  # finished: nobody is asked


#: What looks at all traffic of the service.
TAP = """
import sys
from pathlib import Path
from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.service import serve

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

made = Deployment(Path(sys.argv[1]))
serve(made.service(print), print, watch)
"""


@pytest.mark.slow
def test_no_canary_leaves(tmp_path):
    """A canary stands in a node's rows; it is in nothing that leaves the node, and in nobody else's files."""
    canary = 0.1234567890123
    plan, tasks = small_plan(2, rounds=8), small_tasks(2)
    X, y = tasks.X.copy(), tasks.y.copy()
    X[:3], y[:3] = canary, canary
    tasks = Tasks(tasks.ids, X, y, tasks.weight, tasks.offsets)
    made = deployed(tmp_path / "office", plan, tasks)
    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        processes.end("service")
        (tmp_path / "tap.py").write_text(TAP)
        tapped = [sys.executable, str(tmp_path / "tap.py"), str(made.folder), str(tmp_path / "traffic")]
        processes.start("service", tapped)
        processes.wait_for("service", int(made.settings.listen.rpartition(":")[2]))
        with made.transport() as transport:
            made.curate(transport)
    check_finished(made, plan, tasks)
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


KILLS = 20


@pytest.mark.slow
def test_whatever_is_killed_the_run_completes(tmp_path):
    """Kill -9 at random moments, and start again, as systemd does; the curator is killed too."""
    plan, tasks = small_plan(3, rounds=150, quorum=3), small_tasks(3)
    made = deployed(tmp_path / "office", plan, tasks, deadline=300.0)
    chance, killed = random.Random(5), []
    commands = {
        "service": service_command(made.folder),
        "curator": curator_command(made.folder),
        **{f"node-{name}": node_command(made.folder / "nodes" / name) for name in tasks.ids},
    }
    began = time.monotonic()
    with Processes.at(made.state / "logs") as processes:
        for name, command in commands.items():
            processes.start(name, command)
        moment = began + 2.0
        while not made.finished and time.monotonic() < began + 900:
            time.sleep(0.1)
            if processes.running["curator"].poll() is not None:  # the service was away when it began
                processes.start("curator", commands["curator"])
            if len(killed) < KILLS and time.monotonic() > moment:
                what = chance.choice([*commands, "service", "curator"])
                processes.end(what, signal.SIGKILL)
                processes.start(what, commands[what])
                killed.append(what)
                moment = time.monotonic() + chance.uniform(0.5, 4.0)
    print(f"{len(killed)} killed in {time.monotonic() - began:.0f} s: {sorted(killed)}")
    assert len(killed) == KILLS
    check_finished(made, plan, tasks)


#: Starts a process that ends when it is told to, and one that does not listen; then does nothing.
STARTS = """
import signal, sys, time
from pathlib import Path

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup ignore it, and so would this
from cloister.nodes.deploy.processes import Processes

with Processes.at(Path(sys.argv[1])) as processes:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    processes.start("listens", ["sleep", "600"])
    processes.start("deaf", [sys.executable, "-c", deaf])
    print(*(each.pid for each in processes.running.values()), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGHUP, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_what_was_started_ends_with_who_has_started_it(tmp_path, how):
    command = [sys.executable, "-c", STARTS, str(tmp_path / "logs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as starter:
        assert starter.stdout is not None
        started = [Path(f"/proc/{number}") for number in starter.stdout.readline().split()]
        assert [each.exists() for each in started] == [True, True]
        starter.send_signal(how)
    until = time.monotonic() + 20
    while any(each.exists() for each in started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(each.exists() for each in started)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGKILL])
def test_however_a_trial_ends_nothing_of_it_stays(tmp_path, how):
    plan, tasks = small_plan(2, rounds=900, quorum=2), small_tasks(2)
    made = deployed(tmp_path / "trial", plan, tasks)
    trial = subprocess.Popen(
        [script("cloister"), "deploy", "try", str(made.folder)],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not status(made).done and time.monotonic() < until:
            time.sleep(0.2)
        started = _processes(made.folder)
        assert len(started) == 4  # the trial, the service and two nodes
        trial.send_signal(how)
        said = trial.communicate(timeout=20)[1]
        assert trial.returncode == -how
        assert re.search(r"trial: round \d+ of 900; \d of 2 nodes here", said)  # also without a terminal
        until = time.monotonic() + 20
        while _processes(made.folder) and time.monotonic() < until:
            time.sleep(0.1)
        assert _processes(made.folder) == []
        assert not made.finished
    finally:
        trial.kill()


def _processes(folder: Path) -> list[int]:
    """Return the processes whose command names a folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.decode(errors="replace").startswith(str(folder)) for word in words):
            found.append(int(each.name))
    return found
