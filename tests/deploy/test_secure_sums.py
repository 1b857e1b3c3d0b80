"""Secure sums between real processes: whatever dies, and whatever the curator's process holds in memory."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_trial import deployed, small_plan, small_tasks

from cloister import Trust
from cloister.engines import Local
from cloister.engines.noise_at_home import noisy_message
from cloister.nodes import NodeFolder
from cloister.nodes.deploy.processes import Processes, curator_command, node_command, service_command
from cloister.nodes.deploy.status import status
from cloister.store.billboard import Billboard
from cloister.store.signatures import SignedRoster

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def made_of(made, plan, tasks, board):
    """Return what each node says in each round, bare and with its noise: by its own rows and secrets."""
    homes = [NodeFolder(made.folder / "nodes" / str(name)) for name in tasks.ids]
    signed = SignedRoster.from_bytes((homes[0].folder / "runs" / "trial" / "roster.json").read_bytes())
    seeds = np.arange(len(tasks), dtype=np.uint64)
    bare, noisy = [], []
    with Local(block=1).workers(plan, tasks, seeds) as workers:
        workers.start(board.before(0))
        for t in range(board.rounds):
            before = board.before(t)
            channel = plan.algorithm.channel(before)
            rows = workers.collect_rows(before, channel)
            own = [home.source.stream(f"noise share {signed.fingerprint}", t) for home in homes]
            bare.append([channel.whole_sum(row[None]) for row in rows])
            noisy.append(
                [noisy_message(plan, t, channel, row, -1, key) for row, key in zip(rows, own, strict=True)]
            )
    return np.array(bare), np.array(noisy)


def memory_of(process: int) -> bytes:
    """Return all that a process holds in memory and may write to."""
    held = []
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found:
                first, last = (int(place, 16) for place in found.groups())
                memory.seek(first)
                try:
                    held.append(memory.read(last - first))
                except OSError:  # the kernel's own
                    continue
    return b"".join(held)


def test_whatever_is_killed_every_release_is_the_sum_of_one_message_a_task(tmp_path):
    """Kill -9 of curator, service and nodes at random moments; and look into the curator's memory."""
    plan = replace(small_plan(3, rounds=24, quorum=3), trust=Trust.secure_sum())
    tasks = small_tasks(3)
    made = deployed(tmp_path / "office", plan, tasks, deadline=300.0)
    commands = {
        "service": service_command(made.folder),
        "curator": curator_command(made.folder),
        **{f"node-{name}": node_command(made.folder / "nodes" / name) for name in tasks.ids},
    }
    chance, killed, dumps, began = random.Random(3), [], [], time.monotonic()
    with Processes.at(made.state / "logs") as processes:
        for name, command in commands.items():
            processes.start(name, command)
        moment = began + 3.0
        while not made.finished and time.monotonic() < began + 900:
            time.sleep(0.05)
            if processes.running["curator"].poll() is not None:  # the service was away when it began
                processes.start("curator", commands["curator"])
            curator = processes.running["curator"]
            if len(dumps) < 2 and curator.poll() is None and status(made).done >= (4, 9)[len(dumps)]:
                curator.send_signal(signal.SIGSTOP)
                dumps.append(memory_of(curator.pid))
                curator.send_signal(signal.SIGCONT)
            if len(killed) < 6 and time.monotonic() > moment:
                what = chance.choice([*commands, "curator"])
                processes.end(what, signal.SIGKILL)
                processes.start(what, commands[what])
                killed.append(what)
                moment = time.monotonic() + chance.uniform(1.0, 4.0)
    board = Billboard.load(made.journal / "board")
    plan.check(board)
    assert board.complete
    bare, noisy = made_of(made, plan, tasks, board)
    steps = plan.rounds[0].channels[0].steps
    released = np.array([release.value for release in board.releases])
    assert (released == noisy.sum(axis=1) * steps).all()
    assert (noisy != bare).any(axis=(1, 2)).all()

    messages = [row.astype("<i8").tobytes() for each in (bare, noisy) for row in each.reshape(-1, 3)]
    files = [path for path in made.folder.rglob("*") if path.is_file() and "nodes" not in path.parts]
    held = [*dumps, *(path.read_bytes() for path in files)]
    print(f"{len(killed)} killed, {len(dumps)} dumps of {sum(map(len, dumps)) >> 20} MiB, {len(files)} files")
    assert sum(map(len, dumps)) > 1 << 24
    for message in messages:
        assert not any(message in one for one in held)
    sums = [total.astype("<i8").tobytes() for total in noisy.sum(axis=1)]
    values = [value.astype("<f8").tobytes() for value in released]
    assert any(one in dump for dump in dumps for one in (*sums, *values))  # what is public it does hold
