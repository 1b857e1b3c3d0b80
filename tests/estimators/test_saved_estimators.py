"""What a fitted estimator leaves in files and folders, and what is read back from them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from schools import BOUNDS, M, N

from cloister import (
    Billboard,
    Codebook,
    Ledger,
    Plan,
    SharedPriorRegressor,
    Tasks,
    load,
    replay,
)
from cloister.app.result import TableRun
from cloister.app.task_model import TaskModel
from cloister.errors import InputError, PlanError
from cloister.store.journal import FolderJournal


def test_public_part_and_own_model_through_files(table, fitted, classified, tmp_path):
    """What is saved is public and enough for a task to replay its model; export is one task's alone."""
    X, y, _ = table
    folder = fitted.save(tmp_path / "run", models=False)
    assert {f.name for f in folder.iterdir()} == {
        "README.txt",
        "plan.toml",
        "codebook.toml",
        "estimator.toml",
        "run.toml",
        "board",
        "head.txt",
        "manifest.txt",
        "guarantee.json",
        "guarantee.txt",
    }
    plan, board = Plan.load(folder / "plan.toml"), Billboard.load(folder / "board")
    book = Codebook.load(folder / "codebook.toml")
    mine = (X["school"] == "s007").to_numpy()
    columns = {name: X.loc[mine, name].to_numpy() for name in ("age", "sex")}
    task = Tasks.from_arrays(book.encode(columns), book.encode_target(y[mine]), ["s007"] * N)
    coef = replay(plan, board, task)["coef"][0]
    np.testing.assert_allclose(book.to_user_units(coef)[0], fitted.coef_[7], rtol=1e-8)
    for model in (fitted, classified):
        own = TaskModel.load(model.export("s007", tmp_path / "own.json"))
        text = (tmp_path / "own.json").read_text()
        assert not any(f"s{i:03d}" in text for i in range(M) if i != 7)
        found, expected = own.predict(X[mine]), model.predict(X[mine])
        if model is fitted:
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        else:
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(own.coef, model.coef_[7], rtol=1e-12)
        np.testing.assert_allclose(own.intercept, model.intercept_[7], rtol=1e-12)
    own = fitted.task_model("s007")
    np.testing.assert_allclose(own.predict_std(X[mine]), fitted.predict(X[mine], return_std=True)[1])
    assert str(fitted.coef_[7, 0])[:6] not in repr(own)
    with pytest.raises(InputError, match="There is no model of task 'zzz'"):
        fitted.task_model("zzz")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="is not the model of a task"):
        TaskModel.load(tmp_path / "bad.json")


