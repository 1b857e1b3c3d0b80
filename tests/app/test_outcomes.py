"""Several outcomes under one budget: what they cost together, and what is left of each."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from cloister import Ledger, Plan, load
from cloister.algorithms import Independent, SharedPrior
from cloister.app.choice import cost_together, guarantee_together
from cloister.app.outcomes import PLACE, Outcomes, outcome_folders
from cloister.audit.zoo.plans import persons, records
from cloister.core.errors import BillboardError, BudgetError, InputError, PlanError
from cloister.core.roster import Groups
from cloister.estimators import SeveralOutcomes, SharedPriorClassifier, several
from cloister.learners import Classification, CountRegression, Regression
from cloister.mechanisms import Gaussian, NoNoise
from cloister.privacy import tradeoff
from cloister.privacy.accounting import default_delta
from cloister.privacy.guarantee import PUBLIC_GROUPS
from cloister.privacy.randomness import Origin
from cloister.privacy.trust import Trust
from cloister.tables.naming import Naming

LEARNERS = {"score": Regression(4), "passed": Classification(4), "visits": CountRegression(4)}
DELTA = default_delta(200)
PLANS = {name: Plan(SharedPrior(learner), n_tasks=200) for name, learner in LEARNERS.items()}
HALVES = Groups.of([i % 2 for i in range(200)])
GROUPED = Plan(SharedPrior(Regression(4)).with_groups(HALVES), n_tasks=200)
BOUNDS = {
    "age": (5, 20),
    "score": (0, 50),
    "passed": [False, True],
    "visits": {"kind": "count", "bounds": (0, 30)},
}


def table(seed=0, schools=60, rows=8):
    rng = np.random.default_rng(seed)
    school, age = np.repeat(np.arange(schools), rows), rng.uniform(6, 18, schools * rows)
    score = np.clip(2 * age + rng.normal(0, 3, age.size), 0, 50)
    return {
        "school": school,
        "age": age,
        "score": score,
        "passed": score > 24,
        "visits": rng.poisson(age / 6),
    }


@pytest.mark.parametrize("shares", [None, {"score": 5, "passed": 1, "visits": 2}])
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_together_they_cost_what_one_would_alone(shares, epsilon):
    """The squares of mu add up: computed here by the closed form of Gaussian DP."""
    together = Outcomes.sharing(PLANS, epsilon, shares)
    squares = {name: plan.mechanism.budget**2 for name, plan in together.plans.items()}
    total, delta = math.fsum(squares.values()), together.guarantee.delta
    assert tradeoff.epsilon(math.sqrt(total), delta) == pytest.approx(epsilon, rel=1e-3)
    assert together.guarantee.epsilon <= epsilon
    given = shares or dict.fromkeys(PLANS, 1)
    parts = [squares[name] / given[name] for name in PLANS]
    assert parts == pytest.approx([parts[0]] * 3)
    alone = [plan.calibrate(epsilon).mechanism.budget ** 2 for plan in PLANS.values()]
    assert total == pytest.approx(np.mean(alone), rel=1e-3)


def test_an_outcome_that_shares_nothing_costs_nothing():
    plans = PLANS | {"age": Plan(Independent(Regression(4)), n_tasks=200)}
    together = Outcomes.sharing(plans, 1.0)
    assert together.plans["age"] == plans["age"]
    assert 0.999 < together.guarantee.epsilon <= 1.0
    silent = Outcomes.sharing({"score": Plan(SharedPrior(Regression(4)), NoNoise(), n_tasks=200)}, math.inf)
    assert math.isinf(silent.guarantee.epsilon)


@pytest.mark.parametrize("shares", [{}, {"score": 1}, {"score": 1, "passed": 0, "visits": 1}, {"x": 1}])
def test_shares_are_one_number_for_each_outcome(shares):
    with pytest.raises(InputError, match="shares must have one number > 0 for each of score, passed, visits"):
        Outcomes.sharing(PLANS, 1.0, shares)


def test_other_trust_other_tasks_and_other_deltas_are_refused():
    silo = Plan(SharedPrior(Regression(4)), n_tasks=200, trust=Trust.silo())
    with pytest.raises(PlanError, match="where a curator is trusted"):
        Outcomes({"score": PLANS["score"], "passed": silo})
    with pytest.raises(PlanError, match="tasks, relation and delta in common"):
        Outcomes({"score": PLANS["score"], "passed": Plan(SharedPrior(Regression(4)), n_tasks=100)})


@pytest.mark.parametrize(
    "plan",
    [
        GROUPED,
        Plan(SharedPrior(Regression(4)), n_tasks=200, trust=Trust.silo()),
        records(),
        persons(),
    ],
    ids=["groups", "silo", "records", "persons"],
)
def test_a_single_run_promises_together_what_its_plan_does(plan):
    plan = plan.calibrate(1.0)
    together = guarantee_together([plan], plan.noise_from(Origin.SYSTEM))
    assert replace(together, scope=plan.guarantee.scope) == plan.guarantee


def test_groups_of_any_outcome_are_said_to_be_public_and_trust_is_one():
    assert PUBLIC_GROUPS in Outcomes.sharing(PLANS | {"score": GROUPED}, 1.0).guarantee.domain
    assert PUBLIC_GROUPS not in Outcomes.sharing(PLANS, 1.0).guarantee.domain
    silo = Plan(SharedPrior(Regression(4)), n_tasks=200, trust=Trust.silo())
    with pytest.raises(BillboardError, match="one trust for all"):
        cost_together([PLANS["score"], silo], PLANS["score"].relation)


def test_noise_of_two_kinds_is_refused_before_anything_is_charged(monkeypatch):
    mechanisms, plan_of = iter((Gaussian(), Gaussian(exact=False), Gaussian())), several._plan
    monkeypatch.setattr(several, "_plan", lambda *of: replace(plan_of(*of), mechanism=next(mechanisms)))
    ledger = Ledger(2.0, delta=default_delta(60), n_tasks=60)
    model = SeveralOutcomes("school", bounds=BOUNDS, epsilon=1.0, ledger=ledger)
    with pytest.raises(PlanError, match=r"noise is of one kind\. Got exact .* and floating"):
        model.fit(table(), ["score", "passed", "visits"])
    assert not ledger.history


@pytest.mark.parametrize("name", ["..", "", "a/b", "a" * 300])
def test_folders_of_outcomes_are_in_their_folder(tmp_path, name):
    Outcomes(PLANS).save(tmp_path, PLANS["score"].calibrate(1.0).guarantee, Naming())
    assert set(outcome_folders(tmp_path)) == set(PLANS)
    document = json.loads((tmp_path / PLACE).read_text())
    document["outcomes"]["score"] = name
    (tmp_path / PLACE).write_text(json.dumps(document))
    with pytest.raises(InputError, match="must name the outcomes and their folders"):
        outcome_folders(tmp_path)


def test_nothing_is_charged_if_all_do_not_fit(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", population="schools", n_tasks=200, epsilon=1.0, delta=DELTA)
    together = Outcomes.sharing(PLANS, 1.0)
    together.check_room(ledger, {})
    with pytest.raises(BudgetError, match="All outcomes together do not fit"):
        Outcomes.sharing(PLANS, 1.1).check_room(ledger, {})
    Outcomes.sharing(PLANS, 1.1).check_room(ledger, {"score": True})
    assert len(ledger.history) == 0


def test_models_of_all_kinds_one_account_and_a_folder(tmp_path):
    data = table()
    ledger = Ledger.create(
        tmp_path / "ledger", population="schools", n_tasks=60, epsilon=2.0, delta=default_delta(60)
    )
    model = SeveralOutcomes(
        "school", bounds=BOUNDS, epsilon=2.0, ledger=ledger, shares={"score": 2, "passed": 1, "visits": 1}
    )
    model.fit(data, ["score", "passed", "visits"])
    assert len(ledger.history) == 3
    assert model.guarantee_.epsilon == pytest.approx(ledger.spent, rel=1e-3)
    assert ledger.spent <= 2.0
    assert model.guarantee_.holds
    assert "runs of all outcomes together" in str(model.guarantee_)
    found = model.predict(data)
    assert set(found) == {"score", "passed", "visits"}
    assert np.mean(found["passed"] == data["passed"]) > 0.8
    assert isinstance(model.outcomes_["passed"], SharedPriorClassifier)
    again = load(model.save(tmp_path / "run"))
    assert again.guarantee_.epsilon == model.guarantee_.epsilon
    for name, column in again.predict(data).items():
        assert (column == found[name]).all()
    assert (tmp_path / "run" / PLACE).is_file()
    alone = load(model.outcomes_["score"].save(tmp_path / "alone")).guarantee_
    assert alone.epsilon < alone.one_of.epsilon == pytest.approx(model.guarantee_.epsilon)
    assert str(alone.one_of) in (tmp_path / "alone" / "guarantee.txt").read_text()
    del data["visits"]
    fewer = {name: limits for name, limits in BOUNDS.items() if name != "visits"}
    again = SeveralOutcomes("school", bounds=fewer, epsilon=2.0, ledger=ledger)
    with pytest.raises(BudgetError, match="All outcomes together do not fit"):
        again.fit(data, ["score", "passed"])


def test_targets_may_stand_beside_the_table_and_missing_bounds_are_refused():
    data = table()
    X = {name: data[name] for name in ("school", "age")}
    model = SeveralOutcomes(
        "school", bounds={"age": (5, 20), "score": (0, 50), "visits": (0, 30)}, random_state=0
    )
    model.fit(X, {name: data[name] for name in ("score", "visits")})
    assert not model.guarantee_.holds  # of a seed
    assert set(model.summary()) == {"score", "visits"}
    with pytest.raises(InputError, match="Got none of 'passed'"):
        model.fit(data, ["score", "passed"])
