"""Public groups by estimators, folders and commands: a column, the same price, and a model for newcomers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cloister
from cloister import Ledger, SharedPriorClassifier, SharedPriorRegressor
from cloister.app.predict import write_csv
from cloister.cli import app
from cloister.errors import InputError
from cloister.tables.table_files import read_table

BOUNDS = {"age": (5, 20), "target": (0, 60)}


def pupils(schools=80, rows=5, seed=0):
    rng = np.random.default_rng(seed)
    school = np.repeat(np.arange(schools), rows)
    district = np.array(["north", "south", "west"])[np.arange(schools) % 3]
    level = {"north": -12.0, "south": 12.0, "west": 0.0}
    age = rng.uniform(6, 18, len(school))
    own = np.array([level[name] for name in district]) + rng.normal(0, 2, schools)
    score = np.clip(20 + age + own[school] + rng.normal(0, 3, len(school)), 0, 60)
    return {"school": school, "district": district[school], "age": age}, score


X, Y = pupils()


def model(**more):
    # without noise, so that what is heard is the same everywhere
    settings = {"groups": "district", "epsilon": float("inf"), "bounds": BOUNDS, "random_state": 0} | more
    return SharedPriorRegressor("school", **settings)


@pytest.fixture(scope="module")
def fitted():
    return model().fit(X, Y)


def test_a_column_or_an_array(fitted):
    """The same models either way; and without groups others."""
    rest = {name: X[name] for name in ("school", "age")}
    beside = model(groups=None).fit(rest, Y, groups=X["district"])
    np.testing.assert_array_equal(beside.coef_, fitted.coef_)
    assert not np.allclose(model(groups=None).fit(rest, Y).coef_, fitted.coef_, rtol=1e-3)
    assert fitted.plan_.algorithm.groups.names == ("north", "south", "west")
    arrays = np.column_stack([X["school"], np.unique(X["district"], return_inverse=True)[1], X["age"]])
    by_position = SharedPriorRegressor(
        0, groups=1, epsilon=float("inf"), bounds={2: (5, 20), "y": (0, 60)}, random_state=0
    ).fit(arrays, Y)
    np.testing.assert_allclose(by_position.coef_, fitted.coef_)


def test_the_guarantee_is_the_same_and_says_that_groups_are_public():
    with_groups, without = (model(epsilon=1.0, groups=g) for g in ("district", None))
    data = {name: column for name, column in X.items() if name != "district"}
    ledger = Ledger(10.0, 1e-3)
    one = with_groups.set_params(ledger=ledger).fit(X, Y).guarantee_
    two = without.fit(data, Y).guarantee_
    assert one.epsilon == two.epsilon == pytest.approx(1.0, abs=1e-3)
    assert "which group a task is in is public, and not protected" in str(one)
    assert "group" not in str(two)
    assert len(ledger.history) == 1
    labels = [X["district"][X["school"] == s][0] for s in range(80)]
    book = cloister.Codebook.from_mapping(BOUNDS, ["age"], "target", "school")
    assert with_groups.plan(80, book, labels).fingerprint == with_groups.plan_.fingerprint


def test_newcomers_get_their_groups_model(fitted):
    ages = np.full(4, 12.0)
    new = {"school": [900, 901, 902, 903], "district": ["north", "south", "elsewhere", "west"], "age": ages}
    north, south, common, west = fitted.predict(new)
    assert north + 5 < common < south - 5
    assert abs(west - common) < 4
    without = fitted.predict({"school": [900], "age": [12.0]})
    np.testing.assert_allclose(without, common)
    known = fitted.predict({"school": [0], "district": ["south"], "age": [12.0]})  # it is in the north
    np.testing.assert_allclose(known, fitted.predict({"school": [0], "age": [12.0]}))


def test_replay_knows_the_group(fitted):
    """From the table's column, or from the run; a task that comes late without a label is one of all."""
    at = X["school"] == 7
    own = {name: column[at] for name, column in X.items()}
    expected = fitted.coef_[7], fitted.intercept_[7]
    tables = [
        ({"age": own["age"]}, {"task": 7}),
        ({"school": own["school"], "age": own["age"]}, {}),
        (own, {}),
        ({"district": own["district"], "age": own["age"]}, {"task": "late"}),
    ]
    for table, more in tables:
        found = fitted.replay(table, Y[at], **more)
        np.testing.assert_allclose(found.coef, expected[0], rtol=1e-7)
        np.testing.assert_allclose(found.intercept, expected[1], rtol=1e-7)
    late = fitted.replay({"age": own["age"]}, Y[at])
    assert not np.allclose(late.intercept, expected[1], rtol=1e-4)


