"""Prices, crossed: sampling x mechanism x unequal shares x relation x owners of several tasks x ledger.

Each price is computed a second time from what is really done: the noise that is added in each round, how far
a message can move that round's sum, and who takes part in which rounds. Nothing of the accountants is used.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import cloister as cl
from cloister.channel import Relation
from cloister.privacy import visible_sampling
from cloister.privacy.accounting import group_epsilon
from cloister.privacy.randomness import SeededRandomness

ROUNDS, TASKS = 8, 24
SURE = [cl.sampling.Everyone(), cl.sampling.OnePass(), cl.sampling.Epochs(2), cl.sampling.Epochs(4)]
COINS = [cl.sampling.Poisson(0.3), cl.sampling.FixedSize(7)]
SHARES = {
    "growing": cl.algorithms.PowerBudget(0.7),
    "shrinking": cl.algorithms.GeometricBudget(1.3),
    "even": cl.algorithms.PowerBudget(0.0),
}


def plan_of(mechanism, sampling, shares="growing", relation="replace", rounds=ROUNDS, **more):
    algorithm = cl.algorithms.LowRank(cl.learners.LeastSquares(3), rounds=rounds, allocation=SHARES[shares])
    return cl.Plan(algorithm, mechanism, sampling, n_tasks=TASKS, relation=relation, **more)


def moved(plan, relation):
    """How far one message moves each round's sum, over the deviation of the noise that is added to it."""
    return np.array(
        [
            max(channel.sensitivity(Relation(relation)) / plan.noise(t, channel) for channel in part.channels)
            for t, part in enumerate(plan.rounds)
        ]
    )


def takes_part(plan):
    """Who takes part when, as the engine draws it: (rounds, tasks)."""
    coins = SeededRandomness(0).stream("coins").numbered
    return np.asarray(plan.sampling.draw(coins, plan.n_tasks, len(plan.rounds))).astype(int)


def worst_norm(per_round, matrix, owned):
    """The largest norm over all sets of so many tasks of what they move together, round by round."""
    kinds = np.unique(matrix, axis=1).T  # tasks with the same rounds are alike; each kind has enough members
    sets = combinations(np.repeat(kinds, owned, axis=0), owned)
    return max(float(np.linalg.norm(per_round * np.sum(each, axis=0))) for each in sets)


def delta_of(mu, epsilon):
    """Balle and Wang's curve, where mu may be an array."""
    mu = np.maximum(mu, 1e-12)
    return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def assert_tight(law, epsilon, delta):
    """`law` holds (probability, mu): its delta at epsilon is the one that is claimed, and never above."""
    chances, mus = law

    def at(eps):
        return float(np.sum(chances * delta_of(mus, eps)))

    assert at(epsilon) <= delta * (1 + 1e-6)
    assert at(0.999 * epsilon) > delta


