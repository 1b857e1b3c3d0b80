r"""Secure sums as a curator sees them: all that tasks say to it, looked through for what it should not show.

A few tasks sum up made-up messages, and the auditor plays a curator that keeps all it is told, and then lies.

* Sums that open are those of the messages, exactly; a message under masks is made of bytes that are even, and
  nothing of it comes again in another task's, another round's or another attempt's.
* Masks come from a cipher, and not from a generator whose next number follows from those before. The lowest
  bits of a masked message of zeros are a sequence whose linear complexity is half its length. A Mersenne
  Twister's is 19,937, however long it is, and that of two of them together at most twice that
  (Massey, "Shift-register synthesis and BCH decoding", 1969).
* A message that came too late is still under the mask of its own, when shares have taken the others off; that
  mask is judged as well.
* Keys are fresh in every attempt. A task answers a round on one board with one message, signs one set an
  attempt, helps with one set a round, and never hands out both shares of another task. Two sets do not open,
  each named to half of the tasks, with one that colludes and signs both.

None of these convicts by chance: what is random is judged at a level of 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from cloister.core.arrays import Words
from cloister.core.errors import CloisterError
from cloister.plan.plan import Plan
from cloister.privacy.trust import SecureSum
from cloister.secure.committee import Committee, Seen
from cloister.secure.double_masking import Step
from cloister.secure.session import ShortMemory
from cloister.secure.shamir import combined, weights

#: Words of a message under one mask, and under two: more than twice what Mersenne Twisters hide behind.
_OWN, WORDS = 2 * 19_937 + 252, 2 * 2 * 19_937 + 252
#: Tasks of sums that wait for all, whose messages are under two masks each; of sums with drop-outs.
_FEW, _SOME = 3, 5
_LEVEL = 1e-12


@dataclass(frozen=True)
class Masks:
    """What a curator's view of secure sums gave away.

    Attributes
    ----------
    reasons : tuple of str
        Why the masks are not what they are said to be; none if they are.
    sums : int
        How many sums were opened, or tried to.
    """

    reasons: tuple[str, ...]
    sums: int

    def __str__(self) -> str:
        return "; ".join(self.reasons) or f"nothing shows in a curator's view of {self.sums} sums"


def check_masks(plan: Plan) -> Masks | None:
    """Look through what a lying curator sees; None where a plan masks nothing.

    Examples
    --------
    >>> from cloister import Trust
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> algorithm = MeanRegularized(LeastSquares(3), rounds=2)
    >>> plan = Plan(algorithm, n_tasks=9, trust=Trust.secure_sum(dropouts=1)).calibrate(epsilon=1.0)
    >>> print(check_masks(plan))
    nothing shows in a curator's view of 6 sums
    """
    trust = plan.trust
    if not isinstance(trust, SecureSum):
        return None
    found, sums = [*_all_or_wait(plan)], 2
    if trust.dropouts:
        found, sums = [*found, *_drop_outs(plan)], 6
    return Masks(tuple(dict.fromkeys(found)), sums)


def _all_or_wait(plan: Plan) -> Iterator[str]:
    """Say what shows in two rounds of messages of zeros."""
    committee = Committee.of("audit", plan.fingerprint, SecureSum(), _FEW, seen=[])
    nothing = {place: np.zeros(WORDS, dtype=np.int64) for place in range(_FEW)}
    for round in range(2):
        if committee.sum(round, bytes([round]) * 32, nothing).values.any():
            yield "an opened sum is not that of the messages"
    assert committee.seen is not None
    rows = [row for seen in committee.seen for row in seen.rows.values()]
    yield from _looks(rows)
    yield from _predictable(rows[0])
    member = committee.joined()[0]
    another = nothing[0] + 1
    yield from _passes(lambda: member.mask(0, bytes(32), another), "a task sends two messages in one round")
    yield from _passes(lambda: member.mask(0, b"fork", nothing[0]), "a task answers a round on two boards")


def _drop_outs(plan: Plan) -> Iterator[str]:
    """Say what shows in four sums from which tasks drop out, one of them tried twice."""
    committee = Committee.of("audit", plan.fingerprint, SecureSum(1, 1), _SOME, seen=[])
    messages = {place: np.full(4096, place + 1) for place in range(_SOME)}
    due = sum(range(1, _SOME + 1))
    for round, gone in enumerate(([], [4])):
        total = committee.sum(round, b"head", messages, {Step.MESSAGE: gone})
        if (total.values != due - sum(place + 1 for place in gone)).any():
            yield "an opened sum is not that of the messages"
    unsigned, everybody = Step.SURVIVORS, list(range(_SOME))
    tries = (2, 0, unsigned, [0, 1]), (2, 1, Step.MESSAGE, [2]), (3, 0, unsigned, everybody)
    for round, attempt, step, gone in tries:
        try:
            committee.sum(round, b"head", messages, {step: gone}, attempt)
        except CloisterError:
            if attempt:
                yield "an attempt in which nothing was opened cannot be tried again"
    assert committee.seen is not None
    _, one_lost, again, _, undecided = views = committee.seen
    yield from _looks([row for seen in views for row in seen.rows.values()])
    offers = [offer for seen in views for offer in seen.collector.offers]
    keys = [key for offer in offers for key in (offer.pair, offer.box)]
    if len(set(keys)) < len(keys):
        yield "keys of one attempt come again in another"
    boxes = [box for seen in views for held in seen.collector.boxes.values() for box in held.values()]
    if len(set(boxes)) < len(boxes):
        yield "a sealed share comes again"
    yield from _shares_of_one(views, committee.session.threshold)
    yield from _late_message(committee, one_lost, 4)
    yield from _two_sets(committee, undecided)
    yield from _second_sets(committee, one_lost)
    yield from _passes(lambda: committee.member(again.collector.attempt, 2), "an attempt goes back")


def _second_sets(committee: Committee, seen: Seen) -> Iterator[str]:
    """Ask tasks, after a crash and of what they remember, for what they may not do twice."""
    told = seen.collector
    asked = committee.member(told.attempt, 0)
    other = sorted({*told.boxes} - {1})
    signs = "a task signs two sets of survivors in one attempt"
    yield from _passes(lambda: asked.sign(told.offers, told.boxes[0], other), signs)
    helps = "a task that has helped to open a set takes part in another attempt"
    yield from _passes(lambda: committee.member(told.attempt.again(), 0), helps)


def _late_message(committee: Committee, seen: Seen, lost: int) -> Iterator[str]:
    """Say what shows in a message of zeros that came late, when shares take its pairs' masks off."""
    told, helpers = seen.collector, seen.openings[: committee.session.threshold]
    row = committee.member(told.attempt, lost).mask(told.offers, told.boxes[lost], np.zeros(_OWN, np.int64))
    factors = weights([one.place + 1 for one in helpers])
    row += told.pair_masks(lost, combined(factors, [one.pairs[lost] for one in helpers]), row.size)
    yield from _looks([row])
    yield from _predictable(row)


