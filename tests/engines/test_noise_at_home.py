"""Runs on one machine in which tasks add the noise, and nobody sees a message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cloister as cl
from cloister import Plan, Trust, run
from cloister.core.errors import BillboardError, PlanError
from cloister.core.roster import Groups
from cloister.engines import Local
from cloister.engines.curator import Curator
from cloister.engines.noise_at_home import NoiseAtHome
from cloister.privacy.noise_states import NoisySum
from cloister.privacy.randomness import SeededRandomness
from cloister.store.journal import MemoryJournal

TRUSTS = [Trust.secure_sum(), Trust.secure_sum(2, 1), Trust.silo()]
N = 9


@pytest.fixture(scope="module")
def tasks():
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (8 * N, 2))
    made = cl.Tasks.from_arrays(X, X @ [0.5, -0.3] + 0.1 * rng.normal(size=8 * N), np.arange(8 * N) % N)
    return made.with_groups({task: "ab"[task % 2] for task in range(N)})


def plans(trust, tasks):
    groups = Groups.of(tasks.groups)
    learner = cl.learners.Regression(2)
    for algorithm in (
        cl.algorithms.SharedPrior(learner, cl.algorithms.GroupMeans(cl.algorithms.Joint(), groups)),
        cl.algorithms.LowRank(cl.learners.LeastSquares(2), rounds=2),
    ):
        yield Plan(algorithm, n_tasks=N, trust=trust).calibrate(4.0)


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_its_board_and_its_replay(trust, tasks, tmp_path):
    for plan in plans(trust, tasks):
        first, again = (run(plan, tasks, random_state=7) for _ in range(2))
        assert first.board.head == again.board.head  # masks differ each time, and leave no trace
        plan.check(first.board)
        channel = plan.rounds[0].channels[first.board.releases[0].channel]
        assert first.board.releases[0].noise == plan.noise(0, channel)
        models = cl.replay(plan, first.board, tasks, seeds=first.private.seeds)
        for name, array in models.items():
            assert (array == first.private.models[name]).all()
        assert cl.Plan.load(first.save(tmp_path / plan.fingerprint) / "plan.toml").trust == trust


def test_the_curators_noise_on_top_goes_on_where_a_run_was_stopped(tasks, tmp_path):
    """Killed after two rounds, with or without states that were kept: the board that it would have been."""
    plan = next(iter(plans(Trust.secure_sum(2, 1, curator_noise=True), tasks)))
    whole = run(plan, tasks, random_state=7)
    plan.check(whole.board)
    assert (
        whole.board.head != run(replace(plan, trust=Trust.secure_sum(2, 1)), tasks, random_state=7).board.head
    )

    def stop(posted):
        if posted.done == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(plan, tasks, random_state=7, journal=tmp_path / "run", progress=stop)
    assert run(plan, tasks, random_state=7, journal=tmp_path / "run").board.head == whole.board.head


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_opened_sum_is_the_plain_sum_and_the_noise_of_all(trust, tasks):
    """Run once more with the same keys and each task silent but for its noise: the difference is the sum."""
    plan = next(iter(plans(trust, tasks)))
    source = SeededRandomness(3)  # the same noise, whatever it is added to
    groups = plan.algorithm.groups.positions(tasks.groups)
    board = plan.create_board()
    channel = plan.algorithm.channel(board)
    seeds = np.arange(N, dtype=np.uint64)
    with Local().workers(plan, tasks, seeds) as workers:
        workers.start(board)
        at_home = NoiseAtHome(plan, workers, groups, source)
        found = at_home.collect(board, channel, np.ones(N, bool))
    with Local().workers(plan, tasks, seeds) as workers:
        workers.start(board)
        silent = NoiseAtHome(plan, _Silent(workers, channel), groups, source)
        noise = silent.collect(board, channel, np.ones(N, bool))
    with Local().workers(plan, tasks, seeds) as workers:
        workers.start(board)
        plain = workers.collect(board, channel, np.ones(N, bool))
    assert isinstance(found, NoisySum)
    assert found.shares == N
    assert (found.values - noise.values == plain).all()
    assert (noise.values != 0).all()


class _Silent:
    def __init__(self, workers, channel):
        self.workers, self.channel = workers, channel

    def collect_rows(self, board, channel):
        return np.zeros_like(self.workers.collect_rows(board, channel))


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_that_was_killed_goes_on_to_the_same_board(trust, tasks, tmp_path):
    plan = next(iter(plans(trust, tasks)))
    whole = run(plan, tasks, random_state=1).board

    class Killed(BaseException):
        pass

    def kill(posted):
        if posted.done == 3:
            raise Killed

    with pytest.raises(Killed):
        run(plan, tasks, random_state=1, journal=tmp_path / "run", progress=kill)
    assert run(plan, tasks, random_state=1, journal=tmp_path / "run").board.head == whole.head


def test_a_bare_sum_is_never_released_under_a_plan_that_promises_noise_at_home(tasks):
    plan = next(iter(plans(Trust.secure_sum(), tasks)))
    source = SeededRandomness(0)
    curator = Curator(
        plan, MemoryJournal(plan.create_board(source), source), plan.algorithm.groups.positions(tasks.groups)
    )
    with Local().workers(plan, tasks, np.zeros(N, np.uint64)) as workers:
        workers.start(curator.journal.posted)
        with pytest.raises(cl.CloisterError, match="without its tasks' noise"):
            curator.rounds(workers, None)


def test_a_board_that_claims_the_noise_of_too_few_is_refused(tasks):
    plan = next(iter(plans(Trust.secure_sum(2, 1), tasks)))
    board = run(plan, tasks, random_state=0).board
    channel = plan.rounds[0].channels[0]
    for shares, allowed in ((9, True), (8, True), (7, True), (6, False), (7.5, False)):
        noise = plan.noise(0, channel, shares)
        assert plan.has_noise(0, channel, noise) is allowed
    less = replace(board.releases[0], noise=plan.noise(0, channel, 6))
    start = plan.create_board()
    forged = start.post(less, plan.algorithm.update(less, start))
    with pytest.raises(BillboardError, match="does not have the noise"):
        plan.check(forged)


def test_engines_whose_tasks_do_not_speak_one_by_one_are_refused(tasks):
    torch = pytest.importorskip("torch")
    from cloister.engines import Batched

    net = cl.learners.Module(torch.nn.Linear(2, 1), loss=torch.nn.MSELoss())
    algorithm = cl.algorithms.FedAvg(net, cl.learners.Descent(0.1, steps=2), clip=1.0, rounds=2)
    plan = Plan(algorithm, n_tasks=N, trust=Trust.silo()).calibrate(2.0)
    ledger = cl.Ledger(4.0, plan.delta)
    with pytest.raises(PlanError, match="SiloNoise runs on Local"):
        run(plan, tasks, engine=Batched("cpu"), ledger=ledger)
    assert not ledger.history


def test_runs_that_are_chosen_among_have_a_trusted_curator(tasks):
    from cloister.engines.run import check_run

    plan = next(iter(plans(Trust.silo(), tasks)))
    with pytest.raises(PlanError, match="have a trusted curator"):
        check_run(plan, tasks, Local())
