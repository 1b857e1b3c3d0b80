"""`cloister.load` reads back whatever was written; estimators are loaded in test_saved_estimators.py."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Billboard, Codebook, Plan, SharedPriorRegressor, Tasks, load, replay, run
from cloister.algorithms import FTMRL, MeanRegularized
from cloister.app.task_model import TaskModel
from cloister.engines import Run, TaskStream
from cloister.errors import BillboardError, InputError, PlanError
from cloister.learners import Convex, ExactSolver, LeastSquares
from cloister.mechanisms import Toeplitz
from cloister.sampling import InOrder

X = np.random.default_rng(0).uniform(-0.5, 0.5, (30, 2))
TASKS = Tasks.from_arrays(X, X.sum(axis=1), np.repeat(np.arange(10), 3))
PLAN = Plan(MeanRegularized(LeastSquares(2), rounds=3), n_tasks=10).calibrate(1.0)
STREAM = Plan(FTMRL(Convex(LeastSquares(2)), ExactSolver(), rounds=3), Toeplitz(), InOrder(), n_tasks=3)


def test_every_file_of_a_run_is_read_as_what_it_says_it_is(tmp_path):
    model = SharedPriorRegressor(bounds={0: (-1, 1), 1: (-1, 1), "y": (-1, 1)}, random_state=0)
    folder = model.fit(X, X.sum(axis=1), tasks=np.arange(30) % 10).save(tmp_path / "run")
    kinds = {"plan.toml": Plan, "codebook.toml": Codebook, "board": Billboard, "models/3.json": TaskModel}
    for name, kind in kinds.items():
        assert type(load(folder / name)) is kind
    assert load(folder / "plan.toml") == model.plan_
    np.testing.assert_array_equal(load(model.export(3, tmp_path / "own.json")).coef, model.coef_[3])
    for name in ("README.txt", "models/index.csv"):
        with pytest.raises(InputError, match="nothing that can be loaded"):
            load(folder / name)


def test_the_journal_of_a_run_is_its_public_part(tmp_path):
    done = run(PLAN, TASKS, journal=tmp_path)
    again = load(tmp_path)
    assert isinstance(again, Run)
    assert (again.plan, again.board.head, again.guarantee) == (done.plan, done.board.head, done.guarantee)
    models = replay(again.plan, again.board, TASKS)
    np.testing.assert_array_equal(models["coef"], done.private.models["coef"])
    with pytest.raises(InputError, match=r"holds no models.*replay"):
        again.model(3)


def test_a_folder_of_a_table_that_lost_its_codebook_is_not_taken_for_a_journal(tmp_path):
    model = SharedPriorRegressor(bounds={0: (-1, 1), 1: (-1, 1), "y": (-1, 1)}, random_state=0)
    folder = model.fit(X, X.sum(axis=1), tasks=np.arange(30) % 10).save(tmp_path / "run", models=False)
    (folder / "codebook.toml").unlink()
    with pytest.raises(InputError, match=r"has no codebook\.toml"):
        load(folder)


def test_a_public_start_for_images_is_loaded_with_its_network(tmp_path):
    torch = pytest.importorskip("torch")
    from torch import nn

    from cloister.estimators import FewShotClassifier
    from cloister.learners import Module
    from cloister.sampling import Poisson

    images = np.random.default_rng(0).random((40, 1, 4, 4), dtype=np.float32)
    tasks = Tasks.from_arrays(images, np.tile([0, 1], 20), np.repeat(np.arange(10), 4))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    model = FewShotClassifier(net, ways=2, rounds=2, sampling=Poisson(0.5), random_state=0).fit(tasks)
    folder = model.save(tmp_path / "start")
    written = {"plan.toml", "board", "estimator.toml", "guarantee.json", "guarantee.txt"}
    assert {path.name for path in folder.iterdir()} == written
    again = load(folder, types=[Module(net)])
    assert again.get_params() == model.get_params() | {"random_state": None}
    assert (again.guarantee_, again.billboard_.head) == (model.guarantee_, model.billboard_.head)
    few, classes = images[:4], ["cat", "dog", "cat", "dog"]
    np.testing.assert_array_equal(
        again.adapt(few, classes).predict(images), model.adapt(few, classes).predict(images)
    )
    with pytest.raises(PlanError, match="A file cannot hold a Module"):
        load(folder)


def test_a_run_is_saved_without_its_models(tmp_path):
    done = run(PLAN, TASKS)
    folder = done.save(tmp_path / "public")
    written = {"plan.toml", "roster", "board", "guarantee.json", "guarantee.txt"}
    assert {path.name for path in folder.iterdir()} == written
    assert str(done.guarantee.statement) == (folder / "guarantee.txt").read_text(encoding="utf-8").strip()
    again = load(folder)
    assert (again.plan, again.board.head, list(again.roster)) == (PLAN, done.board.head, list(range(10)))
    with pytest.raises(InputError, match="is already there and is left as it is"):
        done.save(folder)


def test_a_stream_is_read_when_it_has_ended(tmp_path):
    with TaskStream(STREAM.calibrate(2.0), journal=tmp_path) as stream:
        stream.join("Elm", X[:3], X[:3, 0])
    with pytest.raises(BillboardError, match=r"its run is unfinished.*Go on with the run"):
        load(tmp_path)
    with TaskStream(load(tmp_path / "plan.toml"), journal=tmp_path) as stream:
        stream.join("Oak", X[3:6], X[3:6, 0])
        board = stream.finish()
    ended = load(tmp_path)
    assert ended.board.head == board.head
    assert list(ended.roster) == ["Elm", "Oak"]
    (tmp_path / "roster").write_text("Elm\n")
    with pytest.raises(InputError, match="the name of a task in every line"):
        load(tmp_path)
