"""Small real runs: the noise that is posted follows its law, and another key makes other runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloister import Plan
from cloister.algorithms import LowRank, MeanRegularized
from cloister.audit.auditor import SingleRelease
from cloister.audit.real_runs import check_real_runs
from cloister.channel import Channel
from cloister.engines import curator
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, L2Laplace, Toeplitz, Wishart
from cloister.privacy.trust import Trust
from cloister.sampling import Epochs, FixedSize, InOrder, Poisson

MEAN = Plan(MeanRegularized(LeastSquares(3), rounds=4), n_tasks=60)
PLANS = {
    "exact": MEAN,
    "floating": replace(MEAN, mechanism=Gaussian(exact=False)),
    "laplace": replace(MEAN, mechanism=L2Laplace()),
    "wishart": Plan(LowRank(LeastSquares(3), rounds=2), Wishart(), n_tasks=60),
    "banded": replace(MEAN, mechanism=Toeplitz()),
    "sampled": replace(MEAN, sampling=Poisson(0.3)),
    "of all tasks": replace(MEAN, trust=Trust.silo()),
    "in passes": replace(MEAN, sampling=Epochs(2)),
}


@pytest.mark.parametrize("name", PLANS)
def test_noise_that_is_posted_follows_its_law(name):
    """A false alarm has probability 1e-3 for each plan."""
    found = check_real_runs(PLANS[name].calibrate(1.0))
    assert found.noise.p_value > 1e-3
    assert (found.same, found.broken) == ((), "")


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
@pytest.mark.parametrize("name", ["floating", "laplace", "wishart"])
def test_noise_of_another_scale_is_seen_where_it_is_posted(name, factor, monkeypatch):
    def scaled(state, total, channel):
        return total + factor * (state.release(total, channel) - total)

    monkeypatch.setattr(curator, "_perturbed", scaled)
    assert check_real_runs(PLANS[name].calibrate(1.0)).noise.p_value < 1e-3


def test_few_coins_may_fall_alike():
    """Where honest runs agree now and then, or toss no coin, to agree proves nothing."""
    for sampling in (InOrder(), Poisson(0.9999), FixedSize(60)):
        plan = replace(MEAN, sampling=sampling).calibrate(1.0)
        assert check_real_runs(plan).same == ()


def test_what_cannot_be_run_is_not_tested():
    found = check_real_runs(Plan(SingleRelease(Channel(2)), n_tasks=10).calibrate(1.0))
    assert (found.runs, "what rows SingleRelease takes" in found.detail) == (0, True)
