"""What a node refuses: questions, records, boards and prices that its owner did not approve."""

from __future__ import annotations

import json
import re
import shutil
import struct
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from node_helpers import (
    OPERATOR,
    PLAN,
    RUN,
    SEED,
    TASKS,
    M,
    Recorded,
    asked,
    copied,
    here,
    log_of,
    make_nodes,
)

from cloister import Plan, Tasks, replay, run
from cloister.core.roster import Roster
from cloister.engines import RemoteNodes
from cloister.engines.local import LocalWorkers
from cloister.errors import BillboardError, InputError, SignatureError
from cloister.nodes import REFUSAL, InProcess, Node, Reply, ReplyKind, Request
from cloister.nodes.messages import SignedRecord
from cloister.privacy.randomness import SeededRandomness
from cloister.sampling import OnePass, Poisson
from cloister.store.signatures import Operator, SignedHead

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def questions(template, tmp_path_factory):
    """What node t0 is asked in the rounds of a run, and what it answers."""
    nodes = copied(template, tmp_path_factory.mktemp("asked") / "nodes")
    link = Recorded(nodes)
    asked(link)
    requests = [Request.from_bytes(text) for _, name, text in link.asked if name == "t0"]
    return requests, [reply for _, name, reply in link.replies if name == "t0"]


def test_asked_twice_it_answers_from_what_it_kept(nodes, questions, monkeypatch):
    requests, replies = questions
    node, folder = nodes["t0"], nodes["t0"].home.folder
    for request, reply in zip(requests[:2], replies[:2], strict=True):
        assert node.answer(request.to_bytes()) == reply
        monkeypatch.setattr("cloister.nodes.node.Work._round", None)  # nothing is computed again
        assert Node(folder).answer(request.to_bytes()) == reply
        monkeypatch.undo()
    assert len(node.home.ledger.history) == 1


def other_key(request):
    stranger = Operator.new(RUN)
    roster = stranger.sign_roster(request.roster.plan, request.roster.roster)
    return replace(request, roster=roster)


def unsigned(request):
    return replace(request, records=(replace(request.records[0], signature=bytes(64)),))


def changed_record(request):
    record = bytearray(request.records[0].record)
    record[40] ^= 1
    return replace(request, records=(replace(request.records[0], record=bytes(record)),))


def with_roster(request, roster=None, plan=None, codebook="", run=RUN):
    old = request.roster
    operator = Operator(run, OPERATOR.secret)
    made = operator.sign_roster(plan or old.plan, roster or old.roster, codebook)
    record = request.records[0].record
    head = operator.sign_head(made.fingerprint, 1, record[-32:])
    return replace(request, roster=made, run=run, records=(SignedRecord(record, head.signature),))


DEARER = Plan(PLAN.algorithm, n_tasks=M, delta=1e-2).calibrate(3.5)
REFUSED = {
    "garbage": (lambda request: b"\x07garbage", "no request"),
    "cut short": (lambda request: request.to_bytes()[:-1], "no request"),
    "too long": (lambda request: request.to_bytes() + b"x", "no request"),
    "a huge head": (lambda request: struct.pack("<Q", 1 << 60) + b"{}", "no request"),
    "another's key": (other_key, "not signed by the operator"),
    "no signature": (unsigned, "not signed by the operator"),
    "a changed record": (changed_record, "not signed by|not record 0"),
    "another price": (
        lambda request: with_roster(request, plan=DEARER.fingerprint),
        "has not approved the plan",
    ),
    "another codebook": (lambda request: with_roster(request, codebook="c" * 64), "another codebook"),
    "not on the roster": (
        lambda request: with_roster(request, Roster([f"u{i}" for i in range(M)])),
        "There is no task 't0' here",
    ),
    "more tasks": (
        lambda request: with_roster(request, Roster([f"t{i}" for i in range(9)])),
        "is for 4 tasks",
    ),
    "another group": (
        lambda request: with_roster(request, Roster([f"t{i}" for i in range(M)], ["north"] * M)),
        "in group 'north'",
    ),
    "a name that is a path": (lambda request: replace(request, run="../../elsewhere"), "no request"),
}


@pytest.mark.parametrize("spoil", REFUSED)
def test_a_node_refuses_in_the_same_bytes_and_goes_on(spoil, nodes, questions):
    requests, replies = questions
    node, (change, words) = nodes["t0"], REFUSED[spoil]
    changed = change(requests[0])
    assert node.answer(changed if isinstance(changed, bytes) else changed.to_bytes()) == REFUSAL
    assert re.search(words, log_of(node))
    assert not node.home.ledger.history
    assert not (node.home.folder / "runs").exists()
    assert node.answer(requests[0].to_bytes()) == replies[0]


def mutated(text, rng):
    """Return bytes with one thing changed: some bytes, their end, or a piece of them twice."""
    at, size = int(rng.integers(len(text))), int(rng.integers(1, 9))
    match rng.integers(3):
        case 0:
            return text[:at] + rng.bytes(size) + text[at + size :]
        case 1:
            return text[:at]
        case _:
            return text[:at] + text[at : at + 40 * size] + text[at:]


