"""The rules of a ledger: what a run costs, what is left, and what is refused."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import numpy as np
import pytest
from scipy.stats import norm

from cloister import Ledger, Plan, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.channel import Relation
from cloister.errors import BudgetError, InputError, LedgerError, PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise
from cloister.privacy import accounting, tradeoff
from cloister.privacy.events import Cost, GammaEvent, GaussianEvent, PureEvent
from cloister.sampling import Everyone, InOrder, OnePass, Poisson

TASKS, DELTA = 50, 1e-3


def cost(*mus: float, sampling=Everyone(), n_tasks: int = TASKS, relation="replace") -> Cost:  # noqa: B008
    return Cost(tuple(map(GaussianEvent, mus)), sampling, n_tasks, relation)


def plan(epsilon: float, mechanism=Gaussian()) -> Plan:  # noqa: B008
    algorithm = MeanRegularized(LeastSquares(3), rounds=7)
    return Plan(algorithm, mechanism, n_tasks=TASKS, delta=DELTA).calibrate(epsilon)


def test_what_is_spent_is_the_price_of_all_rounds_as_one_plan():
    ledger = Ledger(3.0, DELTA)
    mus = [(0.1, 0.2, 0.05), (0.3,), (0.01,) * 40]
    for number, part in enumerate(mus):
        ledger.charge(f"plan {number}", cost(*part))
    together = accounting.price(cost(*sum(mus, ())), DELTA).epsilon
    assert ledger.spent == pytest.approx(together, rel=1e-12)
    assert [charge.plan for charge in ledger.history] == ["plan 0", "plan 1", "plan 2"]


def test_a_plan_that_costs_the_whole_budget_fits_and_nothing_after_it():
    ledger = Ledger(1.0, DELTA)
    whole = plan(1.0)
    ledger.charge(whole.fingerprint, whole.cost)
    assert ledger.spent == pytest.approx(1.0, rel=1e-3)
    assert ledger.spent <= 1.0 + 1e-9
    with pytest.raises(BudgetError, match="Nothing has left any task"):
        ledger.charge("a little more", cost(0.01))
    assert len(ledger.history) == 1


def test_a_plan_of_what_remains_fits_exactly():
    """Three times half of what is left, then all of it; then nothing but silence."""
    ledger = Ledger(1.0, DELTA)
    for share in (0.5, 0.5, 0.5, 1.0):
        next_ = plan(share * ledger.remaining)
        ledger.charge(next_.fingerprint, next_.cost)
    assert ledger.spent == pytest.approx(1.0, rel=1e-3)
    mu = tradeoff.mu(1.0, DELTA)
    with pytest.raises(BudgetError):
        ledger.charge("more", cost(0.05 * mu))
    ledger.charge("silence", cost())


def test_the_boundary_is_the_sum_of_squares():
    mu = tradeoff.mu(1.0, DELTA)
    for last, fits in ((0.8 * mu, True), (0.8 * mu * (1 + 1e-8), False)):
        ledger = Ledger(1.0, DELTA)
        ledger.charge("first", cost(0.6 * mu))
        if fits:
            ledger.charge("second", cost(last))
            assert ledger.remaining < 1e-4
        else:
            with pytest.raises(BudgetError):
                ledger.charge("second", cost(last))


def test_coins_are_not_counted_on_but_one_pass_is_one_round():
    mus = (0.1, 0.3, 0.2)
    for sampling, mu in ((Poisson(0.1, hidden=True), math.hypot(*mus)), (OnePass(), 0.3), (InOrder(), 0.3)):
        charge = Ledger(3.0, DELTA).charge("plan", cost(*mus, sampling=sampling))
        assert charge.mu == pytest.approx(mu, rel=1e-15)
        assert sampling.describe() == charge.details["sampling"]


@pytest.mark.parametrize("epsilon", [1e-9, 0.01, 0.5, 1.0, 3.0, 20.0, 100.0])
def test_pure_noise_is_covered_by_its_mu_and_by_no_smaller_one(epsilon):
    """Trade-off functions: the two lines of epsilon-DP lie above the curve of mu-GDP and touch it once."""
    mu = tradeoff.mu_of_pure(epsilon)
    corner = 1 / (1 + math.exp(epsilon))
    alpha = np.concatenate([np.linspace(0, 1, 2001), np.geomspace(1e-45, 0.5, 500), [corner]])
    lines = np.maximum(1 - np.exp(epsilon) * alpha, np.exp(-epsilon) * (1 - alpha))
    curve = norm.cdf(norm.isf(alpha) - mu)
    assert (curve <= lines * (1 + 1e-9) + 1e-15).all()
    assert norm.cdf(norm.isf(corner) - mu) == pytest.approx(corner, rel=1e-9)
    assert norm.cdf(norm.isf(corner) - mu * (1 - 1e-4)) > corner
    for e in np.linspace(0, epsilon, 7):  # and so do the deltas: that of randomised response is the worst
        assert max(0.0, math.exp(epsilon) - math.exp(e)) * corner <= tradeoff.delta(mu, e) + 1e-15


def test_laplace_noise_can_be_charged_and_wishart_noise_cannot():
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(rng.uniform(-1, 1, (100, 3)), rng.uniform(-1, 1, 100), np.arange(100) % TASKS)
    pure = plan(0.5, L2Laplace())
    ledger = Ledger(3.0, DELTA)
    run(pure, tasks, ledger=ledger, random_state=0)
    mus = [tradeoff.mu_of_pure(event.epsilon) for event in pure.cost.events]
    assert ledger.history[0].mu == pytest.approx(math.hypot(*mus), rel=1e-12)
    assert Ledger(3.0, DELTA).charge("p", Cost((PureEvent(0.0),), Everyone(), TASKS)).mu == 0
    with pytest.raises(PlanError, match=r"Gaussian and pure DP only\. Got a GammaEvent"):
        ledger.charge("p", Cost((GammaEvent(30.0, 1.0),), Everyone(), TASKS))


def test_a_run_without_noise_is_refused():
    silent = Plan(MeanRegularized(LeastSquares(3)), NoNoise(), n_tasks=TASKS)
    for unbounded in (silent.cost, Cost((PureEvent(1e4),), Everyone(), TASKS)):
        with pytest.raises(BudgetError, match="epsilon = inf in all"):
            Ledger(3.0, DELTA).charge("p", unbounded)


def test_a_resumed_run_spends_once():
    ledger = Ledger(1.0, DELTA)
    whole = plan(1.0)
    first = ledger.charge(whole.fingerprint, whole.cost, run="7")
    assert ledger.charge(whole.fingerprint, whole.cost, run="7") == first
    assert len(ledger.history) == 1
    for other, price in (("another", whole.cost), (whole.fingerprint, cost(0.01))):
        with pytest.raises(LedgerError, match="Run '7' was recorded for another plan or price, as charge 0"):
            ledger.charge(other, price, run="7")
    with pytest.raises(BudgetError):
        ledger.charge(whole.fingerprint, whole.cost)


def test_owners_of_several_tasks():
    ledger = Ledger(1.0, DELTA, n_tasks=TASKS)
    ledger.charge("plan", cost(0.1, 0.1))
    for group in (1, 2, 5):
        due = accounting.group_epsilon(cost(0.1, 0.1), DELTA, group)
        assert ledger.spent_by(group) == pytest.approx(due, rel=1e-12)
        assert ledger.budget_of(group) > ledger.spent_by(group)
    assert ledger.spent_by(1) == ledger.spent
    assert ledger.budget_of(1) == pytest.approx(1.0, rel=1e-9)
    for group in (0, TASKS + 1, 1.5, True):
        with pytest.raises(InputError, match="at least 1 and at most 50"):
            ledger.spent_by(group)


def test_charges_must_be_of_these_tasks_and_this_relation():
    ledger = Ledger(1.0, DELTA, Relation.ZERO_OUT, n_tasks=TASKS)
    ledger.charge("plan", plan(0.3).cost_under(ledger.relation))
    with pytest.raises(PlanError, match=r"kept under 'zero_out'\. Got a price under 'replace'"):
        ledger.charge("plan", plan(0.3).cost)
    with pytest.raises(PlanError, match=r"of 50 tasks\. Got a plan for 51"):
        ledger.charge("plan", cost(0.1, n_tasks=51, relation="zero_out"))
    with pytest.raises(PlanError, match="delta must be at most 1/5000"):
        Ledger(1.0, DELTA).charge("plan", cost(0.1, n_tasks=5000))
    assert len(ledger.history) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "finite epsilon > 0"),
        ({"epsilon": math.inf}, "finite epsilon > 0"),
        ({"epsilon": math.nan}, "finite epsilon > 0"),
        ({"delta": 0.0}, r"delta in \(0, 1\)"),
        ({"delta": 1.0}, r"delta in \(0, 1\)"),
        ({"n_tasks": 0}, "n_tasks must be a whole number"),
        ({"n_tasks": 5000}, "delta must be at most 1/5000"),
        ({"relation": "removed"}, "'replace' or 'zero_out'"),
    ],
)
def test_nonsense_budgets_are_refused(changes, message):
    with pytest.raises((BudgetError, InputError, PlanError), match=message):
        Ledger(**{"epsilon": 1.0, "delta": DELTA, **changes})


def test_names_can_be_printed():
    for name in ("", "x" * 201, "a\x1b[31m", "two\nlines", 3):
        with pytest.raises(InputError, match="printable characters"):
            Ledger(1.0, DELTA).charge(name, cost(0.1))
        if name:
            with pytest.raises(InputError, match="printable characters"):
                Ledger(1.0, DELTA).charge("plan", cost(0.1), run=name)


def test_threads_share_an_account_and_copies_are_the_same_account():
    ledger = Ledger(1.0, DELTA)
    each = tradeoff.mu(1.0, DELTA) / math.sqrt(10)
    refused = []

    def spend():
        for _ in range(5):
            try:
                ledger.charge("plan", cost(each))
            except BudgetError:
                refused.append(1)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ledger.history), len(refused)) == (10, 30)
    assert copy.deepcopy(ledger) is ledger
    assert copy.copy(ledger) is ledger
    with pytest.raises(LedgerError, match="in memory cannot be shared"):
        pickle.dumps(ledger)
