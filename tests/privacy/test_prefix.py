"""Correlated noise: its law, its price, what one task can move, and that a run goes on with it.

Random tests have fixed seeds; a right implementation fails each with the probability that is stated there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import cloister as cl
from cloister.channel import Channel, MeanAndOuter, Outer, Plain, Relation
from cloister.core.channel import equal_rounds
from cloister.errors import BillboardError, PlanError
from cloister.privacy import tradeoff
from cloister.privacy.mechanisms import Schedule, grid_noise
from cloister.privacy.randomness import SeededRandomness, SystemRandomness

KINDS = {
    "toeplitz": cl.mechanisms.Toeplitz(),
    "banded": cl.mechanisms.Toeplitz(bands=4),
    "tree": cl.mechanisms.Tree(),
    "honaker": cl.mechanisms.Tree(honaker=True),
    "buffered": cl.mechanisms.BLT(),
}
SAMPLINGS = [cl.sampling.OnePass(), cl.sampling.Epochs(4), cl.sampling.Everyone()]
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
both = pytest.mark.parametrize("exact", [True, False], ids=["exact", "float"])


@dataclass(frozen=True)
class Talk(cl.algorithms.Algorithm):
    """Every task says the same in every round; the digest is the running total."""

    dim: int
    rounds: int
    lift: object = field(default_factory=Plain)

    def schedule(self, n_tasks, budget):
        return equal_rounds(self.rounds, [self.channel(None)])

    def start(self):
        return {"total": np.zeros(self.channel(None).size)}

    def channel(self, board):
        return Channel(self.dim, 0.5, self.lift)

    def init(self, block, board):
        return {}

    def send(self, states, block, board):
        return np.full((len(block), self.dim), 1 / math.sqrt(self.dim)), states

    def update(self, release, board):
        return {"total": board["total"] + release.value}

    def finish(self, states, block, board):
        return {"total": np.tile(board["total"], (len(block), 1))}


def tasks_of(count):
    return cl.Tasks.from_arrays(np.zeros((count, 1)), np.zeros(count), np.arange(count))


def schedule_of(rounds, sampling, dim=3, lift=None, relation=Relation.ZERO_OUT, n_tasks=100):
    channel = Channel(dim, lift=lift or Plain())
    return Schedule(equal_rounds(rounds, [channel]), sampling, n_tasks, relation)


def noise_of(plan, seed=0):
    """Run a plan; return the noise of each release."""
    done = cl.run(plan, tasks_of(plan.n_tasks), random_state=seed)
    channel, mechanism = plan.schedule.channel, plan.mechanism
    out = []
    for taking, release in zip(done.private.coins, done.board.releases, strict=True):
        said = channel.total(plan.algorithm.send({}, range(int(taking.sum())), None)[0], mechanism.exact)
        out.append(release.value - (said * channel.steps if mechanism.exact else said))
    return np.array(out), done


# --- the law ---------------------------------------------------------------------------------------------


@both
@each_kind
def test_the_law_of_the_noise_through_the_engine(kind, exact):
    """Taken apart by C it is standard normal: KS at 1e-5; 2/3 and 3/2 of it are not. Covariances: 6 sd."""
    mechanism = replace(kind, mu=0.8, exact=exact)
    plan = cl.Plan(Talk(2000, 12), mechanism, cl.sampling.Epochs(3), n_tasks=8)
    noise, done = noise_of(plan)
    decoder = mechanism.strategy(plan.schedule).decoder()
    claimed = mechanism.level(plan.schedule) ** 2 * decoder @ decoder.T
    apart = np.linalg.solve(np.linalg.cholesky(claimed), noise)
    assert stats.kstest(apart.ravel(), "norm").pvalue > 1e-5
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(apart.ravel() / wrong, "norm").pvalue < 1e-12
    scale = np.sqrt(np.outer(np.diag(claimed), np.diag(claimed)))
    assert np.abs((noise @ noise.T / 2000 - claimed) / scale).max() < 6 * math.sqrt(2 / 2000)
    assert abs(np.mean(apart[:, :-1] * apart[:, 1:])) < 5 / math.sqrt(apart.size)
    stated = np.array([release.noise for release in done.board.releases])
    np.testing.assert_allclose(stated, np.sqrt(np.diag(claimed)), rtol=1e-9)
    assert "correlated over rounds" in done.guarantee.noise


@both
@each_kind
def test_noise_on_a_matrix_has_one_scale(kind, exact):
    """Numbers of both degrees of a joint message have the claimed deviation: 5 sd."""
    mechanism = replace(kind, mu=0.5, exact=exact)
    noise, _ = noise_of(
        cl.Plan(Talk(60, 4, MeanAndOuter(0.3)), mechanism, cl.sampling.OnePass(), n_tasks=9), seed=1
    )
    plan = cl.Plan(Talk(60, 4, MeanAndOuter(0.3)), mechanism, cl.sampling.OnePass(), n_tasks=9)
    for t in range(4):
        z = noise[t] / plan.noise(t, plan.schedule.channel)
        for part in (z[:60], z[60:]):
            assert part.var() == pytest.approx(1.0, abs=5 * math.sqrt(2 / part.size))


@pytest.mark.parametrize(
    ("kind", "rounds", "theory"),
    [
        (cl.mechanisms.Toeplitz(1.0), 1024, 3.27),
        (cl.mechanisms.BLT(1.0), 1024, 3.27),
        (cl.mechanisms.Toeplitz(1.0, bands=64), 1024, 5.85),
        (cl.mechanisms.Tree(1.0), 1024, 10.49),
        (cl.mechanisms.Tree(1.0, honaker=True), 256, 6.57),
        (cl.mechanisms.Tree(1.0), 256, 8.49),
        (cl.mechanisms.Toeplitz(1.0, bands=1), 1024, 32.0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_running_totals_are_as_loud_as_theory_says(kind, rounds, theory):
    """The loudest total, in 400 numbers, at mu = 1: within 5 sd; so says the mechanism, to 1 %."""
    schedule, source = schedule_of(rounds, cl.sampling.OnePass(), dim=400), SeededRandomness(2)
    state, zero = kind.begin(schedule, source), np.zeros(400, dtype=np.int64)
    totals = np.cumsum([state.release(zero, schedule.channel) for _ in range(rounds)], axis=0)
    claimed = kind.level(schedule) * kind.strategy(schedule).prefix_deviations
    assert claimed.max() == pytest.approx(theory, rel=0.01)
    loudest = totals[claimed.argmax()]
    assert loudest.std() == pytest.approx(claimed.max(), rel=5 / math.sqrt(2 * 400))


# --- what one task can move ------------------------------------------------------------------------------


def encoded(mechanism, schedule, messages):
    """Return everything that a run measures, before noise, in units of the clip: by the mechanism's code."""
    found = []

    class Watched(type(mechanism)):
        def perturb(self, encoded, steps, noise, stream):
            found.append(np.asarray(encoded) * (steps if self.exact else 1.0))
            return encoded

    watched = Watched(**vars(mechanism))
    state, channel = watched.begin(schedule, SeededRandomness(0)), schedule.channel
    for rows in messages:
        state.release(channel.total(rows, watched.exact), channel)
    return np.concatenate(found)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(KINDS)),
    sampling=st.sampled_from(SAMPLINGS),
    lift=st.sampled_from([Plain(), Outer(), MeanAndOuter(0.4)]),
    relation=st.sampled_from(list(Relation)),
    exact=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_task_moves_measurements_further_than_is_paid_for(name, sampling, lift, relation, exact, seed):
    """Any messages, garbage included, in the rounds of any slot; in exact mode the integers themselves."""
    mechanism = replace(KINDS[name], mu=1.0, exact=exact)
    schedule = schedule_of(12, sampling, dim=2, lift=lift, relation=relation)
    rng = np.random.default_rng(seed)
    gap = 12 // schedule.passes
    present = np.arange(12) % gap == rng.integers(gap)
    others = rng.normal(size=(12, 3, 2))
    words = rng.normal(size=(2, 12, 1, 2)) * 10.0 ** rng.integers(-3, 4, (2, 12, 1, 1))
    words[:, rng.integers(12)] = rng.choice([np.nan, np.inf, 1e300, 0.0])
    if relation == Relation.ZERO_OUT:
        words[1] = 0.0
    worlds = [np.concatenate([others, np.where(present[:, None, None], w, 0.0)], axis=1) for w in words]
    one, other = (encoded(mechanism, schedule, world) for world in worlds)
    assert np.linalg.norm(one - other) <= mechanism.reach(schedule, relation) * (1 + 1e-12)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@each_kind