def test_no_change_to_a_question_or_an_answer_is_taken_for_something_else(nodes, questions):
    requests, replies = questions
    rng, channel = np.random.default_rng(0), PLAN.rounds[0].channels[0]
    for _ in range(120):
        said = Reply.from_bytes(nodes["t0"].answer(mutated(requests[0].to_bytes(), rng)))
        assert said.kind is not ReplyKind.MESSAGE or said.to_bytes() == replies[0]
    for _ in range(300):
        try:
            reply = Reply.from_bytes(mutated(replies[0], rng))
        except InputError:
            continue
        assert reply.row is None or reply.row.dtype == np.int64
        with suppress(InputError):
            channel.check_rows(np.atleast_2d(reply.row if reply.row is not None else np.zeros(3, np.int64)))


def test_records_must_extend_the_board(nodes, questions):
    """Unsigned, out of order or of another board: refused. Signed twice and differently: that is proof."""
    requests, replies = questions
    node = nodes["t0"]
    assert node.answer(requests[0].to_bytes()) == replies[0]
    ahead = Reply.from_bytes(node.answer(requests[2].to_bytes()))
    assert (ahead.kind, ahead.records) == (ReplyKind.BEHIND, 1)
    assert node.answer(unsigned(requests[1]).to_bytes()) == REFUSAL
    assert node.answer(requests[1].to_bytes()) == replies[1]
    forged = run(PLAN, TASKS, random_state=7).board.record_bytes(1)
    roster = requests[0].roster
    head = OPERATOR.sign_head(roster.fingerprint, 2, forged[-32:])
    fork = replace(requests[1], records=(SignedRecord(forged, head.signature),))
    assert node.answer(fork.to_bytes()) == REFUSAL
    assert "has signed two boards" in log_of(node)
    evidence = json.loads((node.home.folder / "runs" / RUN / "forked.json").read_text())
    ours, others = (SignedHead.from_dict(evidence[key]) for key in ("ours", "other"))
    assert ours.forks(others, OPERATOR.public)
    assert node.answer(requests[1].to_bytes()) == REFUSAL  # a forked board is answered no more


def test_a_board_that_is_gone_is_not_begun_anew(nodes, questions):
    """One board was paid for: another one from the start could be another one altogether."""
    requests, replies = questions
    node = nodes["t0"]
    assert node.answer(requests[0].to_bytes()) == replies[0]
    for name in ("board", "signatures", "states"):
        (node.home.folder / "runs" / RUN / name).unlink()
    assert node.answer(requests[0].to_bytes()) == REFUSAL
    assert "its board is gone" in log_of(node)
    shutil.rmtree(node.home.folder / "runs")
    assert node.answer(requests[0].to_bytes()) == REFUSAL  # the ledger remembers


def test_a_curator_that_goes_on_from_an_old_copy_is_stopped(nodes, tmp_path):
    """Else nodes that were away would say the same again, for one charge, under other noise."""
    link = InProcess(nodes)
    journal, old = tmp_path / "journal", tmp_path / "old"

    def copy(posted):
        if posted.done == 1:
            shutil.copytree(journal, old)

    asked(link, journal=journal, progress=copy)
    with pytest.raises(BillboardError, match="this is an old copy"):
        asked(link, journal=old)


def test_without_a_coin_a_node_does_the_same_work_to_catch_up(tmp_path, monkeypatch):
    """Who watches how long it takes learns no hidden coin."""
    plan = Plan(PLAN.algorithm, sampling=Poisson(0.5, hidden=True), n_tasks=M, delta=1e-2).calibrate(1.5)
    nodes, heard, listen = make_nodes(tmp_path, plan), [], LocalWorkers.listen

    def counted(self, board, coins):
        heard.append(board.rounds)
        listen(self, board, coins)

    monkeypatch.setattr(LocalWorkers, "listen", counted)
    asked(Recorded(nodes, away={(1, name) for name in nodes}), plan)
    assert heard == [1] * M


def test_records_must_follow_the_plan(nodes, questions):
    """Even if the operator signs them: what a node listens to is what its owner has approved."""
    requests, replies = questions
    node = nodes["t0"]
    assert node.answer(requests[0].to_bytes()) == replies[0]
    board = PLAN.create_board(SeededRandomness(SEED))
    release = replace(here().board.releases[0], noise=1e-9)
    record = board.post(release, PLAN.algorithm.update(release, board)).record_bytes(1)
    head = OPERATOR.sign_head(requests[0].roster.fingerprint, 2, record[-32:])
    false = replace(requests[1], records=(SignedRecord(record, head.signature),))
    assert node.answer(false.to_bytes()) == REFUSAL
    assert "does not have the noise, denominator or share of its plan" in log_of(node)
    assert node.answer(requests[1].to_bytes()) == replies[1]