def test_folders_keep_groups(fitted, tmp_path):
    folder = fitted.save(tmp_path / "run")
    listed = json.loads((folder / "groups.json").read_text())["groups"]
    assert (len(listed), listed["7"]) == (80, "south")
    again = cloister.load(folder)
    assert again.groups == "district"
    new = {"school": [900, 7], "district": ["north", "south"], "age": [12.0, 9.0]}
    np.testing.assert_array_equal(again.predict(new), fitted.predict(new))
    at = X["school"] == 7
    np.testing.assert_allclose(
        again.replay({"age": X["age"][at]}, Y[at], task=7).intercept, fitted.intercept_[7], rtol=1e-7
    )
    exported = json.loads(fitted.export(7, tmp_path / "seven.json").read_text())
    assert "group" not in exported
    (folder / "groups.json").write_text(json.dumps({"groups": dict.fromkeys(listed, "north")}))
    with pytest.raises(InputError, match=r"must have the label of each task"):
        cloister.load(folder)


def test_a_public_part_serves_tasks_by_their_group(fitted, tmp_path):
    public = cloister.load(fitted.save(tmp_path / "run", models=False))
    rows = {"school": [0, 1], "age": [12.0, 12.0]}  # in the north and in the south, which the folder knows
    north, south = public.predict(rows)
    assert north + 10 < south


def test_a_run_in_a_journal_keeps_groups(fitted, tmp_path):
    again = cloister.load(model().fit(X, Y, journal=tmp_path / "run") and tmp_path / "run")
    np.testing.assert_array_equal(again.coef_, fitted.coef_)


def test_what_is_refused():
    mixed = X | {"district": np.where(np.arange(len(Y)) == 0, "west", X["district"])}
    with pytest.raises(InputError, match="Task 0 has 'north' and 'west'"):
        model().fit(mixed, Y)
    with pytest.raises(InputError, match="no column 'district' with the tasks' groups"):
        model().fit({"school": X["school"], "age": X["age"]}, Y)
    with pytest.raises(InputError, match="one label a row: there are 400"):
        model(groups=None).fit({"school": X["school"], "age": X["age"]}, Y, groups=["a"])
    with pytest.raises(InputError, match="label is written like a task's name"):
        model().fit(X | {"district": [None] * len(Y)}, Y)
    with pytest.raises(InputError, match="structure='sparse' has none"):
        model(structure="sparse").fit(X, Y)


def test_classes_have_groups_too():
    high = np.median(Y) < Y
    found = SharedPriorClassifier(
        "school", groups="district", epsilon=float("inf"), bounds={"age": (5, 20), "y": [False, True]}
    ).fit(X, high)
    new = {"school": [900, 901], "district": ["north", "south"], "age": [12.0, 12.0]}
    north, south = found.predict_proba(new)[:, 1]
    assert north < 0.3 < 0.7 < south


BOOK = """
task = "school"
[target]
name = "score"
bounds = [0, 60]
[features.age]
bounds = [5, 20]
"""


def test_commands_take_a_groups_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.toml").write_text(BOOK)
    write_csv(Path("pupils.csv"), {name: np.asarray(c).astype(str) for name, c in X.items()} | {"score": Y})

    def ok(*arguments):
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    said = ok(
        "fit", "pupils.csv", "--codebook", "book.toml", "--groups", "district", "--epsilon", "50", "--verbose"
    )
    assert "which group a task is in is public" in " ".join(said.split())
    run = cloister.load("pupils-run")
    assert run.plan_.algorithm.groups.sizes == (27, 27, 26)
    new = {"school": np.array(["a", "b"]), "district": np.array(["north", "south"]), "age": np.full(2, 12.0)}
    write_csv(Path("new.csv"), new)
    ok("predict", "pupils-run", "new.csv", "-o", "out.csv")
    north, south = read_table(Path("out.csv"))["prediction"]
    assert north + 5 < south
    at = X["school"] == 7
    own = {"age": X["age"][at], "score": Y[at]}
    write_csv(Path("own.csv"), own)
    ok("replay", "pupils-run", "own.csv", "--task-name", "7", "-o", "seven.json")
    again = json.loads(Path("seven.json").read_text())
    np.testing.assert_allclose(again["weights"], run.task_model("7").weights, rtol=1e-6)
    write_csv(Path("own.csv"), own | {"district": X["district"][at]})
    ok("replay", "pupils-run", "own.csv", "--task-name", "late", "-o", "late.json")
    np.testing.assert_allclose(json.loads(Path("late.json").read_text())["weights"], again["weights"])
    ok("verify", "pupils-run")
    assert (
        "no groups' column 'ward'"
        in CliRunner()
        .invoke(app, ["fit", "pupils.csv", "--codebook", "book.toml", "--groups", "ward", "-o", "x"])
        .stderr
    )