def coin_law(sampling, mus, owned):
    """Every way the coins of an owner's tasks can fall, round by round: its chance and its mu."""
    if isinstance(sampling, cl.sampling.Poisson):
        q = sampling.rate
        chance = [math.comb(owned, k) * q**k * (1 - q) ** (owned - k) for k in range(owned + 1)]
    else:
        drawn, all_ways = sampling.size, math.comb(TASKS, sampling.size)
        chance = [
            math.comb(owned, k) * math.comb(TASKS - owned, drawn - k) / all_ways for k in range(owned + 1)
        ]
    chances, squares = np.ones(1), np.zeros(1)
    for mu in mus:
        chances = np.multiply.outer(chances, chance).ravel()
        squares = np.add.outer(squares, [(k * mu) ** 2 for k in range(owned + 1)]).ravel()
    return chances, np.sqrt(squares)


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("sampling", SURE, ids=repr)
def test_gaussian_noise_without_coins(sampling, shares, relation):
    plan = plan_of(cl.mechanisms.Gaussian(1.3), sampling, shares, relation)
    matrix = takes_part(plan)
    for under, claimed in [
        (relation, plan.guarantee.epsilon),
        (plan.relation.other, plan.guarantee.other_epsilon),
    ]:
        each = moved(plan, under)
        assert_tight((1.0, worst_norm(each, matrix, 1)), claimed, plan.delta)
    for owned in (2, 3):
        found = group_epsilon(plan.cost, plan.delta, owned)
        assert_tight((1.0, worst_norm(moved(plan, relation), matrix, owned)), found, plan.delta)


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("shares", ["growing", "shrinking"])
@pytest.mark.parametrize("sampling", COINS, ids=repr)
def test_gaussian_noise_with_visible_coins(sampling, shares, relation):
    plan = plan_of(cl.mechanisms.Gaussian(1.3), sampling, shares, relation, rounds=5)
    for under, claimed in [
        (relation, plan.guarantee.epsilon),
        (plan.relation.other, plan.guarantee.other_epsilon),
    ]:
        assert_tight(coin_law(sampling, moved(plan, under), 1), claimed, plan.delta)
    for owned in (2, 3):
        found = group_epsilon(plan.cost, plan.delta, owned)
        assert_tight(coin_law(sampling, moved(plan, relation), owned), found, plan.delta)


def toeplitz(rounds):
    """The square root of the matrix of running totals, by its recursion."""
    c = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, rounds))])
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])


def nodes(rounds):
    """Which rounds each measured node of a tree adds up: in every round the largest that it completes."""
    spans = [(t + 1 - ((t + 1) & -(t + 1)), t + 1) for t in range(rounds)]
    return np.array([[float(a <= t < b) for t in range(rounds)] for a, b in spans])


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("sampling", [*SURE, cl.sampling.Poisson(0.3)], ids=repr)
@pytest.mark.parametrize(
    ("mechanism", "measured"), [(cl.mechanisms.Toeplitz(1.3), toeplitz), (cl.mechanisms.Tree(1.3), nodes)]
)
def test_correlated_noise(mechanism, measured, sampling, relation):
    """No gain from coins is claimed: whoever might take part in a round is priced as if it did."""
    plan = plan_of(mechanism, sampling, "even", relation)
    matrix = np.ones((ROUNDS, 1), int) if isinstance(sampling, cl.sampling.Poisson) else takes_part(plan)
    (channel,) = {channel for part in plan.rounds for channel in part.channels}
    first = plan.noise(0, channel)  # the first measurement is of the first round alone
    for under, claimed in [
        (relation, plan.guarantee.epsilon),
        (plan.relation.other, plan.guarantee.other_epsilon),
    ]:
        norms = np.linalg.norm(measured(ROUNDS) @ matrix, axis=0)
        mu = channel.sensitivity(Relation(under)) / first * norms.max()
        got = plan.cost_under(Relation(under)).events[0].mu
        assert got == pytest.approx(mu, rel=1e-3)  # weights are rounded to a few bits
        assert_tight((1.0, got), claimed, plan.delta)
        assert ledger_mu(plan, under) == got


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("sampling", [*SURE, *COINS], ids=repr)
def test_pure_noise(sampling, shares):
    """At delta 0 epsilons add up over the rounds a task may be in; a little delta never costs more."""
    plan = plan_of(cl.mechanisms.L2Laplace(1.3), sampling, shares, delta=0.0)
    (channel,) = {channel for part in plan.rounds for channel in part.channels}
    each = moved(plan, "replace") * math.sqrt(
        channel.size + 1
    )  # epsilon is over the scale, not the deviation
    matrix = np.ones((ROUNDS, 1), int) if sampling in COINS else takes_part(plan)
    due, all_rounds = float((each @ matrix).max()), float(each.sum())
    assert due * (1 - 1e-9) <= plan.guarantee.epsilon <= all_rounds * (1 + 1e-9)
    if not isinstance(sampling, cl.sampling.Epochs):
        assert plan.guarantee.epsilon == pytest.approx(due)
    covering = 2 * ndtri(1 / (1 + np.exp(-each)))  # the Gaussian that is as bad at telling two worlds apart
    assert ledger_mu(plan, "replace") == pytest.approx(
        float(np.linalg.norm(covering[:, None] * matrix, axis=0).max())
    )


