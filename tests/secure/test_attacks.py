"""What a curator, or a task that colludes with it, may try: each is refused, or opens nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from cloister.core.errors import InputError, SignatureError
from cloister.privacy.trust import SecureSum
from cloister.secure import all_or_wait
from cloister.secure.double_masking import Attempt, Collector, Member
from cloister.secure.primitives import identity
from cloister.secure.session import Offer, Session, ShortMemory, Signer

N, TRUST = 7, SecureSum(dropouts=2, colluders=1)  # k = 5 of 7
MESSAGE = np.arange(4)


class Table:
    """Seven tasks, and a curator whose collector may be asked for anything."""

    def __init__(self, number: int = 0, head: bytes = b"head", earlier: Table | None = None):
        if earlier is None:
            self.signers = [Signer(place, os.urandom(32), os.urandom(32)) for place in range(N)]
            self.memories = [ShortMemory() for _ in range(N)]
        else:
            self.signers, self.memories = earlier.signers, earlier.memories
        keys = tuple(identity(signer.identity) for signer in self.signers)
        self.attempt = Attempt(Session("run", "plan", TRUST, keys), 0, head, number)

    def member(self, place: int) -> Member:
        """Return a task as after a crash: of it there is its memory alone."""
        return Member(self.attempt, self.signers[place], self.memories[place])

    def to_offers(self) -> Table:
        self.curator = Collector(self.attempt)
        self.offers = self.curator.take_offers(self.member(i).offer() for i in range(N))
        return self

    def to_shares(self) -> Table:
        self.to_offers()
        self.boxes = self.curator.take_shares({i: self.member(i).share(self.offers) for i in range(N)})
        return self

    def to_survivors(self, alive=range(N)) -> Table:
        self.to_shares()
        self.rows = {i: self.member(i).mask(self.offers, self.boxes[i], MESSAGE + i) for i in alive}
        self.alive = self.curator.take_rows(self.rows)
        return self

    def sign(self, place: int, alive) -> bytes:
        return self.member(place).sign(self.offers, self.boxes[place], alive)

    def open(self, place: int, alive, signatures):
        return self.member(place).open(self.offers, self.boxes[place], alive, signatures)


def test_asked_again_a_task_says_the_same_bytes_at_every_step():
    table = Table().to_survivors(range(6))
    again = Table(earlier=table)
    assert [again.member(i).offer() for i in range(N)] == table.offers
    for place in range(6):
        one, two = table.member(place), again.member(place)
        assert one.share(table.offers) == two.share(table.offers)
        masked = [m.mask(table.offers, table.boxes[place], MESSAGE + place) for m in (one, two)]
        assert (masked[0] == masked[1]).all()
        assert (masked[0] == table.rows[place]).all()
        assert table.sign(place, table.alive) == table.sign(place, table.alive)
    signed = table.curator.take_signatures({i: table.sign(i, table.alive) for i in range(6)})
    assert len(signed) == table.attempt.session.threshold  # no more is checked by everybody than need be
    openings = [[table.open(i, table.alive, signed) for i in range(6)] for _ in range(2)]
    assert openings[0] == openings[1]
    assert (table.curator.take_openings(openings[0]).values == 6 * MESSAGE + sum(range(6))).all()


def test_a_curator_that_lies_about_who_dropped_out_gets_one_set():
    """It names one set to some and another to others: neither has k signatures, and nothing is handed out."""
    table = Table().to_survivors()
    first, second = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 6]
    ballots = {i: table.sign(i, first) for i in (0, 1, 5)} | {i: table.sign(i, second) for i in (2, 3, 6)}
    for place, alive in ((0, first), (2, second)):
        signed = {i: ballots[i] for i in alive if i in ballots and (i in (0, 1, 5)) == (place == 0)}
        # One colluder, task 4, signs both sets with its own key, whatever its memory says.
        colluder = replace(table.member(4), memory=ShortMemory())
        signed[4] = colluder.sign(table.offers, table.boxes[4], alive)
        with pytest.raises(InputError, match="5 tasks or more"):
            table.open(place, alive, signed)
    with pytest.raises(InputError, match="Other survivors were named"):
        table.sign(0, second)


def test_a_signature_under_another_set_is_none():
    table = Table().to_survivors()
    alive = [0, 1, 2, 3, 4, 5]
    signed = {i: table.sign(i, alive) for i in (0, 1, 2, 3)}
    signed[4] = replace(table.member(4), memory=ShortMemory()).sign(table.offers, table.boxes[4], range(N))
    with pytest.raises(SignatureError, match="Task 4's word"):
        table.open(0, alive, signed)
    outside = signed | {6: signed[0]}
    del outside[4]
    with pytest.raises(SignatureError, match="Task 6 has signed for survivors, and is none"):
        table.open(0, alive, outside)


def test_a_second_set_is_not_opened_in_this_attempt_or_another():
    table = Table().to_survivors()
    alive = list(range(6))
    signed = {i: table.sign(i, alive) for i in alive}
    table.open(0, alive, signed)
    with pytest.raises(InputError, match="Other survivors were named"):
        table.open(0, list(range(1)) + list(range(2, 7)), signed)
    for number in (0, 1, 7):
        later = Table(number, earlier=table)
        if number:
            with pytest.raises(InputError, match="opened in another attempt"):
                later.member(0)
    assert table.open(0, alive, signed) == table.open(0, alive, signed)  # the same, as often as it is asked


def test_an_attempt_does_not_go_back_and_a_round_has_one_board():
    table = Table(3).to_survivors()
    with pytest.raises(InputError, match="Attempt 2 of round 0 is over: 3 has begun"):
        Table(2, earlier=table).member(0)
    with pytest.raises(InputError, match="another board"):
        Table(4, head=b"fork", earlier=table).member(0)
    fresh = Table(4, earlier=table).to_survivors()
    assert {o.pair for o in fresh.offers}.isdisjoint({o.pair for o in table.offers})
    assert all((fresh.rows[i] != table.rows[i]).all() for i in range(N))


def test_another_message_in_the_same_round_is_refused_in_every_attempt():
    table = Table().to_survivors()
    for number in (0, 1):
        later = Table(number, earlier=table).to_shares() if number else table
        with pytest.raises(InputError, match="Another message was sent in round 0"):
            later.member(0).mask(later.offers, later.boxes[0], MESSAGE + 1)


def test_a_swapped_key_is_refused():
    table = Table().to_offers()
    theirs = os.urandom(32)
    for swapped in (
        replace(table.offers[3], pair=theirs),
        replace(table.offers[3], box=theirs),
        replace(table.offers[3], place=4),
        Offer.make(Signer(3, os.urandom(32), b""), table.attempt.context, theirs, theirs),
    ):
        shown = [swapped if offer.place == 3 else offer for offer in table.offers]
        with pytest.raises((InputError, SignatureError)):
            table.member(0).share(shown)
    own = table.member(0)
    with pytest.raises(SignatureError, match="this task's own"):
        own.share([Offer(0, theirs, theirs, b""), *table.offers[1:]])
    assert set(own.share(table.offers)) == set(range(1, N))


def test_keys_of_another_attempt_and_other_keys_in_one_are_refused():
    table = Table().to_shares()
    later = Table(1, earlier=table)
    own = later.member(0).offer()
    with pytest.raises(SignatureError, match="not signed by its task's key"):
        later.member(0).share([own, *table.offers[1:]])
    table = Table().to_shares()
    with pytest.raises(InputError, match="Other keys were shown"):
        table.member(0).mask(table.offers[:-1], {1: b"", 2: b"", 3: b"", 4: b"", 5: b""}, MESSAGE)


def test_a_share_for_another_task_or_attempt_cannot_be_opened():
    table = Table().to_shares()
    for boxes in (
        table.boxes[0] | {1: table.boxes[0][2]},  # of another
        table.boxes[0] | {1: table.boxes[2][1]},  # for another
        table.boxes[0] | {1: table.boxes[0][1][:-1]},  # truncated
        table.boxes[0] | {1: Table().to_shares().boxes[0][1]},  # of another run
    ):
        with pytest.raises(InputError, match="changed on its way, or sealed for something else"):
            table.member(0).mask(table.offers, boxes, MESSAGE)


def test_fewer_than_planned_are_refused_by_every_task_whatever_the_curator_says():
    table = Table().to_offers()
    with pytest.raises(InputError, match=r"5 different tasks or more\. Got 4"):
        table.member(0).share(table.offers[:4])
    table.to_shares()
    with pytest.raises(InputError, match=r"Shares of 5 tasks or more.*Got 4"):
        table.member(0).mask(table.offers, {i: table.boxes[0][i] for i in (1, 2, 3)}, MESSAGE)
    table = Table().to_survivors()
    with pytest.raises(InputError, match=r"Messages of 5 tasks or more.*Got 4"):
        table.sign(0, [0, 1, 2, 3])
    with pytest.raises(InputError, match="this task one of them"):
        table.sign(6, range(6))


def test_a_wrong_share_is_found_out_where_it_can_be():
    """A lost task's key must come out as it was offered; a wrong share of a seed spoils the sum."""
    table = Table().to_survivors(range(6))
    signed = {i: table.sign(i, table.alive) for i in table.alive}
    openings = [table.open(i, table.alive, signed) for i in table.alive]
    wrong = replace(openings[0], pairs={6: bytes(32)})
    with pytest.raises(InputError, match=r"fit together|do not give it back"):
        table.curator.take_openings([wrong, *openings[1:]])


