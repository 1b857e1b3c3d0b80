"""Plans: whole in a file, priced before data, never overspent; and boards that are not theirs are refused."""

from __future__ import annotations

import dataclasses
import importlib
import math
import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

import cloister
from cloister import Billboard, Ledger, Plan, SharedPriorRegressor, Tasks, run
from cloister.algorithms import (
    ChooseAtHome,
    Independent,
    Joint,
    Locate,
    LowRank,
    Mean,
    MeanRegularized,
    SharedPrior,
    Subspace,
    Support,
)
from cloister.core.document import TYPES
from cloister.errors import BillboardError, CloisterError, PlanError
from cloister.learners import Classification, LeastSquares, Logistic, Regression, Softmax
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Everyone, FixedSize, OnePass, Poisson
from cloister.store import Release
from cloister.tables.codebook import Codebook

ALGORITHMS = [
    Independent(Regression(3)),
    MeanRegularized(LeastSquares(3), lam=0.3, rounds=4),
    MeanRegularized(Logistic(2), batch=5, finetune=2, rounds=3),
    MeanRegularized(Softmax(2, 4), rounds=2),
    *(SharedPrior(Regression(3), structure) for structure in (Joint(), Mean(), Subspace(), Support())),
    SharedPrior(Classification(3, intercept=False)),
    SharedPrior(Classification(2, classes=4), Mean()),
]
SAMPLINGS = [Everyone(), Poisson(0.25), Poisson(0.3, hidden=True), FixedSize(20), OnePass()]


def gdp_epsilon(delta_of, delta):
    """Invert a privacy curve."""
    return brentq(lambda e: delta_of(e) - delta, 0, 100, xtol=1e-13)


def gdp_delta(mu, e):
    return ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{type(a).__name__}")
def test_round_trip_and_no_overspending(algorithm, sampling, tmp_path):
    plan = Plan(algorithm, Gaussian(), sampling, n_tasks=100, relation="zero_out", caveats=("a", "b"))
    plan = plan.calibrate(2.0, delta=1e-4)
    back = Plan.load(plan.save(tmp_path / "plan.toml"))
    assert back == plan
    assert back.fingerprint == plan.fingerprint
    assert back.guarantee == plan.guarantee
    assert back.rounds == plan.rounds
    spent = plan.guarantee.epsilon
    assert spent <= 2.0
    assert spent > 1.98 or not plan.rounds
    if plan.rounds:
        assert math.fsum(r.share for r in plan.rounds) == pytest.approx(1.0, rel=1e-12)


def test_the_fingerprint_stands_for_the_whole_plan():
    base = Plan(MeanRegularized(LeastSquares(3)), Gaussian(1.0), n_tasks=100)
    others = [
        replace(base, n_tasks=101),
        replace(base, relation="zero_out"),
        replace(base, delta=1e-5),
        replace(base, mechanism=Gaussian(math.nextafter(1.0, 2.0))),
        replace(base, mechanism=NoNoise()),
        replace(base, sampling=Poisson(0.5)),
        replace(base, sampling=Poisson(0.5, hidden=True)),
        replace(base, algorithm=MeanRegularized(LeastSquares(3), lam=0.1000001)),
        replace(base, algorithm=MeanRegularized(LeastSquares(4))),
        replace(base, caveats=("x",)),
    ]
    assert len({plan.fingerprint for plan in [base, *others]}) == 11
    assert [Plan.from_toml(plan.to_toml()) for plan in others] == others


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
def test_the_guarantee_equals_an_independent_computation(epsilon, relation):
    """Full participation: mu from the noise on the board and the sensitivities of the proofs."""
    plan = Plan(MeanRegularized(LeastSquares(3), rounds=7), n_tasks=200, relation=relation)
    plan = plan.calibrate(epsilon)
    channel = plan.rounds[0].channels[0]
    noise = [plan.noise(t, channel) for t in range(7)]
    for which, sensitivity in (("replace", 2.0), ("zero_out", 1.0)):
        mu = math.sqrt(sum((sensitivity / s) ** 2 for s in noise))
        expected = gdp_epsilon(lambda e, mu=mu: gdp_delta(mu, e), plan.delta)
        found = plan.guarantee.epsilon if which == relation else plan.guarantee.other_epsilon
        assert found == pytest.approx(expected, rel=1e-6)
    assert plan.guarantee.epsilon <= epsilon
    assert plan.guarantee.epsilon == pytest.approx(epsilon, rel=2e-4)


