"""Accounted choices: the vote's noise and sensitivity, exact totals, and reference prices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from cloister import Ledger, Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import FedAvg, Independent, MeanRegularized, SharedPrior
from cloister.channel import Relation
from cloister.errors import AlgorithmError, BudgetError, InputError, PlanError
from cloister.estimators import (
    LowRankRegressor,
    MeanRegularizedRegressor,
    PooledRegressor,
    SingleTaskRegressor,
)
from cloister.learners import Classification, Descent, LeastSquares, Logistic, Module, Regression
from cloister.mechanisms import Gaussian
from cloister.privacy import tradeoff
from cloister.privacy.randomness import SeededRandomness
from cloister.tune import Ballot, RepeatAndSelect, Vote, fit_best, repeat_and_select, selection_epsilon, vote
from cloister.tune.selection import _number_of_runs

M, D = 120, 3
LOSS = LeastSquares(D)
GRID = (
    MeanRegularized(LOSS, lam=0.2, lr=2.0, clip=2.0, rounds=3, steps=30),
    MeanRegularized(LOSS, lam=0.0, lr=1.0, clip=0.1, rounds=3),
    Independent(Regression(D, intercept=False)),
)


NETWORK = FedAvg(Module(nn.Linear(D, 2)), Descent(0.1, steps=1), clip=1.0, rounds=1)


@pytest.fixture(scope="module")
def alike():
    """Few noisy rows each, one truth for all: the first candidate is best by far."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (M, 8, D))
    return Tasks.from_list(list(X), list(X @ [0.9, -0.9, 0.5] + 0.3 * rng.normal(size=(M, 8))))


def slips(losses):
    """Return tasks whose one row is the candidates' losses."""
    losses = np.asarray(losses, dtype=float)
    m = len(losses)
    return Tasks(np.arange(m), losses, np.zeros(m), np.ones(m), np.arange(m + 1))


def message(losses):
    (block,) = slips([losses]).blocks()
    return Ballot(len(losses)).send({}, block, None)[0]


# The vote ---------------------------------------------------------------------------------------------------


anything = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(anything, anything), min_size=2, max_size=6))
def test_a_vote_moves_the_count_by_at_most_its_sensitivity(pairs):
    one, two = np.array(pairs).T
    channel = Ballot(len(pairs)).channel(None)
    first, second = (channel.total(message(losses)) for losses in (one, two))
    assert np.isclose(first, 0).all() or np.isclose(np.sort(first)[-2:], [0, 1]).all()
    assert np.linalg.norm(first) <= channel.sensitivity(Relation.ZERO_OUT) == 1
    assert np.linalg.norm(first - second) <= channel.sensitivity(Relation.REPLACE) == math.sqrt(2)


def test_the_sensitivity_is_attained_and_who_cannot_tell_does_not_vote():
    channel = Ballot(3).channel(None)
    first, second = channel.total(message([0.0, 1, 1])), channel.total(message([1.0, 0, 1]))
    assert np.linalg.norm(first - second) == pytest.approx(math.sqrt(2))
    assert message([np.nan, 2.0, np.inf])[0].tolist() == [False, True, False]
    assert not message([np.nan, np.nan, np.inf]).any()
    assert message([1.0, 1.0, 2.0])[0].tolist() == [True, False, False]


