"""Opened sums are plain sums, exactly, whoever drops out when; with too few answers nothing opens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import InputError
from cloister.privacy.trust import SecureSum
from cloister.secure.committee import Committee
from cloister.secure.double_masking import Step

STEPS = list(Step)


def messages(n: int, d: int = 3, seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return dict(enumerate(rng.integers(-(2**61) // n, 2**61 // n, (n, d))))


def plain(told: dict[int, np.ndarray], places) -> np.ndarray:
    return np.sum([told[place] for place in places], axis=0)


@pytest.mark.parametrize("n", [3, 4, 17, 60])
def test_all_or_wait_opens_the_sum_of_all(n):
    committee, told = Committee.of("run", "plan", SecureSum(), n), messages(n)
    for round in range(2):
        found = committee.sum(round, bytes([round]), told)
        assert (found.values == plain(told, range(n))).all()
        assert found.shares == n


@pytest.mark.slow
@pytest.mark.parametrize("trust", [SecureSum(), SecureSum(40, 20)])
def test_two_hundred_tasks(trust):
    n = 200
    committee, told = Committee.of("run", "plan", trust, n), messages(n)
    gone = {step: [7 + i] for i, step in enumerate(STEPS)} if trust.dropouts else None
    found = committee.sum(0, b"head", told, gone)
    away = {7, 8, 9} if trust.dropouts else set()  # whose message is there is in the sum
    assert (found.values == plain(told, set(range(n)) - away)).all()


@given(data=st.data())
def test_whoever_drops_out_when_the_sum_is_of_the_others(data):
    n = data.draw(st.integers(4, 9), label="tasks")
    c = data.draw(st.integers(1, n - 3), label="colluders")
    t = data.draw(st.integers(0, max(0, (n - c - 1) // 2)), label="drop-outs")
    if n - t - c < 2:
        return
    gone = data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=t, max_size=t), label="gone")
    when = [data.draw(st.sampled_from(STEPS)) for _ in gone]
    missing = {step: [place for place, at in zip(gone, when, strict=True) if at == step] for step in STEPS}
    told = messages(n, seed=n)
    found = Committee.of("run", "plan", SecureSum(t, c), n).sum(0, b"head", told, missing if t else None)
    in_sum = set(range(n)) - {
        place for place, at in zip(gone, when, strict=True) if STEPS.index(at) <= STEPS.index(Step.MESSAGE)
    }
    assert (found.values == plain(told, in_sum)).all()
    assert found.shares == len(in_sum)


@pytest.mark.parametrize("step", [Step.KEYS, Step.SHARES, Step.MESSAGE])
def test_with_more_drop_outs_than_planned_nothing_opens(step):
    committee, told = Committee.of("run", "plan", SecureSum(2, 1), 8), messages(8)
    with pytest.raises(InputError, match=r"6 tasks or more are needed to open a sum of 8\. Got 5"):
        committee.sum(0, b"head", told, {step: [1, 2, 3]})
    # Nobody has handed out a share: another attempt costs nothing, and opens the very same sum.
    found = committee.sum(0, b"head", told, {Step.MESSAGE: [4]}, attempt=1)
    assert (found.values == plain(told, set(range(8)) - {4})).all()


@pytest.mark.parametrize("step", [Step.SURVIVORS, Step.OPENING])
def test_fewer_helpers_than_needed_open_nothing(step):
    committee, told = Committee.of("run", "plan", SecureSum(2, 1), 8), messages(8)
    with pytest.raises(InputError, match="5 tasks or more are needed"):
        committee.sum(0, b"head", told, {step: [0, 1, 2, 3]})


def test_all_or_wait_does_not_open_for_fewer():
    from cloister.secure.all_or_wait import opened

    committee, told = Committee.of("run", "plan", SecureSum(), 5), messages(5)
    rows = {m.signer.place: m.mask(0, b"head", told[m.signer.place]) for m in committee.joined()}
    lost = rows.pop(3)
    with pytest.raises(InputError, match=r"all 5 tasks have answered\. Got 4: wait for 3"):
        opened(committee.session, rows)
    short = sum(rows.values(), np.zeros(3, np.uint64)).view(np.int64)
    assert (short != plain(told, [0, 1, 2, 4])).all()
    assert (short + lost.view(np.int64) == plain(told, range(5))).all()
