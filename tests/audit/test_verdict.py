"""The verdict: every clause convicts by itself; all chances of error together are those that are stated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

import cloister as cl
from cloister.audit import audit, auditor
from cloister.audit.bound import lower_bound, lower_mu
from cloister.audit.noise_checks import NoiseLaw

PLAN = cl.Plan(cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=2), n_tasks=100).calibrate(
    1.0
)


@pytest.fixture(scope="module")
def found():
    return audit(PLAN, draws=2000, random_state=0)


def test_bounds_are_rounded_so_that_they_stay_true(found):
    claim = replace(found, guarantee=replace(found.guarantee, epsilon=0.99991, delta=1.20001e-3))
    bound = replace(found.measured[0].bound, epsilon=0.8999, delta=1.20001e-3)
    said = str(replace(claim, measured=(replace(found.measured[0], bound=bound, claimed=0.99991),)))
    assert "epsilon <= 1 claimed, epsilon >= 0.899 measured, at delta 0.001201 under" in said
    assert "epsilon >= 0.899 of 1 at delta 0.001201" in said


def louder(found, **change):
    return replace(found, measured=(replace(found.measured[0], **change), *found.measured[1:]))


#: What is wrong with an audit that has one thing wrong with it, and what the verdict then says.
FAULTS = {
    "game": (lambda a: louder(a, claimed=-1.0), "measured at delta"),
    "later game": (
        lambda a: replace(a, measured=(*a.measured[:-1], replace(a.measured[-1], claimed=-1.0))),
        "measured at delta",
    ),
    "curve": (
        lambda a: replace(a, gaussian=(replace(a.gaussian[0], claimed=-1.0),)),
        "measured, Gaussian DP with -1 claimed",
    ),
    "one run": (lambda a: replace(a, one_run=replace(a.one_run, epsilon=1.01)), "measured in one run"),
    "sensitivity": (
        lambda a: replace(a, sensitivity=replace(a.sensitivity, ratio=1.001)),
        "1.001 times as far",
    ),
    "not a number": (
        lambda a: replace(a, sensitivity=replace(a.sensitivity, ratio=math.nan)),
        "times as far",
    ),
    "noise": (
        lambda a: replace(a, noise=replace(a.noise, p_values={"law": 0.012})),
        "not what it is said to be",
    ),
    "keys": (lambda a: replace(a, freshness=replace(a.freshness, keys=False)), "another key"),
    "rounds": (lambda a: replace(a, freshness=replace(a.freshness, rounds=False)), "comes again in another"),
    "numbers": (
        lambda a: replace(a, freshness=replace(a.freshness, numbers=False)),
        "comes again in others",
    ),
    "isolation": (
        lambda a: replace(a, isolation=replace(a.isolation, holds=False, detail="task 3 reached task 5")),
        "task 3 reached task 5",
    ),
    "last bits": (
        lambda a: replace(a, last_bits=replace(a.last_bits, between=1)),
        "its lowest bits",
    ),
    "secret keys": (lambda a: replace(a, freshness=replace(a.freshness, secret=False)), "made again"),
    "price": (
        lambda a: replace(a, price=(replace(a.price[0], least=1.00001), *a.price[1:])),
        "the noise of all rounds makes epsilon at delta 0.001 >= 1, 1 claimed",
    ),
    "later price": (
        lambda a: replace(a, price=(*a.price[:-1], replace(a.price[-1], claimed=-1.0))),
        "the noise of all rounds",
    ),
    "real runs": (lambda a: replace(a, runs=replace(a.runs, same=("coins",))), "coins are the same"),
}
#: What looks bad and proves nothing.
INNOCENT = {
    "as found": lambda a: a,
    "noise that is bad luck": lambda a: replace(a, noise=replace(a.noise, p_values={"law": 0.013})),
    "all the claim": lambda a: louder(a, bound=replace(a.measured[0].bound, epsilon=a.measured[0].claimed)),
    "a curve at its claim": lambda a: replace(
        a, gaussian=(replace(a.gaussian[0], claimed=a.gaussian[0].bound.mu),)
    ),
    "one run at the claim": lambda a: replace(a, one_run=replace(a.one_run, epsilon=a.guarantee.epsilon)),
    "sensitivity to rounding": lambda a: replace(a, sensitivity=replace(a.sensitivity, ratio=1 + 1e-10)),
    "price to rounding": lambda a: replace(a, price=(replace(a.price[0], least=a.price[0].claimed),)),
    "nothing to test": lambda a: replace(a, noise=None, one_run=None, last_bits=None, price=()),
    "isolation not tested": lambda a: replace(a, isolation=replace(a.isolation, holds=None)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_enough(found, fault):
    change, words = FAULTS[fault]
    (reason,) = change(found).reasons
    assert words in reason
    assert change(found).verdict.startswith("CONVICTED")


@pytest.mark.parametrize("case", INNOCENT)
def test_what_proves_nothing_does_not_convict(found, case):
    assert INNOCENT[case](found).reasons == ()
    assert ("Isolation was not tested" in INNOCENT[case](found).verdict) == (case == "isolation not tested")


def test_p_values_count_as_often_as_there_are_tests():
    assert NoiseLaw({"law": 0.5}, 1).p_value == 0.5
    assert NoiseLaw({"law": 0.02, "scale": 0.9, "keys": 0.4}, 1).p_value == pytest.approx(0.06)
    assert NoiseLaw({"law": 0.5, "scale": 0.9, "keys": 0.4}, 1).p_value == 1


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_errors_of_all_tests_add_up_to_no_more_than_is_stated(monkeypatch, found, confidence):
    """Half for the games at all deltas and channels, a quarter for one run; the rest is for the noise."""
    games, runs = [], []

    def bound(silent, speaking, delta, level):
        games.append(1 - level)
        return lower_bound(silent, speaking, delta, level)

    def mu(silent, speaking, level):
        games.append(1 - level)
        return lower_mu(silent, speaking, level)

    def one_run(plan, source, level):
        runs.append(1 - level)

    for name, value in {
        "check_noise": found.noise,
        "check_freshness": found.freshness,
        "check_last_bits": found.last_bits,
        "check_isolation": found.isolation,
        "check_real_runs": replace(found.runs, noise=None),
        "_furthest": found.sensitivity,
    }.items():
        monkeypatch.setattr(auditor, name, lambda *args, value=value: value)
    monkeypatch.setattr(auditor, "lower_bound", bound)
    monkeypatch.setattr(auditor, "lower_mu", mu)
    monkeypatch.setattr(auditor, "one_run", one_run)
    several = cl.Plan(cl.algorithms.SharedPrior(cl.learners.Regression(2)), n_tasks=200).calibrate(
        1.0
    )  # more than one channel
    for plan in (PLAN, several):
        games.clear(), runs.clear()
        made = audit(plan, draws=1000, confidence=confidence, random_state=0)
        assert len(games) == len(made.measured) + len(made.gaussian) >= 4
        assert math.fsum(games) <= (1 - confidence) / 2 * (1 + 1e-9)
        assert runs == [pytest.approx((1 - confidence) / 4)]
        fine = replace(made, noise=NoiseLaw({"law": (1 - confidence) / 4}, 1))
        assert not fine.convicted
        assert replace(fine, noise=NoiseLaw({"law": 0.99 * (1 - confidence) / 4}, 1)).convicted


def test_limits_of_a_curve_hold_together():
    """Four limits a point: each errs with its part of what is allowed for all."""
    rng = np.random.default_rng(0)
    silent, speaking = rng.normal(size=(2, 4000))
    curve = lower_bound(silent, speaking + 1, 1e-3, 0.9).curve
    each, left = 0.1 / (4 * len(curve)), 3200  # a fifth of the scores has chosen the event
    assert len(curve) > 10
    for point in curve:
        for rate, (low, high) in (
            (point.false_alarm, point.false_alarm_limits),
            (point.missed, point.missed_limits),
        ):
            count = round(rate * left)
            assert low <= beta.ppf(each, count, left - count + 1) * (1 + 1e-9) if count else low == 0
            assert high >= beta.isf(each, count + 1, left - count) * (1 - 1e-9) if count < left else high == 1
