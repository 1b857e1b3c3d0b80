"""Scores over rounds: at home what shorter runs would have scored; bounded, noisy and charged to leave."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from cloister import Ledger, Plan, Tasks, run
from cloister.algorithms import FedAvg, FineTuning, Independent, MeanRegularized, Personalized, SharedPrior
from cloister.engines import Batched, Local, Run
from cloister.engines.local import LocalWorkers
from cloister.errors import BudgetError, InputError, PlanError
from cloister.evaluation import PrivateCurve, accuracy, evaluate, over_rounds, scores_of, task_scores
from cloister.learners import Convex, Descent, LeastSquares, Logistic, Module, Regression
from cloister.mechanisms import Gaussian, NoNoise
from cloister.metrics import nmse
from cloister.networks.network_losses import cross_entropy
from cloister.privacy import tradeoff
from cloister.sampling import Poisson

M = 20


@pytest.fixture(scope="module")
def halves():
    rng = np.random.default_rng(0)
    X, names = rng.normal(size=(400, 3)), np.repeat([f"t{i:02d}" for i in range(M)], 20)
    return Tasks.from_arrays(X, (X[:, 0] + X[:, 1] > 0).astype(int), names).split(0.5)


def network(algorithm, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learner = Module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    return algorithm(learner, Descent(lr=0.5, batch=4), clip=2.0, **options)


@pytest.fixture(scope="module")
def done(halves):
    algorithm = MeanRegularized(Logistic(3), lr=1.0, rounds=5)
    return run(Plan(algorithm, Gaussian(), Poisson(0.7), n_tasks=M).calibrate(2.0), halves[0])


@pytest.fixture(scope="module")
def curves(done, halves):
    return over_rounds(done, *halves)


# At home ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        network(Personalized, rounds=4),
        network(FedAvg, rounds=4, finetune=FineTuning(Descent(lr=0.1, batch=4, steps=2))),
        MeanRegularized(Logistic(3), lr=1.0, rounds=4, steps=2, batch=3),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_a_point_is_what_a_run_of_so_many_rounds_would_have_scored(algorithm, halves):
    """To the bit: the same coins, seeds and minibatches; for the public model and for tasks' own."""
    train, test = halves
    plan = Plan(algorithm, NoNoise(), n_tasks=M)
    found = over_rounds(run(plan, train, random_state=3), train, test)
    assert found.rounds.tolist() == [0, 1, 2, 3, 4]
    for t in (1, 3, 4):
        short = run(replace(plan, algorithm=replace(algorithm, rounds=t)), train, random_state=3)
        np.testing.assert_array_equal(found.personal["accuracy"].values[t], scores_of(short, test))
        public = replace(
            short.private, models={"coef": np.repeat(algorithm.model_without_data(short.board)["coef"], M, 0)}
        )
        expected = scores_of(replace(short, private=public), test)
        np.testing.assert_array_equal(found.public["accuracy"].values[t], expected)
        losses = algorithm.losses(short.private.models, next(test.blocks()))
        np.testing.assert_allclose(found.personal["loss"].values[t], losses, rtol=1e-5)


def test_the_last_point_of_a_noisy_sampled_run_is_its_own_score(done, curves, halves):
    np.testing.assert_array_equal(curves.personal["accuracy"].values[-1], scores_of(done, halves[1]))
    assert (np.diff(curves.personal["loss"].mean) != 0).all()
    some = over_rounds(done, *halves, rounds=[5, 2])
    assert some.rounds.tolist() == [2, 5]
    np.testing.assert_array_equal(some.public["loss"].values, curves.public["loss"].values[[2, 5]])