def test_visible_sampling_is_priced_by_the_average_over_coins():
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=40), Gaussian(3.0), Poisson(0.3), n_tasks=100)
    mu, n = 3.0 / math.sqrt(40), np.arange(1, 41)
    curve = lambda e: float(  # noqa: E731
        sum(p * gdp_delta(mu * math.sqrt(k), e) for k, p in zip(n, binom.pmf(n, 40, 0.3), strict=True))
    )
    assert plan.guarantee.epsilon == pytest.approx(gdp_epsilon(curve, plan.delta), rel=1e-6)
    hidden = replace(plan, sampling=Poisson(0.3, hidden=True)).guarantee.epsilon
    full = replace(plan, sampling=Everyone()).guarantee.epsilon
    assert hidden < plan.guarantee.epsilon < full


def test_the_other_relation_is_priced_by_the_worst_channel():
    """Joint may use either of two channels in a round; only what holds for both may be said."""
    plan = Plan(SharedPrior(Regression(3), Joint()), Gaussian(1.0), n_tasks=100)
    rounds = len(plan.rounds) - 3
    d2 = lambda a: 2 + a * a / (2 * (1 - a))  # noqa: E731
    scale, joint = (
        0.02 / 2 + 0.02 / 4 + 0.02 / 2,
        0.94 / min(d2(0.6), d2(0.15)),
    )  # 1 / sensitivity^2, silence's is 1
    mu = math.sqrt(scale + joint)
    expected = gdp_epsilon(lambda e: gdp_delta(mu, e), plan.delta)
    assert plan.guarantee.other_epsilon == pytest.approx(expected, rel=1e-6)
    back = Plan(SharedPrior(Regression(3), Joint()), Gaussian(1.0), n_tasks=100, relation="zero_out")
    mu = math.sqrt(0.02 * 2 + 0.02 * 4 + 0.02 * 2 + 0.94 * max(d2(0.6), d2(0.15)))
    assert back.guarantee.other_epsilon == pytest.approx(
        gdp_epsilon(lambda e: gdp_delta(mu, e), back.delta), rel=1e-6
    )
    assert 4 <= rounds <= 20
    assert plan.cost_under("zero_out") == plan.cost_under(cloister.channel.Relation.ZERO_OUT)