def test_the_sensitivity_is_reached(kind, sampling, relation):
    mechanism, schedule = replace(kind, mu=1.0), schedule_of(12, sampling, dim=2, relation=relation)
    slot = int(mechanism.strategy(schedule).sensitivities(schedule.passes).argmax())
    present = (np.arange(12) % (12 // schedule.passes) == slot)[:, None, None]
    word = np.array([[1.0, 0.0]])
    other = -word if relation == Relation.REPLACE else 0 * word
    moved = encoded(mechanism, schedule, present * word) - encoded(mechanism, schedule, present * other)
    assert np.linalg.norm(moved) >= 0.999 * mechanism.reach(schedule, relation)
    assert mechanism.slack(schedule) < 0.01 * mechanism.reach(schedule, relation)


# --- the price -------------------------------------------------------------------------------------------


@each_kind
def test_a_run_costs_mu_whatever_the_sampling(kind):
    mechanism = replace(kind, mu=0.7)
    for sampling in (
        *SAMPLINGS,
        cl.sampling.Poisson(0.25),
        cl.sampling.Poisson(0.25, hidden=True),
        cl.sampling.FixedSize(5),
    ):
        plan = cl.Plan(Talk(3, 12), mechanism, sampling, n_tasks=50)
        assert plan.guarantee.epsilon == pytest.approx(tradeoff.epsilon(0.7, plan.delta), rel=1e-9)
        assert plan.guarantee.other_epsilon == pytest.approx(tradeoff.epsilon(0.35, plan.delta), rel=1e-6)
        assert "no gain from sampling is claimed" in plan.guarantee.noise
        assert plan.forecast().rho > 0
        found = plan.calibrate(1.0)
        assert 0.9998 < found.guarantee.epsilon <= 1.0
        named = replace(
            found, algorithm=cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=12)
        )
        assert cl.Plan.from_toml(named.to_toml()) == named
    everyone, poisson = (
        cl.Plan(Talk(3, 12), mechanism, s, n_tasks=50).noise(0, Channel(3))
        for s in (cl.sampling.Everyone(), sampling)
    )
    assert everyone == poisson  # any pattern may happen: the noise is that of all rounds


def test_a_ledger_is_charged_for_the_whole_run():
    plan = cl.Plan(Talk(3, 12), cl.mechanisms.Toeplitz(0.7), cl.sampling.Epochs(3), n_tasks=50)
    ledger = cl.Ledger(epsilon=9.0, delta=plan.delta)
    cl.run(plan, tasks_of(50), random_state=0, ledger=ledger)
    assert ledger.spent == pytest.approx(tradeoff.epsilon(0.7, plan.delta), rel=1e-6)
    independent = cl.Plan(Talk(3, 12), cl.mechanisms.Gaussian(0.8), cl.sampling.Epochs(3), n_tasks=50)
    assert ledger.charge("next", independent.cost).mu == pytest.approx(0.4)


def test_passes_cost_the_root_of_their_number_with_independent_noise():
    for passes, mu in ((1, 0.4), (4, 0.8)):
        plan = cl.Plan(Talk(3, 16), cl.mechanisms.Gaussian(1.6), cl.sampling.Epochs(passes), n_tasks=50)
        assert plan.guarantee.epsilon == pytest.approx(tradeoff.epsilon(mu, plan.delta), rel=1e-9)
    coins = np.asarray(cl.sampling.Epochs(4).draw(SeededRandomness(0).stream("coins").numbered, 10, 16))
    assert (coins.sum(axis=0) == 4).all()
    np.testing.assert_array_equal(coins[:4], coins[12:])
    with pytest.raises(PlanError, match="a multiple of 3"):
        _ = cl.Plan(Talk(3, 16), cl.mechanisms.Gaussian(1.6), cl.sampling.Epochs(3), n_tasks=50).guarantee


UNEQUAL = cl.algorithms.LowRank(
    cl.learners.LeastSquares(3), rounds=4, allocation=cl.algorithms.PowerBudget(1.0)
)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (cl.Plan(UNEQUAL, cl.mechanisms.Tree(1.0), n_tasks=9), "equal shares"),
        (cl.Plan(Talk(3, 4, Outer()), cl.mechanisms.Toeplitz(1.0), n_tasks=10**7), "Use Tree"),
        (cl.Plan(Talk(3, 4, Outer()), cl.mechanisms.Tree(1.0), n_tasks=10**9), "do not fit"),
        (cl.Plan(Talk(3, 4), cl.mechanisms.Toeplitz(1e-9), n_tasks=9), "Ask for a larger epsilon"),
        (
            cl.Plan(Talk(10**6, 2**14), cl.mechanisms.BLT(1.0), cl.sampling.OnePass(), n_tasks=10**11),
            "Rounding would cost",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(plan, message):
    with pytest.raises(PlanError, match=message):
        plan.mechanism.check(plan.schedule)


def test_wrong_numbers_are_refused():
    for kind, wrong in (
        (cl.mechanisms.Toeplitz, {"mu": 0.0}),
        (cl.mechanisms.Toeplitz, {"bands": 0}),
        (cl.mechanisms.BLT, {"buffers": 1}),
    ):
        with pytest.raises(PlanError, match="must be"):
            kind(**wrong)


# --- going on, and what is kept --------------------------------------------------------------------------


class Stopped(Exception):
    pass


@both
@each_kind
def test_a_stopped_run_goes_on_to_the_same_board(kind, exact, tmp_path):
    def stop(posted):
        if posted.done == 7:
            raise Stopped

    plan = cl.Plan(Talk(5, 12), replace(kind, mu=0.5, exact=exact), cl.sampling.Epochs(2), n_tasks=10)
    whole = cl.run(plan, tasks_of(10), random_state=3)
    with pytest.raises(Stopped):
        cl.run(plan, tasks_of(10), random_state=3, journal=tmp_path, progress=stop)
    done = cl.run(plan, tasks_of(10), random_state=3, journal=tmp_path)
    assert done.board.head == whole.board.head
    again = cl.replay(plan, done.board, tasks_of(10), coins=done.private.coins)
    np.testing.assert_array_equal(again["total"], done.private.models["total"])
    with pytest.raises(BillboardError, match="another plan"):
        replace(plan, mechanism=replace(plan.mechanism, mu=0.6)).check(done.board)


@each_kind
def test_sums_that_differ_when_a_run_goes_on_reuse_no_noise(kind):
    """A run goes on with other sums for rounds that are posted: later releases move by C times the change.

    Nothing of the noise of posted rounds comes in a second time, which would show as a larger difference.
    Noise is not bound to what is measured here: it is the same in both worlds, and cancels.
    """

    class Unbound(type(kind)):
        def perturb(self, encoded, steps, noise, stream):
            return encoded + grid_noise(noise, steps, stream)

    mechanism, schedule = Unbound(**vars(kind) | {"mu": 1.0}), schedule_of(8, cl.sampling.Everyone(), dim=4)
    channel, rng = schedule.channel, np.random.default_rng(0)
    sums = rng.integers(-(2**18), 2**18, (8, 4))
    change = rng.integers(-1000, 1000, (8, 4)) * (np.arange(8) < 5)[:, None]
    first, second = (mechanism.begin(schedule, SeededRandomness(1)) for _ in range(2))
    posted = [first.release(total, channel) for total in sums]
    for t in range(5):
        second.recall(sums[t] + change[t], posted[t])
    later = np.array([second.release(sums[t], channel) for t in range(5, 8)])
    encoder, decoder = mechanism.strategy(schedule).encoder(), mechanism.strategy(schedule).decoder()
    measured = encoder @ (change * channel.steps)
    if isinstance(mechanism, cl.mechanisms.Tree):
        late = np.array([last >= 5 for last, _ in mechanism.strategy(schedule).measured()])
    else:
        late = np.arange(8) >= 5
    expected = decoder @ (late[:, None] * measured)
    np.testing.assert_allclose(later - posted[5:], expected[5:], atol=1e-4)


@each_kind
def test_a_round_made_again_from_another_sum_gets_independent_noise(kind):
    """One unit apart in the third round, where every kind measures once: KS at 1e-5."""
    mechanism, schedule = replace(kind, mu=1.0), schedule_of(4, cl.sampling.Everyone(), dim=2000)
    channel, sums = schedule.channel, np.random.default_rng(0).integers(-999, 999, (3, 2000))
    made = []
    for units in (0, 0, 1):
        state = mechanism.begin(schedule, SystemRandomness(bytes(32)))
        made.append([state.release(total + units * (t == 2), channel) for t, total in enumerate(sums)])
    one, again, other = np.array(made)
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one[:2], other[:2])
    fresh = (other[2] - one[2] - channel.steps) / (math.sqrt(2) * mechanism.level(schedule))
    assert stats.kstest(fresh, "norm").pvalue > 1e-5


def test_what_is_kept_is_as_little_as_can_be():
    schedule, zero = schedule_of(200, cl.sampling.OnePass(), dim=5), np.zeros(5, dtype=np.int64)
    kept = {}
    for mechanism in (
        cl.mechanisms.Toeplitz(1.0),
        cl.mechanisms.Toeplitz(1.0, bands=7),
        cl.mechanisms.Tree(1.0),
        cl.mechanisms.BLT(1.0),
    ):
        state = mechanism.begin(schedule, SeededRandomness(0))
        most = 0
        for _ in range(200):
            state.release(zero, schedule.channel)
            most = max(
                most, len(state.waiting if isinstance(mechanism, cl.mechanisms.Tree) else state.secret)
            )
        kept[mechanism] = most
    assert list(kept.values()) == [200, 7, 7, 5]


# --- rounding, where few bits are left for weights --------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [cl.mechanisms.Toeplitz(1.0), cl.mechanisms.Toeplitz(1.0, bands=9), cl.mechanisms.Tree(1.0)],
    ids=repr,
)
def test_a_sum_is_in_its_own_release_and_in_no_other(kind):
    """With weights of few bits too: had they been decoded with others than they are encoded with, a message
    would leave a trace in later releases that no sensitivity counts."""
    frame = schedule_of(16, cl.sampling.Epochs(2), n_tasks=2**34)  # the first few weights need no rounding
    assert kind.bits(frame) <= 8
    quiet, loud = (kind.begin(frame, SeededRandomness(0)) for _ in range(2))  # the same noise
    said = frame.channel.total(np.eye(3), kind.exact)
    for turn in range(16):
        told = said * (turn == 1)
        difference = loud.release(told, frame.channel) - quiet.release(0 * said, frame.channel)
        np.testing.assert_allclose(difference, told * frame.channel.steps, atol=1e-9)