def test_a_saved_run_is_loaded_as_the_estimator_that_made_it(table, fitted, classified, tmp_path):
    X, y, _ = table
    for model, name in ((fitted, "numbers"), (classified, "classes")):
        again = load(model.save(tmp_path / name))
        assert type(again) is type(model)
        assert again.get_params() == model.get_params() | {"random_state": None, "bounds": model.codebook_}
        assert (again.guarantee_, again.plan_) == (model.guarantee_, model.plan_)
        assert again.billboard_.head == model.billboard_.head
        for rows in (X, X[:5].assign(school="a stranger")):
            np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
        np.testing.assert_array_equal(again.coef_, model.coef_)
        np.testing.assert_array_equal(again.feature_names_in_, model.feature_names_in_)
    again = load(tmp_path / "numbers")
    np.testing.assert_array_equal(again.predict(X, return_std=True), fitted.predict(X, return_std=True))
    mine = (X["school"] == "s007").to_numpy()
    np.testing.assert_allclose(again.replay(X[mine], y[mine]).coef, fitted.coef_[7], rtol=1e-8)
    own = TaskModel.load(again.export("s007", tmp_path / "own.json"))
    np.testing.assert_array_equal(own.coef, fitted.coef_[7])
    again.save(tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(tmp_path / "numbers")
    public = load(fitted.save(tmp_path / "public", models=False))
    np.testing.assert_array_equal(public.predict(X[:3]), again.predict(X[:3].assign(school="a stranger")))


def test_numbers_as_ids_and_rows_without_names_survive_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    X, y, tasks = rng.uniform(0, 1, (40, 2)), rng.uniform(0, 1, 40), np.arange(40) % 11
    model = SharedPriorRegressor(bounds={0: (0, 1), 1: (0, 1), "y": (0, 1)}, random_state=0)
    again = load(model.fit(X, y, tasks).save(tmp_path / "run"))
    np.testing.assert_array_equal(again.predict(X, tasks), model.predict(X, tasks))
    assert again.task_ids_.tolist() == list(range(11))
    assert not hasattr(again, "feature_names_in_")


def test_a_run_that_no_estimator_made_is_loaded_as_what_it_is(table, fitted, tmp_path):
    X, _, _ = table
    folder = fitted.save(tmp_path / "run")
    (folder / "estimator.toml").unlink()
    found = load(folder)
    assert isinstance(found, TableRun)
    assert "60 tasks, private" in repr(found)
    np.testing.assert_array_equal(found.predict(X, tasks=X["school"]), fitted.predict(X))
    with pytest.raises(InputError, match="not pickled whole"):
        pickle.dumps(found)
    (folder / "models" / "s007.json").rename(folder / "models" / "s008.json")
    with pytest.raises(InputError, match=r"is the model of task 's007', and not its file"):
        load(folder)


ID = "cloister/shared-prior-regressor/1"


def test_a_class_that_has_the_name_of_an_estimator_is_not_taken_for_it(table, tmp_path):
    X, y, _ = table
    forged = type(
        "SharedPriorRegressor", (SharedPriorRegressor,), {"__module__": "cloister.estimators.prior"}
    )
    folder = forged("school", bounds=BOUNDS, random_state=0).fit(X, y).save(tmp_path / "run")
    assert ID not in (folder / "estimator.toml").read_text()
    assert isinstance(load(folder), TableRun)


def test_what_a_folder_says_of_its_estimator_is_not_trusted(fitted, tmp_path):
    said = fitted.save(tmp_path / "run") / "estimator.toml"
    text = said.read_text()
    assert f'estimator = "{ID}"' in text
    assert "random_state" not in text  # who knows the seed can take the noise off
    said.write_text(text.replace(ID, "os:system/1"))
    assert isinstance(load(tmp_path / "run"), TableRun)
    for other in ("cloister/gaussian/1", "cloister/shared-prior-regressor/2"):
        said.write_text(text.replace(ID, other))
        with pytest.raises(PlanError, match=f"does not know the type '{other}'"):
            load(tmp_path / "run")
    said.write_text(text.replace("epsilon", "budget"))
    with pytest.raises(InputError, match="settings that SharedPriorRegressor does not take"):
        load(tmp_path / "run")
    said.write_text(text.replace(ID, "cloister/shared-prior-classifier/1"))
    with pytest.raises(InputError, match="target is a number"):
        load(tmp_path / "run")
    said.write_text("estimator = 3")
    with pytest.raises(InputError, match="does not say which estimator"):
        load(tmp_path / "run")


def test_a_fit_that_was_killed_goes_on_from_its_journal(table, tmp_path, monkeypatch):
    X, y, _ = table
    ledger = Ledger(epsilon=2.0, delta=1e-3)
    model = SharedPriorRegressor("school", bounds=BOUNDS, ledger=ledger)
    keep = FolderJournal.keep

    def killed(self, board, *state):
        if board.rounds == 3:
            raise KeyboardInterrupt
        return keep(self, board, *state)

    with monkeypatch.context() as patched:
        patched.setattr(FolderJournal, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y, journal=tmp_path / "run")
    posted = Billboard.recover(tmp_path / ".run.unfinished" / "board")
    model.fit(X, y, journal=tmp_path / "run")
    assert len(ledger.history) == 1
    assert (posted.rounds, model.billboard_.before(2).head) == (2, posted.head)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    np.testing.assert_array_equal(load(tmp_path / "run").predict(X), model.predict(X))
    with pytest.raises(InputError, match="is already there and is left as it is"):
        model.fit(X, y, journal=tmp_path / "run")
    assert len(ledger.history) == 1


def test_a_complete_run_that_was_killed_before_it_was_in_place(table, tmp_path, monkeypatch):
    X, y, _ = table
    model = SharedPriorRegressor("school", bounds=BOUNDS)
    with monkeypatch.context() as patched:
        patched.setattr("cloister.app.fit.put_in_place", lambda *where: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.fit(X, y, journal=tmp_path / "run")
    head = Billboard.load(tmp_path / ".run.unfinished" / "board").head
    model.fit(X, y, journal=tmp_path / "run")
    assert model.billboard_.head == head
    np.testing.assert_array_equal(load(tmp_path / "run").predict(X), model.predict(X))


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
