"""Sums between nodes that some may drop out of: exact, whoever is lost or killed; what nobody gets."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from lying_curator import LyingCurator
from node_helpers import BUDGET, OPERATOR, RUN, SEED, log_of

from cloister import Plan, Tasks, Trust, run
from cloister.algorithms import MeanRegularized
from cloister.core.errors import InputError
from cloister.engines import RemoteNodes
from cloister.learners import LeastSquares
from cloister.nodes import InProcess, Node, NodeFolder, NodeSettings
from cloister.nodes.identity import Identity
from cloister.nodes.messages import Reply, ReplyKind, Request, RequestKind, SumStep, reply_room, reply_size
from cloister.nodes.noise_shares import NoiseShares
from cloister.secure.double_masking import Step
from cloister.secure.exchange import packed, unpacked
from cloister.secure.primitives import public_key
from cloister.secure.session import Offer
from cloister.store.commitments import FolderMemory

pytestmark = pytest.mark.usefixtures("unsynced")
N, TRUST = 6, Trust.secure_sum(dropouts=2, colluders=1)  # 4 of 6 must help
NAMES = [f"t{place}" for place in range(N)]
PLAN = Plan(
    MeanRegularized(LeastSquares(3), rounds=2, steps=2, batch=2), n_tasks=N, delta=1e-2, trust=TRUST
).calibrate(3.0)


def some_tasks() -> Tasks:
    rng = np.random.default_rng(0)
    ids = np.repeat(NAMES, 5)
    X = rng.uniform(-0.5, 0.5, (len(ids), 3))
    return Tasks.from_arrays(X, X.sum(axis=1), ids)


TASKS = some_tasks()


@pytest.fixture(scope="module")
def approved(tmp_path_factory):
    """Folders of nodes whose owners have approved plan and roster."""
    folder = tmp_path_factory.mktemp("approved")
    for name in NAMES:
        NodeFolder.create(folder / name, NodeSettings(name, OPERATOR.public.hex()), **BUDGET)
    keys = tuple(Identity.create(folder / name).public for name in NAMES)
    signed = OPERATOR.sign_roster(PLAN.fingerprint, TASKS.roster, "", keys)
    for name in NAMES:
        NodeFolder(folder / name).approve(PLAN, TASKS.only(name), roster=signed, trial=True)
    return folder, dict(zip(NAMES, keys, strict=True))


@pytest.fixture
def homes(approved, tmp_path):
    """Return a copy of the folders, to be answered from."""
    shutil.copytree(approved[0], tmp_path / "nodes")
    return tmp_path / "nodes"


@pytest.fixture
def keys(approved):
    return approved[1]


@pytest.fixture
def noisy(monkeypatch):
    """Return what each node has made of its message in each round, whenever it has: by round and place."""
    made: dict[int, dict[int, list[np.ndarray]]] = {}

    def kept(self, board, row):
        found = honest(self, board, row)
        made.setdefault(board.rounds, {}).setdefault(self.place, []).append(found)
        return found

    honest = NoiseShares._noisy
    monkeypatch.setattr(NoiseShares, "_noisy", kept)
    monkeypatch.setattr("cloister.nodes.sum_attempts.PAUSE", 0.0)
    return made


class Stop(Exception):
    pass


class Tired(list):
    """An operator's log that ends the curator after a few lines."""

    def append(self, line):
        super().append(line)
        if len(self) > 8:
            raise Stop


@dataclass
class Link:
    """A link to nodes in this process: some are away, and the curator may die.

    `away` says of an attempt and a step which nodes are not reached from there on in that attempt; `dies`
    in which attempt and at which step of the first round the curator does, before or after nodes answer.
    """

    folder: Path
    away: dict = field(default_factory=dict)
    dies: tuple = ()
    after: bool = False
    asked: list = field(default_factory=list)

    def __post_init__(self):
        self.nodes = {name: Node(self.folder / name) for name in NAMES}

    def ask(self, requests, deadline):
        asked = {name: Request.from_bytes(data) for name, data in requests.items()}
        dies = any(r.step is not None and (r.step.attempt, r.step.step) == self.dies for r in asked.values())
        if dies and not self.after:
            raise Stop
        replies = {
            name: self.answer(name, data)
            for name, data in requests.items()
            if asked[name].step is None or self.there(name, asked[name])
        }
        if dies:
            raise Stop
        yield from replies.items()

    def there(self, name, request):
        told = request.step
        steps = list(Step)[: list(Step).index(told.step) + 1]
        if any(name in self.away.get((told.attempt, step), ()) for step in steps):
            return False
        self.asked.append((request.round, told.attempt, told.step, name))
        return True

    def answer(self, name, data):
        reply = self.nodes[name].answer(data)
        assert len(reply) <= reply_room(data, reply_size(PLAN))
        return reply