def test_delta_has_a_default_and_a_limit():
    algorithm = MeanRegularized(LeastSquares(2))
    assert Plan(algorithm, n_tasks=1000).delta == 1000**-1.5
    assert Plan(algorithm, n_tasks=50).delta == 1 / 500
    for delta in (0.011, 1.0, 0.0, -1e-6, math.nan):
        with pytest.raises(PlanError, match="delta must be"):
            Plan(algorithm, n_tasks=100, delta=delta)
        with pytest.raises(PlanError, match="delta must be"):
            Plan(algorithm, n_tasks=100).calibrate(1.0, delta=delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_epsilon_must_be_positive(epsilon):
    with pytest.raises(PlanError, match=r"epsilon must be > 0\. Got"):
        Plan(MeanRegularized(LeastSquares(2)), n_tasks=100).calibrate(epsilon)


def test_plans_that_make_no_sense_are_refused():
    algorithm = MeanRegularized(LeastSquares(2))
    with pytest.raises(PlanError, match="epsilon must be finite"):
        Plan(algorithm, n_tasks=100).calibrate(math.inf)
    with pytest.raises(PlanError, match="n_tasks must be at least 1"):
        Plan(algorithm, n_tasks=0)
    with pytest.raises(PlanError, match="relation must be 'replace' or 'zero_out'"):
        Plan(algorithm, n_tasks=9, relation="add_remove")
    with pytest.raises(PlanError, match="share a mean, and what matters"):
        SharedPrior(Classification(3, classes=3), Joint())


def test_an_uncalibrated_plan_neither_prices_nor_runs():
    plan = Plan(MeanRegularized(LeastSquares(2)), n_tasks=2)
    tasks = Tasks.from_arrays(np.zeros((2, 2)), np.zeros(2), [0, 1])
    for use in (lambda: plan.guarantee, plan.create_board, lambda: run(plan, tasks)):
        with pytest.raises(PlanError, match=r"no noise level yet\. Call plan\.calibrate"):
            use()


def test_a_plan_that_says_nothing_costs_nothing():
    plan = Plan(Independent(Regression(2)), n_tasks=9)
    for silent in (plan, plan.calibrate(1.0)):
        assert (silent.guarantee.epsilon, silent.guarantee.delta, silent.rounds) == (0.0, 0.0, ())
        assert silent.guarantee.holds
        assert "Nothing leaves" in str(silent)


def test_the_non_private_run_says_so():
    plan = Plan(MeanRegularized(LeastSquares(2)), NoNoise(), n_tasks=9)
    assert plan.guarantee.epsilon == math.inf
    assert not plan.guarantee.holds
    assert "NOT PRIVATE" in str(plan)


PLAN_TEXT = Plan(MeanRegularized(LeastSquares(2), batch=3), Gaussian(1.0), n_tasks=9).to_toml()
LOSS = 'type = "cloister/least-squares/1"'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (LOSS, 'type = "os:system/1"', "not one of cloister's own types"),
        (LOSS, 'type = "cloister/os/1"', "does not know the type 'cloister/os/1'"),
        (LOSS, 'type = "cloister/least-squares/2"', "It reads cloister/least-squares/1"),
        (LOSS, 'type = "LeastSquares"', r"no id .*Files of cloister 0\.1"),
        (LOSS, 'type = "cloister/cross-entropy/1"', "cannot be built"),  # known, but a function
        (LOSS, "kind = 3", "type = 'None' is no id"),
        (LOSS, f"{LOSS}\nsecret = 1", "unexpected keyword argument 'secret'"),
        ('type = "cloister/plan/1"', 'type = "Plan"', r"written by cloister 0\.1"),
        ('type = "cloister/plan/1"', 'type = "cloister/plan/7"', "It reads cloister/plan/1"),
        ('type = "cloister/plan/1"', 'type = "cloister/gaussian/1"', "This is not a plan file"),
        ("dim = 2", "dim = 2.0", r"dim of cloister/least-squares/1 must be a whole number\. Got 2\.0"),
        ("dim = 2", "dim = true", r"must be a whole number\. Got True"),
        ("dim = 2", "dim = [2]", r"must be a whole number\. Got tuple"),
        ("batch = 3", "batch = 3.5", r"must be a whole number or left out\. Got 3\.5"),
        ("exact = true", "exact = 1", r"exact of cloister/gaussian/1 must be true or false\. Got 1"),
        ("n_tasks = 9", "n_tasks = 0", "n_tasks must be at least 1"),
        ("n_tasks = 9", "n_tasks = 2.5", r"n_tasks of cloister/plan/1 must be a whole number\. Got 2\.5"),
        ("n_tasks = 9", "n_tasks = true", r"must be a whole number\. Got True"),
        ("n_tasks = 9", 'n_tasks = "many"', r"must be a whole number\. Got 'many'"),
        ("n_tasks = 9", "n_tasks = ", "This is not a plan file"),
        ("caveats = []", 'caveats = "bounds"', r"caveats .* must be a list, each a word\. Got 'bounds'"),
        ("caveats = []", "caveats = [3]", "must be a list, each a word"),
        ("mu = 1.0", "mu = -1.0", "mu must be > 0"),
        ("mu = 1.0", 'mu = "1.0"', r"must be a number or left out\. Got '1\.0'"),
    ],
)
def test_a_plan_file_builds_nothing_but_plans(old, new, sentence):
    if "cross-entropy" in new:
        pytest.importorskip("torch", reason="needs the extra torch")
    assert old in PLAN_TEXT
    with pytest.raises(PlanError, match=sentence):
        Plan.from_toml(PLAN_TEXT.replace(old, new, 1))


