"""Edges where privacy could leak past a correct proof: each is refused before anything is charged."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cloister as cl
from cloister.app.predict import write_csv
from cloister.app.task_model import file_name, task_of
from cloister.cli import app
from cloister.errors import InputError
from cloister.tables.rows import task_column

N = 40


FIT = ["fit", "t.csv", "--codebook", "book.toml"]


def data(ids=None, count=N, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (count * rows, 3))
    ids = np.arange(count) if ids is None else ids
    return cl.Tasks.from_arrays(X, X.sum(axis=1), [name for name in ids for _ in range(rows)])


def plan(count=N):
    return cl.Plan(
        cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=1, clip=1.0),
        n_tasks=count,
        delta=1e-3,
    ).calibrate(1.0)


class TestATaskIsInARunOnce:
    """One that is there twenty times speaks twenty times for the price of one: epsilon 30, not 1."""

    def test_no_tasks_can_be_made_that_hold_one_twice(self):
        tasks = data()
        again = np.r_[np.zeros(20, dtype=int), np.arange(1, 21)]
        for make in (
            lambda: tasks.select(again),
            lambda: tasks.select([1, -N + 1]),
            lambda: replace(tasks, ids=np.zeros(N, dtype=int)),
            lambda: cl.Tasks(np.zeros(N, int), tasks.X, tasks.y, tasks.weight, tasks.offsets),
            lambda: cl.Tasks(tasks.ids % 2 + 0.0, tasks.X, tasks.y, tasks.weight, tasks.offsets),
        ):
            with pytest.raises(InputError, match=r"Each task may be in a run once"):
                make()
        with pytest.raises(InputError, match="no two alike"):
            cl.Tasks.from_list([tasks.X[:1]] * 2, [tasks.y[:1]] * 2, [3, 3.0][:1] * 2)

    def test_rows_are_in_one_task(self):
        tasks = data()
        for offsets in (tasks.offsets[:-1], tasks.offsets + 1, tasks.offsets[::-1], tasks.offsets // 2):
            with pytest.raises(InputError, match="must lie one after the other"):
                replace(tasks, offsets=offsets)

    @pytest.mark.parametrize(
        "go",
        [
            lambda tasks, board, ledger: cl.run(plan(), tasks, ledger=ledger),
            lambda tasks, board, ledger: cl.engines.run_partition(
                plan(), tasks, {i: i % 2 for i in range(N)}, ledger=ledger
            ),
            lambda tasks, board, ledger: cl.replay(plan(), board, tasks),
        ],
        ids=["run", "clusters", "replay"],
    )
    def test_names_that_were_changed_afterwards_are_refused_before_the_charge(self, go):
        tasks, ledger = data(), cl.Ledger(epsilon=9.0, delta=1e-3)
        board = cl.run(plan(), tasks).board
        tasks.ids[:20] = 0
        with pytest.raises(InputError, match=r"Each task may be in a run once"):
            go(tasks, board, ledger)
        assert not ledger.history


MERGED = {
    "NUL": (["victim", "victim\0"], r"control characters.*Got '\\x00'"),
    "neighbours as floats": ([2**53 + 1, 2**53, 0.5], r"Got floats and whole numbers|whole and below"),
    "number and word": ([1, "1"], r"Got text and whole numbers in one list"),
    "surrogate": (["victim", "\ud800"], r"halves of surrogate pairs"),
}
SPLIT = {
    "white space": (["Elm", "Elm "], r"spelled in one way\. Got 'Elm' and 'Elm '"),
    "normal form": (["Müller", "Mu\u0308ller"], r"spelled in one way\. Got 'M\\xfcller' and 'Mu\\u0308ller'"),
}
BOOK = {"x": (-1, 1), "y": (-1, 1)}


def table(names, rows=3):
    """Return features, targets and one id a row: odd names, then ordinary ones of the first one's kind."""
    ids = [*names, *(range(100, 120) if isinstance(names[0], int) else map("t{}".format, range(20)))]
    count = rows * len(ids)
    return np.linspace(-1, 1, count), np.zeros(count), [name for name in ids for _ in range(rows)]


def fitted(ledger, X, y, **given):
    task = None if "tasks" in given else given.pop("task")
    model = cl.SharedPriorRegressor(task=task, epsilon=1.0, delta=1e-3, bounds=BOOK, ledger=ledger)
    return model.fit(X, y, **given)


