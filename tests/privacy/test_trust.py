"""Whom tasks trust: plans, prices, the law of shares, ledgers and words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2, hypergeom, kstest

import cloister as cl
from cloister import Ledger, Plan, Trust
from cloister.channel import Channel, Relation
from cloister.core.errors import InputError, PlanError
from cloister.core.lifts import MeanAndOuter, Outer, Plain
from cloister.engines.noise_at_home import noisy_message
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise, Toeplitz
from cloister.privacy.noise_states import NoisySum
from cloister.privacy.randomness import SystemRandomness
from cloister.privacy.trust import SecureSum, largest_sum

MEAN = cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=4)
TRUSTS = [Trust.secure_sum(), Trust.secure_sum(2, 3), Trust.silo()]


def plan_of(trust: Trust, n: int = 12, algorithm=MEAN, epsilon: float = 1.0) -> Plan:
    return Plan(algorithm, n_tasks=n, trust=trust).calibrate(epsilon)


def test_a_plan_of_before_keeps_its_file_and_fingerprint():
    plan = plan_of(Trust.curator())
    assert plan == Plan(MEAN, n_tasks=12).calibrate(1.0)
    assert "trust" not in plan.to_toml()
    fingerprints = {plan_of(trust).fingerprint for trust in (Trust.curator(), Trust.secure_sum(1), *TRUSTS)}
    assert len(fingerprints) == 5
    for trust in TRUSTS:
        assert Plan.from_toml(plan_of(trust).to_toml()) == plan_of(trust)


@pytest.mark.parametrize("trust", TRUSTS)
def test_price_and_noise(trust):
    """The price is that of what an adversary does not know; a release of all has the noise of all."""
    plain, plan = plan_of(Trust.curator()), plan_of(trust)
    assert plan.guarantee.epsilon == plain.guarantee.epsilon
    channel, n, parts = plan.rounds[0].channels[0], plan.n_tasks, trust.parts(plan.n_tasks)
    priced = plain.noise(0, channel)
    assert plan.noise(0, channel) == pytest.approx(priced * math.sqrt(n / parts))
    assert plan.unknown_noise(0, channel) == priced
    assert plan.noise(0, channel, trust.fewest(n)) == pytest.approx(
        priced * math.sqrt(trust.fewest(n) / parts)
    )
    assert plan.main_rounds[0] == pytest.approx(plain.main_rounds[0] / math.sqrt(n / parts))
    assert plan.forecast().rho == pytest.approx(plain.forecast().rho / math.sqrt(n / parts))


def test_who_may_be_missing_is_said_where_a_release_tells_how_many_have_answered():
    """Its noise does: with drop-outs and at silos the number of shares can be read off it, quorum or not."""
    for trust, least in ((Trust.secure_sum(2, 3), 10), (Trust.silo(), 1)):
        said = plan_of(trust).guarantee.participation
        assert f"posted when at least {least} of the tasks" in said
        assert "how many have is public" in said
    for trust in (Trust.curator(), Trust.secure_sum()):
        assert plan_of(trust).guarantee.participation == "every task takes part in every round"
    quorum = Plan(MEAN, n_tasks=12, trust=Trust.silo(), quorum=7).calibrate(1.0)
    assert "at least 7 of the tasks" in quorum.guarantee.participation


def test_a_silo_is_a_secure_sum_in_which_all_others_collude():
    assert Trust.silo().parts(9) == Trust.secure_sum(0, 8).parts(9) == 1
    assert Trust.silo().deviation(1.0, 9) == 3.0


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("lift", [Plain(), Outer(), MeanAndOuter(0.5)])
def test_law_of_what_an_adversary_does_not_know(trust, lift):
    """n - t - c shares: the priced deviation is accepted, 2/3 and 3/2 are not; false alarms 1e-6."""
    n, channel = 12, Channel(40, 0.7, lift)
    plan = plan_of(trust)
    message = channel.rows(np.ones((1, 40)))[0]
    bare = channel.whole_sum(message[None])
    shares = []
    for place in range(trust.parts(n)):
        own = SystemRandomness(bytes([place]) * 32)
        told = [noisy_message(plan, t, channel, message, -1, own.stream("own", t)) for t in range(4)]
        shares.append((np.array(told) - bare) * channel.steps)
    drawn = np.sum(shares, axis=0).ravel() / plan.unknown_noise(0, channel)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], drawn.size)
    for scale in (2 / 3, 1.0, 3 / 2):
        assert (low < ((drawn / scale) ** 2).sum() < high) == (scale == 1), scale
        assert (kstest(drawn / scale, "norm").pvalue > 1e-6) or scale != 1
    # One share more or fewer shows as well, where there are few: c + 1 see what is stated.
    if trust.parts(n) < 8 and drawn.size > 2000:
        fewer = np.sum(shares[1:], axis=0).ravel() / plan.unknown_noise(0, channel)
        left = trust.parts(n) - 1
        assert not left or low < (fewer**2).sum() * (left + 1) / left < high
        assert not low < (fewer**2).sum() < high


@pytest.mark.parametrize("lift", [Plain(), Outer()])
def test_law_of_what_all_other_tasks_do_not_know_with_the_curators_noise(lift):
    """They know every share but one: what the curator adds has the priced deviation; false alarms 1e-6."""
    trust, n, channel = Trust.secure_sum(2, 3, curator_noise=True), 12, Channel(200, 0.7, lift)
    plan = Plan(MEAN, n_tasks=n, trust=trust).calibrate(1.0)
    state = trust.begin(plan.mechanism, plan.schedule, SystemRandomness(bytes(32)))
    opened = np.arange(channel.size)  # messages and shares, which they can subtract
    released = [state.release(NoisySum(opened, n - 1), channel) for _ in range(4)]
    drawn = (np.array(released) - opened * channel.steps).ravel() / plan.unknown_noise(0, channel)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], drawn.size)
    for scale in (2 / 3, 1.0, 3 / 2):
        assert (low < ((drawn / scale) ** 2).sum() < high) == (scale == 1), scale
    assert len(np.unique(drawn)) > 0.99 * drawn.size  # fresh in every round


def test_the_curators_noise_is_said_wherever_the_tasks_is():
    bare, noisy = plan_of(Trust.secure_sum(2, 3)), plan_of(Trust.secure_sum(2, 3, curator_noise=True))
    channel = bare.rounds[0].channels[0]
    assert noisy.guarantee.epsilon == bare.guarantee.epsilon
    assert noisy.unknown_noise(0, channel) == bare.unknown_noise(0, channel)
    for shares in (10, 11, 12):
        due = math.hypot(bare.noise(0, channel, shares), bare.unknown_noise(0, channel))
        assert noisy.noise(0, channel, shares) == pytest.approx(due)
        assert noisy.has_noise(0, channel, due, answered=shares)
        assert not noisy.has_noise(0, channel, bare.noise(0, channel, shares))
    assert "or all other tasks together, without the curator" in noisy.guarantee.against
    assert "the curator's own noise on top" in noisy.guarantee.noise
    assert noisy.fingerprint != bare.fingerprint
    assert "curator_noise" not in bare.to_toml()
    assert Plan.from_toml(noisy.to_toml()) == noisy
    with pytest.raises(PlanError, match="curator_noise must be True or None"):
        Trust.secure_sum(curator_noise=1.5)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("lift", [Plain(), Outer(), MeanAndOuter(0.5)])
def test_sensitivity_of_what_is_lifted_at_home(lift, relation):
    """Lifting before masking moves a sum by what the channel says, attained: noise as bytes apart."""
    from cloister.audit.sensitivity import worst_pair

    channel, plan = Channel(3, 0.5, lift), plan_of(Trust.secure_sum())
    one, other = worst_pair(channel, relation)
    own, moved = SystemRandomness(bytes(32)), []
    for message in (one, other):
        row = channel.rows(message[None])[0]
        told = noisy_message(plan, 0, channel, row, -1, own.stream("own"))
        lifted = channel.whole_sum(row[None])
        assert (told != lifted).any()
        moved.append(lifted * channel.steps)
    distance = np.linalg.norm(moved[0] - moved[1])
    most = channel.sensitivity(relation)
    assert 0.999 * most <= distance <= most * (1 + 1e-12)


def test_a_share_is_the_same_for_the_same_message_and_another_for_another():
    plan, channel, own = plan_of(Trust.silo()), Channel(50), SystemRandomness()
    row, other = channel.rows(np.eye(50)[:2])

    def share(t, message, source):
        told = noisy_message(plan, t, channel, message, -1, source.stream("own", t))
        return told - channel.whole_sum(message[None])

    assert (share(0, row, own) == share(0, row, own)).all()
    different = [
        share(0, row, own),
        share(0, other, own),
        share(1, row, own),
        share(0, row, SystemRandomness()),
    ]
    for i, one in enumerate(different):
        assert all((one != two).mean() > 0.9 for two in different[i + 1 :])


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    ("mechanism", "sampling", "found"),
    [
        (Toeplitz(), cl.sampling.Everyone(), "Toeplitz"),
        (L2Laplace(), cl.sampling.Everyone(), "L2Laplace"),
        (NoNoise(), cl.sampling.Everyone(), "NoNoise"),
        (Gaussian(exact=False), cl.sampling.Everyone(), "Gaussian"),
        (Gaussian(), cl.sampling.Poisson(0.5), "Poisson"),
        (Gaussian(), cl.sampling.FixedSize(3), "FixedSize"),
    ],
)
def test_what_cannot_be_shared_is_refused(trust, mechanism, sampling, found):
    with pytest.raises(PlanError, match=rf"Got {found}\. Use"):
        Plan(MEAN, mechanism, sampling, n_tasks=12, trust=trust)


@pytest.mark.parametrize(
    ("n", "t", "c", "words"),
    [
        (2, 0, 1, "needs 3 tasks"),
        (5, 0, 4, "needs 3 tasks"),
        (5, 2, 1, "must answer"),
        (3, 1, 1, "needs 3 tasks"),
        (1001, 0, 1, "at most 1000"),
    ],
)
def test_numbers_that_protect_nobody_are_refused(n, t, c, words):
    with pytest.raises(PlanError, match=words):
        Plan(MEAN, n_tasks=n, trust=Trust.secure_sum(t, c))


def test_numbers_that_are_none_are_refused():
    for bad in ({"dropouts": -1}, {"colluders": 0}, {"dropouts": 1.5}, {"colluders": True}):
        with pytest.raises(PlanError, match="must be a whole number"):
            SecureSum(**bad)


@pytest.mark.parametrize("n", range(3, 40))
def test_the_threshold_lets_one_set_open_and_can_be_reached(n):
    for c in range(1, n - 1):
        for t in range(n - c - 1):
            trust = SecureSum(t, c)
            try:
                trust.accept(Gaussian(1.0), cl.sampling.Everyone(), n)
            except PlanError:
                assert not any((n + c) / 2 < k <= n - t for k in range(n + 1))
            else:
                assert not t or (n + c) / 2 < trust.threshold(n) <= n - t


def neighbors_at_random(n: int, some: int) -> int:
    """Return how many a task of a random graph needs, of whom `some` of n collude and as many drop out.

    Of d neighbors s open what a task has shared. Two sets of helpers need s colluders or more in common, so
    2 s - d of them; too few are left if more than d - s drop out.
    """
    for d in range(1, n):
        bad, s = hypergeom(n - 1, some, d), np.arange(d + 1)
        if (n * np.maximum(bad.sf(2 * s - d - 1) * 2.0**40, bad.sf(d - s) * 2.0**30) < 1).any():
            return d
    raise AssertionError(n)


@pytest.mark.parametrize(("n", "chosen", "random"), [(50, 16, 16), (200, 61, 59)])
def test_neighbors_that_a_sparse_graph_would_need_as_the_page_says(n, chosen, random):
    some = n // 10
    assert chosen == 2 * some + some + 1 == 1 + max(d for d in range(n) if d - some <= (d + some) / 2)
    assert neighbors_at_random(n, some) == random
    page = Path(__file__).parents[2] / "docs" / "secure-sums.md"
    said = " ".join(page.read_text("utf-8").split())
    assert f"{chosen} of {n - 1}" in said
    assert f"{random} of {n - 1}" in said


def test_sums_that_may_wrap_are_refused_before_anything_is_charged():
    plan = Plan(MEAN, Gaussian(1e-9), n_tasks=12, trust=Trust.silo())
    plan.trust.check(plan.mechanism, plan.schedule)
    loud = Plan(MEAN, Gaussian(1e-11), n_tasks=12, trust=Trust.silo())
    ledger = Ledger(1.0, plan.delta)
    tasks = cl.Tasks.from_list([np.ones((2, 3))] * 12, [np.ones(2)] * 12)
    with pytest.raises(PlanError, match="may not fit into 64 bits"):
        cl.run(loud, tasks, ledger=ledger)
    assert not ledger.history


def test_the_curator_lets_no_sum_pass_without_enough_noise():
    plan = plan_of(Trust.secure_sum(2, 3))
    channel = plan.rounds[0].channels[0]
    state = plan.trust.begin(plan.mechanism, plan.schedule, SystemRandomness())
    nothing = np.zeros(channel.size, dtype=np.int64)
    with pytest.raises(InputError, match="without its tasks' noise"):
        state.release(nothing, channel)
    for shares in (9, 13):
        with pytest.raises(InputError, match=f"shares of 10 to 12 tasks. Got {shares}"):
            state.release(NoisySum(nothing, shares), channel)
    priced = plan.unknown_noise(0, channel)
    most = largest_sum(channel, plan.schedule, plan.trust.deviation(priced, 12)).astype(np.int64)
    assert (state.release(NoisySum(most, 12), channel) == most * channel.steps).all()
    for wrong in (most + 1, -most - 1, np.full(channel.size, 2**63 - 1), np.full(channel.size, -(2**63))):
        with pytest.raises(InputError, match="did not open"):
            state.release(NoisySum(wrong, 12), channel)


def test_one_account_is_priced_against_one_adversary():
    ledger = Ledger(4.0, 1e-3, n_tasks=12)
    plain, secure, other = (plan_of(t) for t in (Trust.curator(), Trust.secure_sum(), Trust.secure_sum(0, 2)))
    bills = [(p.fingerprint, p.cost, p.trust.adversary) for p in (plain, secure, other)]
    for first in bills:
        fresh = Ledger(4.0, 1e-3, n_tasks=12)
        for plan, cost, adversary in bills:
            charge = fresh.charge(*first[:2], "once", adversary=first[2])
            assert charge.adversary == first[2]
            assert f"against {first[2] or 'all other tasks, with a trusted curator'}, a test" in str(
                fresh.balance.all_runs
            )
            if adversary == first[2]:
                continue
            with pytest.raises(PlanError, match="together they would promise neither"):
                fresh.charge(plan, cost, adversary=adversary)
    charged = ledger.charge(plain.fingerprint, plain.cost)
    assert "adversary" not in charged.events  # as in ledgers of before


def test_the_guarantee_says_against_whom_and_what_breaks_it():
    guarantee = plan_of(Trust.secure_sum(2, 3)).guarantee
    words = str(guarantee)
    for said in (
        "the curator together with any 3 other tasks",
        "at most 2 of the 12 tasks fail to answer",
        "at most 3 of them collude with the curator; 4 leave 6/7 of the noise's variance",
        "can spoil the result",
        "no review from outside",
    ):
        assert said in words
    assert "trusted curator" not in words
    assert cl.Guarantee.from_dict(guarantee.to_dict()) == guarantee
    assert "against" in guarantee.to_dict()
    assert "against" not in plan_of(Trust.curator()).guarantee.to_dict()
    assert "a trusted curator" in str(plan_of(Trust.curator()).guarantee)
    assert "nobody is trusted" in str(plan_of(Trust.silo()).guarantee)
