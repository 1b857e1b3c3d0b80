"""Scores of a run: marked as private at home; bounded, noisy, priced and charged where they leave."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from cloister import Ledger, Plan, Tasks, run
from cloister.algorithms import Algorithm, FedAvg, MeanRegularized, Personalized
from cloister.channel import Relation
from cloister.errors import BudgetError, InputError, PlanError
from cloister.evaluation import SCORES, PrivateScore, accuracy, evaluate, release_sum, scores_of
from cloister.learners import Descent, LeastSquares, Logistic, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.metrics import Spread, nmse
from cloister.privacy import tradeoff
from cloister.privacy.randomness import SeededRandomness

M = 20


@pytest.fixture(scope="module")
def halves():
    rng = np.random.default_rng(0)
    X, names = rng.normal(size=(400, 3)), np.repeat([f"t{i:02d}" for i in range(M)], 20)
    return Tasks.from_arrays(X, (X[:, 0] + X[:, 1] > 0).astype(int), names).split(0.5)


@pytest.fixture(scope="module")
def done(halves):
    algorithm = MeanRegularized(Logistic(3), lr=1.0, rounds=3)
    return run(Plan(algorithm, n_tasks=M).calibrate(2.0), halves[0])


# What stays at home -----------------------------------------------------------------------------------------


def test_what_stays_at_home_is_each_tasks_own_score_and_says_that_it_is_not_private(done, halves):
    test = halves[1]
    shown = evaluate(done, test)
    assert isinstance(shown, Spread)
    assert str(shown).startswith("private diagnostics: not private")
    by_hand = [
        float(((test.only(name).X @ done.model(name)["coef"] > 0) == test.only(name).y).mean())
        for name in test.ids
    ]
    np.testing.assert_array_equal(scores_of(done, test), by_hand)
    assert shown.mean == pytest.approx(np.mean(by_hand))
    assert shown.worst_decile == pytest.approx(np.mean(sorted(by_hand)[:2]))


def test_networks_and_other_scores(halves):
    train, test = halves
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learner = Module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    algorithm = Personalized(learner, Descent(lr=0.5), rounds=3)
    finished = run(Plan(algorithm, NoNoise(), n_tasks=M), train)
    one = test.only("t03")
    outputs = learner.predict(finished.model("t03")["coef"][None], one.X[None])[0]
    assert scores_of(finished, test)[3] == (outputs.argmax(1) == one.y).mean()
    error = scores_of(finished, test, lambda y, outputs: -float(np.square(outputs[:, 1] - y).mean()))
    assert error[3] == pytest.approx(-np.square(outputs[:, 1] - one.y).mean())
    line = run(Plan(MeanRegularized(LeastSquares(3)), NoNoise(), n_tasks=M), train)
    assert evaluate(line, test, nmse).n_tasks == M


def test_a_task_without_test_rows_has_no_score_at_home_and_says_0_where_it_leaves(done, halves):
    some = halves[1].select(np.arange(5))
    scores = scores_of(done, some)
    assert np.isnan(scores[5:]).all()
    assert evaluate(done, some).n_tasks == 5
    told = evaluate(done, some, lambda y, outputs: 1.0, epsilon=1000.0)
    assert told.value == pytest.approx(5 / M, abs=6 * told.noise)
    assert 6 * told.noise < 1 / M


def test_accuracy_knows_classes_and_probabilities_and_refuses_the_rest():
    assert accuracy(np.array([1, 2, 0]), np.array([[0.0, 1, 0], [0, 0, 1], [np.nan, 0, 0]])) == 2 / 3
    assert accuracy(np.array([1.0, 0.0]), np.array([0.6, 0.6])) == 0.5
    with pytest.raises(InputError, match="Pass another score"):
        accuracy(np.array([1, 0]), np.array([[0.6], [0.6]]))


def trained(loss, outputs, y):
    """Return a run of a network of so many outputs, its test tasks, and what each task's network puts out."""
    rng = np.random.default_rng(1)
    X, names = rng.normal(size=(len(y), 3)), np.repeat(np.arange(len(y) // 10), 10)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learner = Module(nn.Sequential(nn.Linear(3, int(np.prod(outputs))), nn.Unflatten(1, outputs)), loss)
    tasks = Tasks.from_arrays(X, y, names)
    algorithm = Personalized(learner, Descent(lr=0.5), rounds=2)
    finished = run(Plan(algorithm, NoNoise(), n_tasks=len(tasks)), tasks)
    with torch.no_grad():
        put_out = [finished.network(t)(torch.tensor(tasks.only(t).X).float()).numpy() for t in tasks.ids]
    return finished, tasks, zip([tasks.only(t).y for t in tasks.ids], put_out, strict=True)


def test_what_counts_as_found_is_what_the_loss_says():
    rng = np.random.default_rng(0)
    padded = rng.integers(0, 4, (40, 5))
    padded[:, 3:], padded[10:20] = -100, -100
    cases = [
        (nn.BCEWithLogitsLoss(), (1,), rng.integers(0, 2, 40), lambda y, out: ((out[:, 0] > 0) == y).mean()),
        (nn.BCEWithLogitsLoss(), (3,), rng.integers(0, 2, (40, 3)), lambda y, out: ((out > 0) == y).mean()),
        (nn.CrossEntropyLoss(), (4, 5), padded, lambda y, out: (out.argmax(1) == y)[:, :3].mean()),
        (
            nn.CrossEntropyLoss(),
            (3,),
            rng.dirichlet(np.ones(3), 40),
            lambda y, out: (out.argmax(1) == y.argmax(1)).mean(),
        ),
    ]
    for loss, outputs, y, by_hand in cases:
        finished, tasks, each = trained(loss, outputs, y)
        wanted = np.array([np.nan if (own == -100).all() else by_hand(own, out) for own, out in each])
        np.testing.assert_allclose(scores_of(finished, tasks), wanted)
        assert 0 < np.nanmin(wanted) < 1


def test_numbers_need_a_score_of_their_own():
    finished, tasks, _ = trained(nn.MSELoss(), (3,), np.random.default_rng(0).normal(size=(40, 3)))
    with pytest.raises(InputError, match="Pass a score"):
        evaluate(finished, tasks)
    assert evaluate(finished, tasks, lambda y, outputs: -float(np.square(outputs - y).mean())).n_tasks == 4


class Unpredicting(MeanRegularized):
    predict = Algorithm.predict


def test_what_cannot_be_scored_is_refused(done, halves):
    train, test = halves
    with pytest.raises(InputError, match="'stranger' of the test data was not in the run"):
        evaluate(done, Tasks.from_arrays(test.X[:1], test.y[:1], ["stranger"]))
    with pytest.raises(InputError, match="Pass an epsilon"):
        evaluate(done, test, ledger=Ledger(1.0, 1e-3))
    with pytest.raises(InputError, match="Unpredicting does not say how its models predict"):
        evaluate(run(replace(done.plan, algorithm=Unpredicting(Logistic(3), rounds=3)), train), test)
    public_only = run(done.plan, train, finish=False)
    with pytest.raises(InputError, match="This run holds no models"):
        evaluate(public_only, test)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PlanError, match="epsilon must be > 0 and finite"):
            evaluate(done, test, epsilon=epsilon)
    with pytest.raises(PlanError, match="delta must be at most 1/20"):
        evaluate(done, test, epsilon=1.0, delta=0.5)


# What leaves ------------------------------------------------------------------------------------------------


def whole_sum(scores):
    """Return the exact sum that noise is added to, in steps: a release, less the same noise on nothing."""
    noisy, noise = (
        release_sum(np.asarray(values, dtype=float), 1.0, SeededRandomness(0))
        for values in (scores, np.zeros(len(scores)))
    )
    steps = (noisy - noise) / SCORES.steps[0]
    assert steps == round(steps)
    return round(steps)


anything = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(anything, min_size=1, max_size=6), anything)
def test_one_score_moves_the_released_sum_by_at_most_one_whatever_it_says(scores, other):
    """In whole steps, without rounding, and so under both relations: silence is a score of 0."""
    one = round(1 / SCORES.steps[0])
    before = whole_sum(scores)
    assert 0 <= before <= one * len(scores)
    assert abs(before - whole_sum([other, *scores[1:]])) <= one
    assert abs(before - whole_sum([np.nan, *scores[1:]])) <= one