def test_what_one_task_knows_is_never_both_shares_of_another():
    table = Table().to_survivors(range(5))
    signed = {i: table.sign(i, table.alive) for i in table.alive}
    for place in table.alive:
        opening = table.open(place, table.alive, signed)
        assert set(opening.seeds).isdisjoint(opening.pairs)
        assert set(opening.seeds) | set(opening.pairs) == set(range(N))


def test_different_rosters_or_plans_mask_differently_and_nothing_opens():
    signers = [Signer(place, os.urandom(32), os.urandom(32)) for place in range(3)]
    keys = tuple(identity(signer.identity) for signer in signers)
    told = {place: np.array([place]) for place in range(3)}

    def row(place: int, session: Session, round: int = 0, head: bytes = b"head"):
        members = [all_or_wait.Member(session, signer, ShortMemory()) for signer in signers]
        members[place].join([member.offer() for member in members])
        return members[place].mask(round, head, told[place])

    here = Session("run", "plan", SecureSum(), keys)
    other = {
        "plan": row(1, replace(here, plan="another")),
        "run": row(1, replace(here, run="another")),
        "colluders": row(1, replace(here, trust=SecureSum(0, 2))),
        "round": row(1, here, round=1),
        "head": row(1, here, head=b"another"),
    }
    same = {place: row(place, here) for place in range(3)}
    assert all_or_wait.opened(here, same).tolist() == [3]
    for what, shown in other.items():
        assert abs(int(all_or_wait.opened(here, same | {1: shown})[0])) > 2**40, what


