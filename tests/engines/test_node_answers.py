"""What a curator takes of nodes' answers, what these tell, and how far they move a sum."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from node_helpers import (
    OPERATOR,
    PLAN,
    RUN,
    TASKS,
    Recorded,
    asked,
    copied,
)

from cloister import Tasks, run
from cloister.audit.releases import in_release_units
from cloister.audit.sensitivity import furthest_on
from cloister.channel import Channel
from cloister.core.channel import GRID
from cloister.engines import RemoteNodes
from cloister.errors import InputError, PlanError
from cloister.mechanisms import Toeplitz
from cloister.nodes import REFUSAL, InProcess, Reply, ReplyKind
from cloister.nodes.messages import SHORT
from cloister.nodes.remote import RemoteNodeWorkers
from cloister.sampling import Epochs, Poisson

pytestmark = pytest.mark.usefixtures("unsynced")


# --- what a curator takes ---------------------------------------------------------------------------------


def too_long(reply):
    """Return the reply with its message one step outside of the ball."""
    row = np.zeros_like(Reply.from_bytes(reply).row)
    row[0], row[1] = GRID, 1
    return with_row(reply, row)


def with_row(reply, row):
    found = Reply.from_bytes(reply)
    return Reply(found.kind, found.run, found.round, found.head, found.records, row).to_bytes()


def other(reply):
    return with_row(reply, Reply.from_bytes(reply).row // 2)


OLD = []
SPOILED = {
    "garbage": (lambda name, reply: [(name, b"garbage")], "7 bytes that are no reply"),
    "a megabyte": (lambda name, reply: [(name, bytes(1 << 20))], "1048576 bytes that are no reply"),
    "a byte more": (lambda name, reply: [(name, reply + b"x")], "bytes that are no reply"),
    "a number more": (lambda name, reply: [(name, reply + bytes(8))], "is not allowed"),
    "too long": (lambda name, reply: [(name, too_long(reply))], "longer than its channel allows"),
    "two answers": (lambda name, reply: [(name, reply), (name, other(reply))], "two answers to one question"),
    "a refusal": (lambda name, reply: [(name, REFUSAL)], "refused; its own log says why"),
    "nothing": (lambda name, reply: [], "counts as zero"),
    "an old one again": (lambda name, reply: [(name, OLD[0])], "a reply to another question"),
    "another board": (
        lambda name, reply: [(name, reply.replace(Reply.from_bytes(reply).head.encode(), b"0" * 64))],
        "is for another board",
    ),
    "another's name": (lambda name, reply: [("stranger", reply)], "'stranger', which is not on the roster"),
}


@pytest.fixture(scope="module")
def silent(template, tmp_path_factory):
    """The board of a run in which node t1 says nothing in round 1."""
    nodes = copied(template, tmp_path_factory.mktemp("silent") / "nodes")
    return asked(Recorded(nodes, lambda t, n, r: [] if (t, n) == (1, "t1") else [(n, r)])).board


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_message_that_may_not_count_is_a_zero_one(spoil, nodes, silent):
    spoiled, words = SPOILED[spoil]

    def change(t, name, reply):
        if (t, name) == (0, "t1"):
            OLD[:] = [reply]
        return spoiled(name, reply) if (t, name) == (1, "t1") else [(name, reply)]

    told = []
    done = asked(Recorded(nodes, change), told=told)
    assert done.board.head == silent.head
    assert any(words in line for line in told)
    assert "Round 1: node 't1' counts as zero." in told
    assert done.private.rejected_messages == 1


def test_the_same_answer_again_counts_once(nodes, alone):
    done = asked(Recorded(nodes, lambda t, name, reply: [(name, reply), ("stranger", reply), (name, reply)]))
    assert done.board.head == alone.board.head


def test_what_comes_late_counts_as_zero(nodes, silent, monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr("cloister.nodes.remote.time.monotonic", lambda: now[0])

    def change(t, name, reply):
        now[0] += 21.0 if (t, name) == (1, "t3") else 0.0
        return [(name, reply)]

    done = asked(Recorded(dict(sorted(nodes.items())), change), told=told)
    assert "Round 1: the reply of node 't3' came after the deadline." in told
    assert done.board.complete
    assert done.private.rejected_messages == 1


def test_plans_that_cannot_be_asked_for_are_refused_before_the_charge():
    engine = RemoteNodes(InProcess({}), OPERATOR)
    long = replace(
        PLAN, algorithm=replace(PLAN.algorithm, rounds=1001), mechanism=Toeplitz(0.8), sampling=Epochs(1)
    )
    with pytest.raises(PlanError, match=r"at most 1000 rounds between nodes\. Got 1001"):
        run(long, TASKS.roster, engine=engine)
    drawn = type("Drawn", (Poisson,), {"independent": False})(0.5, hidden=True)
    with (
        pytest.raises(PlanError, match="must be drawn at the nodes"),
        engine.workers(replace(PLAN, sampling=drawn), TASKS.roster, np.zeros(0, np.uint64)),
    ):
        pass
    with pytest.raises(InputError, match="Pass the Roster of their names"):
        run(PLAN, TASKS, engine=engine)
    with pytest.raises(PlanError, match="deadline must be seconds"):
        RemoteNodes(InProcess({}), OPERATOR, deadline=0)


# --- what leaves ------------------------------------------------------------------------------------------


def test_nothing_of_the_rows_leaves_but_through_the_message(template, tmp_path):
    """Planted numbers are in no reply, nor in any file that others than the owner can read."""
    canaries = np.array([0.123456789012345, -0.314159265358979, 0.271828182845904])
    rows = Tasks.from_arrays(np.tile(canaries, (5, 1)), np.full(5, 0.4669201609), ["t0"] * 5)
    nodes = copied(template, tmp_path / "nodes")
    nodes["t0"].home.approve(PLAN, rows, trial=True)
    link, told = Recorded(nodes), []
    asked(link, told=told)
    planted = [*canaries.tolist(), 0.4669201609]
    marks = [struct.pack(order + kind, value) for value in planted for order in "<>" for kind in "df"]
    marks += [repr(value)[:9].encode() for value in planted]
    private = (nodes["t0"].home.folder / "plans" / PLAN.fingerprint / "rows.npz").read_bytes()
    assert sum(mark in private for mark in marks) >= 4  # the search finds what is there
    for round, name, reply in link.replies:
        assert not any(mark in reply for mark in marks)
        if name == "t0" and round < 4:
            assert len(reply) - 8 * 3 == len(reply.split(b"}")[0]) + 1  # a public head, and three numbers
    assert not any("123456" in line for line in told)
    for path in nodes["t0"].home.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_replies_without_a_message_have_one_size():
    for kind in ReplyKind:
        if kind not in (ReplyKind.MESSAGE, ReplyKind.STEP):  # their sizes follow from what is asked
            assert len(Reply(kind, "r" * 64, 10**9, "f" * 64, 10**9).to_bytes()) == SHORT == len(REFUSAL)


# --- the audit --------------------------------------------------------------------------------------------


def over_the_wire(channel, messages, answers=lambda row: [row], check=RemoteNodeWorkers._row):
    """Return what a curator sums of messages that nodes send, each in as many answers as it likes."""
    rows = []
    board = PLAN.create_board()
    workers = RemoteNodeWorkers(
        PLAN, OPERATOR.sign_roster("p", TASKS.roster), None, OPERATOR, 1.0, lambda line: None
    )
    for row in channel.rows(messages):
        for said in answers(row):
            text = Reply(ReplyKind.MESSAGE, RUN, 0, board.head.hex(), 1, said).to_bytes()
            found = check(workers, "t0", Reply.from_bytes(text), board, channel)
            rows += [] if found is None else [found]
    values = np.array(rows, dtype=np.int64).reshape(len(rows), channel.dim)
    return in_release_units(channel, channel.lifted_sum(values))


def test_the_audit_finds_no_message_that_moves_a_sum_too_far():
    channel = PLAN.rounds[0].channels[0]
    assert not furthest_on(channel, PLAN.relation, total=over_the_wire, tries=60).breach


def test_the_audit_convicts_two_answers_and_a_step_too_many():
    channel = Channel(3, clip=1.0)

    def twice(channel, messages):
        return over_the_wire(channel, messages, answers=lambda row: [row, row])

    def longer(row):
        return [row + np.sign(row)]

    def unchecked(workers, name, reply, board, channel):
        return reply.row

    def a_step(channel, messages):
        return over_the_wire(channel, messages, longer, unchecked)

    def checked(channel, messages):
        return over_the_wire(channel, messages, longer)

    assert furthest_on(channel, PLAN.relation, total=twice, tries=20).breach
    assert furthest_on(channel, PLAN.relation, total=a_step, tries=20).breach
    assert not furthest_on(channel, PLAN.relation, total=checked, tries=20).breach