def over(link, keys, told=None, folder=None):
    """Run over a link; with a folder, from the journal there, and with attempts that are kept."""
    lines = [] if told is None else told
    path = None if folder is None else folder / "attempt"
    engine = RemoteNodes(link, OPERATOR, 20.0, keys=keys, log=lines.append, attempts=path)
    journal = None if folder is None else folder / "journal"
    return run(PLAN, TASKS.roster, random_state=SEED, engine=engine, journal=journal)


def check_exact(board, noisy, counts):
    """Every release is the sum of so many nodes' messages, one each, and says so by its noise."""
    PLAN.check(board)
    for t, (release, alive) in enumerate(zip(board.releases, counts, strict=True)):
        channel = PLAN.algorithm.channel(board.before(t))
        for place in alive:
            first, *again = noisy[t][place]
            assert all((each == first).all() for each in again)
        total = np.sum([noisy[t][place][0] for place in alive], axis=0)
        assert (release.value == total * channel.steps).all()
        assert release.noise == PLAN.noise(t, channel, len(alive))


@pytest.mark.parametrize(
    ("step", "lost"),
    [(Step.KEYS, ()), (Step.MESSAGE, ("t2",)), *((step, ("t0", "t5")) for step in Step)],
)
def test_a_release_is_the_sum_of_whose_message_is_there(step, lost, homes, keys, noisy):
    done = over(Link(homes, away={(0, step): lost}), keys)
    before = list(Step).index(step) <= list(Step).index(Step.MESSAGE)
    alive = [place for place, name in enumerate(NAMES) if not (before and name in lost)]
    check_exact(done.board, noisy, [alive, alive])
    for name in NAMES:
        assert Node(homes / name).model(RUN)["coef"].shape == (3,)


@pytest.mark.parametrize("step", [Step.SHARES, Step.MESSAGE, Step.SURVIVORS])
def test_an_attempt_that_fails_is_tried_again_with_the_same_messages(step, homes, keys, noisy):
    lost, told = ("t1", "t2", "t4"), []
    link = Link(homes, away={(0, step): lost})
    done = over(link, keys, told)
    check_exact(done.board, noisy, [range(N), range(N)])
    assert sum("Nothing was opened; it is tried again" in line for line in told) == 2  # once a round
    assert {attempt for round, attempt, at, _ in link.asked if at is Step.OPENING} == {1}


