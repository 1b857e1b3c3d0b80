"""Actors of a cluster are one engine: the board and the models of `Local()`, whoever is lost on the way."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from cloister import Plan, Tasks, run
from cloister.algorithms import LowRank, MeanRegularized, SharedPrior
from cloister.channel import GRID
from cloister.engines import Cluster
from cloister.engines.cluster.actor import Failure
from cloister.engines.cluster.engine import check_whole
from cloister.engines.cluster.held import HeldShards
from cloister.engines.cluster.workers import ClusterWorkers
from cloister.engines.shards import ShardError
from cloister.errors import AlgorithmError, ClusterError, InputError, PlanError, PrivateDataError
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian
from cloister.roster import Roster
from cloister.sampling import Poisson

sys.path.append(str(Path(__file__).parents[1] / "cli"))  # cli_helpers

M, D = 60, 4


def make_tasks():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(M), rng.integers(2, 30, M))
    X = rng.uniform(-0.4, 0.4, (len(ids), D))
    y = np.clip(X @ rng.normal(0, 0.6, D) + rng.normal(0, 0.3, M)[ids], -1, 1)
    return Tasks.from_arrays(X, y, ids)


TASKS = make_tasks()
MEAN = Plan(
    MeanRegularized(LeastSquares(D), rounds=6, batch=3), Gaussian(0.9), Poisson(0.4), n_tasks=M
)  # draws rows and coins
PLANS = {
    "mean": MEAN,
    "prior": Plan(SharedPrior(Regression(D)), Gaussian(0.9), n_tasks=M),
    "low rank": Plan(LowRank(LeastSquares(D)), Gaussian(0.9), n_tasks=M),
}


@pytest.fixture(scope="module")
def session():
    from ray_session import started

    with started() as ray:
        yield ray


def same(plan, engine, tasks=TASKS):
    one, two = run(plan, tasks, random_state=3), run(plan, tasks, random_state=3, engine=engine)
    assert two.board.head == one.board.head
    assert two.private.rejected_messages == one.private.rejected_messages
    for name, array in one.private.models.items():
        np.testing.assert_array_equal(two.private.models[name], array)


def test_actors_on_disk_and_lost_give_the_run_of_one_machine(session):
    """Five shards, of which one fits into memory; an actor is killed in the first round and in another."""
    from ray_session import Killing

    same(MEAN, Killing(2, shards=5, memory=30_000, kills=((0, 1), (4, 0))))


def test_a_folder_of_parquet_from_the_command_line(session, tmp_path, monkeypatch):
    """Fit, show, predict and replay; models are those that the board gives each task at home."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from cli_helpers import BOOK, ok, pupils

    monkeypatch.chdir(tmp_path)
    Path("book.toml").write_text(BOOK)
    Path("pupils").mkdir()
    table = pa.table(pupils(tasks=30))
    for number in range(3):
        pq.write_table(table.take(np.arange(number, len(table), 3)), f"pupils/{number}.parquet")
    ok(
        "fit",
        "pupils",
        "--codebook",
        "book.toml",
        "--engine",
        "ray",
        "--shards",
        5,
        "--actors",
        1,
        "-o",
        "exam",
    )
    assert sorted(os.listdir()) == ["book.toml", "exam", "pupils"]  # no shard, no draft is left
    assert "exam passes" in ok("verify", "exam")
    again = ok("replay", "exam", "pupils", "--task-name", "007", "-o", "own.json")
    assert again.split("\n\nComputed here")[0].strip() == ok("show", "exam", "007").strip()
    ok("predict", "exam", "pupils", "-o", "predicted")
    found = pq.read_table("predicted/1.parquet")
    alone = json.loads(ok("predict", "exam", "pupils/1.parquet", "--json"))
    assert found["prediction"].to_pylist() == alone["prediction"]


@pytest.mark.slow
@pytest.mark.parametrize("actors", [2, 4])
@pytest.mark.parametrize("name", PLANS)
def test_every_plan_on_any_number_of_actors(session, name, actors):
    from ray_session import Killing

    same(PLANS[name], Killing(actors, kills=((1, 0), (1, 1), (2, 1))))


def test_a_sum_that_its_tasks_cannot_have_made_is_refused():
    shards = HeldShards(TASKS, 2)
    workers = ClusterWorkers(MEAN, shards, np.zeros(M, np.uint64), None, False, lambda done, total: None)
    channel = MEAN.rounds[0].channels[0]
    most = np.full(D, 3 * GRID)
    workers._check(channel, most, 3)
    for wrong in (most + 1, -most - 1, most.astype(float), most[:2]):
        with pytest.raises(ClusterError, match="is not used"):
            workers._check(channel, wrong, 3)


def test_more_tasks_than_64_bits_can_sum_are_refused():
    plan = Plan(LowRank(LeastSquares(2)), Gaussian(1.0), n_tasks=2**27)
    check_whole(Plan(plan.algorithm, plan.mechanism, n_tasks=2**27 - 1))
    with pytest.raises(PlanError, match="fewer than 134217728 tasks"):
        check_whole(plan)


def test_an_error_travels_without_what_it_says():
    """Its text may hold a row; a sentence about files or plans may not."""
    for error, kind in [
        (AlgorithmError("task 7: 0.123"), AlgorithmError),
        (ValueError("0.123"), AlgorithmError),
        (InputError("row 3: 0.123"), PrivateDataError),
        (PrivateDataError("row 3: 0.123"), PrivateDataError),
    ]:
        raised = Failure.of(error, 4, computing=False).raised()
        assert type(raised) is kind
        assert "0.123" not in str(raised)
        assert "shard 4" in str(raised)
    assert "0.123" not in str(Failure.of(PlanError("0.123"), 4, computing=True).raised())
    assert str(Failure.of(ShardError("Gone."), 4, computing=True).raised()) == "Gone."


def test_a_roster_has_no_rows_to_read():
    with (
        pytest.raises(InputError, match="a roster has none"),
        Cluster().workers(MEAN, Roster(range(M)), np.zeros(0, np.uint64)),
    ):
        pass
