"""Nodes that add the noise themselves, and mask what they say: no message is on the way in the clear."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from node_helpers import BUDGET, OPERATOR, RUN, SEED, TASKS, M, Recorded, asked, log_of, open_nodes

from cloister import Plan, Trust, run
from cloister.algorithms import LowRank, MeanRegularized
from cloister.core.errors import CloisterError, InputError
from cloister.engines import RemoteNodes
from cloister.engines.noise_at_home import noisy_message
from cloister.learners import LeastSquares
from cloister.nodes import InProcess, NodeFolder, NodeSettings
from cloister.nodes.identity import Identity
from cloister.nodes.messages import Reply, ReplyKind, Request, RequestKind
from cloister.store.commitments import FolderMemory

pytestmark = pytest.mark.usefixtures("unsynced")


def plan_of(trust, algorithm=None, quorum=None):
    if algorithm is None:
        algorithm = MeanRegularized(LeastSquares(3), rounds=3, steps=2, batch=2)
    return Plan(algorithm, n_tasks=M, delta=1e-2, trust=trust, quorum=quorum).calibrate(3.0)


LIFTED = LowRank(LeastSquares(3), rounds=2)
TRUSTS = [Trust.secure_sum(), Trust.secure_sum(0, 2), Trust.silo()]


def make(folder, plan, keyed=True):
    """Make nodes with keys, whose owners have approved the plan and its roster; return them and the keys."""
    names, keys = TASKS.ids.tolist(), {}
    for name in names:
        NodeFolder.create(folder / name, NodeSettings(name, OPERATOR.public.hex()), **BUDGET)
        if keyed:
            keys[name] = Identity.create(folder / name).public
    signed = OPERATOR.sign_roster(plan.fingerprint, TASKS.roster, "", tuple(keys.values()))
    for name in names:
        NodeFolder(folder / name).approve(
            plan, TASKS.only(name), roster=signed if keyed else None, trial=True
        )
    return open_nodes(folder), keys


def over(link, plan, keys, told=None, **more):
    lines = [] if told is None else told
    engine = RemoteNodes(link, OPERATOR, deadline=20.0, keys=keys, log=lines.append)
    return run(plan, TASKS.roster, random_state=SEED, engine=engine, **more)


def messages_of(nodes, plan, signed, board):
    """Return what each node kept as its message of a round, and what it made of it: by its own secrets."""
    channel = plan.algorithm.channel(board)
    for place, node in enumerate(nodes.values()):
        work = node._work(
            node._folder(RUN),
            plan,
            node.home.approval(plan.fingerprint),
            Request(RequestKind.ROUND, RUN, board.rounds),
        )
        row = work.message(board)
        own = node.home.source.stream(f"noise share {signed.fingerprint}", board.rounds)
        yield place, row, noisy_message(plan, board.rounds, channel, row, -1, own), channel


@pytest.mark.parametrize("algorithm", [None, LIFTED])
@pytest.mark.parametrize("trust", TRUSTS)
def test_what_opens_is_the_sum_and_nothing_on_the_way_is_a_message(trust, algorithm, tmp_path):
    plan = plan_of(trust, algorithm)
    nodes, keys = make(tmp_path, plan)
    link = Recorded(nodes)
    done = over(link, plan, keys)
    plan.check(done.board)
    signed = nodes["t0"]._known_roster(RUN)
    last = len(plan.rounds) - 1
    before = done.board.before(last)
    said = [Reply.from_bytes(data) for round, _, data in link.replies if round == last]
    total, expected = np.zeros(said[0].row.size, np.uint64), 0
    for reply in said:
        total += reply.row.view(np.uint64)
    # The states of the last round are gone with the finished run: the noise is what was posted.
    channel = plan.algorithm.channel(before)
    expected = np.rint(done.board.releases[last].value / channel.steps).astype(np.int64)
    assert (total.view(np.int64) == expected).all()
    assert done.board.releases[last].noise == plan.noise(last, channel)
    for node in nodes.values():
        assert node.model(RUN)["coef"].shape == (3,)
    assert signed.keys == tuple(keys.values())


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_canary_is_in_no_byte_that_leaves(trust, tmp_path):
    """In the first round, whose messages nodes still have on disk: no reply holds any number of one."""
    plan = plan_of(trust)
    nodes, keys = make(tmp_path, plan)

    class Stop(Exception):
        pass

    def stop(posted):
        raise Stop

    link = Recorded(nodes)
    with pytest.raises(Stop):
        over(link, plan, keys, progress=stop)
    signed = nodes["t0"]._known_roster(RUN)
    start = nodes["t0"]._boards[RUN].board.before(0)
    traffic = b"".join(data for _, _, data in link.replies)
    bare = noisy = 0
    for _, row, own, channel in messages_of(nodes, plan, signed, start):
        lifted = channel.whole_sum(row[None])
        assert lifted.any()
        assert all(number.tobytes() not in traffic for number in lifted[lifted != 0].astype("<i8"))
        assert (own.astype("<i8").tobytes() in traffic) == (not trust.masked)
        bare, noisy = bare + lifted, noisy + own
    replies = [Reply.from_bytes(data).row for _, _, data in link.replies]
    assert (np.sum([row.view(np.uint64) for row in replies], axis=0).view(np.int64) == noisy).all()
    assert (noisy != bare).all()


def test_asked_again_a_node_says_the_same_bytes_also_after_a_crash(tmp_path):
    plan = plan_of(Trust.secure_sum())
    nodes, keys = make(tmp_path, plan)
    link = Recorded(nodes)

    class Stop(Exception):
        pass

    def stop(posted):
        raise Stop

    with pytest.raises(Stop):
        over(link, plan, keys, progress=stop)
    asked_first = {name: request for _, name, request in link.asked}
    first = {name: data for _, name, data in link.replies}
    again = open_nodes(tmp_path)  # other processes, for all they know
    for name, node in again.items():
        assert node.answer(asked_first[name]) == first[name]
    # Its message and noise are on disk: rows that came out otherwise would not be masked by the same masks.
    (again["t0"].home.folder / "runs" / RUN / "states").unlink()
    memory = FolderMemory(again["t0"].home.folder / "runs" / RUN / "sums")
    memory.write("0 message", bytes(32))
    assert Reply.from_bytes(open_nodes(tmp_path)["t0"].answer(asked_first["t0"])).kind is ReplyKind.REFUSED
    assert "Another message was sent in round 0" in log_of(again["t0"])


def test_a_round_waits_until_everyone_has_answered(tmp_path):
    plan, told = plan_of(Trust.secure_sum()), []
    nodes, keys = make(tmp_path, plan)
    link = Recorded(nodes, away={(1, "t2"), (2, "t2")})
    done = over(link, plan, keys, told)
    assert done.board.complete
    assert sum("waits: 3 of 4 nodes have answered, and 4 are needed" in line for line in told) >= 1


def test_a_silo_goes_on_without_who_is_away_and_says_how_much_noise_there_is(tmp_path):
    plan = plan_of(Trust.silo(), quorum=3)
    nodes, keys = make(tmp_path, plan)
    done = over(Recorded(nodes, away={(1, "t2")}), plan, keys)
    plan.check(done.board)
    channel = plan.rounds[0].channels[0]
    shares = [release.answered for release in done.board.releases]
    assert shares == [4, 3, 4]
    for release, count in zip(done.board.releases, shares, strict=True):
        assert release.noise == plan.noise(0, channel, count)
        assert plan.has_noise(0, channel, release.noise, answered=count)
        assert not plan.has_noise(0, channel, release.noise, answered=7 - count)
        assert plan.has_noise(0, channel, release.noise)


def test_a_run_of_silos_needs_no_keys_and_one_of_masks_does(tmp_path):
    plan = plan_of(Trust.silo())
    nodes, _ = make(tmp_path / "silo", plan, keyed=False)
    assert asked(InProcess(nodes), plan).board.complete
    plan = plan_of(Trust.secure_sum())
    nodes, _ = make(tmp_path / "masks", plan, keyed=False)
    with pytest.raises(InputError, match="masked by the keys of all nodes"):
        asked(InProcess(nodes), plan)


def test_a_node_masks_for_no_roster_but_the_one_that_its_owner_has_approved(tmp_path):
    """The operator puts a key of its own in the place of another node's: nobody answers."""
    plan, told = plan_of(Trust.secure_sum()), []
    nodes, keys = make(tmp_path / "nodes", plan)
    (tmp_path / "own").mkdir()
    invented = keys | {"t3": Identity.create(tmp_path / "own").public}
    engine = RemoteNodes(InProcess(nodes), OPERATOR, deadline=1.0, keys=invented, log=told.append)
    board = plan.create_board()
    with engine.workers(plan, TASKS.roster, np.zeros(0, np.uint64)) as workers:
        channel = plan.algorithm.channel(board)
        replies = list(workers._replies(RequestKind.ROUND, list(workers.places), board))
    assert not replies
    assert all("not the one that the owner has approved" in log_of(node) for node in nodes.values())
    assert channel in plan.rounds[0].channels