@pytest.mark.parametrize(("algorithm", "expected"), [(Personalized, [0, 1, 2, 3, 4, 5]), (FedAvg, [])])
def test_rounds_are_heard_once_or_not_at_all(algorithm, expected, halves, monkeypatch):
    finished = run(Plan(network(algorithm, rounds=9), NoNoise(), n_tasks=M), halves[0])
    heard, listen = [], LocalWorkers.listen
    monkeypatch.setattr(
        LocalWorkers,
        "listen",
        lambda self, board, coins: heard.append(board.rounds) or listen(self, board, coins),
    )
    over_rounds(finished, *halves, rounds=[0, 2, 6])
    assert heard == expected


def test_a_task_computes_its_own_column_from_the_board_and_its_own_rows(halves):
    train, test = halves
    plan = Plan(MeanRegularized(Logistic(3), lr=1.0, rounds=4), n_tasks=M).calibrate(2.0)
    finished = run(plan, train)
    mine = over_rounds(Run.public(plan, finished.board, finished.roster), train.only("t03"), test.only("t03"))
    everyone = over_rounds(finished, train, test)
    np.testing.assert_array_equal(mine.personal["loss"].values[:, 0], everyone.personal["loss"].values[:, 3])
    with pytest.raises(InputError, match=r"mean over all 20 tasks of the run\. Got scores of 1\."):
        mine.personal["loss"].release(epsilon=1.0)


def test_other_engines_and_scores(halves):
    torch.manual_seed(0)
    train, test = halves
    finished = run(Plan(network(Personalized, rounds=3), NoNoise(), n_tasks=M), train)
    one, two = (over_rounds(finished, train, test, engine=engine) for engine in (Local(), Batched("cpu")))
    np.testing.assert_allclose(one.personal["loss"].values, two.personal["loss"].values, rtol=1e-4)
    line = run(Plan(MeanRegularized(LeastSquares(3), rounds=2), NoNoise(), n_tasks=M), train)
    assert set(over_rounds(line, train, test).personal) == {"loss"}  # accuracy is of classes
    assert set(over_rounds(line, train, test, {"nmse": nmse}).public) == {"nmse", "loss"}
    loose = FedAvg(Module(nn.Linear(3, 1), nn.MSELoss()), Descent(lr=0.1), rounds=1)
    numbers = [replace(part, y=part.y / 2) for part in halves]
    finished = run(Plan(loose, NoNoise(), n_tasks=M), numbers[0])
    assert set(over_rounds(finished, *numbers).personal) == {"loss"}
    alone = run(Plan(Independent(Regression(3)), n_tasks=M), train)
    found = over_rounds(alone, train, test, {"nmse": nmse})
    assert (found.rounds.tolist(), found.public) == ([0], {})


def test_long_runs_are_looked_at_now_and_then(halves):
    algorithm = FedAvg(Convex(Logistic(3)), Descent(lr=0.5, steps=1), rounds=120)
    finished = run(Plan(algorithm, NoNoise(), n_tasks=M), halves[0])
    shown = over_rounds(finished, *halves, scores={}).rounds.tolist()
    assert (len(shown), shown[0], shown[-1]) == (51, 0, 120)


def test_they_say_that_they_are_not_private(curves, halves):
    lines = str(curves).splitlines()
    assert lines[0] == "private diagnostics: not private, keep at home: means over 20 tasks"
    assert [head.strip() for head in lines[1].split("|")] == [
        *("round", "public accuracy", "public loss", "personal accuracy", "personal loss")
    ]
    assert str(curves.personal["loss"]).startswith("private diagnostics: not private")
    frame = curves.to_frame("polars")
    assert frame["round"].to_list() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(frame["personal loss"], curves.personal["loss"].mean)


def test_a_task_without_test_rows_has_no_curve(done, halves):
    train, test = halves
    found = over_rounds(done, train, test.select([2, 4]), rounds=[5])
    values = found.personal["accuracy"].values
    assert np.flatnonzero(~np.isnan(values[0])).tolist() == [2, 4]
    assert found.personal["accuracy"].mean[0] == values[0, [2, 4]].mean()
    told = found.personal["accuracy"].release(epsilon=1000.0, random_state=0)
    assert told.values[0] == pytest.approx(np.nansum(values) / M, abs=6 * told.noise)