ROUTES = {
    "tasks=": lambda x, y, ids, ledger: fitted(ledger, {"x": x}, y, tasks=ids),
    "column of a mapping": lambda x, y, ids, ledger: fitted(ledger, {"x": x, "s": ids}, y, task="s"),
    "column of a frame": lambda x, y, ids, ledger: fitted(
        ledger, pd.DataFrame({"x": x, "s": pd.Series(ids, dtype=object)}), y, task="s"
    ),
    "column of a list": lambda x, y, ids, ledger: fitted(
        ledger, [list(row) for row in zip(x, ids, strict=True)], y, task=1
    ),
    "from_arrays": lambda x, y, ids, ledger: cl.run(
        plan(len(set(ids))), cl.Tasks.from_arrays(np.tile(x[:, None], 3), y, ids), ledger=ledger
    ),
    "from_list": lambda x, y, ids, ledger: cl.Tasks.from_list(
        np.split(x[:, None], len(x))[::3], np.split(y, len(y))[::3], ids[::3]
    ),
    "clusters": lambda x, y, ids, ledger: cl.engines.partition_plans(
        plan(len(set(ids))), dict.fromkeys(ids, "all")
    ),
}


class TestNames:
    """Two parties in one task: each gets a model of the other's rows. One party in two: less protection."""

    @pytest.mark.parametrize(("names", "sentence"), (MERGED | SPLIT).values(), ids=MERGED | SPLIT)
    @pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
    def test_no_route_merges_or_splits_parties(self, route, names, sentence):
        ledger = cl.Ledger(epsilon=9.0, delta=1e-2)
        with pytest.raises(InputError, match=sentence):
            route(*table(names), ledger)
        assert not ledger.history

    @pytest.mark.parametrize("names", [["victim"], [2**53 + 1, 2**53]], ids=["text", "numbers"])
    @pytest.mark.parametrize("route", [*ROUTES.values()][:3], ids=[*ROUTES][:3])
    def test_ordinary_names_go_through_every_route(self, route, names):
        ledger = cl.Ledger(epsilon=9.0, delta=1e-2)
        assert set(names) < set(route(*table(names), ledger).task_ids_.tolist())
        assert len(ledger.history) == 1

    @pytest.mark.parametrize("spelled", ["Elm ", "Müller", "Mu\u0308ller"])
    def test_a_model_is_found_by_any_spelling_of_its_name(self, spelled):
        tasks = data([spelled, *map("t{}".format, range(N - 1))])
        done = cl.run(plan(), tasks)
        name = tasks.only(spelled).ids[0]
        np.testing.assert_array_equal(done.model(spelled)["coef"], done.model(name)["coef"])
        places = dict.fromkeys(tasks.ids.tolist(), "here") | {str(name): "here"}
        del places[str(name)]
        both = cl.engines.run_partition(plan(), tasks, places | {spelled: "here"})
        assert both.model(spelled)["coef"].shape == (3,)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.text(min_size=1, max_size=5), min_size=3, max_size=3, unique=True))
    def test_every_accepted_name_can_be_written_and_found_again(self, names):
        try:
            tasks = data(names, count=3)
        except InputError:
            return
        with tempfile.TemporaryDirectory() as home:
            quiet = cl.Plan(
                cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3), rounds=1),
                cl.mechanisms.NoNoise(),
                n_tasks=3,
            )
            done = cl.run(quiet, tasks, journal=Path(home) / "run")
            files = {file_name(name) for name in done.private.ids.tolist()}
            for file in files:
                (Path(home) / file).touch()
            found = sorted(str(task_of(path)) for path in Path(home).glob("*.json"))
        assert found == sorted(done.private.ids.tolist())
        for spelled in names:
            assert done.model(spelled)["coef"].shape == (3,)

    def test_files_of_floats_that_may_be_several_names_are_refused(self, tmp_path):
        for values, fine in (([3.0, 2.0**53], False), ([3.0, 4.0], True)):
            pd.DataFrame({"s": values, "x": [0.0, 1.0]}).to_parquet(tmp_path / "t.parquet")
            if fine:
                assert task_column(tmp_path / "t.parquet", "s").tolist() == ["3", "4"]
                continue
            with pytest.raises(InputError, match="may stand for several whole numbers"):
                task_column(tmp_path / "t.parquet", "s")

    @pytest.mark.parametrize("names", [names for names, _ in SPLIT.values()], ids=SPLIT)
    def test_the_command_line_refuses_one_school_in_two_spellings(self, names, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        x, y, ids = table(names)
        write_csv("t.csv", {"s": np.array(ids), "x": x, "y": y})
        cl.Codebook.from_mapping(BOOK, ["x"], "y", task="s").save("book.toml")
        said = CliRunner().invoke(app, FIT)
        assert said.exit_code == 1
        assert "Task column 's' of t.csv: A task must be spelled in one way" in said.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["book.toml", "t.csv"]


class TestSharedRows:
    """A fit that counted equal rows across tasks told whether another task has a picture that one guesses."""

    def test_a_planted_row_is_no_question(self):
        pytest.importorskip("torch")
        rng = np.random.default_rng(0)
        X, y = rng.random((120, 1, 8, 8), dtype=np.float32), np.tile([0, 1], 60)
        alike = X.copy()
        alike[119] = alike[0]
        for rows in (X, alike):
            ledger = cl.Ledger(epsilon=1.0, delta=1e-4)
            model = cl.estimators.FewShotClassifier(epsilon=0.01, ways=2, rounds=1, delta=1e-4, ledger=ledger)
            model.fit(cl.Tasks.from_arrays(rows, y, np.repeat(np.arange(30), 4)))
            assert len(ledger.history) == 1
            assert model.guarantee_.holds


BAD = {"nan": np.nan, "infinite": np.inf, "minus infinite": -np.inf}


class TestBadData:
    """What one task's rows can do to the others: stop the run before it costs anything."""

    @pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
    @pytest.mark.parametrize("where", ["x", "y"])
    def test_an_operator_is_told_alone_and_nothing_is_charged(self, where, bad, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        x, y, ids = table(["a"])
        (x if where == "x" else y)[4] = bad
        write_csv("t.csv", {"s": np.array(ids), "x": x, "y": y})
        cl.Codebook.from_mapping(BOOK, ["x"], "y", task="s").save("book.toml")
        cl.Ledger.create("l.sqlite", "schools", epsilon=9.0, delta=1e-2)
        ledger = cl.Ledger(epsilon=9.0, delta=1e-2)
        for go in (
            lambda: fitted(ledger, {"x": x}, y, tasks=ids),
            lambda: cl.run(plan(21), cl.Tasks.from_arrays(np.tile(x[:, None], 3), y, ids), ledger=ledger),
        ):
            with pytest.raises(cl.errors.PrivateDataError, match=r"For the operator alone"):
                go()
        said = CliRunner().invoke(app, [*FIT, "--ledger", "l.sqlite", "--population", "schools"])
        assert said.exit_code == 1
        assert "For the operator alone" in said.stderr
        assert not ledger.history
        assert not cl.Ledger.open("l.sqlite", "schools").history

    def test_an_unlisted_level_is_told_to_the_operator_alone(self):
        book = cl.Codebook.from_mapping({"x": ["F", "M"], "y": (0, 1)}, ["x"], "y")
        with pytest.raises(cl.errors.PrivateDataError, match=r"must hold levels.*For the operator alone"):
            book.encode({"x": ["F", "D"]})

    @pytest.mark.parametrize("label", [9, -1, 0.5, -(2**62), np.nan])
    def test_a_target_that_is_no_class_is_refused(self, label):
        tasks, ledger = data(), cl.Ledger(epsilon=9.0, delta=1e-2)
        tasks = replace(tasks, y=(tasks.y > 0) * 1.0)
        priced = replace(
            plan(), algorithm=cl.algorithms.MeanRegularized(cl.learners.Logistic(3), rounds=1, clip=1.0)
        )
        tasks.y[5] = label
        with pytest.raises(cl.errors.PrivateDataError, match="class indexes from 0 to 1"):
            cl.run(priced, tasks, ledger=ledger)
        assert not ledger.history


class TestOwnSeeds:
    """The seed of all tasks' minibatches would let each follow the others'; a task needs its own alone."""

    def test_a_task_replays_with_its_own_seed_and_with_no_other_s(self):
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        net, solver = torch.nn.Linear(3, 2), cl.learners.Descent(0.5, batch=2, epochs=1)
        trained = cl.algorithms.FedAvg(
            cl.learners.Module(net), solver, rounds=2, finetune=cl.algorithms.FineTuning(solver)
        )
        tasks = data(count=4, rows=12)  # so many that no two seeds ever draw the same minibatches
        tasks = replace(tasks, X=tasks.X.astype(np.float32), y=(tasks.y > 0).astype(np.int64))
        done = cl.run(cl.Plan(trained, cl.mechanisms.NoNoise(), n_tasks=4), tasks)
        own = done.own_seed(2)
        alone = cl.replay(done.plan, done.board, tasks.only(2), seeds=own)["coef"][0]
        np.testing.assert_allclose(alone, done.model(2)["coef"], rtol=1e-5, atol=1e-7)
        other = own ^ np.uint64(1)
        assert not np.allclose(cl.replay(done.plan, done.board, tasks.only(2), seeds=other)["coef"][0], alone)
        assert own[0] not in done.own_seed(3)
