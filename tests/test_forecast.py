from __future__ import annotations

import itertools
import math

import pytest

from cloister import Plan, Trust, Unit
from cloister.algorithms import GroupMeans, Independent, Joint, Locate, LowRank, Rescaled, SharedPrior
from cloister.algorithms.constants import SEARCH as SEARCH_CONSTANTS
from cloister.algorithms.locate import search_share
from cloister.audit.zoo.plans import GramOfRecords
from cloister.channel import Channel, Outer
from cloister.core.roster import Groups
from cloister.learners import Classification, LeastSquares, Regression
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise
from cloister.plan.forecast import BAND, DEPENDABLE, SEARCH, Forecast, forecast
from cloister.plan.record_forecast import UnitAdvice


def test_band_is_ordered_and_grows_with_rho():
    for (rho, *kept), (next_rho, *next_kept) in itertools.pairwise(BAND):
        assert rho < next_rho
        assert all(one <= other for one, other in zip(kept, next_kept, strict=True))
    assert all(low < high <= 1 and 0 < pays < 1 for _, low, high, pays in BAND)


def test_more_tasks_more_budget_and_fewer_numbers_never_forecast_less():
    def limits(n_tasks: int, mu: float, dim: int) -> tuple[float, float]:
        found = forecast(n_tasks, mu, dim)
        return found.low, found.high

    ways = (
        [limits(n, 0.2, 9) for n in (1, 5, 20, 80, 300, 1000, 10**6)],
        [limits(200, mu, 9) for mu in (1e-9, 0.01, 0.1, 0.5, 2.0, 50.0)],
        [limits(200, 0.2, dim) for dim in (10**6, 10**4, 300, 30, 4, 1)],
    )
    for found in ways:
        assert found == sorted(found)
        assert found[0] < found[-1]


@pytest.mark.parametrize(("rho", "low", "high", "pays"), BAND)
def test_the_table_itself_is_reproduced(rho, low, high, pays):
    found = forecast(n_tasks=100, mu=rho / 100, dim=1)
    assert found.rho == pytest.approx(rho)
    assert (found.low, found.high, found.pays) == pytest.approx((low, high, pays))


def test_beyond_the_table_the_ends_hold():
    assert forecast(1, 1e-9, 1).low == BAND[0][1]
    assert forecast(10**9, 1.0, 1).low == BAND[-1][1]


def test_no_noise_and_nothing_shared():
    quiet, alone = forecast(10, math.inf, 4), forecast(10, 0.0, 4)
    assert (quiet.low, quiet.high, quiet.tasks_needed) == (1.0, 1.0, None)
    assert "nothing protects" in str(quiet)
    assert (alone.rho, alone.low, alone.high, alone.tasks_needed) == (0.0, 0.0, 0.0, None)
    assert "learns alone" in str(alone)


def test_plans_forecast_themselves():
    learner = Regression(4)
    assert Plan(Independent(learner), n_tasks=50).forecast() == forecast(50, 0.0, 4)
    assert math.isinf(Plan(SharedPrior(learner, Joint()), NoNoise(), n_tasks=50).forecast().rho)
    plan = Plan(SharedPrior(learner, Joint()), n_tasks=50).calibrate(1.0)
    assert plan.forecast() == forecast(50, plan.mechanism.budget, 4)


