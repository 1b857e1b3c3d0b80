"""Published mechanisms that are less private than they claim: measured, with the numbers of the proofs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import cloister
from cloister import Plan
from cloister.algorithms import LowRank
from cloister.audit.fixtures import (
    FirstVersionWishart,
    PublishedLaplace,
    PublishedWishart,
    TaskRelationship,
)
from cloister.audit.releases import ReleaseSource
from cloister.channel import Relation
from cloister.core.lifts import unsvec
from cloister.errors import PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.privacy.randomness import SeededRandomness

DRAWS = 40_000


def worlds(dim, seed=0):
    """Return the others' sum of outer products and one task's message, of norm 1."""
    rng = np.random.default_rng(seed)
    others = rng.standard_normal((10, dim))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    message = rng.standard_normal(dim)
    return others.T @ others, message / np.linalg.norm(message)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_published_wishart_noise_makes_impossible_outputs(epsilon):
    """d = 5: P(impossible) is 0 with data and 1 - exp(-eps) in silence, to 5 sd (0.0073 and 0.0121)."""
    mechanism, rng = PublishedWishart(epsilon), np.random.default_rng(1)
    others, message = worlds(5)
    spoken = mechanism.draw(others + np.outer(message, message), rng, DRAWS)
    silent = mechanism.draw(others, rng, DRAWS)
    assert not mechanism.impossible(spoken, others, message).any()
    caught = mechanism.impossible(silent, others, message).mean()
    expected = 1 - math.exp(-epsilon)
    assert caught == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / DRAWS))
    assert mechanism.delta == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("clip", [1.0, 6.0, 100 * math.sqrt(5)])
def test_the_first_versions_noise_goes_with_the_length(clip):
    """Its mean is (d + 1) K / epsilon times I, not K^2 / (2 epsilon); silence is caught as that implies.

    Means of 4000 traces are off by 5 sd once in two million tests; so are shares of 4000 outputs.
    """
    epsilon, dim, draws = 0.1, 5, 4000
    mechanism, rng = FirstVersionWishart(epsilon, clip), np.random.default_rng(7)
    others, message = worlds(dim)
    silent = mechanism.draw(clip**2 * others, rng, draws)
    traces = np.trace(silent, axis1=1, axis2=2) - clip**2 * np.trace(others)
    mean, sd = dim * (dim + 1) * clip / epsilon, math.sqrt(2 * dim * (dim + 1)) * clip / epsilon
    assert traces.mean() == pytest.approx(mean, abs=5 * sd / math.sqrt(draws))
    expected = -math.expm1(-epsilon * clip / 2)
    assert mechanism.delta == pytest.approx(expected, rel=1e-12)
    left = silent - clip**2 * (others + np.outer(message, message))
    caught = (np.linalg.eigvalsh(left)[:, 0] < -1e-9 * clip**2).mean()
    error = 5 * math.sqrt(max(expected * (1 - expected), 1 / draws) / draws)
    assert caught == pytest.approx(expected, abs=error)


def test_the_clip_is_a_unit():
    """Noise and message scale together: what is caught does not depend on K."""
    others, message = worlds(4)
    caught = []
    for clip in (1.0, 3.0):
        mechanism = PublishedWishart(0.5, clip)
        releases = mechanism.draw(clip**2 * others, np.random.default_rng(2), 2000)
        caught.append(mechanism.impossible(releases, clip**2 * others, clip * message))
    np.testing.assert_array_equal(*caught)


@pytest.mark.parametrize("exact", [True, False])
def test_gaussian_noise_makes_no_output_impossible(exact):
    """A plan's own release on svec(uu') at epsilon 1: u'(R - others - uu')u is as often below 0 as mu allows.

    With data it is so half of the time, in silence with probability Phi(mu), to 5 sd of a share (0.0125);
    noise of a twentieth is caught by the same comparison.
    """
    plan = Plan(
        LowRank(LeastSquares(5), rounds=1), Gaussian(exact=exact), n_tasks=11, relation="zero_out"
    ).calibrate(1.0)
    channel, mu, error = plan.rounds[0].channels[0], plan.mechanism.mu, 5 * 0.5 / math.sqrt(DRAWS)
    rng = np.random.default_rng(0)
    messages = rng.standard_normal((11, 5))
    messages *= channel.clip / np.linalg.norm(messages, axis=1, keepdims=True)
    u = messages[0] / channel.clip
    supposed = channel.total(messages)
    caught = {}
    for louder in (1.0, 0.05):
        curator = ReleaseSource(plan.mechanism, SeededRandomness(3))
        for speaking in (True, False):
            total = curator.total(channel, messages if speaking else messages[1:])
            releases = curator.releases(total, channel, louder * plan.noise(0, channel), DRAWS)
            along = np.einsum("i,rij,j->r", u, unsvec(releases - supposed, 5), u)
            caught[louder, speaking] = float((along < 0).mean())
    assert caught[1.0, True] == pytest.approx(0.5, abs=error)
    assert caught[1.0, False] == pytest.approx(ndtr(mu), abs=error)
    for louder, stands in ((1.0, True), (0.05, False)):
        most = ndtr(ndtri(caught[louder, True] + error) + mu) + error
        assert (caught[louder, False] <= most) == stands


def test_no_plan_can_use_them():
    assert not {"FirstVersionWishart", "PublishedWishart", "PublishedLaplace", "TaskRelationship"} & set(
        cloister.__all__
    )
    algorithm = LowRank(LeastSquares(3), rounds=2)
    for fixture in (
        FirstVersionWishart(1.0),
        PublishedWishart(1.0),
        PublishedLaplace(1.0),
        TaskRelationship(),
    ):
        assert not hasattr(fixture, "event")
        with pytest.raises(PlanError, match="mechanism must be of a subclass of Mechanism"):
            Plan(algorithm, fixture, n_tasks=20)
    text = Plan(algorithm, Gaussian(1.0), n_tasks=20).to_toml()
    name = "cloister.audit.fixtures:PublishedWishart/1"
    text = text.replace('type = "cloister/gaussian/1"\nmu = 1.0', f'type = "{name}"\nepsilon = 1.0')
    assert name in text
    with pytest.raises(PlanError, match="not one of cloister's own types"):
        Plan.from_toml(text)
    with pytest.raises(PlanError, match="cannot be built"):  # even if somebody insists
        Plan.from_toml(text, types=[PublishedWishart])


# ------------------------------------------------------------------ W'W


@pytest.mark.parametrize("tasks", [2, 5, 50, 320])
@pytest.mark.parametrize("clip", [1.0, 0.5])
def test_task_relationships_are_as_sensitive_as_there_are_tasks(tasks, clip):
    """Aligned models attain 2 K^2 sqrt(2(m-1)) and K^2 sqrt(2m-1), whatever their length: it is clipped."""
    relation, direction = TaskRelationship(clip), np.array([0.6, -0.8, 0.0])
    aligned = np.tile(7 * direction, (tasks, 1))
    before = relation.statistic(aligned)
    for neighbour, name in ((-7 * direction, Relation.REPLACE), (0 * direction, Relation.ZERO_OUT)):
        changed = aligned.copy()
        changed[0] = neighbour
        moved = np.linalg.norm(relation.statistic(changed) - before)
        assert moved == pytest.approx(relation.sensitivity(tasks, name), rel=1e-12)
    assert relation.sensitivity(tasks, Relation.REPLACE) == 2 * clip**2 * math.sqrt(2 * (tasks - 1))
    assert relation.sensitivity(tasks, Relation.ZERO_OUT) == clip**2 * math.sqrt(2 * tasks - 1)
    assert (
        relation.sensitivity(tasks, Relation.ZERO_OUT) > math.sqrt(2) * clip**2
    )  # more than the claim's K^2


def test_no_neighbour_moves_them_further():
    rng, relation = np.random.default_rng(4), TaskRelationship()
    for _ in range(300):
        models = rng.standard_normal((6, 2)) * rng.uniform(0.2, 3)
        other = models.copy()
        other[0] = rng.standard_normal(2) * rng.uniform(0.2, 3)
        silent = models * (np.arange(6) > 0)[:, None]
        for changed, name in ((other, Relation.REPLACE), (silent, Relation.ZERO_OUT)):
            moved = np.linalg.norm(relation.statistic(changed) - relation.statistic(models))
            assert moved <= relation.sensitivity(6, name) + 1e-12


def test_their_sensitivity_grows_without_bound():
    for name in Relation:
        values = [TaskRelationship().sensitivity(m, name) for m in (2, 8, 32, 128)]
        assert values == sorted(values)
        assert values[-1] / values[-2] == pytest.approx(2.0, rel=0.02)


# ------------------------------------------------------------------ Algorithm 5


@pytest.mark.parametrize(("clip", "epsilon", "real"), [(1.0, 0.1, 40.0), (10.0, 1.0, 400.0), (1.0, 2.0, 2.0)])
def test_the_inverted_density_has_another_epsilon(clip, epsilon, real):
    """Loss 4 K^2 / eps, attained by opposite models of norm K; right only by accident, at eps = 2K."""
    mechanism, model = PublishedLaplace(epsilon, clip), clip * np.array([0.6, 0.8])
    assert mechanism.real_epsilon == pytest.approx(real, rel=1e-12)
    assert mechanism.loss(1.5 * model, model, -model) == pytest.approx(real, rel=1e-12)
    rng = np.random.default_rng(5)
    for _ in range(200):
        one, two, output = rng.standard_normal((3, 2))
        one, two = (clip * w / max(1.0, np.linalg.norm(w)) for w in (one, two))
        assert abs(mechanism.loss(clip * 3 * output, one, two)) <= real * (1 + 1e-12)


def test_less_epsilon_means_less_noise():
    scales = [PublishedLaplace(epsilon).scale for epsilon in (0.01, 0.1, 1.0)]
    assert scales == sorted(scales)