def test_the_count_has_gaussian_noise_of_the_priced_deviation():
    """Noise of deviation 10 votes costs mu = 0.1 or 0.141: epsilon 0.34 and 0.50 at delta 1e-5."""
    mu = 0.1
    for relation, sensitivity, epsilon in (("zero_out", 1.0, 0.34), ("replace", math.sqrt(2), 0.50)):
        plan = Plan(Ballot(4000), Gaussian(mu * sensitivity), n_tasks=50, relation=relation, delta=1e-5)
        assert plan.guarantee.epsilon == pytest.approx(epsilon, abs=0.005)
        losses = np.ones((50, 4000))
        losses[:, 7] = 0.0
        noise = []
        for seed in range(5):
            votes = run(plan, slips(losses), random_state=seed).board["votes"].copy()
            votes[7] -= 50
            noise.append(votes)
        noise = np.concatenate(noise)
        assert stats.kstest(noise / 10, "norm").pvalue > 1e-5
        assert noise.std() == pytest.approx(10, rel=0.02)
    fresh = [run(plan, slips(losses)).board["votes"] for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_a_ballot_is_an_algorithm():
    rng = np.random.default_rng(0)
    check_algorithm(Ballot(4), slips(rng.random((20, 4))))


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_total_is_exact_and_never_overspends(relation, epsilon):
    grid = (*GRID, SharedPrior(Regression(D)))
    election = Vote(grid, LOSS, n_tasks=M, epsilon=epsilon, delta=1e-4, relation=relation)
    assert 0.9995 * epsilon < election.guarantee.epsilon <= epsilon
    squares = [sum(event.mu**2 for event in plan.cost.events) for plan in election.plans]
    total = math.sqrt(math.fsum(squares))
    assert election.guarantee.epsilon == pytest.approx(tradeoff.epsilon(total, 1e-4), rel=1e-6)
    assert squares[2] == 0  # Independent says nothing
    assert squares[-1] == pytest.approx(0.1 * total**2)
    np.testing.assert_allclose(np.array(squares)[[0, 1, 3]], 0.3 * total**2)
    assert len(election.plans) == 5


def test_the_best_candidate_wins_and_is_finished_on_all_rows(alike):
    election = Vote(GRID, LOSS, n_tasks=M, epsilon=3.0)
    choice = vote(election, alike, random_state=0)
    assert (choice.index, choice.candidate) == (0, GRID[0])
    assert choice.scores.shape == (3,)
    assert choice.guarantee.epsilon <= 3.0
    assert not choice.guarantee.holds  # seeded
    again = vote(election, alike, random_state=0)
    np.testing.assert_array_equal(again.scores, choice.scores)
    assert choice.run.plan == election.plans[0]
    assert choice.run.private.models["coef"].shape == (M, D)
    secure = vote(election, alike)
    assert secure.guarantee == election.guarantee
    assert secure.guarantee.holds


def test_the_chosen_run_claims_the_whole_choice_and_not_less(alike, tmp_path):
    election = Vote(GRID, LOSS, n_tasks=M, epsilon=4.0, delta=1e-4)
    selection = RepeatAndSelect(GRID[:2], LOSS, n_tasks=M, epsilon=5.0, runs=2.0)
    voted = vote(election, alike, ledger=Ledger(epsilon=5.0, delta=1e-4))
    for choice in (voted, repeat_and_select(selection, alike)):
        assert choice.run.guarantee == choice.guarantee
        assert choice.run.guarantee.epsilon > 1.2 * choice.run.plan.guarantee.epsilon
        with pytest.raises(InputError, match="chosen among several, and plan and board do not show"):
            choice.run.save(tmp_path / "run")
        assert not (tmp_path / "run").exists()
    assert voted.run.guarantee.all_runs is not None


@pytest.fixture
def boards(monkeypatch):
    """Collect the board of every run that a vote makes."""
    seen = []

    def spy(*args, **kwargs):
        done = run(*args, **kwargs)
        seen.append(done.board)
        return done

    monkeypatch.setattr("cloister.app.vote.run", spy)
    return seen


def test_no_two_runs_of_a_vote_share_their_noise(alike, boards):
    vote(Vote((GRID[0], GRID[0]), LOSS, n_tasks=M, epsilon=1.0), alike, random_state=0)
    one, two, _ = boards
    assert not np.isclose(one.releases[0].value, two.releases[0].value).any()


def test_held_out_rows_are_voted_by_and_never_spoken_of(alike, boards):
    """Change every task's held-out targets: the candidates' boards stay, the votes do not."""
    election = Vote(GRID, LOSS, n_tasks=M, epsilon=3.0)
    choice = vote(election, alike, random_state=0)
    kept = {tuple(row) for row in alike.split(0.3, 0)[0].X}
    held = np.array([tuple(row) not in kept for row in alike.X])
    assert held.mean() == pytest.approx(0.25)
    changed = Tasks(alike.ids, alike.X, np.where(held, -alike.y, alike.y), alike.weight, alike.offsets)
    vote(election, changed, random_state=0)
    for before, after in zip(boards[:3], boards[4:7], strict=True):
        assert before.head == after.head
    assert boards[3].head != boards[7].head
    models = replay(choice.run.plan, choice.run.board, alike)  # in the end all rows serve their own task
    np.testing.assert_array_equal(choice.run.private.models["coef"], models["coef"])


def test_a_task_of_one_row_votes_for_nobody():
    rng = np.random.default_rng(0)
    X = [rng.uniform(-0.5, 0.5, (1 if i else 10, D)) for i in range(6)]
    data = Tasks.from_list(X, [x[:, 0] for x in X])
    election = Vote(GRID[:2], LOSS, n_tasks=6, epsilon=1e4, delta=1e-3)
    assert vote(election, data, random_state=0).scores.sum() == pytest.approx(1.0, abs=0.5)


def test_a_ledger_is_charged_once_for_everything(alike):
    election = Vote(GRID, LOSS, n_tasks=M, epsilon=1.0, delta=1e-4)
    ledger = Ledger(epsilon=1.2, delta=1e-4)
    vote(election, alike, ledger=ledger)
    assert ledger.spent == pytest.approx(election.guarantee.epsilon, rel=1e-9)
    assert len(ledger.history) == 1
    with pytest.raises(BudgetError, match="Nothing has left any task"):
        vote(election, alike, ledger=ledger)


def test_what_cannot_run_is_not_charged(alike):
    ledger = Ledger(epsilon=1.2, delta=1e-4)
    narrow = Tasks(alike.ids, alike.X[:, :2], alike.y, alike.weight, alike.offsets)
    with pytest.raises(InputError, match="Rows must have 3 columns"):
        vote(Vote(GRID, LOSS, n_tasks=M, epsilon=1.0, delta=1e-4), narrow, ledger=ledger)
    assert ledger.history == ()


@pytest.mark.parametrize("by", ["vote", "repetition"])
def test_everybody_gets_their_own_model_in_whatever_order_tasks_come(alike, by):
    """Each task has a slope of its own, which the models of tasks far from it do not show.

    Ridge in own units shrinks by up to .1 where there is an intercept, and which of the two is chosen is
    chance.
    """
    slopes = np.linspace(-1, 1, M)
    own = Tasks(alike.ids, alike.X, alike.X[:, 0] * np.repeat(slopes, 8), alike.weight, alike.offsets)
    grid = (Independent(Regression(D, intercept=False)), Independent(Regression(D)))
    if by == "vote":
        choice = vote(Vote(grid, LOSS, n_tasks=M, epsilon=1.0), own.select(np.arange(M)[::-1]))
    else:
        selection = RepeatAndSelect(grid, LOSS, n_tasks=M, epsilon=8.0)
        choice = repeat_and_select(selection, own.select(np.arange(M)[::-1]))
    for name in (0, 5, M - 1):
        assert choice.run.model(name)["coef"][0] == pytest.approx(slopes[name], abs=0.2)


def test_classes(alike):
    classes = Tasks(alike.ids, alike.X, (alike.y > 0).astype(int), alike.weight, alike.offsets)
    loss = Logistic(D)
    grid = (
        MeanRegularized(loss, lam=0.25, lr=4.0, clip=6.0, rounds=3),
        MeanRegularized(loss, lam=0.0, lr=1e-9, rounds=1),
        Independent(Classification(D, intercept=False)),
    )
    assert vote(Vote(grid, loss, n_tasks=M, epsilon=4.0), classes, random_state=0).index != 1


def test_faces_are_chosen_among_and_come_fitted(alike):
    ids = np.repeat(alike.ids, alike.sizes)
    bounds = dict.fromkeys(range(D), (-0.5, 0.5)) | {"y": (-2, 2)}
    common = {"bounds": bounds, "epsilon": 2.0, "random_state": 0}
    grid = [
        SingleTaskRegressor(bounds=bounds),
        MeanRegularizedRegressor(lam=0.5, **common),
        LowRankRegressor(lam=30.0, rounds=3, guard=True, **common),
    ]
    model, choice = fit_best(grid, alike.X, alike.y, tasks=ids)
    assert type(model) is type(grid[choice.index])
    assert model.guarantee_ == choice.guarantee
    assert model.guarantee_.epsilon <= 2.0
    assert model.predict(alike.X, tasks=ids).shape == alike.y.shape
    assert not hasattr(grid[choice.index], "coef_")
    with pytest.raises(InputError, match="All estimators must have the same epsilon"):
        fit_best([grid[1], LowRankRegressor(bounds=bounds)], alike.X, alike.y, tasks=ids)
    with pytest.raises(InputError, match="Pooling has no plan"):
        fit_best([grid[1], PooledRegressor(bounds=bounds)], alike.X, alike.y, tasks=ids)
    with pytest.raises(InputError, match="One of the estimators must have an epsilon"):
        fit_best(grid[:1], alike.X, alike.y, tasks=ids)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"candidates": GRID[:1]}, "two candidates or more"),
        ({"candidates": (NETWORK, *GRID)}, "judges linear models, not networks"),
        ({"share": 1.0}, "share and holdout must be in"),
        ({"epsilon": math.inf}, "epsilon must be > 0 and finite"),
        ({"delta": 0.5}, "delta must be at most"),
        ({"relation": "add"}, "relation must be 'replace' or 'zero_out'"),
    ],
)
def test_elections_that_make_no_sense_are_refused(wrong, sentence):
    for kind in (Vote, RepeatAndSelect):
        with pytest.raises(PlanError, match=sentence):
            kind(**({"candidates": GRID, "loss": LOSS, "n_tasks": M, "epsilon": 1.0} | wrong))