@pytest.mark.parametrize(
    "part", ["algorithm", "mechanism", "sampling", "caveats", "n_tasks", "delta", "relation"]
)
def test_no_type_is_taken_for_another(part):
    """Whatever the library can build, put where a plan holds something else: one sentence, no crash."""
    pytest.importorskip("torch", reason="needs the extra torch")
    whole = tomllib.loads(PLAN_TEXT)
    needed = {"mu": 1.0, "dim": 2, "lr": 0.1, "rate": 0.5, "size": 3, "passes": 2, "degrees": 9.0, "lam": 0.5}
    for name, place in TYPES.items():
        module, attribute = place.split(":")
        kind = getattr(importlib.import_module(module), attribute)
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        own = {f.name: needed[f.name] for f in fields if f.name in needed}
        try:
            plan = Plan.from_dict(whole | {part: {"type": name} | own})
        except PlanError:
            continue
        assert part in ("mechanism", "sampling"), name
        assert type(getattr(plan, part)) is kind


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_tasks": 2.5}, r"n_tasks must be a whole number\. Got 2\.5"),
        ({"n_tasks": True}, r"n_tasks must be a whole number\. Got True"),
        ({"n_tasks": "9"}, r"n_tasks must be a whole number\. Got '9'"),
        ({"delta": "1e-5"}, r"delta must be a number\. Got '1e-5'"),
        ({"delta": True}, r"delta must be a number\. Got True"),
        ({"caveats": "bounds"}, r"caveats must be a tuple of sentences\. Got 'bounds'"),
        ({"caveats": (1,)}, r"caveats must be a tuple of sentences\. Got \(1,\)"),
        ({"caveats": Gaussian(1.0)}, "caveats must be a tuple of sentences"),
    ],
)
def test_a_plan_checks_its_own_numbers(wrong, sentence):
    with pytest.raises(PlanError, match=sentence):
        Plan(MeanRegularized(LeastSquares(2)), **({"n_tasks": 9} | wrong))


def test_a_number_has_one_spelling():
    """Equal plans have one fingerprint, however their numbers were typed."""
    spelled = [MeanRegularized(LeastSquares(2), lam=lam) for lam in (1, 1.0, np.float64(1.0))]
    assert (
        len(
            {
                Plan(algorithm, n_tasks=n, delta=0.01).fingerprint
                for algorithm in spelled
                for n in (9, np.int64(9))
            }
        )
        == 1
    )
    text = Plan(spelled[0], n_tasks=9).to_toml()
    assert Plan.from_toml(text.replace("lam = 1.0", "lam = 1")).to_toml() == text


def test_what_cannot_be_written_is_refused():
    odd = MeanRegularized(LeastSquares(2), lam=np.float32(0.1))
    with pytest.raises(PlanError, match=r"lam of cloister/mean-regularized/1 must be a number\. Got float32"):
        Plan(odd, n_tasks=9).to_toml()
    with pytest.raises(PlanError, match=r"not of classes\. Got the class LeastSquares: call it"):
        Plan(MeanRegularized(LeastSquares), n_tasks=9).to_toml()


@pytest.fixture(scope="module")
def finished():
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(rng.uniform(-1, 1, (60, 3)), rng.uniform(-1, 1, 60), np.arange(60) % 20)
    plan = Plan(SharedPrior(Regression(3), Joint()), n_tasks=20).calibrate(1.0)
    return run(plan, tasks, random_state=0)


def rewritten(board, t, release=None, digest=None):
    """Return the board with record t changed and all hashes made right again: a forger with a pen."""
    out = Billboard(board.plan, board.capacity)
    for i, record in enumerate(board.records):
        new = {} if i != t else {"release": release, "digest": digest}
        out = out._append(new.get("release") or record.release, new.get("digest") or record.public)
    return out