def _two_sets(committee: Committee, seen: Seen) -> Iterator[str]:
    """Name two sets, each to two of the tasks and to the last one, which signs whatever it is shown."""
    told, last, opened = seen.collector, _SOME - 1, 0
    for voters, lost in (((0, 1), 3), ((2, 3), 0)):
        alive = sorted({*told.boxes} - {lost})
        ballots = {}
        for place in (*voters, last):
            member = committee.member(told.attempt, place)
            member = replace(member, memory=ShortMemory()) if place == last else member
            ballots[place] = member.sign(told.offers, told.boxes[place], alive)
        try:
            for place in voters:
                committee.member(told.attempt, place).open(told.offers, told.boxes[place], alive, ballots)
            opened += 1
        except CloisterError:
            continue
    if opened > 1:
        yield "tasks help to open two sets of survivors, each named to half of them"


def _shares_of_one(views: list[Seen], threshold: int) -> Iterator[str]:
    """Say if the shares that were handed out in a round give both masks of one task."""
    for round in {seen.collector.attempt.round for seen in views}:
        openings = [one for seen in views if seen.collector.attempt.round == round for one in seen.openings]
        places = {place for one in openings for place in (*one.seeds, *one.pairs)}
        for place in places:
            seeds = {one.place for one in openings if place in one.seeds}
            pairs = {one.place for one in openings if place in one.pairs}
            if min(len(seeds), len(pairs)) >= threshold or seeds & pairs:
                yield "both shares of one task are handed out"


def _passes(ask: Callable[[], object], complaint: str) -> Iterator[str]:
    try:
        ask()
    except CloisterError:
        return
    yield complaint


def _predictable(row: Words) -> Iterator[str]:
    """Say if the lowest bits of a masked message of zeros follow from those before."""
    if linear_complexity((row & np.uint64(1)).astype(np.uint8)) < row.size // 2 - 100:
        yield "masks come from a generator whose next number follows from those before"


def _looks(rows: list[Words]) -> Iterator[str]:
    """Say if masked messages have uneven bytes, or if anything of one comes again in another."""
    for row in rows:
        counts = np.bincount(row.view(np.uint8), minlength=256)
        even = 8 * row.size / 256
        if chdtrc(255, float(((counts - even) ** 2).sum() / even)) < _LEVEL:
            yield "masked messages are not made of even bytes"
    for one, two in combinations(rows, 2):
        if any(len(np.unique(rest)) < one.size // 2 for rest in (one - two, one + two)):
            yield "what masks a message comes again in another"


def linear_complexity(bits: NDArray[np.uint8]) -> int:
    """Return the length of the shortest linear feedback register that makes a sequence of bits.

    Examples
    --------
    >>> linear_complexity(np.array([1, 0] * 40, dtype=np.uint8))
    2
    >>> rng = np.random.default_rng(0)
    >>> abs(linear_complexity(rng.integers(0, 2, 2000, dtype=np.uint8)) - 1000) < 30
    True
    """
    register, before, length, gap, window = 1, 1, 0, 1, 0
    for number, bit in enumerate(bits.tolist()):
        window = window << 1 | bit
        if (register & window).bit_count() & 1:
            old, register = register, register ^ before << gap
            if 2 * length <= number:
                length, before, gap = number + 1 - length, old, 0
        gap += 1
    return length
