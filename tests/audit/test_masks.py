"""The auditor against a curator's whole view of secure sums: it acquits, and convicts what is planted."""

from __future__ import annotations

import hashlib
from itertools import count

import numpy as np
import pytest

import cloister as cl
from cloister import Plan, Trust
from cloister.audit.game import affordable, play
from cloister.audit.masks import check_masks, linear_complexity
from cloister.audit.noise_checks import check_noise
from cloister.privacy import trust
from cloister.privacy.randomness import SeededRandomness
from cloister.secure import all_or_wait, double_masking
from cloister.secure.session import Session, ShortMemory

ALGORITHM = cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=2)


def plan_of(level: Trust, n: int = 9) -> Plan:
    return Plan(ALGORITHM, n_tasks=n, trust=level).calibrate(1.0)


def reasons(level: Trust) -> str:
    found = check_masks(plan_of(level))
    assert found is not None
    return "; ".join(found.reasons)


def twister(key: bytes, count: int):
    seed = np.frombuffer(hashlib.sha256(key).digest(), dtype="<u4")
    return np.random.RandomState(np.random.MT19937(seed)).randint(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("level", [Trust.secure_sum(), Trust.secure_sum(2, 2)])
def test_the_real_masks_show_nothing(level):
    assert reasons(level) == ""


def test_nothing_is_masked_where_nothing_is_claimed():
    assert check_masks(plan_of(Trust.curator())) is None
    assert check_masks(plan_of(Trust.silo())) is None


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (twister, "next number follows from those before"),
        (lambda key, count: np.zeros(count, np.uint64), "not made of even bytes"),
        (lambda key, count: np.frombuffer(key * (count // 4), "<u8").copy(), "even bytes"),
        (lambda key, count: twister(bytes(32), count), "comes again"),
    ],
    ids=["Mersenne Twister", "no mask", "a key over and over", "one mask for all"],
)
def test_weak_masks_are_convicted(monkeypatch, generator, words):
    monkeypatch.setattr(all_or_wait, "mask", generator)
    assert words in reasons(Trust.secure_sum())


def test_a_weak_mask_of_its_own_is_convicted(monkeypatch):
    """It hides under pairs' masks until a curator that says a message is late takes those off."""
    monkeypatch.setattr(double_masking, "mask", twister)
    assert "next number follows from those before" in reasons(Trust.secure_sum(1))


def test_too_few_helpers_for_a_set_are_convicted(monkeypatch):
    """Half of the tasks and a colluder are enough: two sets open."""
    monkeypatch.setattr(trust.SecureSum, "threshold", lambda self, n_tasks: n_tasks // 2 + 1)
    assert "two sets of survivors" in reasons(Trust.secure_sum(1))


def test_a_mask_for_all_rounds_is_convicted(monkeypatch):
    context = Session.context
    monkeypatch.setattr(Session, "context", lambda self, round, head, n: context(self, 0, b"", n))
    assert "comes again in another" in reasons(Trust.secure_sum())


def test_a_pair_key_that_is_used_again_is_convicted(monkeypatch):
    context = Session.context
    monkeypatch.setattr(Session, "context", lambda self, round, head, n: context(self, round, head, 0))
    assert "keys of one attempt come again in another" in reasons(Trust.secure_sum(1))


def test_tasks_without_a_memory_are_convicted(monkeypatch):
    monkeypatch.setattr(ShortMemory, "write", lambda self, name, value: None)
    found = reasons(Trust.secure_sum(1))
    for what in ("two messages in one round", "two boards", "signs two sets", "another attempt", "goes back"):
        assert what in found


def test_both_shares_of_one_task_are_convicted(monkeypatch):
    """The very share that opens one mask opens the other: a task hands out both of whoever dropped out."""

    def careless(self, offers, boxes, survivors, signatures):
        opening = honest(self, offers, boxes, survivors, signatures)
        _, held = self._held(list(offers), boxes)
        return double_masking.Opening(
            self.place, opening.seeds, {place: both[32:] for place, both in held.items()}
        )

    honest = double_masking.Member.open
    monkeypatch.setattr(double_masking.Member, "open", careless)
    take = double_masking.Collector.take_openings

    def any_openings(self, openings):
        dead = set(self.boxes) - set(self.alive)
        fitting = [
            double_masking.Opening(one.place, one.seeds, {k: v for k, v in one.pairs.items() if k in dead})
            for one in openings
        ]
        return take(self, fitting)

    monkeypatch.setattr(double_masking.Collector, "take_openings", any_openings)
    assert "both shares of one task" in reasons(Trust.secure_sum(1))


def test_sums_that_do_not_add_up_are_convicted(monkeypatch):
    opened = all_or_wait.opened
    monkeypatch.setattr(all_or_wait, "opened", lambda *given: opened(*given) + 1)
    assert "not that of the messages" in reasons(Trust.secure_sum())


@pytest.mark.parametrize("n", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_one_share_of_noise_too_few_is_convicted(n, monkeypatch):
    plan, honest = plan_of(Trust.secure_sum(1, 1), n), trust.with_share
    parts, calls = plan.trust.parts(n), count()

    def lazy(*given):
        return honest(*given) if next(calls) % parts else given[-2]  # every first task adds no noise

    for convicted in (False, True):
        law = check_noise(plan, SeededRandomness(0))
        assert law is not None
        assert (law.p_value < 0.0125) == convicted
        monkeypatch.setattr(trust, "with_share", lazy)


def test_a_game_with_many_shares_is_not_longer_than_one_with_few():
    few, many = (plan_of(Trust.secure_sum(), n) for n in (5, 200))
    assert affordable(few, 10**9) > 40 * affordable(many, 10**9) > 0
    scores = play(many, SeededRandomness(0), 1000)
    mu = many.mechanism.budget
    assert abs(scores.speaking.mean() - mu**2 / 2) < 6 * mu / np.sqrt(1000)


@pytest.mark.parametrize("degree", [7, 31, 200])
def test_linear_complexity_of_shift_registers(degree):
    rng = np.random.default_rng(degree)
    taps, bits = rng.integers(0, 2, degree), list(rng.integers(0, 2, degree))
    taps[-1] = bits[-1] = 1
    for _ in range(6 * degree):
        bits.append(int(np.dot(taps, bits[-1 : -degree - 1 : -1]) % 2))
    assert linear_complexity(np.array(bits, dtype=np.uint8)) <= degree
