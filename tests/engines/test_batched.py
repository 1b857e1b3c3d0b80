"""The batched engine: the reference engine's results, isolation, resumption, and a clip that is exact."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Billboard, Plan, Tasks, replay, run
from cloister.algorithms import Ditto, FedAvg, FineTuning, Independent, LocalOnly, Personalized, Position
from cloister.core.tasks import public_seeds
from cloister.engines import Batched
from cloister.errors import AlgorithmError, PlanError
from cloister.learners import EWC, Descent, Module, Regression, SymmetrizedKL
from cloister.mechanisms import Gaussian, L2Laplace, NoNoise, Toeplitz
from cloister.networks.batched import _DeviceBoard
from cloister.networks.placement import Footprint
from cloister.sampling import Everyone, FixedSize, Poisson
from cloister.store.billboard import BoardView

CPU = Batched("cpu", block=4)
SIZES = [1, 2, 2, 3, 3, 4, 5, 6, 9, 9, 14, 20, 30, 30, 31]
M = len(SIZES)


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Module(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)))


def make_tasks(seed=0, kind=np.int64):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"t{i:02d}" for i in rng.permutation(M)], SIZES)
    return Tasks.from_arrays(rng.normal(size=(len(ids), 3)), rng.integers(0, 3, len(ids)).astype(kind), ids)


TASKS = make_tasks()
SOLVER = Descent(0.2, batch=4, momentum=0.4)
TUNED = FineTuning(Descent(0.1, batch=3, steps=4), EWC(1.0))
PERSONAL = Personalized(network(), SOLVER, clip=0.3, rounds=4, finetune=TUNED)


def models_of(plan, tasks=TASKS, engine=CPU):
    return run(plan, tasks, random_state=0, engine=engine)


def both(plan, tasks=TASKS, engine=CPU):
    """Run on both engines; the boards' numbers and all models must agree."""
    one, two = run(plan, tasks, random_state=0), models_of(plan, tasks, engine)
    for name, array in one.board.records[-1].public.items():
        np.testing.assert_allclose(two.board[name], array, atol=1e-5)
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], rtol=1e-5, atol=1e-5)
    assert two.private.rejected_messages == one.private.rejected_messages
    return one, two


# --- the same results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Everyone(), Poisson(0.5), FixedSize(4)], ids=repr)
@pytest.mark.parametrize("mechanism", [Gaussian(), Gaussian(exact=False), NoNoise()], ids=repr)
def test_engines_agree(sampling, mechanism):
    """Several buckets of ragged sizes, several blocks each, the last one of a bucket not full."""
    plan = Plan(PERSONAL, mechanism, sampling, n_tasks=M)
    both(plan if isinstance(mechanism, NoNoise) else plan.calibrate(5.0))


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(network(), SOLVER, clip=0.3, rounds=3),
        Ditto(network(), SOLVER, rounds=2, finetune=FineTuning(Descent(0.1), SymmetrizedKL(1.0))),
        Personalized(network(), SOLVER, rounds=2, message=Position()),
        LocalOnly(network(), Descent(0.1, batch=2, epochs=2)),
    ],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("block", [1, 3, None])
def test_engines_agree_on_every_algorithm_and_block(algorithm, block):
    both(Plan(algorithm, Gaussian(1.0), n_tasks=M), engine=Batched("cpu", block=block))


def test_engines_agree_on_other_noise():
    both(Plan(PERSONAL, L2Laplace(), n_tasks=M).calibrate(50.0))


def test_engines_agree_when_nobody_takes_part():
    plan = Plan(replace(PERSONAL, rounds=12), Gaussian(1.0), Poisson(0.08), n_tasks=M)
    one, _ = both(plan)
    assert (np.sum(one.private.coins, axis=1) == 0).any()


def test_classes_as_floats_and_rows_without_weight():
    floats = make_tasks(kind=np.float64)
    weight = np.ones(len(floats.y))
    weight[slice(*floats.offsets[9:11])] = 0.0  # all rows of one task
    weight[::7] = 0.0
    plan = Plan(PERSONAL, Gaussian(1.0), n_tasks=M)
    one, two = both(plan, replace(floats, weight=weight))
    for done in (one, two):  # a task without rows stays at the start
        np.testing.assert_array_equal(done.private.models["coef"][9], network().start().astype(np.float32))
        assert np.isfinite(done.private.models["coef"]).all()
    whole = models_of(plan, make_tasks()).private.models["coef"]
    np.testing.assert_array_equal(models_of(plan, floats).private.models["coef"], whole)


def test_words_stay_whole_numbers():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    words = Tasks.from_arrays(rng.integers(0, 6, (40, 4)), rng.integers(0, 3, 40), np.arange(40) % 8)
    net = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(12, 3))
    both(Plan(FedAvg(Module(net), SOLVER, rounds=2), Gaussian(1.0), n_tasks=8), words)


def test_a_layer_that_vmap_runs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 3))
    both(Plan(FedAvg(Module(net), SOLVER, rounds=2), Gaussian(1.0), n_tasks=M))