def test_what_cannot_be_looked_at_is_refused(done, halves, monkeypatch):
    train, test = halves
    for rounds in ([6], [-1], [], [0.5]):
        with pytest.raises(InputError, match="rounds must be whole numbers from 0 to 5"):
            over_rounds(done, train, test, rounds=rounds)
    stranger = Tasks.from_arrays(test.X[:1], test.y[:1], ["stranger"])
    with pytest.raises(InputError, match="'stranger'"):
        over_rounds(done, stranger, test)
    with pytest.raises(InputError, match="'stranger' of the test data was not in the run"):
        over_rounds(done, train, stranger)
    with monkeypatch.context() as patch:
        patch.setattr(LocalWorkers, "start", lambda *_: pytest.fail("rows were computed on first"))
        with pytest.raises(InputError, match="Task 't02' has test rows, but is not among the tasks that you"):
            over_rounds(done, train.select([0, 1]), test)
    whole = run(Plan(SharedPrior(Regression(3)), n_tasks=M).calibrate(1.0), train)
    with pytest.raises(InputError, match=r"no models after 0 of \d+ rounds.* Pass rounds=\["):
        over_rounds(whole, train, test)


def test_scores_of_each_client_are_a_frame(done, halves):
    test = halves[1].select(np.arange(19))
    frame = task_scores(done, test, library="polars")
    assert frame.columns == ["task", "rows", "score"]
    assert frame["rows"].to_list() == [*test.sizes.tolist(), 0]
    np.testing.assert_array_equal(frame["score"], scores_of(done, test))


def test_a_finished_run_and_a_round_print_as_one_line(done, halves):
    shown = str(done)
    assert shown.startswith("5 rounds with 20 tasks: (2, 0.0")
    assert "HOLD" not in shown
    assert "\n" not in shown
    lines = []
    seeded = run(done.plan, halves[0], random_state=0, progress=lambda posted: lines.append(str(posted)))
    assert "DOES NOT HOLD" in str(seeded)
    assert lines[0].startswith("round 1 of 5: 3 numbers of norm ")
    bare = run(Plan(MeanRegularized(Logistic(3), rounds=1), NoNoise(), n_tasks=M), halves[0])
    assert "NOT PRIVATE" in str(bare)


# Many tasks at once -----------------------------------------------------------------------------------------


class Body(nn.Module):
    """A frozen convolution that knows how many rows all copies of it were given, and the most at once."""

    rows = most = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3).requires_grad_(False)

    def forward(self, x):
        Body.rows, Body.most = Body.rows + len(x), max(Body.most, len(x))
        return self.layer(x).tanh().flatten(1)


