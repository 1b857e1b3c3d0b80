"""Nodes and their curator: the board and the models of one machine, and everything else is refused."""

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
    BUDGET,
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
    make_nodes,
    make_tasks,
    open_nodes,
)

from cloister import Plan, Tasks, replay, run
from cloister.algorithms import LowRank, Mean, MeanRegularized, Nested, SharedPrior
from cloister.audit.releases import in_release_units
from cloister.audit.sensitivity import furthest_on
from cloister.board.signatures import Operator, SignedHead
from cloister.channel import GRID, Channel
from cloister.doubts import SHARED_DEVICE
from cloister.engines import Asked
from cloister.engines.asked import AskedWorkers
from cloister.engines.local import LocalWorkers
from cloister.engines.node import REFUSAL, Home, InProcess, Node, Reply, Request, Say, Settings
from cloister.engines.node.wire import SHORT, SignedRecord
from cloister.errors import BillboardError, InputError, PlanError, SignatureError
from cloister.groups import Groups
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Toeplitz
from cloister.privacy.randomness import SeededRandomness
from cloister.roster import Roster
from cloister.sampling import Epochs, Everyone, FixedSize, OnePass, Poisson


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Leave power cuts to tests/faults: what these tests write need not survive one."""
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Folders of nodes whose owners have approved the plan."""
    folder = tmp_path_factory.mktemp("nodes")
    make_nodes(folder)
    return folder


@pytest.fixture
def nodes(template, tmp_path):
    return copied(template, tmp_path / "nodes")


@pytest.fixture(scope="module")
def alone():
    return here()


def log_of(node):
    path = node.home.folder / "log"
    return path.read_text() if path.exists() else ""


def assert_same_models(nodes, done):
    for name, node in nodes.items():
        own, model = node.model(RUN), done.model(name)
        assert own.keys() == model.keys()
        for key in model:
            np.testing.assert_array_equal(own[key], model[key])


# --- the same run as on one machine -----------------------------------------------------------------------


GROUPED = TASKS.with_groups({"t0": "north", "t1": "south", "t2": "north", "t3": "south"})


@pytest.mark.parametrize(
    "algorithm",
    [
        SharedPrior(Regression(3), Nested(Mean(), Groups.of(GROUPED.groups))),
        MeanRegularized(LeastSquares(3), rounds=4, steps=2, batch=2),
        LowRank(LeastSquares(3), rounds=3),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_board_and_models_are_those_of_one_machine(algorithm, tmp_path):
    plan = Plan(algorithm, n_tasks=M, delta=1e-2).calibrate(3.0)
    tasks = TASKS if algorithm.groups is None else GROUPED
    nodes, one = make_nodes(tmp_path, plan, tasks), here(plan, tasks)
    done = asked(Recorded(nodes), plan, tasks.roster)
    assert done.board.head == one.board.head
    assert done.private.models == {}
    assert_same_models(nodes, one)
    assert [len(node.home.ledger.history) for node in nodes.values()] == [1] * M
    assert "".join(map(log_of, nodes.values())) == ""


def test_a_network_of_nodes(tmp_path):
    torch = pytest.importorskip("torch")
    from cloister.algorithms import Personalized
    from cloister.learners import Descent, Module

    torch.manual_seed(0)
    module = Module(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)))
    algorithm = Personalized(module, Descent(0.2, batch=4, momentum=0.4), clip=0.3, rounds=3)
    plan, tasks = Plan(algorithm, n_tasks=M, delta=1e-2).calibrate(3.0), make_tasks(classes=2)
    nodes, one = make_nodes(tmp_path, plan, tasks, types=[module]), here(plan, tasks)
    done = asked(Recorded(nodes), plan, tasks.roster)
    for release, other in zip(done.board.releases, one.board.releases, strict=True):
        np.testing.assert_array_equal(release.value, other.value)
    assert_same_models(nodes, one)
    assert (done.board.doubts, one.board.doubts) == ((), (SHARED_DEVICE,))