def test_two_boards_shown_to_two_halves_are_found_by_their_heads(nodes):
    halves = [{name: nodes[name] for name in names} for names in (("t0", "t1"), ("t2", "t3"))]
    for seed, half in enumerate(halves):
        run(
            PLAN,
            TASKS.roster,
            random_state=seed,
            engine=RemoteNodes(InProcess(half), OPERATOR, log=lambda line: None),
        )
    heads = {name: node.signed_head(RUN, 3) for name, node in nodes.items()}
    assert not heads["t0"].forks(heads["t1"], OPERATOR.public)
    assert heads["t0"].forks(heads["t2"], OPERATOR.public)
    with pytest.raises(InputError, match="must be of boards of one length"):
        heads["t0"].forks(nodes["t2"].signed_head(RUN, 2), OPERATOR.public)
    with pytest.raises(SignatureError, match="not signed by the operator"):
        replace(heads["t0"], head=bytes(32)).forks(heads["t2"], OPERATOR.public)


def test_a_budget_that_is_spent_ends_it(nodes):
    asked(Recorded(nodes))
    told = []
    asked(Recorded(nodes), told=told, operator=replace(OPERATOR, run="again"))
    assert told.count("Round 0: node 't0' refused; its own log says why.") == 1
    assert "BudgetError: This run would bring these tasks to epsilon" in log_of(nodes["t0"])
    assert [len(node.home.ledger.history) for node in nodes.values()] == [1] * M


def test_noise_from_a_seed_is_for_trials_alone(tmp_path):
    nodes, told = make_nodes(tmp_path, trial=False), []
    asked(Recorded(nodes), told=told)
    assert "The board promises less than its plan: void: the noise is drawn from a seed" in log_of(
        nodes["t0"]
    )
    done = run(
        PLAN,
        TASKS.roster,
        engine=RemoteNodes(InProcess(nodes), replace(OPERATOR, run="sound"), log=told.append),
    )
    assert done.guarantee.holds
    assert nodes["t0"].model("sound").keys() == {"coef"}


def test_one_pass_is_one_round(tmp_path):
    """A curator that changes its word, or asks for more rounds than are priced, gets nothing."""
    plan = replace(PLAN, sampling=OnePass())
    nodes = make_nodes(tmp_path, plan)
    link = Recorded(nodes)
    asked(link, plan)
    round, name, text = next(one for one in link.asked if one[0] > 0)
    spoken = Request.from_bytes(text)
    fresh = make_nodes(tmp_path / "fresh", plan)[name]
    for coins, words in [(None, "changed its word"), ("1" * (round + 1), "more rounds than its plan")]:
        assert fresh.answer(replace(spoken, coins=coins).to_bytes()) == REFUSAL
        assert words in log_of(fresh)
    assert fresh.answer(text) == next(reply for t, n, reply in link.replies if (t, n) == (round, name))
    assert fresh.answer(replace(spoken, coins="1" + "0" * round).to_bytes()) == REFUSAL


def test_rows_that_changed_are_refused_while_a_run_goes_on(nodes, questions, tmp_path):
    requests, _ = questions
    node, rows = nodes["t0"], TASKS.only("t0")
    node.answer(requests[0].to_bytes())
    with pytest.raises(InputError, match="was begun with other rows, and is unfinished"):
        node.home.approve(PLAN, Tasks.from_arrays(rows.X / 2, rows.y, ["t0"] * len(rows.y)))
    node.home.approve(PLAN, rows, trial=True)
    with pytest.raises(InputError, match="Rows must be of task 't0' alone"):
        node.home.approve(PLAN, TASKS)


def test_what_fails_on_the_rows_is_a_message_of_zeros(nodes, questions, monkeypatch):
    """A refusal would tell others about them; the reason is told at home."""
    requests, replies = questions
    secret = "the value 0.123 of patient 7"

    def fails(self, *rest):
        raise ValueError(secret)

    monkeypatch.setattr(type(PLAN.algorithm), "send", fails)
    reply = nodes["t0"].answer(requests[0].to_bytes())
    assert len(reply) == len(replies[0])
    assert not Reply.from_bytes(reply).row.any()
    assert secret in log_of(nodes["t0"])


def test_an_owner_whose_rows_do_not_fit_sends_zeros_and_has_a_model_when_they_do(nodes):
    """Others see the sizes they always see; the model comes from the board and the mended rows, for free."""
    home = nodes["t0"].home
    home.approve(PLAN, None, trial=True)
    link = Recorded(nodes)
    done = asked(link)
    sent = [reply for t, name, reply in link.replies if name == "t0" and t < 4]
    assert not any(Reply.from_bytes(reply).row.any() for reply in sent)
    assert {len(reply) for reply in sent} == {len(link.replies[1][2])}
    assert "No model could be made" in log_of(nodes["t0"])
    home.approve(PLAN, TASKS.only("t0"), trial=True)
    nodes["t0"].finish(RUN)
    seed = np.array([home.settings.seed], dtype=np.uint64)
    own = replay(PLAN, done.board, TASKS.only("t0"), seeds=seed)
    np.testing.assert_array_equal(nodes["t0"].model(RUN)["coef"], own["coef"][0])