def learner(*layers, loss=cross_entropy, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(nn.Sequential(*(layer() for layer in layers)), loss, **options)


def on_a_body(**options):
    return learner(Body, lambda: nn.Linear(32, 5), nn.Tanh, lambda: nn.Linear(5, 3), **options)


def ragged(shape, target):
    """Tasks of 1 to 17 rows; of nine tasks 3 and 7 have no test rows, and the others' come in no order."""
    rng = np.random.default_rng(0)
    names = np.repeat(np.arange(9), [1, 17, 5, 2, 9, 9, 16, 3, 12])
    X = rng.normal(size=(2, len(names), *shape))
    train, test = (
        Tasks.from_arrays(x, target(rng, len(names)), names, rng.uniform(0.5, 2.0, len(names))) for x in X
    )
    return train, test.select([8, 0, 2, 1, 4, 6, 5])


def classes(rng, count):
    return rng.integers(0, 3, count)


def padded_sequences(rng, count):
    return np.where(rng.random((count, 4)) < 0.3, -100, rng.integers(0, 3, (count, 4)))


def one_at_a_time(algorithm, models, test, score):
    """Scores and losses of the whole network, a task at a time, on its own rows and no others."""
    found = np.full((2, 9), np.nan)
    for name in test.ids.tolist():
        block, own = next(test.only(name).blocks()), {key: array[[name]] for key, array in models.items()}
        size = int(test.only(name).sizes[0])
        found[0, name] = score(block.y[0, :size], algorithm.predict(own, block.X[:, :size])[0])
        found[1, name] = algorithm.losses(own, block)[0]
    return found


@pytest.mark.parametrize("at_once", [1, 20, 2048])
@pytest.mark.parametrize(
    ("algorithm", "data", "name", "score"),
    [
        (
            FedAvg(on_a_body(personal=("3.*",)), Descent(lr=0.5, batch=4), rounds=3),
            ragged((1, 6, 6), classes),
            "accuracy",
            accuracy,
        ),
        (
            Personalized(
                learner(lambda: nn.Linear(2, 3), loss=nn.CrossEntropyLoss()), Descent(lr=0.5), rounds=3
            ),
            ragged((4, 2), padded_sequences),
            "accuracy",
            lambda y, outputs: (outputs.argmax(-1) == y)[y != -100].mean(),
        ),
        (
            MeanRegularized(LeastSquares(3), lr=0.5, rounds=3),
            ragged((3,), lambda rng, count: rng.normal(size=count)),
            "error",
            lambda y, outputs: len(y) + np.abs(y - outputs).sum(),
        ),
    ],
    ids=["frozen body", "ignored positions", "linear, a score of one's own"],
)
def test_many_tasks_at_once_score_as_each_alone(algorithm, data, name, score, at_once, monkeypatch):
    monkeypatch.setattr("cloister.evaluation.curves.AT_ONCE", at_once)
    train, test = data
    finished = run(Plan(algorithm, NoNoise(), n_tasks=9), train, random_state=0)
    found = over_rounds(finished, train, test, None if name == "accuracy" else {name: score}, rounds=[1, 3])
    public = {
        key: np.repeat(array, 9, axis=0)
        for key, array in algorithm.model_without_data(finished.board).items()
    }
    for curves, models in ((found.personal, finished.private.models), (found.public, public)):
        values = [curves[name].values[1], curves["loss"].values[1]]
        np.testing.assert_allclose(values, one_at_a_time(algorithm, models, test, score), rtol=1e-6)
    assert not np.array_equal(found.public["loss"].values[1], found.personal["loss"].values[1])


@pytest.mark.parametrize(
    ("algorithm", "engine", "together"),
    [
        (MeanRegularized(Logistic(3), rounds=2), Local(), True),
        (network(Personalized, rounds=2), Batched("cpu", block=1), False),
        (network(Personalized, rounds=2), Local(), True),
    ],
    ids=["linear", "networks apart", "networks together"],
)
def test_a_column_is_of_its_own_rows_to_the_bit_unless_the_engine_shares(
    algorithm, engine, together, monkeypatch
):
    """Rows, targets and sizes of all other tasks change; what an engine keeps apart is scored apart."""
    train, test = ragged((3,), lambda rng, count: rng.integers(0, 2, count))
    kind, shapes = type(getattr(algorithm, "learner", None) or algorithm), []
    losses = kind.losses
    monkeypatch.setattr(
        kind, "losses", lambda self, own, block: shapes.append(len(block)) or losses(self, own, block)
    )
    finished = run(Plan(algorithm, n_tasks=9).calibrate(1.0), train, engine=engine)
    others = Tasks.from_arrays(9.0 - test.X, 1 - test.y, np.repeat(test.ids, test.sizes))
    mine, others = test.only(4), others.select([0, 1, 2, 5, 6])
    moved = Tasks.from_arrays(
        np.concatenate([mine.X, others.X]),
        np.concatenate([mine.y, others.y]),
        np.repeat([4, *others.ids], [9, *others.sizes]),
        np.concatenate([mine.weight, others.weight]),
    )
    one, two = (over_rounds(finished, train, rows, engine=engine) for rows in (test, moved))
    exact = 0.0 if not engine.doubts_of(finished.plan) else 1e-6
    for before, after in ((one.personal, two.personal), (one.public, two.public)):
        for name in before:
            ours = [curves[name].values[:, 4] for curves in (before, after)]
            np.testing.assert_allclose(*ours, rtol=exact)
    assert (max(shapes) > 1) == together


def test_a_frozen_body_sees_test_rows_once_and_equal_models_are_scored_once(monkeypatch):
    train, test = ragged((1, 6, 6), classes)
    algorithm = FedAvg(on_a_body(), Descent(lr=0.5), rounds=4)
    finished = run(Plan(algorithm, NoNoise(), n_tasks=9), train)
    calls, losses = [], Module.losses
    monkeypatch.setattr(Module, "losses", lambda *given: calls.append(len(given[2])) or losses(*given))
    seen = []
    for rounds in ([4], None):
        before, calls[:] = Body.rows, []
        over_rounds(finished, train, test, rounds=rounds)
        seen.append((Body.rows - before, sum(calls)))
    assert seen[0][0] == seen[1][0]
    assert [tasks for _, tasks in seen] == [7, 5 * 7]


@pytest.mark.parametrize(("engine", "most"), [(Local(), 18), (Batched("cpu", block=1), 9)])
def test_a_frozen_body_sees_a_task_alone_where_the_engine_keeps_tasks_apart(engine, most, monkeypatch):
    train, test = (part.select(np.isin(part.ids, [4, 5])) for part in ragged((1, 6, 6), classes))
    finished = run(Plan(FedAvg(on_a_body(), Descent(lr=0.5), rounds=1), NoNoise(), n_tasks=2), train)
    monkeypatch.setattr(Body, "most", 0)
    over_rounds(finished, train, test, engine=engine)
    assert most <= Body.most < 2 * most


# What leaves ------------------------------------------------------------------------------------------------


def test_one_task_moves_a_curve_by_the_root_of_its_points_at_most_and_can(curves):
    """Scores that go from 0 to above the bound at all six points: noise of one seed shows what they move."""
    curve = replace(curves.personal["loss"], values=np.full((6, M), 0.7))
    low, high = curve.values.copy(), curve.values.copy()
    low[:, 4], high[:, 4] = -5.0, 1e9
    told = [
        np.array(replace(curve, values=v).release(1.0, bound=3.0, random_state=0).values) for v in (low, high)
    ]
    assert np.linalg.norm(M * (told[1] - told[0])) == pytest.approx(3.0 * math.sqrt(6), rel=1e-9)
    for absurd in (math.nan, math.inf):
        low[:, 4] = absurd
        again = replace(curve, values=low).release(1.0, bound=3.0, random_state=0).values
        np.testing.assert_array_equal(again, told[0])


def test_a_loss_leaves_only_within_a_bound_that_is_named(curves):
    with pytest.raises(InputError, match="Pass bound="):
        curves.public["loss"].release(epsilon=1.0)


def test_the_released_points_have_independent_noise_as_it_is_priced(curves):
    """Two-sided: 1,200 points fit the law that is declared, and neither 2/3 nor 3/2 of it.

    A right law is refused with probability 1e-4; so are noises of two points that are not related.
    """
    curve = curves.public["accuracy"]
    told = [curve.release(epsilon=0.5, random_state=seed) for seed in range(200)]
    noise, guarantee = told[0].noise, told[0].guarantee
    centred = np.array([each.values for each in told]) - curve.mean
    assert stats.kstest(centred.ravel() / noise, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(centred.ravel() / (wrong * noise), "norm").pvalue < 1e-4
    for point in range(1, 6):
        assert stats.pearsonr(centred[:, 0], centred[:, point]).pvalue > 1e-4
    assert noise * M * tradeoff.mu(0.5, guarantee.delta) == pytest.approx(math.sqrt(6), rel=1e-3)
    assert 0.499 < guarantee.epsilon <= 0.5
    assert not guarantee.holds  # it is from a seed


def test_the_ledger_is_charged_once_for_all_points_and_before(curves, monkeypatch):
    curve, ledger = curves.personal["accuracy"], Ledger(1.0, 1e-3, n_tasks=M)
    told = curve.release(epsilon=0.5, delta=1e-3, ledger=ledger)
    assert isinstance(told, PrivateCurve)
    assert told.guarantee.holds
    assert str(told.guarantee) in str(told)
    assert [charge.mu for charge in ledger.history] == pytest.approx([tradeoff.mu(0.5, 1e-3)], rel=1e-3)
    recorded = []
    with monkeypatch.context() as patch:
        patch.setattr(Gaussian, "perturb", lambda *_: recorded.append(len(ledger.history)) or np.zeros(1))
        curve.release(epsilon=0.3, delta=1e-3, ledger=ledger)
        assert recorded == [2] * 6
        with pytest.raises(BudgetError, match="Nothing has left any task"):
            curve.release(epsilon=0.9, delta=1e-3, ledger=ledger)
    assert len(recorded) == 6
    assert len(ledger.history) == 2


def test_what_is_wrong_with_the_run_or_the_engine_is_wrong_with_the_curve(done, halves, curves):
    leaky = run(replace(done.plan, mechanism=NoNoise()), halves[0])
    told = over_rounds(leaky, *halves, rounds=[5]).public["accuracy"].release(epsilon=1.0)
    assert not told.guarantee.holds
    assert "no noise" in str(told.guarantee)
    private = run(
        Plan(network(Personalized, rounds=2), n_tasks=M).calibrate(1.0),
        halves[0],
        engine=Batched("cpu", block=1),
    )
    assert not private.guarantee.doubts
    told = over_rounds(private, *halves, rounds=[2]).public["accuracy"].release(epsilon=1.0)
    assert told.guarantee.doubts  # it was computed on again by another engine
    for wrong in (0.0, math.inf, math.nan):
        with pytest.raises(InputError, match="bound must be > 0"):
            curves.personal["loss"].release(epsilon=1.0, bound=wrong)
        with pytest.raises(PlanError, match="epsilon must be > 0 and finite"):
            curves.personal["loss"].release(epsilon=wrong, bound=3.0)


def test_a_plot_shows_means_and_says_that_they_are_private(curves):
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    pyplot.switch_backend("Agg")
    try:
        axes = curves.plot("loss")
        for line, kind in zip(axes.get_lines(), (curves.personal, curves.public), strict=True):
            np.testing.assert_array_equal(line.get_xydata().T, [curves.rounds, kind["loss"].mean])
        assert "private" in axes.get_title()
        assert curves.plot(ax=axes) is axes
        assert axes.get_ylabel().startswith("accuracy")
        with pytest.raises(InputError, match="must be one of accuracy, loss"):
            curves.plot("f1")
    finally:
        pyplot.close("all")
        pyplot.switch_backend(before)


def test_rows_without_tasks_and_swapped_arguments_are_refused(done, halves):
    rows = halves[1].X, halves[1].y
    for call in (
        lambda: evaluate(done, rows),
        lambda: over_rounds(done, rows, halves[1]),
        lambda: over_rounds(done, halves[0], rows),
    ):
        with pytest.raises(InputError, match=r"must be Tasks\. Got a tuple"):
            call()
    for call in (lambda: evaluate(halves[1], done), lambda: over_rounds(halves[0], done, halves[1])):
        with pytest.raises(InputError, match="must be a finished run"):
            call()


def test_scores_of_networks_with_one_output_follow_the_loss(halves):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learner = Module(nn.Linear(3, 1), nn.BCEWithLogitsLoss())
    finished = run(Plan(FedAvg(learner, Descent(lr=0.5), rounds=2), NoNoise(), n_tasks=M), halves[0])
    found = over_rounds(finished, *halves)
    np.testing.assert_array_equal(found.personal["accuracy"].values[-1], scores_of(finished, halves[1]))
