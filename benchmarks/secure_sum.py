"""What a secure sum costs: milliseconds of one task's processor, and bytes of one task, in a round.

Of each kind one task is timed, and the curator, on one core: with all tasks for sums of few numbers, and for
many with rows of others that are made up, since only their size matters to the curator. A task's time has no
local training and no network in it. "All or wait" is without drop-outs; in the other a tenth of the tasks may
drop out, and does, before its message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from cloister.privacy.trust import SecureSum
from cloister.secure import all_or_wait
from cloister.secure.committee import Committee
from cloister.secure.double_masking import Attempt, Collector
from cloister.secure.primitives import SIGNATURE
from cloister.secure.session import Offer

NAME = "secure-sum"
PATHS = ("src/cloister/secure",)
TASKS, NUMBERS = (8, 50, 200), (1_000, 100_000)
#: Tasks whose time is taken.
TIMED = 3
FIGURES = ("a task, ms", "curator, ms", "kB")

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]
T = TypeVar("T")


class Watch:
    """Adds up the time of calls."""

    seconds = 0.0

    def __call__(self, function: Callable[..., T], *given: object) -> T:
        start = time.process_time()
        found = function(*given)
        self.seconds += time.process_time() - start
        return found


def random_rows(places: list[int], size: int) -> dict[int, np.ndarray]:
    return {place: np.frombuffer(os.urandom(8 * size), dtype=np.uint64) for place in places}


def without_drop_outs(tasks: int, size: int) -> tuple[float, float, float]:
    """Return a task's and the curator's milliseconds in a round, and a task's kilobytes."""
    committee = Committee.of("run", "plan", SecureSum(), tasks)
    members, message = committee.joined()[:TIMED], np.arange(size)
    member, curator = Watch(), Watch()
    for one in members:
        member(one.mask, 0, b"head", message)
    curator(all_or_wait.opened, committee.session, random_rows(list(range(tasks)), size))
    return 1e3 * member.seconds / len(members), 1e3 * curator.seconds, 8 * size / 1e3


def with_drop_outs(tasks: int, size: int) -> tuple[float, float, float]:
    """Return the same for an attempt from which as many drop out as may."""
    trust = SecureSum(max(1, tasks // 10), max(1, tasks // 10))
    committee = Committee.of("run", "plan", trust, tasks)
    attempt, places = Attempt(committee.session, 0, b"head", 0), list(range(tasks))
    member, curator, rest = Watch(), Watch(), Watch()
    collector = Collector(attempt)
    members = [committee.member(attempt, place) for place in places]

    def timed(place: int) -> Watch:
        return member if place < TIMED else rest

    offers = curator(collector.take_offers, [timed(i)(members[i].offer) for i in places])
    sent = {i: timed(i)(members[i].share, offers) for i in places}
    boxes = curator(collector.take_shares, sent)
    for i in range(TIMED):
        member(members[i].mask, offers, boxes[i], np.arange(size))
    alive = collector.take_rows(random_rows(places[: tasks - trust.dropouts], size))
    signed = {i: timed(i)(members[i].sign, offers, boxes[i], alive) for i in alive}
    signed = curator(collector.take_signatures, signed)
    openings = [timed(i)(members[i].open, offers, boxes[i], alive, signed) for i in alive]
    curator(collector.take_openings, openings)
    shares = sum(map(len, sent[0].values())) + sum(map(len, boxes[0].values()))
    keys = len(Offer.to_bytes(offers[0]))
    opening = sum(map(len, (*openings[0].seeds.values(), *openings[0].pairs.values())))
    in_all = keys * (1 + tasks) + shares + 8 * size + SIGNATURE * (1 + len(signed)) + opening
    return 1e3 * member.seconds / TIMED, 1e3 * curator.seconds, in_all / 1e3


def run(quick: bool) -> tuple[Figures, Targets, list[list[str]]]:
    kinds = {"all or wait": without_drop_outs, "a tenth drop out": with_drop_outs}
    rows = [["tasks × numbers", *kinds]]
    figures: Figures = {}
    targets: Targets = {}
    for tasks in TASKS[: 1 if quick else None]:
        for size in NUMBERS[: 1 if quick else None]:
            rows.append([f"{tasks} × {size:,}"])
            for kind, function in kinds.items():
                found = function(tasks, size)
                figures |= {
                    f"{kind} {tasks} {size}: {of}": value for of, value in zip(FIGURES, found, strict=True)
                }
                rows[-1].append("{:,.1f} ms, {:,.1f} ms, {:,.0f} kB".format(*found))
    return figures, targets, rows