def test_a_node_that_breaks_the_rules_spoils_the_sum_and_it_is_not_posted(tmp_path):
    plan = plan_of(Trust.secure_sum())
    nodes, keys = make(tmp_path, plan)

    def broken(round, name, data):
        reply = Reply.from_bytes(data)
        if name == "t1" and reply.kind is ReplyKind.MESSAGE:
            data = replace(reply, row=reply.row ^ (1 << 62)).to_bytes()
        yield name, data

    with pytest.raises(InputError, match="A sum did not open"):
        over(Recorded(nodes, change=broken), plan, keys)


def killed_while_answering(folder, requests, ready):
    """Answer, over and over; to be killed in the middle of it."""
    nodes = open_nodes(folder)
    ready.set()
    while True:
        for name, request in requests.items():
            nodes[name].answer(request)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_kill_9_of_nodes_while_they_answer(delay, tmp_path, monkeypatch):
    """Whatever was on disk: asked again, nodes say what opens, and what they had said before."""
    plan = plan_of(Trust.secure_sum())
    nodes, keys = make(tmp_path / "nodes", plan)
    board, requests = plan.create_board(), {}
    engine = RemoteNodes(InProcess(nodes), OPERATOR, deadline=20.0, keys=keys, log=lambda line: None)
    with engine.workers(plan, TASKS.roster, np.zeros(0, np.uint64)) as workers:
        workers.listen(board, np.full(M, True))
        workers.asked = M
        requests = {name: workers._request(RequestKind.ROUND, name, board) for name in workers.places}
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=killed_while_answering, args=(tmp_path / "nodes", requests, ready))
    process.start()
    ready.wait(60)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    first = {name: node.answer(requests[name]) for name, node in open_nodes(tmp_path / "nodes").items()}
    again = {name: node.answer(requests[name]) for name, node in open_nodes(tmp_path / "nodes").items()}
    assert first == again
    total = np.zeros(plan.longest_message, np.uint64)
    for data in first.values():
        total += Reply.from_bytes(data).row.view(np.uint64)
    channel = plan.rounds[0].channels[0]
    assert np.abs(total.view(np.int64) * channel.steps).max() < 40 * plan.noise(0, channel) + M


def test_a_torn_line_of_the_memory_counts_for_nothing(tmp_path):
    path = tmp_path / "sums"
    FolderMemory(path).write("0 head", b"one")
    whole = path.read_bytes()
    for cut in range(1, 12):
        path.write_bytes(whole + b"0 message 0badc0de"[:cut])
        memory = FolderMemory(path)
        assert memory.read("0 head") == b"one"
        assert memory.read("0 message") is None
        memory.write("0 message", b"two")
        assert FolderMemory(path).read("0 message") == b"two"
        assert path.read_bytes().count(b"\n") == 2
    path.write_bytes(whole + b"0 message not hexadecimal\n")
    with pytest.raises(CloisterError, match="was edited"):
        FolderMemory(path)
