"""The law of the noise, in the mechanism and through the engine: scale, shape, independence, freshness.

Random tests have fixed seeds. Their thresholds are put where a right implementation fails with probability
below 1e-5 a test (stated at each), so that a failure after a change means the change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cloister import Plan, Tasks, run
from cloister.channel import Absolute, Channel, MeanAndOuter, MeanAndSquares, Outer, Plain, Relation, Round
from cloister.core.arrays import to_uniforms
from cloister.core.lifts import unsvec
from cloister.errors import PlanError
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise, Wishart
from cloister.plan.algorithm import Algorithm
from cloister.privacy.caveats import SEEDED
from cloister.privacy.randomness import SeededRandomness, SystemRandomness, normals
from cloister.sampling import Everyone, Poisson

M = 5
TASKS = Tasks.from_arrays(np.zeros((M, 1)), np.zeros(M), np.arange(M))


@dataclass(frozen=True)
class Constant(Algorithm):
    """Every task says the same in every round, so that a release less a known sum is the noise."""

    dim: int
    rounds: int
    lift: Any = field(default_factory=Plain)
    clip: float = 0.5

    def schedule(self, n_tasks, budget):
        shares = np.arange(1, self.rounds + 1) / sum(range(1, self.rounds + 1))  # unequal on purpose
        return tuple(Round(float(share), (self.channel(None),)) for share in shares)

    def start(self):
        return {}

    def channel(self, board):
        return Channel(self.dim, self.clip, self.lift)

    def message(self, count):
        return np.full((count, self.dim), 2 * self.clip / math.sqrt(self.dim))  # of norm 2 clip

    def init(self, block, board):
        return {}

    def send(self, states, block, board):
        return self.message(len(block)), states

    def update(self, release, board):
        return {}

    def finish(self, states, block, board):
        return {"coef": np.zeros(len(block))}


def noise_of(plan, seed=0):
    """Run a plan of constant messages; return each round's noise over the level it was priced at."""
    done = run(plan, TASKS, random_state=seed)
    algorithm, channel = plan.algorithm, plan.algorithm.channel(None)
    known = channel.total(algorithm.message(M), plan.mechanism.exact)
    known = known * channel.steps if plan.mechanism.exact else known
    return np.array([(r.value - known) / r.noise for r in done.board.releases]), done


both_kinds = pytest.mark.parametrize("exact", [True, False], ids=["exact", "float"])


@both_kinds
def test_the_law_of_the_noise_through_the_engine(exact):
    """KS accepts the priced scale (false alarm 1e-5), rejects 2/3 and 3/2 of it; variance to 2 % (6 sd)."""
    z, done = noise_of(Plan(Constant(1000, 200), Gaussian(0.8, exact), n_tasks=M))
    assert z.size == 200_000
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-5
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(z.ravel() / wrong, "norm").pvalue < 1e-12
    assert z.var() == pytest.approx(1.0, rel=0.02)
    # Coordinates, rounds, and coordinates with rounds are uncorrelated: 5 sd each.
    assert abs(np.mean(z[:, :-1] * z[:, 1:])) < 5 / math.sqrt(z.size)
    assert abs(np.mean(z[:-1] * z[1:])) < 5 / math.sqrt(z.size)
    assert abs(np.mean(z[:-1, :-1] * z[1:, 1:])) < 5 / math.sqrt(z.size)
    # No two noises are the same (on a grid of 2^18 steps few are): fresh in every round and coordinate.
    assert len(np.unique(z)) > (0.9 if exact else 1 - 1e-9) * z.size
    assert SEEDED in done.guarantee.doubts


@both_kinds
def test_noise_on_a_matrix_is_goe(exact):
    """Variance s^2 on the diagonal, s^2 / 2 off it: chi-square bands of 5 sd."""
    z, _ = noise_of(Plan(Constant(20, 400, Outer()), Gaussian(2.0, exact), n_tasks=M), seed=1)
    matrices = unsvec(z, 20)
    np.testing.assert_array_equal(matrices, matrices.swapaxes(1, 2))
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    off = matrices[:, *np.triu_indices(20, 1)]
    assert diagonal.var() == pytest.approx(1.0, abs=5 * math.sqrt(2 / diagonal.size))
    assert off.var() == pytest.approx(0.5, abs=0.5 * 5 * math.sqrt(2 / off.size))


