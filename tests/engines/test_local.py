"""The reference engine: replay, isolation, what is refused; and `check_algorithm`, which must see it all."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from cloister import Billboard, Ledger, Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import (
    Independent,
    Joint,
    LowRank,
    Mean,
    MeanRegularized,
    SharedPrior,
    Subspace,
    Support,
)
from cloister.channel import Channel, Plain, Round
from cloister.engines import local
from cloister.engines.local import Local
from cloister.errors import AlgorithmError, BillboardError, InputError, PlanError
from cloister.learners import (
    Classification,
    CountRegression,
    LeastSquares,
    Logistic,
    OrderedClassification,
    Regression,
    Softmax,
)
from cloister.mechanisms import Gaussian, NoNoise
from cloister.plan.algorithm import Algorithm
from cloister.privacy.caveats import FLOATING_POINT, SEEDED
from cloister.sampling import Everyone, FixedSize, OnePass, Poisson

SIZES = [1, 2, 3, 4, 5, 6, 7, 3, 5, 1, 4, 2, 9, 6]
M = len(SIZES)


def make_tasks(classes=None, sizes=SIZES, seed=0, dim=3):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"t{i:03d}" for i in range(len(sizes))], sizes)
    X = np.column_stack([np.ones(len(ids)), rng.uniform(-1, 1, (len(ids), dim - 1))]) / np.sqrt(dim)
    w = rng.normal(0.4, 0.3, (len(sizes), dim))[np.repeat(np.arange(len(sizes)), sizes)]
    y = np.clip((X * w).sum(axis=1) + 0.1 * rng.normal(size=len(ids)), -1, 1)
    if classes is not None:
        y = np.clip(np.round((y + 1) * classes / 2 + 0.5 * rng.normal(size=len(y))), 0, classes - 1)
    return Tasks.from_arrays(X, y, ids)


#: (algorithm, number of classes)
SHIPPED = [
    (Independent(Regression(3)), None),
    (Independent(Classification(3, intercept=False)), 2),
    (MeanRegularized(LeastSquares(3), rounds=3, finetune=2, batch=2), None),
    (MeanRegularized(Logistic(3), rounds=3), 2),
    (MeanRegularized(Softmax(3, 3), rounds=3), 3),
    (SharedPrior(Regression(3), Joint()), None),
    (SharedPrior(Regression(3, intercept=False), Mean()), None),
    (SharedPrior(Regression(3), Subspace()), None),
    (SharedPrior(Regression(3), Support()), None),
    (SharedPrior(Classification(3), Joint()), 2),
    (SharedPrior(Classification(3), Support()), 2),
    (SharedPrior(CountRegression(3), Mean()), 5),
    pytest.param(SharedPrior(OrderedClassification(3, 3), Mean()), 3, marks=pytest.mark.slow),
    pytest.param(SharedPrior(Classification(3, classes=3), Mean()), 3, marks=pytest.mark.slow),
]
STATEFUL = MeanRegularized(LeastSquares(3), rounds=6, steps=2, batch=2, finetune=1)


@pytest.mark.parametrize(("algorithm", "classes"), SHIPPED, ids=lambda a: getattr(type(a), "__name__", a))
def test_shipped_algorithms_keep_their_contract(algorithm, classes):
    check_algorithm(algorithm, make_tasks(classes))


@pytest.mark.parametrize("sampling", [Everyone(), Poisson(0.5), FixedSize(4), OnePass()], ids=repr)
@pytest.mark.parametrize("algorithm", [STATEFUL, SharedPrior(Regression(3))], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("seed", [0, None])
def test_replay_gives_every_model_again(sampling, algorithm, seed, tmp_path):
    """Bit for bit on the same layout, after a save and a load; to 1e-10 alone, in any order."""
    tasks = make_tasks()
    plan = Plan(algorithm, Gaussian(), sampling, n_tasks=M).calibrate(5.0)
    done = run(plan, tasks, random_state=seed)
    private = done.private
    board = Billboard.load(done.board.save(tmp_path / "board"))
    plan = Plan.load(plan.save(tmp_path / "plan.toml"))
    again = replay(plan, board, tasks, coins=private.coins, seeds=private.seeds)
    for name, array in private.models.items():
        np.testing.assert_array_equal(again[name], array)
    shuffled = np.random.default_rng(1).permutation(M)
    for at in (shuffled, shuffled[:1], shuffled[3:7]):
        some = replay(plan, board, tasks.select(at), coins=private.coins[:, at], seeds=private.seeds[at])
        for name, array in private.models.items():
            np.testing.assert_allclose(some[name], array[at], rtol=1e-10, atol=1e-10)
    if not isinstance(sampling, Everyone) and algorithm is STATEFUL:  # coins are part of the state
        other = replay(plan, board, tasks, seeds=private.seeds)
        assert not np.allclose(other["coef"], private.models["coef"])


def test_a_late_task_joins_by_replay():
    """Nothing is spent, and with the data of a task that was there it gets that task's very model."""
    tasks = make_tasks()
    done = run(Plan(SharedPrior(Regression(3)), n_tasks=M).calibrate(1.0), tasks, random_state=0)
    late = make_tasks(sizes=[8], seed=5)
    model = replay(done.plan, done.board, late)
    assert model["coef"].shape == (1, 3)
    twin = replay(done.plan, done.board, tasks.only("t004"))
    np.testing.assert_allclose(twin["coef"][0], done.model("t004")["coef"], rtol=1e-10)
    assert done.board.rounds == done.board.capacity