# --- replay, isolation, resumption -------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Everyone(), Poisson(0.5)], ids=repr)
def test_replay_gives_every_model_again(sampling):
    done = models_of(Plan(PERSONAL, Gaussian(1.0), sampling, n_tasks=M))
    private = done.private
    again = {"coins": private.coins, "seeds": private.seeds}
    tape = replay(done.plan, done.board, TASKS, **again, engine=CPU)
    np.testing.assert_array_equal(tape["coef"], private.models["coef"])
    np.testing.assert_allclose(replay(done.plan, done.board, TASKS, **again)["coef"], tape["coef"], atol=1e-5)
    alone = replay(done.plan, done.board, TASKS.select([3]), coins=private.coins[:, [3]],
                   seeds=private.seeds[[3]], engine=CPU)  # fmt: skip
    np.testing.assert_allclose(alone["coef"][0], private.models["coef"][3], atol=1e-5)


@pytest.mark.parametrize("garbage", [np.inf, np.nan, 1e300, 1e30])
def test_garbage_of_one_task_leaves_all_others_to_the_bit(garbage):
    """The board is the same, so every other model must be; the task itself says nothing that counts."""
    plan = Plan(PERSONAL, Gaussian(1.0), Poisson(0.6), n_tasks=M)
    done = models_of(plan)
    X = TASKS.X.copy()
    X[slice(*TASKS.offsets[6:8])] = garbage
    changed = replace(TASKS, X=X)
    private = done.private
    tape = replay(plan, done.board, changed, coins=private.coins, seeds=private.seeds, engine=CPU)
    others = np.arange(M) != 6
    np.testing.assert_array_equal(tape["coef"][others], private.models["coef"][others])
    loud = run(replace(plan, mechanism=NoNoise()), changed, random_state=0, engine=CPU)
    assert all(np.isfinite(release.value).all() for release in loud.board.releases)
    assert {release.denominator for release in loud.board.releases} == {0.6 * M}


class Stopped(Exception):
    pass