def test_a_board_of_another_plan_is_refused(finished):
    plan, board = finished.plan, finished.board
    plan.check(board)
    plan.check(board.before(2))  # unfinished, but its own
    for other in (replace(plan, caveats=("x",)), replace(plan, mechanism=Gaussian(9.0))):
        with pytest.raises(BillboardError, match="belongs to another plan"):
            other.check(board)
    with pytest.raises(BillboardError, match="belongs to another plan"):
        plan.check(Billboard(board.plan, board.capacity))
    with pytest.raises(BillboardError, match="belongs to another plan"):
        plan.check(Billboard(board.plan, board.capacity + 1, board.records))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"noise": 0.0}, "noise, denominator or share"),
        ({"noise": 0.999}, "noise, denominator or share"),
        ({"denominator": 19.0}, "noise, denominator or share"),
        ({"share": 0.5}, "noise, denominator or share"),
        ({"channel": 1}, "not on the channel"),
        ({"channel": 7}, "not on the channel"),
        ({"channel": -1}, "not on the channel"),
        ({"value": np.zeros(3)}, "does not have the shape"),
        ({"value": np.zeros(9)}, "was not computed"),
    ],
)
def test_a_doctored_release_is_refused(finished, change, sentence):
    """Round 1 is Joint's first: nine numbers on channel 0."""
    old = finished.board.releases[1]
    release = Release(change.pop("value", old.value), **(old.facts() | change))
    with pytest.raises(BillboardError, match=rf"Release 1 .*{sentence}"):
        finished.plan.check(rewritten(finished.board, 2, release))


def test_a_doctored_digest_is_refused(finished):
    """What is posted must follow from the releases: a digest is not a way round the mechanism."""
    for t, what in ((0, "The start"), (3, "Release 2")):
        digest = dict(finished.board.records[t].public)
        digest["mean"] = digest["mean"] + 1e-6
        with pytest.raises(BillboardError, match=f"{what} was not computed"):
            finished.plan.check(rewritten(finished.board, t, digest=digest))
        with pytest.raises(BillboardError, match=f"{what} was not computed"):
            finished.plan.check(rewritten(finished.board, t, digest=digest | {"extra": np.zeros(1)}))


def test_stages_are_what_a_plan_asks_for():
    """Their rounds and shares are all that there are, in order; rounds of one kind are one stage."""
    search = Locate((1, 2))
    for algorithm, count in (
        (SharedPrior(Regression(3), locate=search), 6),
        (SharedPrior(Regression(3)), 4),
        (ChooseAtHome(LowRank(LeastSquares(3)), Regression(3), asks=0.1, locate=search), 4),
        (LowRank(LeastSquares(3)), 1),
    ):
        plan = Plan(algorithm, n_tasks=300).calibrate(1.0)
        stages = plan.stages
        assert len(stages) == count
        assert sum(stage.rounds for stage in stages) == len(plan.rounds)
        assert sum(stage.share for stage in stages) == pytest.approx(1.0)
        assert all(str(stage) in str(plan) for stage in stages) == (count > 1)
    assert stages[0].about == "low-rank"
    assert Plan(Independent(Regression(3)), n_tasks=300).stages == ()


HUGE = 10**400
SMALL_PLAN = partial(Plan, MeanRegularized(LeastSquares(3), rounds=2))


@pytest.mark.parametrize(
    "huge",
    [
        lambda: SMALL_PLAN(n_tasks=HUGE),
        lambda: SMALL_PLAN(n_tasks=100, delta=HUGE),
        lambda: SMALL_PLAN(Gaussian(HUGE), n_tasks=100),
        lambda: SMALL_PLAN(n_tasks=100).calibrate(HUGE),
        lambda: SMALL_PLAN(n_tasks=100).calibrate(1.0, HUGE),
        lambda: SMALL_PLAN(n_tasks=100).calibrate(detection=HUGE),
        lambda: Ledger(epsilon=HUGE, delta=1e-3),
        lambda: Ledger(epsilon=1.0, delta=HUGE),
        lambda: SharedPriorRegressor("school", epsilon=HUGE).plan(9),
        lambda: Codebook.from_mapping({"x": (0, HUGE), "y": (0, 1)}, ["x"]),
        lambda: Codebook.from_mapping({"x": (0, 1), "y": (-HUGE, 1)}, ["x"]),
        lambda: Codebook.from_mapping({"x": {"bounds": (0, 1), "cuts": [HUGE]}, "y": (0, 1)}, ["x"]),
        lambda: Codebook.from_mapping({"x": {"bounds": (0, 1), "missing": HUGE}, "y": (0, 1)}, ["x"]),
        lambda: Plan.from_toml(SMALL_PLAN(n_tasks=100, delta=0.01).to_toml().replace("0.01", str(HUGE))),
    ],
)
def test_numbers_of_hundreds_of_digits_are_refused_in_a_sentence(huge):
    with pytest.raises(CloisterError):
        huge()