def test_another_number_of_tasks_is_refused(alike):
    with pytest.raises(InputError, match=r"for 7 tasks\. Got 120"):
        vote(Vote(GRID, LOSS, n_tasks=7, epsilon=1.0), alike)


# Repeat and select ------------------------------------------------------------------------------------------


def test_reference_prices():
    """A run of epsilon 1.99 at delta 1e-5: 4.32 and 4.89 for the best of 10 and 30; seeing ten costs 7.51."""
    mu = 0.5
    assert tradeoff.epsilon(mu, 1e-5) == pytest.approx(1.99, abs=0.01)
    assert selection_epsilon(mu, 10, 1e-5) == pytest.approx(4.32, abs=0.01)
    assert selection_epsilon(mu, 30, 1e-5) == pytest.approx(4.89, abs=0.01)
    assert tradeoff.epsilon(mu * math.sqrt(10), 1e-5) == pytest.approx(7.51, abs=0.01)
    assert 1.99 < selection_epsilon(mu, 10, 1e-5, math.inf) < 7.51


@pytest.mark.parametrize("shape", [1.0, math.inf])
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
def test_selection_never_overspends(shape, relation):
    selection = RepeatAndSelect(
        GRID, LOSS, n_tasks=M, epsilon=2.0, delta=1e-4, relation=relation, shape=shape, share=0.2
    )
    assert 1.99 < selection.guarantee.epsilon <= 2.0
    squares = [sum(event.mu**2 for event in plan.cost.events) for plan in selection.plans]
    assert max(squares) == pytest.approx(0.8 * selection.mu**2)
    assert selection_epsilon(selection.mu, 10, 1e-4, shape) <= 2.0 * (1 + 1e-9)
    assert "nobody learns anything, tasks included" in str(selection.guarantee)