def test_so_many_tasks_are_really_enough():
    learner = SharedPrior(Regression(9), Joint())
    needed = Plan(learner, n_tasks=100).calibrate(0.5).forecast().tasks_needed
    assert needed is not None
    assert needed > 100
    enough = Plan(learner, n_tasks=needed).calibrate(0.5).forecast()
    assert enough.low >= DEPENDABLE
    assert enough.tasks_needed is None
    assert Plan(learner, n_tasks=needed // 2).calibrate(0.5).forecast().low < DEPENDABLE


def test_tasks_needed_survives_a_vanishing_budget():
    assert forecast(10, 1e-12, 4).tasks_needed > 10**6


@pytest.mark.parametrize("n_tasks", [16, 60, 140, 300, 3000])
def test_one_sentence_with_the_numbers_in_it(n_tasks):
    found = forecast(n_tasks, 0.25, 9)
    text = str(found)
    assert text.endswith(".")
    assert ". " not in text
    assert f"rho = {found.rho:.3g}" in text
    assert f"joining pays in about {found.chance} runs" in text
    assert ("anything from losing" in text) == (found.low < 0)
    assert f"{100 * found.high:.0f} %" in text
    assert ("tasks would be needed" in text) == (found.low < DEPENDABLE)


def test_sentence_word_by_word():
    assert str(Forecast(12.0, 0.2, 0.95, 0.88, 1300)) == (
        "At rho = 12 (signal over noise) joining pays in about 9 of 10 runs: expect to keep 20 to 95 % of "
        "what sharing without noise would gain; about 1,300 tasks would be needed at this epsilon to count "
        "on half."
    )
    assert "pays in about 98 of 100 runs" in str(Forecast(99.0, 0.8, 1.0, 0.98))


def test_the_words_hold_the_loss_and_too_few_tasks_have_no_forecast():
    assert "in about 4 of 10 runs: expect anything from losing 15 %" in str(forecast(40, 0.01, 5))
    few = forecast(15, 0.25, 5)
    assert not few.calibrated
    assert str(few).startswith("No forecast: too few tasks")


def test_a_guess_at_the_rows_of_a_task_moves_the_forecast():
    few, usual, many = (forecast(100, 0.25, 9, rows=rows) for rows in (3, 27, 10**6))
    assert usual == forecast(100, 0.25, 9)  # three rows a parameter is what is taken for usual
    assert few.low < usual.low <= many.low
    assert few.tasks_needed > usual.tasks_needed
    assert few.rho == pytest.approx(usual.rho / 3)
    plan = Plan(SharedPrior(Regression(9), Joint()), n_tasks=200).calibrate(1.0)
    assert plan.forecast(rows=3).rho == pytest.approx(plan.forecast().rho / 3)


def test_a_row_with_a_class_counts_as_a_quarter_of_one_with_a_number():
    numbers, classes = (
        Plan(SharedPrior(learner), n_tasks=200).calibrate(1.0)
        for learner in (Regression(9), Classification(9, 2))
    )
    assert classes.main_rounds[1] == numbers.main_rounds[1] == 9
    asked = dict(zip((3, 36, None), (0.75, 9, 6.75), strict=True))  # three rows a parameter are usual
    for rows, telling in asked.items():
        assert classes.informative_rows(rows) == telling
        assert numbers.informative_rows(rows) == rows
        assert classes.forecast(rows) == forecast(200, *classes.main_rounds, telling)


def test_groups_are_heard_less_than_all():
    groups = Groups.of(["north"] * 30 + ["south"] * 10)
    plan = Plan(SharedPrior(Regression(4), GroupMeans(Joint(), groups)), n_tasks=40).calibrate(1.0)
    found = plan.forecast()
    typical = (30**2 + 10**2) / 40  # tasks in the group of a task
    assert found.group_rho == pytest.approx(found.rho * typical / 40 / math.sqrt(2))
    assert f"a typical group's own mean is heard at rho = {found.group_rho:.3g}" in str(found)
    assert Plan(SharedPrior(Regression(4), Joint()), n_tasks=40).calibrate(1.0).forecast().group_rho is None


@pytest.mark.parametrize("noise", [Gaussian(), L2Laplace()], ids=["gaussian", "laplace"])
def test_a_search_for_the_target_counts_as_four_parameters(noise):
    """Its share of the budget is in the band; its many bins, which matter to Laplace, are not asked for."""
    plans = [
        Plan(algorithm, noise, n_tasks=200).calibrate(1.0)
        for algorithm in (LowRank(LeastSquares(3)), Rescaled(LowRank(LeastSquares(3)), Locate()))
    ]
    assert plans[1].main_rounds[1] == plans[0].main_rounds[1] + SEARCH
    rhos = [plan.forecast().rho for plan in plans]
    dims = [plan.main_rounds[1] for plan in plans]
    assert rhos[1] * math.sqrt(dims[1]) == pytest.approx(rhos[0] * math.sqrt(dims[0]), rel=1e-2)


def test_the_unit_that_is_advised_is_the_stronger_one_that_brings_something():
    told = [UnitAdvice.of(low, heard, 1000) for low, heard in [(0.6, 80.0), (0.1, 80.0), (None, 80.0)]]
    assert [one.unit for one in told] == ["task", "record", "record"]
    nobody = UnitAdvice.of(0.1, heard=5.0, records=1000)
    assert (nobody.unit, nobody.records_needed) == (None, 4000)
    assert "hardly anything of the others is heard" in str(nobody)


def test_records_as_units_have_a_forecast_of_their_own_that_silo_noise_makes_worse():
    def told(trust):
        options = {"unit": Unit.record(20_000), "trust": trust, "delta": 1e-6}
        algorithm = GramOfRecords(Channel(21, lift=Outer()))
        return Plan(algorithm, n_tasks=16, **options).calibrate(1.0).forecast()

    central, secure, silo = (told(t) for t in (Trust.curator(), Trust.secure_sum(), Trust.silo()))
    assert central.rho == pytest.approx(4 * silo.rho)
    assert silo.rho < secure.rho < central.rho
    assert "most of what sharing would gain" in str(central)
    assert not central.calibrated


@pytest.mark.parametrize("n_tasks", [30, 50, 66])
@pytest.mark.parametrize("trust", [Trust.curator(), Trust.secure_sum()], ids=["curator", "sum"])
def test_a_search_that_can_find_nothing_says_so_and_what_would_do(n_tasks, trust):
    def silent(tasks, epsilon):
        algorithm = SharedPrior(Regression(4), locate=Locate())
        plan = Plan(algorithm, n_tasks=tasks, trust=trust).calibrate(epsilon)
        mu = plan.mechanism.budget / trust.deviation(1.0, tasks)
        return search_share(tasks, mu) == SEARCH_CONSTANTS.nothing, plan.forecast()

    nothing, told = silent(n_tasks, 1.0)
    assert nothing
    assert str(told).startswith(
        f"With {n_tasks} tasks at epsilon 1 the search for targets cannot find anything"
    )
    assert "In narrow bounds: at rho" in str(told)
    more, larger = told.silent.enough_tasks, told.silent.enough_epsilon
    assert f"epsilon {larger:g} or {more} tasks." in str(told)
    assert not silent(more, 1.0)[0]
    assert silent(more, 1.0)[1].silent is None
    assert silent(more - 1, 1.0)[0]
    assert not silent(n_tasks, larger)[0]
    assert silent(n_tasks, larger - 0.2)[0]
    assert told.to_dict()["silent"]["enough_tasks"] == more


def test_nothing_is_said_of_a_search_where_there_is_none_or_no_number_would_do():
    assert Plan(SharedPrior(Regression(4)), n_tasks=20).calibrate(1.0).forecast().silent is None
    hopeless = Plan(SharedPrior(Regression(4), locate=Locate()), n_tasks=5).calibrate(1e-6).forecast()
    assert hopeless.silent.enough_epsilon is None
    assert "narrow public bounds." in str(hopeless)
