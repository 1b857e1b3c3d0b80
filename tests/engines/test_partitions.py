"""Fixed clusters: each is a run of its own at the same price, and no task pays for another cluster's."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from cloister import Ledger, Plan, Tasks, replay, run
from cloister.algorithms import MeanRegularized
from cloister.engines import Local, MultiDevice, partition_plans, run_partition
from cloister.errors import BudgetError, InputError, PlanError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import FixedSize, Poisson

M = 30
PLAN = Plan(MeanRegularized(LeastSquares(2), rounds=3, steps=2), n_tasks=M, delta=1e-3).calibrate(2.0)
PLACES = {f"t{i:02d}": "town" if i < 20 else "country" for i in range(M)}


def make_tasks():
    """Targets of the two clusters have opposite signs."""
    rng = np.random.default_rng(0)
    ids = np.repeat(list(PLACES), 6)
    sign = np.array([1.0 if PLACES[name] == "town" else -1.0 for name in ids])
    X = rng.uniform(-0.7, 0.7, (len(ids), 2))
    return Tasks.from_arrays(X, sign * X.sum(axis=1) / 2, ids)


TASKS = make_tasks()


def test_a_cluster_is_a_run_of_its_own_tasks():
    done = run_partition(PLAN, TASKS, PLACES, random_state=0)
    assert list(done.runs) == ["country", "town"]
    for name, count in (("country", 10), ("town", 20)):
        own = done.runs[name]
        members = TASKS.select(np.array([PLACES[task] == name for task in TASKS.ids.tolist()]))
        assert own.plan.n_tasks == len(members) == count
        tape = replay(own.plan, own.board, members, seeds=own.private.seeds)
        np.testing.assert_array_equal(tape["coef"], own.private.models["coef"])
    np.testing.assert_array_equal(done.model("t25")["coef"], done.runs["country"].model("t25")["coef"])
    with pytest.raises(InputError, match="There is no task 'nobody' in these runs"):
        done.model("nobody")


@pytest.mark.parametrize("copying", [pickle.dumps, copy.deepcopy])
def test_clusters_of_one_task_each_are_not_pickled_together(copying):
    few = TASKS.select(np.arange(M) < 2)
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=1), NoNoise(), n_tasks=2)
    done = run_partition(plan, few, {"t00": "one", "t01": "two"})
    with pytest.raises(InputError, match=r"not pickled whole.*model\(task\) to that task alone"):
        copying(done)
    own = copying(replace(done, runs={"one": done.runs["one"]}))  # one task's own
    assert own


def test_another_cluster_does_not_reach_a_board():
    """Nor does its noise: two clusters of one seed and size have different noise."""
    other = replace(TASKS, y=TASKS.y * np.where(np.repeat(TASKS.ids, TASKS.sizes) < "t20", 0.5, 1.0))
    one, two = (run_partition(PLAN, tasks, PLACES, random_state=0) for tasks in (TASKS, other))
    assert one.runs["country"].board.head == two.runs["country"].board.head
    assert one.runs["town"].board.head != two.runs["town"].board.head
    halves = {name: i % 2 for i, name in enumerate(PLACES)}
    nothing = replace(TASKS, X=np.zeros_like(TASKS.X), y=np.zeros_like(TASKS.y))
    first, second = run_partition(PLAN, nothing, halves, random_state=0).runs.values()
    assert not np.array_equal(first.board.releases[0].value, second.board.releases[0].value)


def test_clusters_tell_apart_what_a_mean_of_all_cannot():
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=40, steps=3, lam=0.3), NoNoise(), n_tasks=M)
    together = run(plan, TASKS).board["mean"]
    apart = {name: own.board["mean"] for name, own in run_partition(plan, TASKS, PLACES).runs.items()}
    assert abs(together).max() < 0.3 < 0.4 < min(apart["town"].min(), (-apart["country"]).min())


@pytest.mark.parametrize("sampling", [Poisson(0.5), Poisson(0.5, hidden=True), FixedSize(5)], ids=repr)
def test_every_cluster_has_the_price_of_the_plan(sampling):
    plan = replace(PLAN, mechanism=Gaussian(), sampling=sampling).calibrate(1.0)
    for own in partition_plans(plan, PLACES).values():
        assert 0.99 <= own.guarantee.epsilon / plan.guarantee.epsilon <= 1
        assert own.delta == plan.delta


def test_the_guarantee_says_that_clusters_are_public():
    guarantee = run_partition(PLAN, TASKS, PLACES).guarantee
    assert guarantee.holds
    assert guarantee.n_tasks == M
    assert guarantee.epsilon == pytest.approx(2.0, rel=1e-3)
    assert guarantee.mu == pytest.approx(PLAN.guarantee.mu)
    assert "the run of its own cluster alone; which one that is counts as public" in str(guarantee)
    assert not run_partition(PLAN, TASKS, PLACES, random_state=0).guarantee.holds


def test_a_ledger_is_charged_once_for_the_most_expensive_run():
    alone, clustered = (Ledger(3.0, 1e-3, n_tasks=M) for _ in range(2))
    run(PLAN, TASKS, ledger=alone)
    run_partition(PLAN, TASKS, PLACES, ledger=clustered)
    assert len(clustered.history) == 1
    assert clustered.spent == alone.spent
    assert not clustered.history[0].doubts
    for _ in range(2):  # the budget allows no second run, and a refusal spends nothing
        with pytest.raises(BudgetError, match="Nothing has left any task"):
            run_partition(PLAN, TASKS, PLACES, ledger=clustered)
    assert clustered.spent == alone.spent


def test_of_unequal_runs_the_most_expensive_is_charged():
    """Nine of ten tasks are in more rounds than nine of twenty: the small cluster gets more noise."""
    plan = replace(PLAN, mechanism=Gaussian(), sampling=FixedSize(9)).calibrate(1.0)
    mus = {name: own.mechanism.mu for name, own in partition_plans(plan, PLACES).items()}
    assert mus["country"] < 0.9 * mus["town"]
    ledger = Ledger(9.0, 1e-3, n_tasks=M)
    run_partition(plan, TASKS, PLACES, ledger=ledger)
    assert ledger.history[0].mu == pytest.approx(mus["town"])


class Refusing(Local):
    """An engine that cannot compute on anything."""

    def workers(self, plan, tasks, seeds):
        raise PlanError("Not here.")


def test_what_is_refused_is_not_charged():
    ledger = Ledger(3.0, 1e-3)
    fewer = {name: place for name, place in PLACES.items() if name != "t03"}
    with pytest.raises(InputError, match="Task 't03' is in none; put it in one"):
        run_partition(PLAN, TASKS, fewer, ledger=ledger)
    with pytest.raises(InputError, match="clusters names 'x', not a task of the data"):
        run_partition(PLAN, TASKS, PLACES | {"x": "town"}, ledger=ledger)
    with pytest.raises(PlanError, match=r"the plan's 30 tasks. Got 29"):
        partition_plans(PLAN, fewer)
    with pytest.raises(PlanError, match=r"Cluster 'country' has 10 tasks, too few for this plan: FixedSize"):
        run_partition(replace(PLAN, sampling=FixedSize(15)), TASKS, PLACES, ledger=ledger)
    with pytest.raises(InputError, match="random_state must be a whole number"):
        run_partition(PLAN, TASKS, PLACES, ledger=ledger, random_state=0.5)
    with pytest.raises(InputError, match=r"as a dict does\. Got a list"):
        run_partition(PLAN, TASKS, list(PLACES.values()), ledger=ledger)
    refusing = MultiDevice((Refusing(),))
    with pytest.raises(PlanError, match="Not here"):
        run_partition(PLAN, TASKS, PLACES, ledger=ledger, engine=refusing)
    with pytest.raises(PlanError, match=r"^This plan has no noise level yet"):
        run_partition(replace(PLAN, mechanism=Gaussian()), TASKS, PLACES, ledger=ledger)
    assert ledger.history == ()
