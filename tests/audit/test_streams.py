"""Correlated noise before the auditor: the whole transcript is attacked, and what is missing is found."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import cloister as cl
from cloister.audit import audit
from cloister.audit.game import play
from cloister.audit.noise_checks import check_freshness, check_last_bits, check_noise
from cloister.audit.one_run import one_run
from cloister.privacy.mechanisms import grid_noise
from cloister.privacy.randomness import SeededRandomness, normals

ALGORITHM = cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=12)
KINDS = [
    cl.mechanisms.Toeplitz(0.7),
    cl.mechanisms.Toeplitz(0.7, bands=3),
    cl.mechanisms.Tree(0.7),
    cl.mechanisms.Tree(0.7, honaker=True),
    cl.mechanisms.BLT(0.7),
]
SAMPLINGS = [cl.sampling.OnePass(), cl.sampling.Epochs(4), cl.sampling.Everyone()]


def plan_of(mechanism, sampling=SAMPLINGS[1], **keywords):
    return cl.Plan(ALGORITHM, mechanism, sampling, n_tasks=100, **keywords)


@dataclass(frozen=True)
class Faint(cl.mechanisms.Toeplitz):
    """Two thirds of the noise that it claims."""

    def perturb(self, encoded, steps, noise, stream):
        return super().perturb(encoded, steps, noise * 2 / 3, stream)


@dataclass(frozen=True)
class Public(cl.mechanisms.Toeplitz):
    """The same noise whatever the key, and in every round."""

    def perturb(self, encoded, steps, noise, stream):
        return encoded + grid_noise(noise, steps, SeededRandomness(5).stream("noise"))


@dataclass(frozen=True)
class Undone(cl.mechanisms.Toeplitz):
    """Noise that is fresh in every round and of the right size at first, but not correlated as it claims."""

    def state(self, schedule, measure, source):
        return cl.mechanisms.Toeplitz(self.mu, bands=1).state(schedule, measure, source)


@pytest.mark.parametrize("relation", ["replace", "zero_out"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@pytest.mark.parametrize("mechanism", KINDS, ids=lambda m: m.name)
def test_the_transcript_gives_away_what_is_claimed_and_no_more(mechanism, sampling, relation):
    """Scores are N(-mu^2/2, mu^2) and N(mu^2/2, mu^2): 5 standard errors. The claim is tight.

    But for Honaker's estimate, which leaves some of what is measured unsaid.
    """
    n, mu = 20_000, 0.7
    scores = play(plan_of(mechanism, sampling, relation=relation), SeededRandomness(0), n)
    for world, sign in ((scores.silent, -1), (scores.speaking, 1)):
        most = mu if not getattr(mechanism, "honaker", False) else float(world.std())
        assert most <= mu * (1 + 5 / math.sqrt(2 * n))
        assert world.mean() == pytest.approx(sign * most**2 / 2, abs=6 * mu / math.sqrt(n))
        assert world.std() == pytest.approx(most, rel=5 / math.sqrt(2 * n))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_two_thirds_of_the_noise_are_convicted(sampling):
    """By the game as well as by the law of the noise."""
    mu = plan_of(cl.mechanisms.Toeplitz(), sampling).calibrate(1.0).mechanism.mu
    found = audit(plan_of(Faint(mu), sampling), draws=60_000, random_state=0)
    assert any(m.breach for m in found.measured)
    assert "the noise is not what it is said to be" in found.verdict


def test_noise_that_comes_again_is_convicted():
    found = check_freshness(plan_of(Public(0.7)), SeededRandomness(0))
    assert (found.keys, found.rounds) == (False, False)
    assert check_freshness(plan_of(cl.mechanisms.Toeplitz(0.7)), SeededRandomness(0)).breach is False


def test_noise_with_another_correlation_is_convicted():
    assert check_noise(plan_of(Undone(0.7)), SeededRandomness(0)).p_value < 1e-9


@pytest.mark.parametrize("mechanism", [KINDS[0], KINDS[1], KINDS[2], KINDS[4]], ids=lambda m: m.name)
def test_last_bits_are_those_of_whole_measurements(mechanism):
    """And floats that claim to be exact are found out."""

    class Floating(type(mechanism)):
        def perturb(self, encoded, steps, noise, stream):
            return encoded + noise / steps * normals(stream.uniforms(len(steps)))

    assert not check_last_bits(plan_of(mechanism), SeededRandomness(0)).breach
    assert check_last_bits(plan_of(replace(mechanism, exact=False)), SeededRandomness(0)) is None
    found = check_last_bits(plan_of(Floating(**vars(mechanism))), SeededRandomness(0))
    assert found.between > 0.5 * found.numbers


def test_what_says_nothing_about_correlated_noise_is_left_out_and_told():
    """Honaker's releases do not say what was measured, and canaries have no number of their own."""
    plan = plan_of(cl.mechanisms.Tree(honaker=True)).calibrate(1.0)
    source = SeededRandomness(0)
    assert check_last_bits(plan, source) is None
    assert one_run(plan, source) is None
    told = dict(audit(plan, draws=1000, random_state=0).rows())
    assert "which whole numbers" in told["last bits"]
    assert told["one run"].startswith("not tested")
    assert told["fresh noise"].startswith("in every round, by key")


def test_a_long_run_is_attacked_in_its_first_rounds():
    long = cl.Plan(
        cl.algorithms.MeanRegularized(cl.learners.LeastSquares(1), rounds=600),
        cl.mechanisms.BLT(1.0),
        cl.sampling.OnePass(),
        n_tasks=1000,
    )
    scores = play(long, SeededRandomness(0), 1000)
    assert np.std(scores.silent) <= 1 + 5 / math.sqrt(2000)
    assert np.std(scores.silent) > 0.9  # most of what there is to see