def ledger_mu(plan, relation):
    """What a ledger under a relation records; runs add up in squares, for owners of several tasks too."""
    ledger = cl.Ledger(50.0, 1e-3, Relation(relation))
    charge = ledger.charge(plan.fingerprint, plan.cost_under(Relation(relation)))
    ledger.charge("again", plan.cost_under(Relation(relation)))
    for owned in (1, 3):
        assert delta_of(owned * math.sqrt(2) * charge.mu, ledger.spent_by(owned)) == pytest.approx(1e-3)
    return charge.mu


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("planned", ["replace", "zero_out"])
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("sampling", [*SURE, *COINS, cl.sampling.Poisson(0.3, hidden=True)], ids=repr)
def test_a_ledger_books_the_worst_task_and_counts_on_no_coin(sampling, shares, planned, relation):
    plan = plan_of(cl.mechanisms.Gaussian(0.4), sampling, shares, planned)
    matrix = takes_part(plan) if sampling in SURE else np.ones((ROUNDS, 1), int)
    assert ledger_mu(plan, relation) == pytest.approx(worst_norm(moved(plan, relation), matrix, 1))


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("owned", [1, 2])
def test_hidden_coins_never_cost_more_than_visible_ones(owned, relation):
    hidden, seen = (
        plan_of(cl.mechanisms.Gaussian(1.3), cl.sampling.Poisson(0.3, hidden=secret), "growing", relation)
        for secret in (True, False)
    )
    cheap, dear = (group_epsilon(plan.cost, plan.delta, owned) for plan in (hidden, seen))
    assert 0 < cheap < dear
    assert ledger_mu(hidden, relation) == ledger_mu(seen, relation)


# ------------------------------------------------------------------ laws that are rounded, are rounded up


def subset_law(squares, rate):
    """Every subset of rounds, with its chance and the sum of its squares."""
    chances, sums = np.ones(1), np.zeros(1)
    for square in squares:
        chances = np.concatenate([chances * (1 - rate), chances * rate])
        sums = np.concatenate([sums, sums + square])
    return chances, np.sqrt(sums)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_law_of_many_atoms_is_rounded_up_and_by_little(rate):
    """Of 18 different rounds all 2^18 outcomes can be gone through; the accountant puts them on a grid."""
    mus = np.sqrt(np.linspace(0.31, 1.0, 18)) * 0.37 / math.sqrt(rate)
    chances, sums = subset_law(mus**2, rate)
    for epsilon in (0.5, 2.0, 4.0):
        exact = float(chances @ delta_of(sums, epsilon))
        found = visible_sampling.mixture_delta(tuple((float(mu), 1) for mu in mus), (1 - rate, rate), epsilon)
        assert exact <= found <= exact * (1 + 1e-3)


def test_more_different_rounds_than_are_kept_apart_are_rounded_up():
    """Rounds made a hair quieter, so that fewer differ, must not come out more expensive."""
    squares = np.linspace(0.2, 1.0, 1400) * 0.01
    quieter = np.minimum(squares, np.repeat(squares[::2], 2))  # each pair as its quieter one: 700 values
    takers = (0.7, 0.3)

    def delta(values, epsilon):
        values, counts = np.unique(np.sqrt(values), return_counts=True)
        rounds = tuple((float(mu), int(n)) for mu, n in zip(values, counts, strict=True))
        return visible_sampling.mixture_delta(rounds, takers, epsilon)

    for epsilon in (4.0, 8.0):
        least = delta(quieter, epsilon)
        assert least <= delta(squares, epsilon) <= 1.1 * least
