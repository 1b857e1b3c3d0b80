"""No stream of random words serves twice: noise of each round, coins and local seeds are apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import cloister as cl
from cloister.privacy import chacha_proposals
from cloister.privacy.randomness import Randomness

M = 40
RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, (5 * M, 2))
TASKS = cl.Tasks.from_arrays(X, X.sum(axis=1), np.repeat(np.arange(M), 5))
MECHANISMS = [
    cl.mechanisms.Gaussian(),
    cl.mechanisms.Gaussian(exact=False),
    cl.mechanisms.L2Laplace(),
    cl.mechanisms.Toeplitz(),
    cl.mechanisms.Tree(),
    cl.mechanisms.BLT(),
]


def plan_of(mechanism, sampling=cl.sampling.Everyone(), lam=1.0):  # noqa: B008
    algorithm = cl.algorithms.MeanRegularized(cl.learners.LeastSquares(2), rounds=4, lam=lam)
    return cl.Plan(algorithm, mechanism, sampling, n_tasks=M, delta=1e-3).calibrate(5.0)


@pytest.fixture
def opened(monkeypatch):
    """Count how often each stream (its key, name and round) is begun."""
    counts, begin = Counter(), Randomness.stream

    def stream(self, name, round=0):
        counts[self.key, name, round] += 1
        return begin(self, name, round)

    monkeypatch.setattr(Randomness, "stream", stream)
    return counts


def assert_apart(opened, noisy):
    assert sum(name == "noise" for _, name, _ in opened) >= noisy
    assert {name: n for (_, name, round), n in opened.items() if n > 1} == {}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    "sampling",
    [cl.sampling.Poisson(0.5), cl.sampling.FixedSize(9), cl.sampling.OnePass(), cl.sampling.Epochs(2)],
    ids=repr,
)
def test_in_a_run_under_every_sampling(opened, sampling, seed):
    cl.run(plan_of(cl.mechanisms.Gaussian(), sampling), TASKS, random_state=seed)
    assert_apart(opened, noisy=4)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_in_a_run_with_every_noise(opened, mechanism):
    cl.run(plan_of(mechanism, cl.sampling.Epochs(2)), TASKS)
    assert_apart(opened, noisy=4)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_no_block_of_the_cipher_serves_twice(monkeypatch, mechanism, seed):
    """Nor does one of noise for a coin: no two calls have a key, nonce and counter in common."""
    blocks, make = Counter(), chacha_proposals.key_stream

    def key_stream(key, nonce, block, words):
        blocks.update((key, nonce, block + i) for i in range(-(-words // chacha_proposals.BLOCK_WORDS)))
        return make(key, nonce, block, words)

    monkeypatch.setattr(chacha_proposals, "key_stream", key_stream)
    cl.run(plan_of(mechanism, cl.sampling.Epochs(2)), TASKS, random_state=seed)
    assert len(blocks) > 4
    assert set(blocks.values()) == {1}


@pytest.mark.parametrize("seed", [None, 3])
def test_in_clusters(opened, seed):
    cl.engines.run_partition(
        plan_of(cl.mechanisms.Gaussian()), TASKS, {i: i % 2 for i in range(M)}, random_state=seed
    )
    assert_apart(opened, noisy=8)


def test_in_choices_among_candidates_that_score_alike(opened):
    """The same candidate, run again and again: noise that followed from its score alone would be the same."""
    same = (cl.algorithms.MeanRegularized(cl.learners.LeastSquares(2), rounds=2),) * 3
    frame = {"n_tasks": M, "epsilon": 5.0, "delta": 1e-3}
    many = cl.tune.RepeatAndSelect(same, cl.learners.LeastSquares(2), runs=6.0, **frame)
    cl.tune.repeat_and_select(many, TASKS, random_state=3)
    assert_apart(opened, noisy=6)  # two runs, each of two rounds and a score
    opened.clear()
    cl.tune.vote(cl.tune.Vote(same, cl.learners.LeastSquares(2), **frame), TASKS, random_state=3)
    assert_apart(opened, noisy=7)
