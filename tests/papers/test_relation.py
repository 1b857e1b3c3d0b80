"""A fixed relation between tasks: clusters are a special case, and the longest column sets the price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cloister import Plan, Tasks
from cloister.algorithms import MeanRegularized
from cloister.engines import run_partition
from cloister.learners import LeastSquares
from cloister.mechanisms import NoNoise
from papers.pmtl.relation import CLIP, DELTA, ROUNDS, FixedRelation, relations

CLUSTERS = np.repeat(np.arange(3), 4)
BLOCKS = FixedRelation.of((CLUSTERS[:, None] == CLUSTERS) / 4)


def test_clusters_are_a_special_case():
    """Without noise every centre is the mean of its cluster, as that of runs within the clusters is."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 9, 2)), rng.normal(size=(12, 9))
    tasks = Tasks.from_list(list(X), list(y))
    plan = Plan(
        MeanRegularized(LeastSquares(2), lam=0.0, clip=9.0, rounds=1, steps=400, lr=0.2),
        NoNoise(),
        n_tasks=12,
    )
    done = run_partition(plan, tasks, dict(zip(tasks.ids, CLUSTERS, strict=True)))
    means = [done.runs[cluster].board["mean"] for cluster in CLUSTERS]
    own = np.array([np.linalg.lstsq(a, b)[0] for a, b in zip(X, y, strict=True)])
    np.testing.assert_allclose(BLOCKS.centres(own, 9.0, 0.0, rng), means, rtol=1e-6)


def test_a_clusters_price_is_that_of_a_run_within_it():
    """Noise on the mean of four tasks is what Gaussian DP asks of four tasks, under replacement."""
    noise = BLOCKS.deviation(1.0, DELTA, ROUNDS, CLIP)
    plan = Plan(
        MeanRegularized(LeastSquares(2), clip=CLIP, rounds=ROUNDS), n_tasks=60, delta=DELTA
    ).calibrate(1.0)
    expected = plan.noise(0, plan.rounds[0].channels[0]) * CLIP / 4  # on the mean of four
    on_centres = noise * np.linalg.norm(BLOCKS.read, axis=1)
    assert on_centres == pytest.approx(expected, rel=1e-6)
    assert BLOCKS.epsilon(noise, DELTA, ROUNDS, CLIP) == pytest.approx(1.0, rel=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_one_task_moves_the_broadcast_by_no_more_than_is_priced_and_opposite_models_do(seed, m):
    rng = np.random.default_rng(seed)
    relation = FixedRelation.of(rng.normal(size=(m, m)))
    models = CLIP * rng.normal(size=(m, 3)) * rng.uniform(0, 3)
    k = int(np.linalg.norm(relation.send, axis=0).argmax())
    loud = np.array([CLIP, 0.0, 0.0])

    def broadcast(own):
        changed = models.copy()
        changed[k] = own
        lengths = np.linalg.norm(changed, axis=1, keepdims=True)
        return relation.send @ (changed / np.maximum(1.0, lengths / CLIP))

    bound = 2 * CLIP * relation.loudest
    for own, other in ((5 * rng.normal(size=3), 5 * rng.normal(size=3)), (loud, -loud)):
        moved = np.linalg.norm(broadcast(own) - broadcast(other))
        assert moved <= bound * (1 + 1e-9)
    assert moved == pytest.approx(bound)  # the last pair attains it


def test_the_broadcast_has_the_noise_of_its_price():
    relation = relations()["ring"]
    noise = relation.deviation(1.0, DELTA, ROUNDS, CLIP)
    drawn = relation.centres(np.zeros((60, 200)), CLIP, noise, np.random.default_rng(3))
    seen = (np.linalg.pinv(relation.read) @ drawn).ravel()
    for factor, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        found = stats.kstest(seen, stats.norm(scale=factor * noise).cdf).pvalue
        assert (found > 1e-3) if fits else (found < 1e-6)


def test_the_mean_is_the_cheapest_relation():
    loud = {name: one.loudest * np.abs(one.read).max() for name, one in relations().items()}
    assert loud["mean"] == pytest.approx(1 / 60)
    assert loud["arcs"] == pytest.approx(1 / 10)
    assert loud["mean"] < loud["arcs"] < loud["ring"] <= 7 / 60 * math.sqrt(2)