def test_all_or_wait_shows_one_set_of_keys_and_one_board():
    signers = [Signer(place, os.urandom(32), os.urandom(32)) for place in range(3)]
    session = Session("run", "plan", SecureSum(), tuple(identity(s.identity) for s in signers))
    members = [all_or_wait.Member(session, signer, ShortMemory()) for signer in signers]
    offers = [member.offer() for member in members]
    with pytest.raises(InputError, match="Show them first"):
        members[0].mask(0, b"head", MESSAGE)
    with pytest.raises(InputError, match=r"3 different tasks or more\. Got 2"):
        members[0].join(offers[:2])
    with pytest.raises(InputError, match="the same"):
        members[0].join([*offers[:2], replace(offers[1], place=2)])
    members[0].join(offers)
    sent = members[0].mask(0, b"head", MESSAGE)
    assert (members[0].mask(0, b"head", MESSAGE) == sent).all()
    with pytest.raises(InputError, match="another board"):
        members[0].mask(0, b"fork", MESSAGE)
    with pytest.raises(InputError, match="Another message"):
        members[0].mask(0, b"head", MESSAGE + 1)
    restarted = all_or_wait.Member(session, replace(signers[1], secret=os.urandom(32)), members[1].memory)
    with pytest.raises(InputError, match="Other keys were shown"):
        members[0].join([offers[0], restarted.offer(), offers[2]])


def test_a_point_of_small_order_is_refused():
    from cloister.secure.primitives import agreed

    with pytest.raises(InputError, match="large order"):
        agreed(os.urandom(32), {0: bytes(32)})