@pytest.mark.parametrize("step", [Step.KEYS, Step.MESSAGE])
def test_with_more_drop_outs_than_planned_nobody_is_asked_to_open_anything(step, homes, keys, noisy):
    lost = {(attempt, step): ("t1", "t2", "t4") for attempt in range(9)}
    link = Link(homes, away=lost)
    with pytest.raises(Stop):
        over(link, keys, Tired())
    assert not [at for _, _, at, _ in link.asked if at in (Step.SURVIVORS, Step.OPENING)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", list(Step))
def test_kill_9_of_the_curator_at_every_step(step, after, homes, keys, noisy, tmp_path):
    """Another process goes on from journal and attempt, with the nodes as they are, one of them lost."""
    (tmp_path / "office").mkdir()
    with pytest.raises(Stop):
        over(Link(homes, {}, (0, step), after), keys, folder=tmp_path / "office")
    link = Link(homes, away={(attempt, Step.MESSAGE): ("t3",) for attempt in (0, 1)})
    done = over(link, keys, folder=tmp_path / "office")
    opened = [number for round, number, at, _ in link.asked if round == 0 and at is Step.OPENING]
    if step is Step.OPENING:  # nodes may have helped: the same set opens
        assert set(opened) == {0}
        first = range(N)
    else:
        assert set(opened) == {1}
        first = [0, 1, 2, 4, 5]
    check_exact(done.board, noisy, [first, [0, 1, 2, 4, 5]])
    assert not (tmp_path / "office" / "attempt").exists()


def test_a_curator_that_has_lost_what_opens_a_sum_opens_no_other(homes, keys, noisy, tmp_path):
    """It begins anew: the set that was opened opens again, and with one task less nothing does."""
    (tmp_path / "office").mkdir()
    with pytest.raises(Stop):
        over(Link(homes, {}, (0, Step.OPENING), True), keys, folder=tmp_path / "office")
    (tmp_path / "office" / "attempt").unlink()
    shutil.copytree(homes, tmp_path / "as they were")
    link = Link(homes, away={(0, Step.MESSAGE): ("t3",)})
    with pytest.raises(Stop):
        over(link, keys, Tired(), tmp_path / "office")
    assert Step.OPENING not in {at for _, _, at, _ in link.asked}
    assert {number for _, number, at, _ in link.asked if at is not Step.KEYS} == {0}
    assert "was opened in another attempt" in log_of(link.nodes["t0"])
    done = over(Link(tmp_path / "as they were"), keys)
    check_exact(done.board, noisy, [range(N), range(N)])


@pytest.mark.parametrize("lines", range(8))
def test_kill_9_of_a_node_between_any_two_lines_that_it_writes(lines, homes, keys, noisy, monkeypatch):
    """It dies before a line is on disk, and has said nothing: asked again, all opens as it would have."""
    count, honest = [-1], FolderMemory.write  # the first line says that the run has begun

    def dying(self, name, value):
        count[0] += "t1" in self.path.parts
        if "t1" in self.path.parts and count[0] == lines:
            raise KeyboardInterrupt
        honest(self, name, value)

    class Reborn(Link):
        def answer(self, name, data):
            try:
                return super().answer(name, data)
            except KeyboardInterrupt:
                self.nodes[name] = Node(self.folder / name)
                return super().answer(name, data)

    monkeypatch.setattr(FolderMemory, "write", dying)
    done = over(Reborn(homes), keys)
    assert count[0] > lines
    check_exact(done.board, noisy, [range(N), range(N)])


def test_only_an_answer_with_a_message_has_the_size_of_one():
    asked = {step: Request(RequestKind.ROUND, RUN, 0, asked=50, step=SumStep(0, step)) for step in Step}
    rooms = {step: reply_room(request.to_bytes(), 800_000) for step, request in asked.items()}
    assert rooms.pop(Step.MESSAGE) == 800_000
    assert max(rooms.values()) < 8_000
    finish = Request(RequestKind.FINISH, RUN, 2, asked=50).to_bytes()
    assert reply_room(finish, 800_000) == 800_000  # as a round's of a run without steps


# ------------------------------------------------------------------ what a lying curator gets


@pytest.fixture
def liar(homes, keys):
    nodes = {name: Node(homes / name) for name in NAMES}
    return LyingCurator(InProcess(nodes), OPERATOR, PLAN, TASKS.roster, keys)


def test_asked_again_after_a_crash_a_node_says_the_same(liar, homes, keys):
    liar.begin()
    liar.to(Step.SURVIVORS)
    for step in Step:
        first = liar.ask(1, step)
        again = LyingCurator(InProcess({"t1": Node(homes / "t1")}), OPERATOR, PLAN, TASKS.roster, keys)
        again.workers.held["t1"], again.exchange = 1, liar.exchange
        second = again.ask(1, step)
        if step is Step.KEYS:
            assert Offer.from_bytes(first) == Offer.from_bytes(second)
        elif step is not Step.SURVIVORS:  # signatures of one statement may differ
            assert first == second


def test_lies_about_who_dropped_out_open_nothing(liar):
    """Two sets, each signed by those it is shown to, and a colluder's word under both."""
    liar.begin()
    liar.to(Step.MESSAGE)
    sets = [0, 1, 2, 3, 4], [0, 1, 2, 3, 5]
    ballots = liar.ballots((0, 1, 4), sets[0]) | liar.ballots((2, 3, 5), sets[1])
    assert None not in ballots.values()
    for place, alive in ((0, sets[0]), (2, sets[1])):
        signed = {at: ballots[at] for at in alive if (at in (0, 1, 4)) == (place == 0)}
        assert liar.opening(place, alive, signed) is None  # three of four
        mixed = {at: ballots[at] for at in alive}
        assert liar.opening(place, alive, mixed) is None  # some are under the other set
    assert liar.ballots((0,), sets[1])[0] is None  # and nobody signs a second one
    # The honest set that it began with can still be opened in another attempt: nothing was handed out.
    liar.begin(1)
    assert liar.to(Step.OPENING) is not None


def test_other_survivors_after_an_opening_get_nothing(liar, homes):
    liar.begin()
    liar.to(Step.OPENING)
    everybody = list(range(N))
    assert liar.opening(0, everybody, liar.exchange.collector.signatures) is not None  # the same, again
    some = [0, 1, 2, 3]
    signed = dict.fromkeys(some, b"") | liar.exchange.collector.signatures
    assert liar.opening(0, some, {at: signed[at] for at in some}) is None
    for number in (0, 1, 9):
        if number:
            assert liar.ask(0, Step.KEYS, b"", number) is None
    assert "opened in another attempt" in log_of(Node(homes / "t0"))


def test_a_swapped_key_is_not_used(liar, homes):
    liar.begin()
    liar.to(Step.KEYS)
    offers = {offer.place: offer for offer in liar.exchange.collector.offers}
    own = public_key(bytes(range(32)))
    for forged in (
        Offer(3, own, offers[3].box, offers[3].signature),
        Offer(3, offers[3].pair, own, offers[3].signature),
        Offer(3, own, own, OPERATOR.sign_head("", 1, b"").signature),
    ):
        shown = {place: offer.to_bytes() for place, offer in offers.items()} | {3: forged.to_bytes()}
        assert liar.ask(0, Step.SHARES, packed(shown)) is None
    assert "not signed by its task's key" in log_of(Node(homes / "t0"))
    assert liar.ask(0, Step.SHARES) is not None


def test_keys_and_shares_of_an_earlier_attempt_are_refused(liar):
    liar.begin()
    liar.to(Step.SHARES)
    old, old_boxes = ({o.place: o.to_bytes() for o in liar.exchange.collector.offers}, liar.tables(0)[1])
    liar.begin(1)
    liar.to(Step.KEYS)
    new = {offer.place: offer.to_bytes() for offer in liar.exchange.collector.offers}
    assert liar.ask(0, Step.SHARES, packed(old | {0: new[0]})) is None
    liar.to(Step.SHARES)
    assert liar.ask(0, Step.MESSAGE, packed(new, old_boxes)) is None
    assert liar.ask(0, Step.MESSAGE, packed(old, old_boxes), number=0) is None  # it does not go back
    assert liar.ask(0, Step.MESSAGE) is not None


def test_other_keys_shares_or_fewer_of_them_in_one_attempt_are_refused(liar):
    liar.begin()
    liar.to(Step.SHARES)
    offers, boxes, _, _ = liar.tables(0)
    fewer = {place: offer for place, offer in offers.items() if place != 5}
    assert liar.ask(0, Step.SHARES, packed(fewer)) is None  # other keys than before
    assert liar.ask(0, Step.MESSAGE, packed(offers, {at: boxes[at] for at in (1, 2)})) is None
    swapped = boxes | {1: boxes[2]}
    assert liar.ask(0, Step.MESSAGE, packed(offers, swapped)) is None
    assert liar.ask(0, Step.MESSAGE, packed(offers, boxes | {1: boxes[1][:-1]})) is None
    assert liar.ask(0, Step.MESSAGE) is not None
    assert liar.ask(0, Step.MESSAGE, packed(offers, {at: boxes[at] for at in (1, 2, 3)})) is None


def test_truncated_and_made_up_bytes_are_refused_and_nothing_is_lost(liar):
    liar.begin()
    liar.to(Step.SURVIVORS)
    whole = liar.exchange.shown(Step.OPENING, 0)
    for cut in (0, 1, 7, len(whole) // 2, len(whole) - 1):
        assert liar.ask(0, Step.OPENING, whole[:cut]) is None
    assert liar.ask(0, Step.OPENING, whole + b"\0") is None
    assert liar.ask(0, Step.OPENING) is not None


def test_a_sum_in_steps_is_asked_for_in_no_other_way(liar, homes):
    liar.begin()
    assert liar.asked(0, None) is None
    assert "asked for in steps" in log_of(Node(homes / "t0"))


def test_the_noise_is_drawn_once_whatever_is_asked(liar, noisy):
    for number in range(3):
        liar.begin(number)
        liar.to(Step.MESSAGE)
    for made in noisy[0].values():
        assert len(made) == 3
        assert all((each == made[0]).all() for each in made)
    assert (noisy[0][0][0] != noisy[0][1][0]).any()


def test_a_node_whose_memory_is_gone_answers_no_more(liar, homes):
    liar.begin()
    liar.to(Step.MESSAGE)
    (homes / "t0" / "runs" / RUN / "sums").unlink()
    assert liar.ask(0, Step.SURVIVORS) is None
    assert "it says what was answered" in log_of(Node(homes / "t0"))


def test_what_any_four_hand_out_is_never_both_shares_of_one(liar):
    liar.begin()
    liar.to(Step.SURVIVORS, alive=range(5))
    for place in range(5):
        seeds, pairs = unpacked(liar.ask(place, Step.OPENING), 2)
        assert set(seeds) == set(range(5))
        assert set(pairs) == {5}


def test_a_node_that_breaks_the_rules_is_a_node_that_is_away(homes, keys, noisy):
    """Its keys, shares or word are garbage: without it there are enough."""

    class Garbled(Link):
        def answer(self, name, data):
            reply = Reply.from_bytes(super().answer(name, data))
            if name == "t4" and reply.kind is ReplyKind.STEP:
                reply = replace(reply, said=b"x")
            return reply.to_bytes()

    done = over(Garbled(homes), keys)
    check_exact(done.board, noisy, [[0, 1, 2, 3, 5]] * 2)


def test_a_file_of_attempts_that_is_none_is_refused(homes, keys, tmp_path):
    (tmp_path / "office").mkdir()
    for text in (b"{}x", b'{"format": "another"}\n', b"[]", b"\xff"):
        (tmp_path / "office" / "attempt").write_bytes(text)
        with pytest.raises(InputError, match="was not written here"):
            over(Link(homes), keys, folder=tmp_path / "office")