@pytest.mark.parametrize(
    "plan", [replace(PLAN, sampling=FixedSize(2)), replace(PLAN, sampling=Epochs(2), mechanism=Toeplitz(0.8))]
)
def test_the_curator_draws_who_is_asked_where_the_plan_says_so(plan, tmp_path):
    nodes, one = make_nodes(tmp_path, plan), here(plan)
    link = Recorded(nodes)
    done = asked(link, plan)
    assert done.board.head == one.board.head
    assert_same_models(nodes, one)
    for t, coins in enumerate(one.private.coins):
        assert {name for round, name, _ in link.asked if round == t} == set(TASKS.ids[coins])


def test_a_hidden_coin_is_drawn_at_the_node_and_seen_in_no_size(tmp_path):
    plan = Plan(PLAN.algorithm, sampling=Poisson(0.5, hidden=True), n_tasks=M, delta=1e-2).calibrate(1.5)
    nodes = make_nodes(tmp_path, plan)
    link = Recorded(nodes)
    done = asked(link, plan)
    assert len(link.replies) == 5 * M
    assert {len(reply) for round, _, reply in link.replies if round < 4} == {len(link.replies[0][2])}
    spoke = np.array(
        [[Reply.from_bytes(r).row.any() for t, _, r in link.replies if t == k] for k in range(4)]
    )
    assert 0 < spoke.sum() < 4 * M
    for place, (name, node) in enumerate(nodes.items()):
        own = replay(
            plan,
            done.board,
            TASKS.only(name),
            coins=spoke[:, [place]],
            seeds=np.array([node.home.settings.seed], dtype=np.uint64),
        )
        np.testing.assert_array_equal(node.model(RUN)["coef"], own["coef"][0])


# --- what breaks off goes on ------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def stop(posted):
    if posted.done == 2:
        raise Stopped


def test_a_curator_and_nodes_that_start_anew_go_on_to_the_same_head(nodes, alone, tmp_path):
    with pytest.raises(Stopped):
        asked(Recorded(nodes), journal=tmp_path / "journal", progress=stop)
    folder = tmp_path / "nodes"
    (folder / "t1" / "runs" / RUN / "states").unlink()  # computed again, from its rows and the board
    again = open_nodes(folder)
    done = asked(Recorded(again), journal=tmp_path / "journal")
    assert done.board.head == alone.board.head
    assert_same_models(again, alone)
    assert [len(node.home.ledger.history) for node in again.values()] == [1] * M


def test_a_node_that_was_away_listens_to_what_it_missed(nodes):
    """It counts as zero meanwhile, for the same noise and price, and has the model of its replay."""
    told = []
    done = asked(Recorded(nodes, away={(1, "t2")}), told=told)
    assert told == ["Round 1: node 't2' counts as zero."]
    assert done.private.rejected_messages == 1
    seed = np.array([nodes["t2"].home.settings.seed], dtype=np.uint64)
    own = replay(PLAN, done.board, TASKS.only("t2"), seeds=seed)
    np.testing.assert_array_equal(nodes["t2"].model(RUN)["coef"], own["coef"][0])
    assert str(done.guarantee) == str(here().guarantee)


@pytest.mark.parametrize("sampling", [Everyone(), FixedSize(2)])
def test_a_node_that_was_away_at_the_end_gets_the_board_later(sampling, tmp_path):
    plan = replace(PLAN, sampling=sampling)
    nodes, told, one = make_nodes(tmp_path, plan), [], here(plan)
    done = asked(Recorded(nodes, away={(4, "t2")}), plan, told=told)
    assert told == ["Node 't2' has not said that it has the finished board: deliver it again."]
    with pytest.raises(InputError, match="no model of run"):
        nodes["t2"].model(RUN)
    Asked(InProcess(nodes), OPERATOR).deliver(plan, done.board, TASKS.roster)
    assert_same_models(nodes, one)
    (tmp_path / "t2" / "runs" / RUN / "model.npz").unlink()  # killed while it was made
    Node(tmp_path / "t2").finish(RUN)
    assert nodes["t2"].model(RUN).keys() == {"coef"}