def test_no_task_hears_of_another_but_through_the_board():
    """One task's data change; with the board held fixed, every other model is the same to the bit."""
    tasks = make_tasks()
    rng = np.random.default_rng(3)
    for algorithm in (STATEFUL, SharedPrior(Regression(3)), SharedPrior(Regression(3), Subspace())):
        plan = Plan(algorithm, sampling=Poisson(0.6), n_tasks=M).calibrate(5.0)
        done = run(plan, tasks, random_state=0)
        heard = int(np.argmax(done.private.coins[0] * tasks.sizes))
        mine = slice(*tasks.offsets[heard : heard + 2])
        X, y = tasks.X.copy(), tasks.y.copy()
        X[mine], y[mine] = rng.normal(size=X[mine].shape), 0.9
        changed = replace(tasks, X=X, y=y)
        coins, seed = done.private.coins, done.private.seeds
        tape = replay(plan, done.board, changed, coins=coins, seeds=seed)
        others = np.arange(M) != heard
        for name, array in done.private.models.items():
            np.testing.assert_array_equal(tape[name][others], array[others])
            assert np.array_equal(tape[name][heard], array[heard]) == (name == "rows")  # their number stays
        # ... and the same noise tape with that change does move the board: the task was heard.
        assert run(plan, changed, random_state=0).board.head != done.board.head


def test_models_share_no_memory_with_data_or_board():
    tasks = make_tasks(sizes=[4] * 6)
    done = run(
        Plan(MeanRegularized(LeastSquares(3), steps=1), Gaussian(1.0), n_tasks=6), tasks, random_state=0
    )
    arrays = [done.board[name] for name in ("mean",)] + [tasks.X, tasks.y, tasks.weight]
    assert not any(np.shares_memory(done.private.models["coef"], array) for array in arrays)


def test_threads_do_not_change_results():
    tasks = make_tasks(sizes=[2] * 700 + [400] * 30 + [3000] * 2, dim=6)
    assert len(tasks.layout()) > 1
    plan = Plan(SharedPrior(Regression(6)), Gaussian(1.0), n_tasks=732)
    one, four = (run(plan, tasks, random_state=0, engine=Local(threads)) for threads in (1, 4))
    assert one.board.head == four.board.head
    np.testing.assert_array_equal(one.private.models["coef"], four.private.models["coef"])


def test_linear_algebra_keeps_to_one_thread(monkeypatch):
    """Also in a library that is loaded after another run; it has its threads again in the end."""
    plan, tasks, heard = Plan(STATEFUL, Gaussian(1.0), n_tasks=M), make_tasks(), []

    def threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with monkeypatch.context() as nothing_loaded:
        nothing_loaded.setattr(ThreadpoolController, "_load_libraries", lambda self: None)
        local._libraries.cache_clear()
        run(plan, tasks)
    monkeypatch.setitem(sys.modules, "loaded later", sys)
    with threadpool_limits(2):
        run(plan, tasks, progress=lambda posted: heard.append(threads()))
        assert heard == [{1}] * 6
        assert threads() == {2}


