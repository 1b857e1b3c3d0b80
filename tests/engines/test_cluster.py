"""Actors of a cluster are one engine: the board and the models of `Local()`, whoever is lost on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cloister import Ledger, Plan, Tasks, Unit, run
from cloister.algorithms import LowRank, MeanRegularized, SharedPrior
from cloister.audit.zoo.plans import GramOfRecords
from cloister.channel import Channel, Outer
from cloister.cluster.actor import Failure
from cloister.cluster.driver import Actors, ClusterWorkers
from cloister.cluster.engine import HeldShards
from cloister.cluster.engine import _check_room as check_room
from cloister.cluster.engine import _own_files as own_files
from cloister.cluster.engine import _own_token as own_token
from cloister.cluster.engine import _start as start_ray
from cloister.core.channel import GRID
from cloister.core.roster import Roster
from cloister.engines import Cluster, Local
from cloister.engines.workers import ShardError, check_whole
from cloister.errors import (
    AlgorithmError,
    ClusterError,
    InputError,
    MissingExtraError,
    PlanError,
    PrivateDataError,
)
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian
from cloister.sampling import Poisson
from cloister.store.model_store import read_models

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
    "records": Plan(
        GramOfRecords(Channel(D + 1, lift=Outer())), Gaussian(0.9), n_tasks=M, unit=Unit.record(2000)
    ),
}


@pytest.fixture(scope="module")
def session():
    from ray_session import started

    with started() as ray:
        yield ray


@pytest.fixture
def pretended(monkeypatch):
    from pretend_ray import pretended

    with pretended(monkeypatch) as ray:
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


def test_a_session_of_our_own_is_for_us_alone(session):
    """Its store is full, and rows go to disk; whoever connects needs a token."""
    folder = Path(session._private.worker._global_node.get_session_dir_path())
    held = [session.put(np.zeros(4 * 10**6)) for _ in range(5)]  # 160 MB in a store of 100
    until, spilled = time.monotonic() + 60.0, []
    while not spilled and time.monotonic() < until:  # on a busy machine Ray goes on before they are written
        time.sleep(0.1)
        spilled = [path for path in folder.glob("ray_spilled_objects_*/*") if path.is_file()]
    assert len(held) > len(spilled) > 0
    assert {path.stat().st_mode & 0o077 for path in spilled} == {0}
    assert {path.parent.stat().st_mode & 0o077 for path in spilled} == {0}

    def seen():
        mask = os.umask(0)
        os.umask(mask)
        return mask, os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"])

    assert session.get(session.remote(num_cpus=1)(seen).remote()) == (0o077, "token", 64)


def test_states_that_were_kept_at_the_end_are_those_of_the_models(pretended, tmp_path, monkeypatch):
    """Killed between the last checkpoint and the models: no round is left to listen to."""
    monkeypatch.setattr("cloister.engines.checkpointed.SHARE", 0)
    given = {
        "random_state": 3,
        "journal": tmp_path / "run",
        "checkpoint": 0.0,
        "engine": Cluster(1, shards=2),
    }

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(MEAN, TASKS, save=stop, **given)
    one, two = run(MEAN, TASKS, random_state=3), run(MEAN, TASKS, **given)
    np.testing.assert_array_equal(two.private.models["coef"], one.private.models["coef"])
    assert two.private.rejected_messages == one.private.rejected_messages


@dataclass(frozen=True)
class Late(Local):
    """An engine whose tasks have no memory of the first rounds, and fail if they are told of them again."""

    first: int = 0

    @contextmanager
    def workers(self, plan, tasks, seeds):
        with super().workers(plan, tasks, seeds) as workers:
            listen = workers.listen

            def late(board, coins):
                assert board.rounds >= self.first
                listen(board, coins)

            workers.listen = late
            yield workers


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_shards_keep_their_own_states(pretended, tmp_path, monkeypatch, memory):
    """Killed after four rounds: no shard does the work of the first three again, nor one that is read again.

    The driver has none of the states, and nothing is left of them at the end.
    """
    monkeypatch.setattr("cloister.engines.checkpointed.SHARE", 0)
    monkeypatch.setattr(ClusterWorkers, "save_state", lambda workers, folder=None: 1 / 0)
    journal, models = tmp_path / "run", tmp_path / "models"
    given = {"random_state": 3, "journal": journal, "checkpoint": 0.0}
    cluster = Cluster(2, memory=memory, models=models)

    def stop(posted):
        if posted.done == 4:
            raise KeyboardInterrupt

    def lose(posted):
        for holder in holders[posted.done - 5 : posted.done - 4]:
            pretended.kill(holder)

    shards, holders = HeldShards(TASKS, 3), []
    with pytest.raises(KeyboardInterrupt):
        run(MEAN, shards, engine=cluster, progress=stop, **given)
    kept = sorted(path.name for path in journal.glob("states*"))
    assert kept == ["states-00000", "states-00001", "states-00002"]
    assert {path.stat().st_mode & 0o077 for path in journal.glob("states*")} == {0}

    new = Actors._new
    monkeypatch.setattr(Actors, "_new", lambda actors: holders.append(new(actors)) or holders[-1])
    late = Cluster(2, memory=memory, models=models, engine=Late(1, first=3))
    two, one = run(MEAN, shards, engine=late, progress=lose, **given), run(MEAN, TASKS, random_state=3)
    assert len(holders) > 2
    assert two.board.head == one.board.head
    assert two.private.rejected_messages == one.private.rejected_messages
    for number, at in enumerate(shards.positions):
        found = read_models(models / f"shard-{number:05d}.parquet")
        order = np.argsort(found[0].astype(int))
        np.testing.assert_array_equal(found[1]["coef"][order], one.private.models["coef"][at])
    assert not [*journal.glob("states*"), *journal.glob(".*")]


def test_states_of_other_shards_are_passed_over(pretended, tmp_path, monkeypatch):
    """Dealt out into another number of shards, a run that goes on does its work again."""
    monkeypatch.setattr("cloister.engines.checkpointed.SHARE", 0)
    given = {"random_state": 3, "journal": tmp_path / "run", "checkpoint": 0.0, "engine": Cluster(1)}

    def stop(posted):
        if posted.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(MEAN, HeldShards(TASKS, 3), progress=stop, **given)
    again = run(MEAN, HeldShards(TASKS, 2), **given)
    assert again.board.head == run(MEAN, TASKS, random_state=3).board.head


class Exchanged(HeldShards):
    """Shards of which each holds the tasks of another."""

    def part(self, number):
        return super().part(1 - number)


def test_other_tasks_than_the_rosters_are_refused_before_a_charge(pretended, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", "schools", epsilon=50, delta=MEAN.delta, n_tasks=M)
    with pytest.raises(ShardError, match="Shard 0 must hold the tasks that the roster lists for it"):
        run(MEAN, Exchanged(TASKS, 2), engine=Cluster(1), ledger=ledger, journal=tmp_path / "run")
    assert ledger.history == ()
    assert not (tmp_path / "run").exists()
    assert "collect" not in pretended.asked


def test_a_card_that_is_not_there_is_said_before_a_charge(pretended, tmp_path, monkeypatch):
    """By the cluster, which has none to give; or by the actor, whose torch sees none."""
    torch = pytest.importorskip("torch")
    from cloister.algorithms import FedAvg
    from cloister.engines import Batched
    from cloister.learners import Descent, Module

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match=r"need 2 of GPU, and the cluster has 0"):
        check_room(pretended, 2, 2)
    net = Module(torch.nn.Sequential(torch.nn.Linear(D, 3)))
    plan = Plan(FedAvg(net, Descent(0.1), clip=0.3, rounds=2), Gaussian(0.9), n_tasks=M)
    labels = Tasks.from_arrays(TASKS.X.astype(np.float32), TASKS.y > 0, np.repeat(TASKS.ids, TASKS.sizes))
    tasks = replace(labels, y=labels.y.astype(np.int64))
    with pytest.raises(PlanError, match="torch sees no graphics card"):
        run(plan, tasks, engine=Cluster(1, cards=1, engine=Batched("cuda")), journal=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_token_and_mask_of_a_session_go_with_it(monkeypatch):
    monkeypatch.setattr("cloister.cluster.engine._read_token_again", lambda ray: None)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    tokens, before = set(), os.umask(0o022)
    for _ in range(2):
        with own_token(None), own_files():
            tokens.add(os.environ["RAY_AUTH_TOKEN"])
            assert os.environ["RAY_AUTH_MODE"] == "token"
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        assert "RAY_AUTH_TOKEN" not in os.environ
    assert len(tokens) == 2
    assert os.umask(before) == 0o022


def test_a_machine_too_busy_for_ray_is_tried_again():
    late = Exception("The current node timed out during startup.")

    class Late:
        def __init__(self, *ends):
            self.ends, self.shut = list(ends), 0

        def init(self, **options):
            end = self.ends.pop(0)
            if end is not None:
                raise end

        def shutdown(self):
            self.shut += 1

    ray = Late(late, late, None)
    start_ray(ray, {})
    assert (ray.ends, ray.shut) == ([], 2)
    with pytest.raises(ClusterError, match="did not start on this machine in 3 attempts"):
        start_ray(Late(late, late, late), {})
    with pytest.raises(RuntimeError, match="other"):
        start_ray(Late(RuntimeError("other")), {})


def test_a_folder_of_parquet_from_the_command_line(pretended, tmp_path, monkeypatch):
    """Fit in public groups, show, predict and replay; models are those that the board gives each at home."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from cli_helpers import BOOK, ok, pupils

    monkeypatch.chdir(tmp_path)
    Path("book.toml").write_text(BOOK)
    Path("pupils").mkdir()
    columns = pupils(tasks=30)
    table = pa.table(columns | {"district": [f"d{int(name) % 2}" for name in columns["school"]]})
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
        "--groups",
        "district",
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