def test_the_other_relation_is_priced_with_a_score_that_does_not_shrink():
    selection = RepeatAndSelect(GRID, LOSS, n_tasks=M, epsilon=2.0, delta=1e-4, share=0.2)
    base = selection.mu * math.sqrt(0.8 / 4 + 0.2)  # messages move half as far from silence, the score as far
    other = selection_epsilon(base, 10, 1e-4)
    assert selection.guarantee.other_epsilon == pytest.approx(other, rel=1e-6)


def test_too_small_a_budget_is_refused():
    with pytest.raises(PlanError, match="too small to select from 1e\\+06 runs"):
        _ = RepeatAndSelect(GRID, LOSS, n_tasks=M, epsilon=1e-3, runs=1e6).mu
    with pytest.raises(PlanError, match="shape must be 1"):
        RepeatAndSelect(GRID, LOSS, n_tasks=M, epsilon=1.0, shape=2.0)
    with pytest.raises(PlanError, match="runs must be >= 1"):
        RepeatAndSelect(GRID, LOSS, n_tasks=M, epsilon=1.0, runs=0.5)


@pytest.mark.parametrize(
    ("shape", "law"),
    [(1.0, stats.geom(1 / 6.0)), (math.inf, stats.poisson(6.0))],
    ids=["geometric", "poisson"],
)
def test_the_number_of_runs_has_the_priced_law(shape, law):
    selection = RepeatAndSelect(GRID, LOSS, n_tasks=M, epsilon=1.0, runs=6.0, shape=shape)
    uniforms = (np.arange(8000) + 0.5) / 8000
    drawn = np.array([_number_of_runs(selection, u) for u in uniforms])
    assert drawn.mean() == pytest.approx(6.0, rel=0.01)
    for k in range(12):
        assert np.mean(drawn == k) == pytest.approx(law.pmf(k), abs=4e-4)
    once = RepeatAndSelect(GRID, LOSS, n_tasks=M, epsilon=1.0, runs=1.0)
    assert {_number_of_runs(once, u) for u in (0.01, 0.99)} == {1}