def test_a_node_that_was_put_back_from_a_copy_is_sent_what_it_lacks(nodes, alone):
    folder = nodes["t1"].home.folder
    copy = folder.with_name("copy")

    def change(t, name, reply):
        if (t, name) == (0, "t1"):
            shutil.copytree(folder, copy)
        elif (t, name) == (2, "t1"):
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
        return [(name, reply)]

    link = Recorded(nodes, change)
    assert asked(link).board.head == alone.board.head
    assert [Reply.from_bytes(reply).say for t, name, reply in link.replies if name == "t1"].count(
        Say.BEHIND
    ) == 1
    assert_same_models(nodes, alone)


# --- what a node refuses ----------------------------------------------------------------------------------


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
        monkeypatch.setattr("cloister.engines.node.work.Work._round", None)  # nothing is computed again
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
        assert said.say is not Say.MESSAGE or said.to_bytes() == replies[0]
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
    assert (ahead.say, ahead.records) == (Say.BEHIND, 1)
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
            engine=Asked(InProcess(half), OPERATOR, log=lambda line: None),
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
        PLAN, TASKS.roster, engine=Asked(InProcess(nodes), replace(OPERATOR, run="sound"), log=told.append)
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


# --- what a curator takes ---------------------------------------------------------------------------------


def too_long(reply):
    """Return the reply with its message one step outside of the ball."""
    row = np.zeros_like(Reply.from_bytes(reply).row)
    row[0], row[1] = GRID, 1
    return with_row(reply, row)


def with_row(reply, row):
    found = Reply.from_bytes(reply)
    return Reply(found.say, found.run, found.round, found.head, found.records, row).to_bytes()


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
    monkeypatch.setattr("cloister.engines.asked.time.monotonic", lambda: now[0])

    def change(t, name, reply):
        now[0] += 21.0 if (t, name) == (1, "t3") else 0.0
        return [(name, reply)]

    done = asked(Recorded(dict(sorted(nodes.items())), change), told=told)
    assert "Round 1: the reply of node 't3' came after the deadline." in told
    assert done.board.complete
    assert done.private.rejected_messages == 1


def test_plans_that_cannot_be_asked_for_are_refused_before_the_charge():
    engine = Asked(InProcess({}), OPERATOR)
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
        Asked(InProcess({}), OPERATOR, deadline=0)


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
    for say in Say:
        if say is not Say.MESSAGE:
            assert len(Reply(say, "r" * 64, 10**9, "f" * 64, 10**9).to_bytes()) == SHORT == len(REFUSAL)


# --- the audit --------------------------------------------------------------------------------------------


def over_the_wire(channel, messages, answers=lambda row: [row], check=AskedWorkers._row):
    """Return what a curator sums of messages that nodes send, each in as many answers as it likes."""
    rows = []
    board = PLAN.create_board()
    workers = AskedWorkers(
        PLAN, OPERATOR.sign_roster("p", TASKS.roster), None, OPERATOR, 1.0, lambda line: None
    )
    for row in channel.rows(messages):
        for said in answers(row):
            text = Reply(Say.MESSAGE, RUN, 0, board.head.hex(), 1, said).to_bytes()
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


def test_a_node_is_made_once_and_says_what_is_missing(tmp_path):
    settings = Settings("Elm ", OPERATOR.public.hex())
    home = Home.create(tmp_path / "elm", settings, **BUDGET)
    assert home.settings == settings
    assert home.settings.task == "Elm"
    with pytest.raises(InputError, match="is a node already"):
        Home.create(tmp_path / "elm", settings, **BUDGET)
    home.ledger.charge("plan", PLAN.cost)
    (home.folder / "node.toml").unlink()
    with pytest.raises(InputError, match="holds what a node has spent"):
        Home.create(tmp_path / "elm", settings, **BUDGET)
    with pytest.raises(InputError, match=r"has no node\.toml\. Type cloister node init"):
        _ = Home(tmp_path).settings
    with pytest.raises(InputError, match="There is no run 'exam' here"):
        Node(tmp_path / "elm").signed_head("exam")
    with pytest.raises(InputError, match="public key must be 64 hexadecimal digits"):
        Settings("Elm", "no key")
    with pytest.raises(InputError, match="A run's name must be up to 64 letters"):
        Operator.new("a/b")