@pytest.mark.slow
def test_rows_that_do_not_fit_into_the_store(session):
    """123 MB of rows through a store of 100: Ray puts them on disk, and the run is the same."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.1, 0.1, (M * 4000, 64))
    tasks = Tasks.from_arrays(X, X[:, 0], np.repeat(np.arange(M), 4000))
    plan = Plan(MeanRegularized(LeastSquares(64), rounds=2, steps=1), Gaussian(0.9), n_tasks=M)
    same(plan, Cluster(2, shards=6), tasks)


@dataclass(frozen=True)
class Doomed(Local):
    """An engine whose process ends in a round, whoever computes it."""

    @contextmanager
    def workers(self, plan, tasks, seeds):
        with super().workers(plan, tasks, seeds) as workers:
            collect = workers.collect
            workers.collect = lambda board, *given: os._exit(1) if board.rounds else collect(board, *given)
            yield workers


@pytest.mark.slow
def test_actors_that_are_lost_again_and_again_are_given_up(session, tmp_path):
    """And the run goes on elsewhere, to the head it would have had."""
    with pytest.raises(ClusterError, match="lost one after the other"):
        run(MEAN, TASKS, random_state=3, engine=Cluster(1, engine=Doomed()), journal=tmp_path / "run")
    again = run(MEAN, TASKS, random_state=3, engine=Cluster(1), journal=tmp_path / "run")
    assert again.board.head == run(MEAN, TASKS, random_state=3).board.head


@pytest.mark.slow
def test_networks_states_and_checkpoints(session, tmp_path):
    """A network in batches at the actors; states are kept at every round, and the run goes on from them."""
    torch = pytest.importorskip("torch")
    from cloister.algorithms import Personalized
    from cloister.engines import Batched
    from cloister.learners import Descent, Module

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(TASKS.X.astype(np.float32), rng.integers(0, 3, len(TASKS.y)),
                              np.repeat(TASKS.ids, TASKS.sizes))  # fmt: skip
    net = torch.nn.Sequential(torch.nn.Linear(D, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    algorithm = Personalized(Module(net), Descent(0.2, batch=4), clip=0.3, rounds=6)
    plan = Plan(algorithm, Gaussian(0.9), Poisson(0.4), n_tasks=M)
    cluster = Cluster(2, shards=3, engine=Batched("cpu"), memory=20_000)

    def stop(posted):
        if posted.done == 4:
            raise KeyboardInterrupt

    given = {"random_state": 3, "journal": tmp_path / "run", "checkpoint": 0.0}
    with pytest.raises(KeyboardInterrupt):
        run(plan, tasks, engine=cluster, progress=stop, **given)
    two, one = run(plan, tasks, engine=cluster, **given), run(plan, tasks, random_state=3)
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], atol=1e-4)
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], atol=1e-4)


def test_nothing_of_ray_is_imported_without_need(monkeypatch):
    code = "import sys, cloister.engines, cloister.cli.fit; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'cloister\[cluster\]'"),
        Cluster().workers(MEAN, TASKS, np.zeros(M, np.uint64)),
    ):
        pass


def test_a_sum_that_its_tasks_cannot_have_made_is_refused():
    shards = HeldShards(TASKS, 2)
    workers = ClusterWorkers(
        MEAN, shards, np.zeros(M, np.uint64), None, False, lambda what, done, total: None
    )
    channel = MEAN.rounds[0].channels[0]
    most = np.full(D, 3 * GRID)
    workers._check(channel, most, 3)
    least = np.full(D, np.iinfo(np.int64).min)  # which is negative without its sign, too
    for wrong in (most + 1, -most - 1, least, most.astype(float), most[:2]):
        with pytest.raises(ClusterError, match="is not used"):
            workers._check(channel, wrong, 3)


def test_more_tasks_than_64_bits_can_sum_are_refused():
    plan = Plan(LowRank(LeastSquares(2)), Gaussian(1.0), n_tasks=2**27)
    check_whole(Plan(plan.algorithm, plan.mechanism, n_tasks=2**27 - 1))
    with pytest.raises(PlanError, match="fewer than 134217728 messages"):
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