@both_kinds
def test_system_noise_has_the_right_law_and_is_never_the_same(exact):
    """No seed: KS with false alarm 1e-6 for each run of this test."""
    plan = Plan(Constant(2000, 50), Gaussian(1.0, exact), n_tasks=M)
    one, done = noise_of(plan, seed=None)
    two, _ = noise_of(plan, seed=None)
    assert stats.kstest(one.ravel(), "norm").pvalue > 1e-6
    assert stats.kstest(one.ravel() / 1.5, "norm").pvalue < 1e-12
    assert not (one == two).mean() > 1e-4
    assert done.guarantee.holds
    assert done.guarantee.proven_to_the_last_bit == exact


def test_seeded_runs_agree_and_other_seeds_do_not():
    plan = Plan(Constant(50, 4), Gaussian(1.0), n_tasks=M)
    (one, _), (two, _), (other, _) = noise_of(plan, 3), noise_of(plan, 3), noise_of(plan, 4)
    np.testing.assert_array_equal(one, two)
    assert not (one == other).any()


def test_streams_do_not_overlap():
    """Coins, noise, rounds and seeds are separate streams; a source repeats itself only if asked to."""
    source = SeededRandomness(5)
    keys = [("noise", 0), ("noise", 1), ("coins", 0), ("coins", 1)]
    sources = [source, SeededRandomness(6), SystemRandomness(), SystemRandomness()]
    draws = [one.stream(*key).words(500) for one in sources for key in keys]
    again = source.stream("noise", 1)
    np.testing.assert_array_equal(again.words(500), draws[1])
    draws.append(again.words(500))  # a stream goes on
    assert len(np.unique(np.concatenate(draws))) == 17 * 500


@pytest.mark.parametrize("lift", [Plain(), MeanAndOuter(0.3)], ids=repr)
def test_two_sums_of_one_round_get_independent_noise(lift):
    """One unit apart, under one key: what differs is fresh noise. KS at 1e-5, correlation 5 sd."""
    channel, mechanism, key = Channel(200, lift=lift), Gaussian(1.0), SystemRandomness(bytes(32))
    noise = mechanism.noise(channel, Relation.REPLACE, 1.0)
    total = np.arange(channel.size)
    one, again, other = (mechanism.perturb(t, channel, noise, key, 3) for t in (total, total, total + 1))
    np.testing.assert_array_equal(one, again)
    z = [(released - channel.steps * t) / noise for released, t in ((one, total), (other, total + 1))]
    assert stats.kstest((z[0] - z[1]) / math.sqrt(2), "norm").pvalue > 1e-5
    assert abs(np.mean(z[0] * z[1])) < 5 / math.sqrt(channel.size)


def test_one_sum_at_two_levels_gets_independent_noise():
    """Else a round that is made again on another channel would say its sum: 5 sd."""
    channel, key, zero = Channel(3), SystemRandomness(bytes(32)), np.zeros(3, dtype=np.int64)
    z = [[Gaussian(1.0).perturb(zero, channel, s, key, t) / s for t in range(400)] for s in (1.5, 1.6)]
    assert abs(np.mean(np.multiply(*z))) < 5 / math.sqrt(1200)


@pytest.mark.parametrize("mechanism", [L2Laplace(1.0), Wishart()], ids=["laplace", "wishart"])
def test_floating_point_noise_of_two_sums_is_not_the_same(mechanism):
    channel, key = Channel(3, lift=Outer()), SystemRandomness(bytes(32))
    total = channel.total(np.eye(3))
    one, again, other = (mechanism.perturb(t, channel, 1.0, key, 3) for t in (total, total, total + 2.0**-20))
    np.testing.assert_array_equal(one, again)
    assert (np.abs(one - other) > 1e-3).all()


def test_a_stream_bound_twice_gives_two():
    """As when two nodes of a tree with the same sum are measured in one round."""
    key = SystemRandomness(bytes(32))
    stream = key.stream("noise", 1)
    drawn = [stream.bound_to(*told).words(500) for told in ([[0, 0]], [[0, 0]], [[0], [0]], [[0.0, 0.0]])]
    fresh = [
        SystemRandomness(bytes(32)).stream("noise", 1).bound_to(*told).words(500)
        for told in ([[0], [0]], [0])
    ]
    assert len(np.unique(np.concatenate([*drawn, *fresh, stream.words(500)]))) == 7 * 500