@pytest.mark.parametrize("checkpoint", [0.0, math.inf])
def test_a_stopped_run_goes_on_to_the_same_board(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("cloister.engines.checkpointed.SHARE", 0)
    plan = Plan(PERSONAL, Gaussian(1.0), Poisson(0.6), n_tasks=M)
    whole = models_of(plan)

    def stop(posted):
        if posted.done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run(plan, TASKS, random_state=0, engine=CPU, journal=tmp_path, progress=stop, checkpoint=checkpoint)
    assert (tmp_path / "secret").exists()
    assert (tmp_path / "states").exists() == (checkpoint == 0)
    done = run(plan, TASKS, random_state=0, engine=CPU, journal=tmp_path)
    assert done.board.head == whole.board.head
    np.testing.assert_array_equal(done.private.models["coef"], whole.private.models["coef"])
    assert not (tmp_path / "secret").exists()


def test_a_run_may_go_on_where_sums_come_out_in_other_last_bits(tmp_path):
    """As on a graphics card: what is posted stays, the rest follows from it, replay agrees to rounding."""
    plan = Plan(PERSONAL, Gaussian(1.0), Poisson(0.6), n_tasks=M)
    whole = models_of(plan)

    def stop(posted):
        if posted.done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run(plan, TASKS, random_state=0, engine=CPU, journal=tmp_path, progress=stop)
    posted = Billboard.recover(tmp_path / "board")
    done = run(plan, TASKS, random_state=0, engine=Batched("cpu", block=1), journal=tmp_path)
    assert done.board.before(2).head == posted.head
    plan.check(done.board)
    np.testing.assert_allclose(done.board["mean"], whole.board["mean"], atol=1e-5)
    private = done.private
    tape = replay(plan, done.board, TASKS, coins=private.coins, seeds=private.seeds, engine=CPU)
    np.testing.assert_allclose(tape["coef"], private.models["coef"], atol=1e-5)


def test_a_device_sees_all_of_the_board_that_algorithms_use():
    board = models_of(Plan(PERSONAL, Gaussian(1.0), n_tasks=M)).board
    here: BoardView = _DeviceBoard(board, torch.device("cpu"))
    assert (here.plan, here.capacity, here.rounds) == (board.plan, board.capacity, board.rounds)
    assert ("mean" in here, "median" in here) == (True, False)
    np.testing.assert_allclose(here["mean"].numpy(), board["mean"], rtol=1e-6)
    np.testing.assert_allclose(here.before(1)["mean"].numpy(), board.before(1)["mean"], rtol=1e-6)
    np.testing.assert_array_equal(here.releases[-1].value, board.releases[-1].value)


# --- what leaves a task is bounded: the channel's own arithmetic (tests/test_channel.py), on the device -----


@pytest.mark.parametrize(
    "mechanism", [Gaussian(1.0), Gaussian(1.0, exact=False), L2Laplace(1.0), Toeplitz(1.0)]
)
def test_sums_are_those_of_the_channel(mechanism, monkeypatch):
    """Rows that are not finite are zero and counted; the rest is the channel's own sum, part by part."""
    monkeypatch.setattr("cloister.networks.batched.CHUNK", 100)
    plan = Plan(FedAvg(network(), SOLVER, clip=0.3, rounds=1), mechanism, n_tasks=M)
    said = []

    class Spying(type(plan.algorithm)):
        def send(self, states, block, board):
            messages, states = super().send(states, block, board)
            messages[0, 2] = [torch.nan, torch.inf][len(said) % 2]
            said.append(messages.clone())
            return messages, states

    algorithm = Spying(network(), SOLVER, clip=0.3, rounds=1)
    plan = replace(plan, algorithm=algorithm)
    board = Billboard.create(algorithm.start(), plan.fingerprint, 1)
    with CPU.workers(plan, TASKS, public_seeds(TASKS.ids)) as workers:
        workers.start(board)
        total = np.asarray(workers.collect(board, algorithm.channel(board), np.ones(M, dtype=bool)))
        assert workers.rejected() == len(said) > 1
    assert total.dtype == (np.int64 if mechanism.exact else np.float64)
    rows = np.concatenate([np.asarray(part) for part in said])
    expected = algorithm.channel(board).total(rows, mechanism.exact)
    np.testing.assert_allclose(total, expected, atol=M if mechanism.exact else 1e-12)


# --- what is refused ---------------------------------------------------------------------------------------


def test_an_algorithm_without_a_network_is_refused():
    with pytest.raises(PlanError, match=r"trains networks\. Independent has none; use Local\(\)"):
        run(Plan(Independent(Regression(3)), n_tasks=M), TASKS, engine=CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics card")
def test_a_missing_card_is_a_sentence():
    with pytest.raises(PlanError, match=r"sees no graphics card here. Use Batched\(.cpu.\) or Local\(\)"):
        run(Plan(PERSONAL, Gaussian(1.0), n_tasks=M), TASKS, engine=Batched())


class Shy(nn.Linear):
    """Fails where many rows come at once, as a layer does that has no rule for what it is given."""

    def forward(self, input):
        if len(input) > 12:
            raise RuntimeError("too many at once")
        return super().forward(input)


def test_the_memory_of_a_card_is_said_beforehand():
    """A step keeps every example's 999 hidden numbers of 4 bytes, and rows stay if there is room."""

    def taken(batch, block=None):
        wide = Module(nn.Sequential(nn.Linear(3, 999), nn.Tanh(), nn.Linear(999, 3)))
        plan = Plan(FedAvg(wide, Descent(0.1, batch=batch), rounds=1), NoNoise(), n_tasks=M)
        return Batched("cuda", block=block).footprint(plan, TASKS)

    few, more = taken(4), taken(24)
    assert more.tasks == M
    assert "15 tasks at once take about 0.00" in str(more)
    kept = (more.task_bytes - few.task_bytes) / 20
    assert 4 * 999 <= kept <= 4 * 1010
    assert taken(4, block=3).peak_bytes == 3 * few.task_bytes + few.rows_bytes
    assert "rows pass through block by block" in str(Footprint.of(8_000_000, 1000, 99, 1e7, None))
    assert Footprint.of(1000, 1000, 99, 1e5, None).tasks == 50


def test_what_a_layer_says_when_it_fails_comes_with_its_name_and_how_many_tasks():
    plan = Plan(FedAvg(Module(Shy(3, 3)), Descent(0.1, steps=1), rounds=1), NoNoise(), n_tasks=M)
    said = r"A layer Shy failed on \d+ tasks? at once: too many at once$"
    with pytest.raises(AlgorithmError, match=rf"^{said}"):
        run(plan, TASKS, random_state=0, engine=CPU)
    with pytest.raises(AlgorithmError, match=rf"^FedAvg\.send failed for task 't\d+': {said}"):
        run(plan, TASKS, random_state=0)  # where each task by itself is tried, and only the largest fail


def test_padded_places_of_a_block_say_nothing(monkeypatch):
    """On a card the last block is filled up to the shape of the others. So filled, the board is the same."""

    def padded(self, members):
        for start in range(0, len(members), self.places):
            part = members[start : start + self.places]
            fill = np.full(self.places - len(part), members[0])
            yield torch.from_numpy(np.concatenate([part, fill])), len(part)

    says = Personalized(
        network(), SOLVER, clip=0.3, rounds=2, message=Position()
    )  # without rows too, that is
    plan = Plan(says, Gaussian(5.0), Poisson(0.5), n_tasks=M)  # blocks are seldom full
    plain = models_of(plan)
    monkeypatch.setattr("cloister.networks.placement.Bucket.chunks", padded)
    filled = models_of(plan)
    for one, other in zip(plain.board.releases, filled.board.releases, strict=True):
        np.testing.assert_allclose(other.value, one.value, atol=1e-5)
    assert filled.private.rejected_messages == plain.private.rejected_messages == 0