def test_a_good_candidate_is_selected(alike):
    selection = RepeatAndSelect(GRID[:2], LOSS, n_tasks=M, epsilon=20.0, runs=8.0, share=0.5, worst=0.2)
    found = [repeat_and_select(selection, alike, random_state=seed) for seed in range(6)]
    assert sum(choice.index == 0 for choice in found) >= 5
    assert all(choice.guarantee.epsilon <= 20.0 for choice in found)
    assert found[0].scores.shape == (1,)  # of the shown run alone
    assert repeat_and_select(selection, alike).guarantee.holds


def test_no_run_at_all_is_said_in_a_sentence(alike):
    selection = RepeatAndSelect(GRID[:2], LOSS, n_tasks=M, epsilon=5.0, runs=1.0, shape=math.inf)
    sources = ((seed, SeededRandomness(seed).stream("runs").uniforms(1)[0]) for seed in range(50))
    unlucky = next(seed for seed, uniform in sources if uniform < math.exp(-1))
    with pytest.raises(AlgorithmError, match="came out as 0: by chance, and whatever the data"):
        repeat_and_select(selection, alike, random_state=unlucky)


def test_scores_are_bounded_whatever_the_losses():
    """A task of absurd rows moves the released score by no more than 1/m."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-0.5, 0.5, (40, 8, D)), rng.uniform(-1, 1, (40, 8))
    loud = X.copy()
    loud[3] = 1e150
    selection = RepeatAndSelect(GRID[1:], LOSS, n_tasks=40, epsilon=1e4, delta=1e-3, runs=1.0, share=0.5)
    first, second = (
        float(repeat_and_select(selection, Tasks.from_list(list(rows), list(y)), random_state=0).scores[0])
        for rows in (X, loud)
    )
    assert abs(first - second) <= 1 / 40 + 1e-3
