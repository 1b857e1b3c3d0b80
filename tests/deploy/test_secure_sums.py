"""Secure sums between real processes: whatever dies, and whatever the curator's process holds in memory."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from lying_curator import LyingCurator
from small_trial import deployed, small_plan, small_tasks

from cloister import Trust
from cloister.engines import Local
from cloister.engines.noise_at_home import noisy_message
from cloister.nodes import NodeFolder
from cloister.nodes.deploy.processes import Processes, curator_command, node_command, service_command
from cloister.nodes.deploy.status import status
from cloister.secure.double_masking import Step
from cloister.secure.exchange import packed
from cloister.secure.primitives import public_key
from cloister.secure.session import Offer
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


def core_of(process: int, folder: Path) -> bytes:
    """Return a process' core dump, where gdb is installed to make one; else its memory."""
    if shutil.which("gcore") is None:
        return memory_of(process)
    command = ["gcore", "-o", str(folder / "core"), str(process)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    core = folder / f"core.{process}"
    found = core.read_bytes()
    core.unlink()
    return found


@pytest.mark.parametrize("trust", [Trust.secure_sum(), Trust.secure_sum(dropouts=1)])
def test_whatever_is_killed_every_release_is_the_sum_of_one_message_a_task(trust, tmp_path):
    """Kill -9 of curator, service and nodes at random moments; look into the curator's memory and core dump.

    Where nodes may drop out, one of them is ended half-way, and does not come back.
    """
    n, rounds = (3, 24) if not trust.stepwise else (5, 8)
    plan = replace(small_plan(n, rounds=rounds, quorum=trust.fewest(n)), trust=trust)
    tasks = small_tasks(n)
    made = deployed(tmp_path / "office", plan, tasks, deadline=300.0 if not trust.stepwise else 6.0)
    commands = {
        "service": service_command(made.folder),
        "curator": curator_command(made.folder),
        **{f"node-{name}": node_command(made.folder / "nodes" / name) for name in tasks.ids},
    }
    lost, at_rounds = f"node-{tasks.ids[1]}", (rounds // 6, rounds // 3)
    chance, killed, dumps, began = random.Random(3), [], [], time.monotonic()
    with Processes.at(made.state / "logs") as processes:
        for name, command in commands.items():
            processes.start(name, command)
        moment = began + 3.0
        while not made.finished and time.monotonic() < began + 900:
            time.sleep(0.05)
            if processes.running["curator"].poll() is not None:  # the service was away when it began
                processes.start("curator", commands["curator"])
            curator, done = processes.running["curator"], status(made).done
            if len(dumps) < 2 and curator.poll() is None and done >= at_rounds[len(dumps)]:
                curator.send_signal(signal.SIGSTOP)
                dumps.append(core_of(curator.pid, tmp_path) if dumps else memory_of(curator.pid))
                curator.send_signal(signal.SIGCONT)
            if trust.stepwise and done >= rounds // 2 and lost in commands:
                del commands[lost]
                processes.end(lost, signal.SIGKILL)
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
    for release, own in zip(board.releases, noisy, strict=True):
        assert release.answered >= plan.quorum
        sums = [own[list(alive)].sum(axis=0) for alive in combinations(range(n), release.answered)]
        assert any((release.value == total * steps).all() for total in sums)
    assert (min(release.answered for release in board.releases) < n) == trust.stepwise
    assert (noisy != bare).any(axis=(1, 2)).all()

    messages = [row.astype("<i8").tobytes() for each in (bare, noisy) for row in each.reshape(-1, 3)]
    files = [path for path in made.folder.rglob("*") if path.is_file() and "nodes" not in path.parts]
    held = [*dumps, *(path.read_bytes() for path in files)]
    sizes = [len(dump) >> 20 for dump in dumps]
    print(f"{len(killed)} killed, memory and core dump of {sizes} MiB, {len(files)} files")
    assert min(sizes) > 8
    for message in messages:
        assert not any(message in one for one in held)
    values = [release.value for release in board.releases]
    known = [value.astype("<f8").tobytes() for value in values]
    known += [np.rint(value / steps).astype("<i8").tobytes() for value in values]
    for dump in dumps:
        assert any(one in dump for one in known)  # what is public it does hold


def test_a_lying_curator_gets_nothing_from_real_nodes(tmp_path):
    """It has the operator's key, and the service; nodes are processes of their own, killed between lies."""
    plan = replace(small_plan(5, rounds=2, quorum=4), trust=Trust.secure_sum(dropouts=1))
    tasks = small_tasks(5)
    made = deployed(tmp_path / "office", plan, tasks)
    commands = {f"node-{name}": node_command(made.folder / "nodes" / name) for name in tasks.ids}
    with Processes.at(made.state / "logs") as processes:
        processes.start("service", service_command(made.folder))
        processes.wait_for("service", int(made.settings.listen.rpartition(":")[2]))
        for name, command in commands.items():
            processes.start(name, command)
        with made.transport() as transport:
            liar = LyingCurator(transport, made.operator, plan, made.roster, made.keys, deadline=60.0)
            liar.begin()
            liar.to(Step.KEYS)
            offers = {offer.place: offer.to_bytes() for offer in liar.exchange.collector.offers}
            own = public_key(bytes(range(32)))
            forged = Offer(3, own, own, Offer.from_bytes(offers[3]).signature).to_bytes()
            assert liar.ask(0, Step.SHARES, packed(offers | {3: forged})) is None
            assert liar.ask(0, Step.SHARES, packed(offers)[:-1]) is None
            liar.begin()
            liar.to(Step.MESSAGE)
            sets = [0, 1, 2, 3], [0, 1, 2, 4]
            ballots = liar.ballots((0, 3), sets[0]) | liar.ballots((1, 2, 4), sets[1])
            for name, command in commands.items():
                processes.end(name, signal.SIGKILL)
                processes.start(name, command)
            assert liar.ballots((0,), sets[1])[0] is None
            for place, alive in ((0, sets[0]), (1, sets[1])):
                assert liar.opening(place, alive, {at: ballots[at] for at in alive}) is None
            old = liar.tables(0)[1]
            liar.begin(1)
            liar.to(Step.KEYS)
            new = {offer.place: offer.to_bytes() for offer in liar.exchange.collector.offers}
            assert liar.ask(0, Step.SHARES, packed(offers | {0: new[0]})) is None
            liar.to(Step.SHARES)
            assert liar.ask(0, Step.MESSAGE, packed(new, old)) is None
            assert liar.to(Step.OPENING).shares == 5
            assert liar.ask(0, Step.KEYS, b"", number=2) is None
            assert liar.ask(0, Step.KEYS, b"", number=0) is None
            some = {at: liar.exchange.collector.signatures[at] for at in sets[0]}
            assert liar.opening(0, sets[0], some) is None
    log = (made.folder / "nodes" / str(tasks.ids[0]) / "log").read_text()
    for sentence in ("not signed by its task's key", "Other survivors were named", "was opened in another"):
        assert sentence in log
