"""What tasks are asked about a prior's scale and worth: its price, its noise, and what is believed of it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister import Plan, Tasks
from cloister.algorithms import SharedPrior
from cloister.audit.noise_checks import examine
from cloister.audit.releases import ReleaseSource, in_release_units
from cloister.channel import Absolute, Relation
from cloister.core.channel import GRID
from cloister.learners import Classification, Regression
from cloister.learners.home import Home
from cloister.learners.linear import home_constants
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.question import trust_question, trusted
from cloister.learners.linear.regression import LAMBDAS, _lambdas_of
from cloister.privacy.noise import GaussianLaw
from cloister.privacy.randomness import SeededRandomness

TRUST = Regression(2).questions["trust"]
LEARNERS = [Regression(2), Classification(2), Classification(2, 3)]
WILD = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -1.0, 1e300, -1e300, 5e-324, math.nan, math.inf]))


# --- price ------------------------------------------------------------------------------------------------


@given(arrays(np.float64, (2, 2), elements=WILD))
@settings(max_examples=200, deadline=None)
def test_no_answer_moves_the_trust_by_more_than_its_sensitivity(answers):
    """Exactly: in fractions of the grid, whatever a task says in place of two parts of one."""
    one, two = ([Fraction(abs(int(x)), GRID) for x in row] for row in TRUST.channel.rows(answers))
    assert sum(x * x for x in one) <= 1
    assert sum((x - y) ** 2 for x, y in zip(one, two, strict=True)) <= 2
    assert TRUST.channel.sensitivity(Relation.REPLACE) == math.sqrt(2)
    assert TRUST.channel.sensitivity(Relation.ZERO_OUT) == 1


@pytest.mark.parametrize("learner", [Regression(2), Classification(2)], ids=repr)
def test_a_task_can_move_the_trust_by_its_whole_sensitivity(learner):
    """One that the shared prior explains, in place of one that it does not: the bound is tight."""
    rng = np.random.default_rng(0)
    slope = rng.uniform(-1, 1, 400) / math.sqrt(2)
    X = np.column_stack([np.full(400, 1 / math.sqrt(2)), slope])
    if isinstance(learner, Regression):
        y, mean = [sign * slope + 0.1 * rng.normal(size=400) for sign in (1, -1)], np.array([0.0, 1.0])
    else:
        y, mean = [slope > 0, slope < 0], np.array([0.0, 100.0])
    (block,) = Tasks.from_list([X, X], y).blocks()
    around = Candidate(0.5, mean, 1e-3 * np.eye(learner.size), True)
    question = learner.questions["trust"]
    said = question.answer(Home(learner.prepare(block), block), [around], {})
    one, two = question.channel.rows(said).astype(float) / GRID
    assert math.dist(one, two) > 0.999 * question.channel.sensitivity(Relation.REPLACE)


def test_questions_are_priced_by_what_may_leave():
    """Each has its share of the squared budget, and the noise of a release follows from its sensitivity."""
    plan = Plan(SharedPrior(Regression(2)), n_tasks=200).calibrate(1.0)
    for at, name in ((0, "level"), (-2, "scale"), (-1, "trust")):
        round, question = plan.rounds[at], plan.algorithm.learner.questions[name]
        assert (round.channels, round.share) == ((question.channel,), pytest.approx(0.02))
        noise = question.channel.sensitivity(Relation.REPLACE) / (math.sqrt(0.02) * plan.mechanism.budget)
        assert plan.noise(at % len(plan.rounds), question.channel) == pytest.approx(noise)


# --- noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("louder", "holds"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_answers_have_the_noise_of_the_claim(louder, holds):
    """Two thirds and three halves of it are told apart; a false alarm has probability 1e-3 in all."""
    plan = Plan(SharedPrior(Regression(2)), n_tasks=200).calibrate(1.0)
    curator = ReleaseSource(plan.mechanism, SeededRandomness(2))
    for at in (0, len(plan.rounds) - 2, len(plan.rounds) - 1):
        (channel,) = plan.rounds[at].channels
        noise = plan.noise(at, channel)
        total = channel.total(np.eye(channel.dim)[:2], plan.mechanism.exact)
        drawn = [
            (curator.releases(total, channel, noise, 1500) - in_release_units(channel, total)) * louder
            for _ in range(2)
        ]
        found = examine(GaussianLaw(noise), *drawn)
        assert (min(found["law"], found["scale"]) > 1e-4) == holds


# --- what is believed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_share_of_tasks_is_heard_with_its_error(share):
    """Of 2,000 noisy sums: centred within 5 standard errors of a mean, and as far off as the board says."""
    noise, sums = 20.0, 1000 * np.array([share, 1 - share])
    drawn = sums + noise * np.random.default_rng(0).normal(size=(2000, 2))
    found, error = np.array([TRUST.update(value, noise) for value in drawn]).T
    away = (np.sum(drawn * [1 - share, -share], axis=1) / drawn.sum(axis=1)) / error
    assert abs(away.mean()) < 5 / math.sqrt(2000)
    assert away.std() == pytest.approx(1.0, abs=5 / math.sqrt(4000))
    np.testing.assert_allclose(found, np.clip(drawn[:, 0] / drawn.sum(axis=1), 0, 1))


def test_what_noise_hides_is_not_believed():
    for value in ([1.0, 0.9], [-30.0, 2.0], [0.0, 0.0]):
        assert TRUST.update(np.array(value), 1.0).tolist() == [0.0, math.inf]
    assert np.isfinite(TRUST.update(np.array([1.2, 0.9]), 1.0)).all()


def test_shared_priors_are_weighed_by_what_was_heard_and_how_well():
    shared = [Candidate(w, np.zeros(1), np.eye(1), True) for w in (0.6, 0.2)]

    def weights(share, error):
        return [c.weight for c in trusted(shared, {"trust": np.array([share, error])})]

    assert weights(0.4, 1e-9) == pytest.approx([0.3, 0.1])  # heard without an error: what the tasks say
    assert weights(0.4, 0.1) == pytest.approx([0.4125, 0.1375])  # as near to before as one and a half errors
    assert weights(0.7, 0.1) == pytest.approx([0.6, 0.2])  # which may be what it was
    assert weights(0.4, math.inf) == [0.6, 0.2]
    assert sum(weights(0.0, 1e-9)) == pytest.approx(home_constants.TRUST.least)
    assert sum(weights(1.0, 1e-9)) == pytest.approx(1 - home_constants.TRUST.least)
    assert trusted([], {"trust": np.array([0.5, 0.1])}) == []
    newcomer = [Candidate(1.0, np.zeros(1), np.eye(1), True)]
    assert trusted(newcomer, {"trust": np.array([0.5, 0.1])})[0].weight == 1.0


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_trust_is_asked_in_one_way(learner):
    """Whatever the targets are, its channel takes non-negative parts: sensitivity sqrt(2), not 2."""
    asked = learner.questions["trust"]
    assert asked.channel == trust_question(asked.answer).channel
    assert isinstance(asked.channel.lift, Absolute)


def test_both_last_questions_share_the_evidence_of_the_shared_priors(monkeypatch):
    """What the first of them keeps answers the second without another decomposition, to the same numbers."""
    rng = np.random.default_rng(0)
    learner = Regression(4)
    X = [np.column_stack([np.full(n, 0.5), rng.uniform(-0.5, 0.5, (n, 3))]) for n in (3, 9, 20)]
    (block,) = Tasks.from_list(X, [x.sum(axis=1) + 0.1 * rng.normal(size=len(x)) for x in X]).blocks()
    factor = np.linalg.cholesky(0.05 * (np.eye(4) + 0.5))
    kinds = [Candidate(0.3, np.ones(4), np.eye(4), True), Candidate(0.4, np.zeros(4), factor, True)]
    states = learner.prepare(block)
    home = Home(states, block)
    said = {"scale": -0.1 * np.arange(16.0)}
    fresh = [question.answer(home, kinds, said) for question in learner.last]
    kept = states | learner.weigh(Home(states, block), kinds)
    assert kept.keys() == states.keys()
    monkeypatch.setattr(np.linalg, "eigh", None)
    for question, expected in zip(learner.last, fresh, strict=True):
        np.testing.assert_allclose(question.answer(Home(kept, block), kinds, said), expected, rtol=1e-12)


def test_evidence_is_the_same_to_the_bit_whoever_it_is_computed_with():
    """It is computed for a whole block if one task of it lacks it: the others must not be able to tell."""
    rng, dim = np.random.default_rng(0), 4
    tasks = Tasks.from_list([rng.normal(size=(9, dim)) for _ in range(20)], list(rng.normal(size=(20, 9))))
    block, learner = next(tasks.blocks()), Regression(dim)
    states = learner.prepare(block)
    candidates = (Candidate(0.9, rng.normal(size=dim), rng.normal(size=(dim, dim)), True),)
    whole = learner.weigh(Home(states, block), candidates)["evidence"]
    for count in (1, 2, 7, 19):
        at = np.sort(rng.permutation(20)[:count])
        some = {name: array[at] for name, array in states.items()}
        assert np.array_equal(learner.weigh(Home(some, block.take(at)), candidates)["evidence"], whole[at])


@pytest.mark.parametrize(("rows", "times"), [(10_000, 99.95), (10, 10**1.8), (2, 10.0)])
def test_lambdas_follow_how_much_of_its_bounds_a_task_fills(rows, times):
    """Slopes on a tenth of the bounds are ten times as long; few rows, or equal ones, tell little of it."""
    learner, alternating = Regression(2), np.tile([1.0, -1.0], rows // 2)
    X = [np.column_stack([np.ones(rows), width * alternating]) / math.sqrt(2) for width in (0.6, 0.03, 0.0)]
    (block,) = Tasks.from_list(X, [alternating] * 3).blocks([np.arange(3)])
    lambdas = _lambdas_of(learner.prepare(block))
    np.testing.assert_allclose(lambdas, LAMBDAS / np.array([[1.0], [times], [1.0]]), rtol=1e-3)