def test_sums_that_differ_by_one_get_other_noise_whatever_their_size():
    """Also where numbers of 32 bits end, and where floats no longer tell whole numbers apart."""
    stream = SystemRandomness(bytes(32)).stream("noise")
    sums = [near + k for near in (0, 2**31, 2**32, 2**62, -(2**31), -(2**62)) for k in (-1, 0, 1)]
    sums += [-(2**63), 2**63 - 1]
    drawn = [replace(stream).bound_to(np.array([7, total])).words(4) for total in sums]
    assert len(np.unique(np.concatenate(drawn))) == 4 * len(sums)
    short, wide = (np.array([7, 8], dtype=kind) for kind in (np.int32, np.int64))
    assert (replace(stream).bound_to(short).words(4) == replace(stream).bound_to(wide).words(4)).all()
    for total in ([2**64, 1], np.array([2**63], dtype=np.uint64), ["7"]):
        with pytest.raises(TypeError, match="int64 or float64"):
            stream.bound_to(total)


@pytest.mark.parametrize("seed", [0, None])
def test_coins_are_tossed_anew_in_every_round(seed):
    """A seeded source that gave every round the same coins would sample the same tasks for ever."""
    tasks = Tasks.from_arrays(np.zeros((400, 1)), np.zeros(400), np.arange(400))
    plan = Plan(Constant(1, 30), Gaussian(1.0), Poisson(0.3), n_tasks=400)
    coins = np.asarray(run(plan, tasks, random_state=seed).private.coins)
    assert abs(coins.mean() - 0.3) < 5 * math.sqrt(0.21 / coins.size)
    centred = coins - 0.3
    assert abs(np.mean(centred[:-1] * centred[1:])) < 5 * 0.21 / math.sqrt(centred[1:].size)


def test_silent_adds_nothing():
    plan = Plan(Constant(7, 3, Absolute()), NoNoise(), n_tasks=M)
    done = run(plan, TASKS)
    known = plan.algorithm.channel(None).total(plan.algorithm.message(M))
    for release in done.board.releases:
        np.testing.assert_array_equal(release.value, known)
        assert release.noise == 0
    assert plan.guarantee.epsilon == math.inf
    with pytest.raises(PlanError, match="cannot be calibrated"):
        plan.calibrate(1.0)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    "lift",
    [Plain(), Absolute(), Outer(), MeanAndOuter(0.15), MeanAndOuter(0.8), MeanAndSquares(2 / 3, 3)],
    ids=repr,
)
def test_noise_is_exactly_what_is_priced(lift, relation):
    """Each round is mu_t = Delta / sigma_t with mu_t^2 = share * mu^2; all rounds together are mu."""
    plan = Plan(Constant(3, 6, lift), Gaussian(0.7), Everyone(), n_tasks=M, relation=relation)
    done = run(plan, TASKS, random_state=0)
    sensitivity = lift.sensitivity(relation)
    spent = [sensitivity / release.noise for release in done.board.releases]
    np.testing.assert_allclose(spent, [0.7 * math.sqrt(r.share) for r in plan.rounds], rtol=1e-14)
    np.testing.assert_allclose(spent, [event.mu for event in plan.cost.events], rtol=1e-14)
    assert math.hypot(*spent) == pytest.approx(0.7, rel=1e-14)


@pytest.mark.parametrize(
    ("planned", "replaced", "silent"), [("replace", 1.0, 0.5**0.5), ("zero_out", 2.0, 1.0)]
)
def test_a_round_is_priced_by_the_worst_channel_it_may_use(planned, replaced, silent):
    """Sensitivities 2 and sqrt(2) under replace, 1 against silence: ratios to what the noise is set for."""
    both = Round(0.25, (Channel(3), Channel(3, lift=Outer())))
    for relation, ratio in ((Relation.REPLACE, replaced), (Relation.ZERO_OUT, silent)):
        event = Gaussian(0.6).event(both, Relation(planned), relation)
        assert event.mu == pytest.approx(0.3 * ratio, rel=1e-14)
        assert event.silence == pytest.approx(0.3 * silent, rel=1e-14)
        assert NoNoise().event(both, Relation(planned), relation).mu == math.inf


def test_uniforms_never_reach_the_ends():
    """At 0 or 1 the noise would be infinite; the ends of the integers must map inside, symmetrically."""
    ends = to_uniforms(np.array([0, 2**64 - 1, 2**63, 2**63 - 1], dtype=np.uint64))
    assert 0 < ends[0] < ends[1] < 1
    assert ends[0] == 1 - ends[1]
    assert ends[2] == 1 - ends[3]
    assert np.isfinite(normals(ends)).all()


@pytest.mark.parametrize("mu", [0.0, -1.0, math.inf, math.nan])
def test_levels_that_are_no_levels_are_refused(mu):
    with pytest.raises(PlanError, match=r"mu must be > 0 and finite"):
        Gaussian(mu)
    with pytest.raises(PlanError, match=r"Call plan\.calibrate"):
        _ = Gaussian().budget