def test_the_bound_is_attained_and_holds_within_the_unit():
    one = round(1 / SCORES.steps[0])
    assert whole_sum([1.0, 0.5]) - whole_sum([0.0, 0.5]) == one
    assert whole_sum([1e300, -1e300]) == whole_sum([1.0, 0.0])
    assert whole_sum([math.inf, -math.inf, math.nan]) == 0


def test_the_released_mean_has_the_noise_that_it_is_priced_for(done, halves):
    """Two-sided: 1,200 releases fit the law that is declared, and neither 2/3 nor 3/2 of it.

    A right law is refused with probability 1e-4.
    """
    test = halves[1].select([0])
    told = [evaluate(done, test, epsilon=0.5, random_state=seed) for seed in range(1200)]
    noise = told[0].noise
    centred = np.array([each.value for each in told]) - scores_of(done, test)[0] / M
    assert stats.kstest(centred / noise, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(centred / (wrong * noise), "norm").pvalue < 1e-4
    mu = tradeoff.mu(0.5, told[0].guarantee.delta)
    assert noise * M * mu == pytest.approx(1, rel=1e-3)


def test_the_noise_is_fresh_and_not_that_of_a_run_with_the_same_seed(done, halves):
    test = halves[1]
    assert evaluate(done, test, epsilon=1.0).value != evaluate(done, test, epsilon=1.0).value
    first, again = (evaluate(done, test, epsilon=1.0, random_state=3) for _ in range(2))
    assert first == again
    same_key = release_sum(scores_of(done, test), 1 / (first.noise * M), SeededRandomness(3)) / M
    assert first.value != same_key


@pytest.mark.parametrize("relation", list(Relation))
def test_the_guarantee_is_the_releases_own(done, halves, relation):
    told = evaluate(done, halves[1], epsilon=0.3, delta=1e-4, relation=relation)
    assert isinstance(told, PrivateScore)
    g = told.guarantee
    assert 0.299 < g.epsilon <= 0.3
    assert (g.delta, g.relation, g.n_tasks, g.accountant) == (1e-4, relation, M, "exact Gaussian DP")
    assert g.other_epsilon == pytest.approx(g.epsilon)  # one number in [0, 1]: the relations agree
    assert g.holds
    assert "exact integer noise" in g.noise
    assert "INSECURE" in evaluate(done, halves[1], epsilon=0.3, random_state=0).guarantee.noise
    assert str(g) in str(told)


def test_a_run_that_is_not_private_leaves_no_guarantee_for_its_scores(done, halves):
    """Without noise, or with noise from a seed, other tasks' models know too much of each task."""
    for plan, seed, reason in (
        (replace(done.plan, mechanism=NoNoise()), None, "no noise"),
        (done.plan, 0, "drawn from a seed"),
    ):
        leaky = run(plan, halves[0], random_state=seed)
        guarantee = evaluate(leaky, halves[1], epsilon=1.0).guarantee
        assert not guarantee.holds
        assert reason in str(guarantee)


# The ledger -------------------------------------------------------------------------------------------------


def test_the_ledger_is_charged_once_a_release_and_refuses_before_anything_leaves(done, halves, monkeypatch):
    ledger = Ledger(1.0, 1e-3, n_tasks=M)
    for _ in range(2):
        evaluate(done, halves[1], epsilon=0.5, delta=1e-3, relation="zero_out", ledger=ledger)
    mu = tradeoff.mu(0.5, 1e-3)
    assert [charge.mu for charge in ledger.history] == pytest.approx([mu, mu], rel=1e-3)
    assert not any(charge.doubts for charge in ledger.history)

    def leak(*_):
        raise AssertionError("noise was drawn, so something was about to leave")

    monkeypatch.setattr(Gaussian, "perturb", leak)
    spent = ledger.spent
    with pytest.raises(BudgetError, match="Nothing has left any task"):
        evaluate(done, halves[1], epsilon=0.9, delta=1e-3, ledger=ledger)
    with pytest.raises(PlanError):
        evaluate(done, halves[1], epsilon=0.1, ledger=Ledger(1.0, 1e-3, n_tasks=M + 1))
    assert ledger.spent == spent


def test_the_charge_is_booked_before_the_noise_is_drawn(done, halves, monkeypatch):
    ledger = Ledger(1.0, 1e-3)
    recorded = []
    monkeypatch.setattr(Gaussian, "perturb", lambda *_: recorded.append(len(ledger.history)) or np.zeros(1))
    evaluate(done, halves[1], epsilon=0.5, ledger=ledger, random_state=0)
    assert recorded == [1]
    assert ledger.history[0].doubts  # seeded noise is written down for ever


def test_fedavg_scores_its_public_model_on_every_task(halves):
    torch.manual_seed(0)
    train, test = halves
    algorithm = FedAvg(Module(nn.Linear(3, 2)), Descent(lr=0.5), rounds=2)
    finished = run(Plan(algorithm, NoNoise(), n_tasks=M), train)
    public = np.asarray(finished.board["mean"])[None]
    outputs = algorithm.learner.predict(public, test.X[None])[0]
    assert evaluate(finished, test).mean == pytest.approx((outputs.argmax(1) == test.y).mean())
