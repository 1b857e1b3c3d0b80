"""A round of fewer than the plan's quorum is not posted; how many have answered bears on nobody's rows."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from node_helpers import (
    OPERATOR,
    PLAN,
    RUN,
    TASKS,
    M,
    Recorded,
    asked,
    assert_same_models,
    here,
    log_of,
    make_nodes,
    open_nodes,
)

from cloister import Ledger, Plan, run
from cloister.core.roster import Roster
from cloister.engines import RemoteNodes
from cloister.engines.curator import Curator
from cloister.engines.workers import GridRows
from cloister.errors import BillboardError, InputError, PlanError
from cloister.nodes import InProcess, Request, RequestKind
from cloister.nodes.identity import Identity
from cloister.nodes.remote import RemoteNodeWorkers
from cloister.sampling import FixedSize, OnePass, Poisson
from cloister.store.billboard import Billboard
from cloister.store.journal import open_journal

pytestmark = pytest.mark.usefixtures("unsynced", "quick")
QUORATE = replace(PLAN, quorum=3)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("cloister.nodes.remote.PAUSE", 0.0)


class Stopped(Exception):
    pass


class Away:
    """Nodes of which some are away, in the first so many questions; then it is over, or all are there."""

    def __init__(self, nodes, names, asks, then=None):
        self.nodes, self.names, self.left, self.then = nodes, names, asks, then

    def ask(self, requests, deadline):
        self.left -= 1
        if self.left < 0:
            if self.then is not None:
                raise self.then
            return InProcess(self.nodes).ask(requests, deadline)
        there = {name: r for name, r in requests.items() if name not in self.names}
        return InProcess(self.nodes).ask(there, deadline)


@pytest.mark.parametrize("away", [tuple(TASKS.ids), ("t0", "t1")])
def test_below_the_quorum_nothing_is_posted_and_the_run_goes_on_for_one_charge(away, tmp_path):
    nodes, one, told = make_nodes(tmp_path / "nodes", QUORATE), here(QUORATE), []
    ledger = Ledger.create(tmp_path / "ledger", "schools", epsilon=4.0, delta=1e-2)
    kept = {"journal": tmp_path / "journal", "ledger": ledger}
    with pytest.raises(Stopped):
        asked(Away(nodes, away, 3, Stopped()), QUORATE, told=told, **kept)
    assert Billboard.recover(tmp_path / "journal" / "board").rounds == 0
    answered = M - len(away)
    assert (
        told
        == [
            f"Round 0 waits: {answered} of {M} nodes have answered, and 3 are needed. Nothing is posted, and "
            f"nothing more is charged. Missing: {', '.join(sorted(away))}."
        ]
        * 3
    )
    told.clear()
    done = asked(Away(nodes, away, 2), QUORATE, told=told, **kept)
    assert len(told) == 2  # it waits again, and then they come
    assert done.board.head == one.board.head
    assert_same_models(nodes, one)
    assert len(ledger.history) == 1
    assert [len(node.home.ledger.history) for node in nodes.values()] == [1] * M
    assert [release.answered for release in done.board.releases] == [M] * 4


def test_with_a_quorum_who_is_missing_counts_as_zero_and_the_board_says_so(tmp_path):
    nodes, told = make_nodes(tmp_path, QUORATE), []
    link = Recorded(nodes, away={(1, "t2"), (3, "t0")})
    done = asked(link, QUORATE, told=told)
    assert told == ["Round 1: node 't2' counts as zero.", "Round 3: node 't0' counts as zero."]
    assert [release.answered for release in done.board.releases] == [4, 3, 4, 3]
    assert Billboard.from_bytes(done.board.record_bytes(0)).head != done.board.head
    QUORATE.check(done.board)
    assert "at least 3 of the tasks that it asks have answered" in str(done.guarantee)


class Fails(Exception):
    pass


@pytest.mark.parametrize("sampling", [PLAN.sampling, Poisson(0.5)])
def test_how_many_have_answered_does_not_depend_on_rows(sampling, tmp_path, monkeypatch):
    """Whose rows fail, and who has no coin, answers all the same, in as many bytes."""
    plan = replace(PLAN, sampling=sampling, quorum=M)
    failed = make_nodes(tmp_path / "failed", plan)
    sizes = {}
    for case in ("as they are", "failing"):
        nodes = failed if case == "failing" else make_nodes(tmp_path / "whole", plan)
        if case == "failing":
            approval = nodes["t1"].home.approval(plan.fingerprint)
            (approval.folder / "rows.npz").write_bytes(b"")  # as approve --zeros leaves it
        link = Recorded(nodes)
        done = asked(link, plan)
        assert [release.answered for release in done.board.releases] == [M] * 4
        sizes[case] = [(t, name, len(reply)) for t, name, reply in link.replies]
    assert sizes["as they are"] == sizes["failing"]


def test_the_board_of_a_plan_is_checked_for_its_quorum(tmp_path):
    board = asked(Recorded(make_nodes(tmp_path, QUORATE)), QUORATE).board

    def with_last(plan, answered):
        before, last = board.before(3), board.releases[3]
        whole = replace(before, plan=plan.fingerprint)
        copy = Billboard.create(plan.algorithm.start(), plan.fingerprint, 4, board.noise, board.doubts)
        for t in range(4):
            release = board.releases[t] if t < 3 else last
            told = answered if t == 3 else (None if plan.quorum is None else 4)
            release = replace(release, answered=told)
            copy = copy.post(release, plan.algorithm.update(release, copy))
        assert whole.rounds == 3
        return copy

    QUORATE.check(with_last(QUORATE, 3))
    for plan, answered in ((QUORATE, 2), (QUORATE, None), (QUORATE, 5), (PLAN, 4)):
        with pytest.raises(BillboardError, match="at least the quorum of its plan"):
            plan.check(with_last(plan, answered))
    PLAN.check(with_last(PLAN, None))


def test_the_curator_itself_posts_nothing_below_the_quorum(tmp_path):
    """Whatever an engine collects: the one place that posts refuses."""

    class TwoOnly(RemoteNodeWorkers):
        def collect(self, board, channel, coins):
            found = super().collect(board, channel, coins)
            return GridRows(found.values[:2], found.tasks[:2])

    nodes = make_nodes(tmp_path / "nodes", QUORATE)
    signed = OPERATOR.sign_roster(QUORATE.fingerprint, TASKS.roster)
    workers = TwoOnly(QUORATE, signed, InProcess(nodes), OPERATOR, 5.0, lambda line: None)
    with open_journal(tmp_path / "journal", QUORATE, TASKS.roster, 3, False, apart=True) as kept:
        curator = Curator(QUORATE, kept, np.full(M, -1), apart=True)
        with pytest.raises(InputError, match=r"Round 0 must be of 3 tasks at least.*Got 2"):
            curator.rounds(workers, None)
        assert kept.posted.rounds == 0


def test_a_node_answers_no_round_that_asks_fewer_than_its_owner_approved(tmp_path):
    nodes = make_nodes(tmp_path, QUORATE)
    link = Recorded(nodes)
    asked(link, QUORATE)
    (name, first), told = link.asked[0][1:], []
    request = Request.from_bytes(first)
    assert (request.kind, request.asked) == (RequestKind.ROUND, M)
    other = make_nodes(tmp_path / "other", QUORATE)[name]
    for few in (2, 0):
        other.answer(replace(request, asked=few).to_bytes())
        told.append(log_of(other).splitlines()[-1])
    assert [line.partition("Round 0 ")[2] for line in told] == [
        "asks 2 nodes, fewer than 3.",
        "asks 0 nodes, fewer than 3.",
    ]
    assert not other.home.ledger.history
    assert len(Request.from_bytes(first).roster.roster) == M


def test_a_node_with_keys_answers_in_the_circle_that_its_owner_approved(tmp_path):
    nodes, told = make_nodes(tmp_path / "nodes", QUORATE), []
    for node in nodes.values():
        Identity.create(node.home.folder)
    keys = {name: Identity.load(node.home.folder).public for name, node in nodes.items()}
    signed = OPERATOR.sign_roster(QUORATE.fingerprint, TASKS.roster, keys=tuple(keys.values()))
    assert type(signed).from_bytes(signed.to_bytes()) == signed
    for name, node in list(nodes.items())[1:]:
        node.home.approve(QUORATE, TASKS.only(name), trial=True, roster=signed)
    (tmp_path / "stranger").mkdir()
    other = keys | {"t3": Identity.create(tmp_path / "stranger").public}

    def runs(name, own):
        engine = RemoteNodes(
            Away(nodes, (), 1, Stopped()), replace(OPERATOR, run=name), 20.0, keys=own, log=told.append
        )
        run(QUORATE, Roster(TASKS.ids.tolist()), random_state=3, engine=engine)

    for name, own in (("others-keys", other), ("no-keys", {})):
        with pytest.raises(Stopped):
            runs(name, own)
        assert "0 of 4 nodes have answered" in told[-1]
    assert "not the one that the owner has approved" in log_of(nodes["t1"])
    with pytest.raises(Stopped):
        runs(RUN, keys)
    assert "node 't0' refused" in told[-2]  # its owner has approved the plan alone, as earlier versions did
    assert "counts as zero" in told[-1]


def test_a_quorum_is_a_number_that_rounds_can_reach(tmp_path):
    for wrong in (0, M + 1, 2.5, True):
        with pytest.raises(PlanError, match="quorum must be"):
            replace(PLAN, quorum=wrong)
    for sampling in (FixedSize(2), OnePass()):
        plan = replace(PLAN, sampling=sampling, quorum=3)
        with pytest.raises(PlanError, match="at most what a round asks"):
            asked(Recorded({}), plan)
    plan = replace(PLAN, sampling=FixedSize(3), quorum=3)
    done, one = asked(Recorded(make_nodes(tmp_path, plan)), plan), here(plan)
    assert done.board.head == one.board.head
    assert [release.answered for release in one.board.releases] == [3] * 4


def test_a_plan_without_a_quorum_is_what_it_was():
    assert "quorum" not in PLAN.to_toml()
    assert QUORATE.fingerprint != PLAN.fingerprint
    assert Plan.from_toml(QUORATE.to_toml()) == QUORATE
    one, other = here(PLAN), here(QUORATE)
    assert {release.answered for release in one.board.releases} == {None}
    assert b"answered" not in one.board.record_bytes(1)
    for before, after in zip(one.board.releases, other.board.releases, strict=True):
        np.testing.assert_array_equal(before.value, after.value)
        assert before.noise == after.noise  # and the same price
    assert one.guarantee.epsilon == other.guarantee.epsilon


class Silent(Away):
    """Nodes of which some never answer: whoever asks waits for them, as long as it waits."""

    def ask(self, requests, deadline):
        until = time.monotonic() + deadline
        there = {name: r for name, r in requests.items() if name not in self.names}
        yield from InProcess(self.nodes).ask(there, deadline)
        if len(there) < len(requests):
            time.sleep(max(until - time.monotonic(), 0.0))


def test_a_silent_node_keeps_no_records_from_one_that_misses_them(tmp_path, monkeypatch):
    """A node is put back from a copy, and sent the board a part at a time; another never answers."""
    monkeypatch.setattr("cloister.nodes.remote.MOST_BYTES", 1)
    plan, told = replace(PLAN, quorum=2), []
    nodes = make_nodes(tmp_path / "nodes", plan)
    old, now = tmp_path / "copy", nodes["t1"].home.folder

    def step(posted):
        if posted.done == 1:
            shutil.copytree(now, old)
        if posted.done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        asked(Recorded(nodes), plan, progress=step, journal=tmp_path / "journal")
    shutil.rmtree(now)
    shutil.copytree(old, now)
    again, kept = open_nodes(tmp_path / "nodes"), {"journal": tmp_path / "journal"}
    done = asked(Silent(again, ("t2",), 0), plan, told=told, deadline=2.4, **kept)
    assert [line for line in told if "zero" in line] == ["Round 3: node 't2' counts as zero."]
    assert done.board.releases[3].answered == 3
    assert again["t1"].model(RUN).keys() == {"coef"}