def test_progress_and_mismatch():
    tasks = make_tasks()
    calls = []
    plan = Plan(STATEFUL, Gaussian(1.0), n_tasks=M)
    board = run(plan, tasks, random_state=0, progress=calls.append).board
    assert [(posted.done, posted.total) for posted in calls] == [(t, 6) for t in range(1, 7)]
    for posted, release in zip(calls, board.releases, strict=True):  # what is on the board, and no more
        np.testing.assert_array_equal(posted.release.value, release.value)
        assert (posted.noise, posted.size) == (release.noise, release.value.size)
        assert posted.norm == pytest.approx(np.sqrt(np.square(release.value).sum()))
    with pytest.raises(InputError, match=r"The plan is for 9 tasks\. Got 14"):
        run(replace(plan, n_tasks=9), tasks)
    half = run(plan, tasks, random_state=0).board.before(3)
    with pytest.raises(InputError, match="holds 3 of 6 releases"):
        replay(plan, half, tasks)


@pytest.mark.parametrize("copying", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_run_is_not_pickled_with_every_model(copying):
    finished = run(Plan(SharedPrior(Regression(3)), NoNoise(), n_tasks=M), make_tasks())
    for private in (finished, finished.private):
        if private is finished and copying is copy.copy:
            continue  # the same models in the same process
        with pytest.raises(InputError, match=r"not pickled whole.*model\(task\) to that task alone"):
            copying(private)
    pickle.loads(pickle.dumps((finished.plan, finished.board, finished.guarantee)))


def test_a_run_prints_nothing_private():
    done = run(Plan(STATEFUL, Gaussian(1.0), n_tasks=M), make_tasks(), random_state=0)
    assert repr(done.private) == "PrivateRun(14 tasks, private)"
    assert "private" not in repr(done)
    assert "t00" not in repr(done)
    with pytest.raises(InputError, match="There is no task 'x' in this run"):
        done.model("x")


# Deliberately broken algorithms ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Toy(Algorithm):
    """A right one: tasks say the mean of their rows, and keep it."""

    dim: int = 3

    def schedule(self, n_tasks, budget):
        return (Round(0.5, (Channel(self.dim, 1.0),)),) * 2

    def start(self):
        return {"mean": np.zeros(self.dim)}

    def channel(self, board):
        return Channel(self.dim, 1.0)

    def init(self, block, board):
        with np.errstate(all="ignore"):
            rows = np.maximum(block.weight.sum(axis=1), 1)[:, None]
            return {"own": (block.X * block.weight[..., None]).sum(axis=1) / rows}

    def send(self, states, block, board):
        return states["own"] - board["mean"], states

    def update(self, release, board):
        return {"mean": board["mean"] + release.value / release.denominator}

    def finish(self, states, block, board):
        return {"coef": states["own"] + board["mean"]}


class MixesInInit(Toy):
    def init(self, block, board):
        own = super().init(block, board)["own"]
        return {"own": own - own.mean(axis=0)}


class MixesTargets(Toy):
    def init(self, block, board):
        return {"own": super().init(block, board)["own"] + np.median(block.y)}


class MixesSaneRowsOnly(Toy):
    def send(self, states, block, board):
        own = np.where(np.abs(states["own"]) < 10, states["own"], 0.0)
        return own - own.mean(axis=0), states


class MixesInFinish(Toy):
    def finish(self, states, block, board):
        return {"coef": np.cumsum(states["own"], axis=0)}


class LeaksSizes(Toy):
    def send(self, states, block, board):
        return states["own"] / block.weight.sum(), states


class KnowsItsPlace(Toy):
    def send(self, states, block, board):
        return states["own"] * np.arange(len(block))[:, None], states


class Undeclared(Toy):
    def channel(self, board):
        return Channel(self.dim, 2.0 if board.rounds else 1.0)


@dataclass(frozen=True)
class Counts(Toy):
    calls: list = field(default_factory=list)

    def finish(self, states, block, board):
        self.calls.append(0)
        return {"coef": states["own"] + len(self.calls)}


MEMORY: dict[str, Any] = {}


class GoesRoundTheMechanism(Toy):
    """Posts raw messages, which it remembers outside itself."""

    def send(self, states, block, board):
        MEMORY["raw"] = states["own"].mean(axis=0)
        return super().send(states, block, board)

    def update(self, release, board):
        return {"mean": MEMORY["raw"]}


@dataclass(frozen=True)
class RemembersTheFirst(Toy):
    """Posts the first raw message it ever saw; agrees with itself for ever after, but not with a copy."""

    def __post_init__(self):
        object.__setattr__(self, "memory", [])

    def send(self, states, block, board):
        self.memory.append(states["own"][0].copy())
        return super().send(states, block, board)

    def update(self, release, board):
        return {"mean": self.memory[0] if self.memory else np.zeros(self.dim)}


class RaisesOnGarbage(Toy):
    def init(self, block, board):
        if not np.isfinite(block.X).all():
            raise ValueError("bad data")
        return super().init(block, board)


class SpeaksTwice(Toy):
    def send(self, states, block, board):
        return np.repeat(states["own"], 2, axis=0), states


class OneWordForAll(Toy):
    def send(self, states, block, board):
        return states["own"].mean(axis=0, keepdims=True), states


class ForgetsWhenSampled(Toy):
    def send(self, states, block, board):
        return states["own"], {"own": states["own"].astype(np.float32)}


class Draws(Toy):
    def finish(self, states, block, board):
        return {"coef": states["own"] + np.random.default_rng().normal()}


class MixesInPredict(Toy):
    def predict(self, models, X):
        return np.nan_to_num(X - np.nanmean(X)).sum(axis=-1)


class MixesInLosses(Toy):
    def losses(self, models, block):
        return block.weight.sum(axis=1) / block.weight.sum()


class PostsWords(Toy):
    def update(self, release, board):
        return super().update(release, board) | {"note": np.array(["secret"])}


class LikesNoise(Toy):
    def update(self, release, board):
        return {"mean": np.full(self.dim, float(release.noise > 0))}


BROKEN = [
    (MixesInInit, "init mixes rows: 'own'"),
    (MixesTargets, "init mixes rows: 'own'"),
    (MixesSaneRowsOnly, "send in round 0 mixes rows: 'message'"),
    (MixesInFinish, "finish mixes rows: 'coef'"),
    (LeaksSizes, "send in round 0 mixes rows: 'message'"),
    (KnowsItsPlace, "send in round 0 depends on the order of tasks"),
    (Undeclared, "channel that its schedule did not declare"),
    (Counts, "not the same again"),
    (GoesRoundTheMechanism, "was not computed"),
    (RemembersTheFirst, "was not computed"),
    (RaisesOnGarbage, r"init failed for task 't007': bad data .with features of inf in its place"),
    (SpeaksTwice, r"one message a row of its block, of shape \(2, 3\)\. Got shape \(4, 3\)"),
    (OneWordForAll, r"one message a row of its block, of shape \(2, 3\)\. Got shape \(1, 3\)"),
    (ForgetsWhenSampled, "must keep the state's names, shapes and types"),
    (Draws, r"finish is not the same again.*draw from block\.uniforms.*'coef'"),
    (MixesInPredict, "predict mixes rows: 'outputs'"),
    (MixesInLosses, "losses mixes rows: 'loss'"),
    (PostsWords, "numbers only"),
    (LikesNoise, "little noise is not no noise"),
]


def test_a_right_algorithm_of_ones_own_passes():
    check_algorithm(Toy(), make_tasks())


@pytest.mark.parametrize(("broken", "complaint"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_broken_algorithms_are_caught(broken, complaint):
    with pytest.raises(AlgorithmError, match=complaint):
        check_algorithm(broken(), make_tasks())


def test_a_failure_names_the_function_and_the_task():
    @dataclass(frozen=True)
    class Picky(Toy):
        def send(self, states, block, board):
            if (block.y == 0.125).any():
                raise ZeroDivisionError("no way")
            return super().send(states, block, board)

    tasks = make_tasks()
    y = tasks.y.copy()
    y[tasks.offsets[9]] = 0.125

    @dataclass(frozen=True)
    class BaseMultiTask(Picky):
        pass

    for kind in (Picky, BaseMultiTask):  # an algorithm by its own name, whoever wrote the method
        with pytest.raises(AlgorithmError, match=rf"^{kind.__name__}\.send failed for task 't009': no way"):
            run(Plan(kind(), Gaussian(1.0), n_tasks=M), replace(tasks, y=y))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_message_that_is_not_finite_counts_as_zero(value):
    @dataclass(frozen=True)
    class Spoilt(Toy):
        def send(self, states, block, board):
            messages = np.ones((len(block), 3)) / 3
            messages[block.ids == "t003", 1] = value
            return messages, states

    done = run(Plan(Spoilt(), NoNoise(), n_tasks=M), make_tasks())
    assert done.private.rejected_messages == 2
    for release in done.board.releases:
        np.testing.assert_allclose(release.value, np.full(3, (M - 1) / 3), rtol=1e-12)
        assert release.denominator == M  # public: not the number that was heard


def test_denominators_are_public():
    """Neither who took part nor whose message was refused changes what a sum is divided by."""
    for sampling, expected in ((Poisson(0.5), 7.0), (FixedSize(4), 4.0), (OnePass(), M / 2), (Everyone(), M)):
        done = run(Plan(Toy(), Gaussian(1.0), sampling, n_tasks=M), make_tasks())
        assert [r.denominator for r in done.board.releases] == pytest.approx([expected] * 2, rel=1e-15)


def test_absent_tasks_say_nothing():
    @dataclass(frozen=True)
    class Present(Toy):
        def send(self, states, block, board):
            return np.tile([0.5, 0, 0], (len(block), 1)), states

    for sampling in (Poisson(0.5), FixedSize(4), OnePass()):
        done = run(Plan(Present(), NoNoise(), sampling, n_tasks=M), make_tasks(), random_state=2)
        counts = [release.value[0] / 0.5 for release in done.board.releases]
        np.testing.assert_allclose(counts, np.sum(done.private.coins, axis=1))
        assert Channel(3, 1.0, Plain()) == Present().channel(None)


def test_a_ledger_remembers_noise_that_does_not_keep_its_promise():
    """A seed, or floating point, is charged all the same, and said for ever."""
    tasks = make_tasks()
    doubts = []
    for seed, exact in ((None, True), (7, True), (None, False)):
        plan = Plan(MeanRegularized(LeastSquares(3)), Gaussian(0.1, exact), n_tasks=len(tasks))
        ledger = Ledger(10.0, 1e-3)
        done = run(plan, tasks, random_state=seed, ledger=ledger)
        plan.check(done.board)
        doubts.append(ledger.history[0].doubts)
        assert done.guarantee.noise == done.board.noise
        assert done.guarantee.doubts == doubts[-1]
    assert doubts == [(), (SEEDED,), (FLOATING_POINT,)]


def test_a_board_that_claims_other_noise_is_refused():
    tasks = make_tasks()
    plan = Plan(MeanRegularized(LeastSquares(3)), Gaussian(0.1), n_tasks=len(tasks))
    with pytest.raises(BillboardError, match="claims noise that its plan does not have"):
        plan.check(replace(run(plan, tasks).board, noise="made by angels"))


def test_what_cannot_run_is_refused_before_it_is_charged():
    tasks, ledger = make_tasks(), Ledger(10.0, 1e-3)
    plan = Plan(LowRank(LeastSquares(3)), Gaussian(1e-7), n_tasks=len(tasks))
    with pytest.raises(PlanError, match="Ask for a larger epsilon or fewer rounds"):
        run(plan, tasks, ledger=ledger)
    for seed in (1.7, "7"):
        with pytest.raises(InputError, match="random_state must be a whole number"):
            run(plan, tasks, random_state=seed, ledger=ledger)
    assert ledger.history == ()