@pytest.mark.parametrize("rounds", [2, 4, 9])
def test_rounding_of_buffers_stays_within_what_is_priced(rounds):
    """Two runs of random sums: by how much whole-number buffers differ from real ones, apart, at worst."""
    mechanism = cl.mechanisms.BLT(1.0)
    frame = schedule_of(rounds, cl.sampling.OnePass(), dim=4000)
    strategy, measured = mechanism.strategy(frame), [[], []]
    real = np.array([np.r_[np.zeros(t), strategy.coefficients[: rounds - t]] for t in range(rounds)]).T
    sums = np.random.default_rng(0).integers(-800, 800, (2, rounds, frame.channel.size))
    for own, into in zip(sums, measured, strict=True):

        def measure(encoded, channel, stream, into=into):
            into.append(np.array(encoded))
            return np.zeros(channel.size)

        state = mechanism.state(frame, measure, SeededRandomness(0))
        for one in own:
            state.release(one, frame.channel)
    unit = 2.0 ** mechanism.bits(frame)
    errors = np.array(measured) - unit * np.einsum("st,rtn->rsn", real, sums)
    worst = float(abs(errors[0] - errors[1]).max())
    bound = strategy.buffers.drift(rounds)
    assert 0.4 * bound < worst <= bound
    assert (
        mechanism.slack(frame)
        >= bound / unit * math.sqrt(rounds * frame.channel.size) * frame.channel.steps.min()
    )
