from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from typer.testing import CliRunner

from cloister import Billboard, Codebook, Guarantee, Plan
from cloister.algorithms import SharedPrior
from cloister.board import Release
from cloister.cli import app
from cloister.cli.gain import Gain
from cloister.learners.linear.regression import Regression
from cloister.mechanisms import Gaussian
from cloister.sampling import FixedSize
from cloister.tables.files import read_table, write_csv
from cloister.tables.model import TaskModel
from cloister.tables.model_files import file_name, task_of

BOOK = """
task = "school"
[target]
name = "score"
bounds = [0, 50]
[features.age]
bounds = [5, 20]
[features.sex]
levels = ["F", "M"]
"""
TASKS = 40


def pupils(
    tasks: int = TASKS, seed: int = 0, names: Callable[[int], str] = "{:03d}".format
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    school = np.repeat(np.arange(tasks), rng.integers(4, 12, tasks))
    age, girl = rng.integers(8, 19, len(school)).astype(float), rng.random(len(school)) < 0.5
    score = 5 + 2 * age + rng.normal(0, 2, tasks)[school] + girl + rng.normal(0, 2, len(school))
    ids = np.array([names(i) for i in range(tasks)])
    return {
        "school": ids[school],
        "age": age,
        "sex": np.where(girl, "F", "M"),
        "score": np.clip(score, 0, 50).round(2),
    }


def cloister(*arguments: object):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*arguments: object) -> str:
    result = cloister(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: object) -> str:
    """Expect exit code 1 and one line on stderr; return it."""
    result = cloister(*arguments)
    assert result.exit_code == 1, result.stdout
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.rstrip().endswith(".")
    assert "Traceback" not in result.stderr
    return result.stderr.removeprefix("Error: ").strip()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a codebook and a finished run; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("made")
    write_csv(folder / "exam.csv", pupils())
    (folder / "book.toml").write_text(BOOK)
    ok("fit", folder / "exam.csv", "--codebook", folder / "book.toml", "-o", folder / "run")
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the whole way ---------------------------------------------------------------------------------------


def test_from_a_table_to_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv("exam.csv", pupils())
    said = ok("codebook", "exam.csv", "--task", "school", "--target", "score")
    assert "no value from the data" in said
    template = Path("exam-codebook.toml").read_text()
    book = template.replace('name = "score"\nbounds = []', 'name = "score"\nbounds = [0, 50]')
    book = book.replace("bounds = []", "bounds = [5, 20]").replace("levels = []", 'levels = ["F", "M"]')
    Path("exam-codebook.toml").write_text(book)

    said = ok("fit", "exam.csv", "--codebook", "exam-codebook.toml", "--task", "school", "--target", "score")
    assert "Where targets are was not heard" in said or "Targets were found around" in said
    assert "The number of tasks is taken to be public" in " ".join(said.split())
    assert "joint differential privacy for each of the 40 tasks" in " ".join(said.split())
    assert "Forecast" in said
    names = {path.name for path in Path("exam-run").iterdir()}
    public = {
        "plan.toml",
        "board",
        "codebook.toml",
        "guarantee.json",
        "guarantee.txt",
        "head.txt",
        "estimator.toml",
        "README.txt",
    }
    assert names == public | {"models"}
    assert len(list(Path("exam-run/models").glob("*.json"))) == TASKS
    assert "nobody else" in Path("exam-run/README.txt").read_text()

    assert "NO" not in ok("verify", "exam-run").split()
    ok("predict", "exam-run", "exam.csv", "-o", "predicted.csv")
    predicted = read_table("predicted.csv", text=["school"])
    assert list(predicted) == ["school", "age", "sex", "score", "prediction", "std"]
    assert np.mean((predicted["prediction"] - predicted["score"]) ** 2) < 0.3 * predicted["score"].var()

    said = ok("replay", "exam-run", "exam.csv", "--task-name", "003", "-o", "mine.json")
    assert "nothing left and nothing was spent" in " ".join(said.split())
    assert "sex[M]" in said
    said = " ".join(ok("gain", "exam-run", "exam.csv", "--task-name", "003").split())
    assert "20 random splits" in said
    assert "flatters joining" in said
    assert "This number is private to you." in said


def test_replay_of_a_task_of_the_run_is_its_model_file(work: Path) -> None:
    for name in ("000", "007", "039"):
        ok("replay", "run", "exam.csv", "--task-name", name, "-o", f"{name}.json")
        again, posted = TaskModel.load(f"{name}.json"), TaskModel.load(f"run/models/{name}.json")
        assert again.task == posted.task == name
        np.testing.assert_allclose(again.weights, posted.weights, rtol=1e-9)
        np.testing.assert_allclose(again.covariance, posted.covariance, rtol=1e-6, atol=1e-12)


def test_a_late_task_joins_from_the_public_part_alone(work: Path) -> None:
    shutil.rmtree("run/models")
    late = {name: column for name, column in pupils(1, seed=5).items() if name != "school"}
    write_csv("late.csv", late)
    said = json.loads(ok("replay", "run", "late.csv", "--task-name", "late", "-o", "late.json", "--json"))
    assert said["task"] == "late"
    assert said["columns"] == ["age", "sex[M]"]
    assert TaskModel.load("late.json").coef.tolist() == said["coef"]
    before = contents(Path("run"))
    ok("predict", "late.csv", "--model", "late.json", "-o", "p.csv")
    assert contents(Path("run")) == before


def test_predictions_are_those_of_each_model_file(work: Path) -> None:
    table = read_table("exam.csv", text=["school"])
    ok("predict", "run", "exam.csv", "-o", "p.csv")
    predicted = read_table("p.csv", text=["school"])
    for name in ("000", "021"):
        own = {key: column[table["school"] == name] for key, column in table.items()}
        model = TaskModel.load(f"run/models/{name}.json")
        here = predicted["school"] == name
        np.testing.assert_allclose(predicted["prediction"][here], model.predict(own), rtol=1e-12)
        np.testing.assert_allclose(predicted["std"][here], model.predict_std(own), rtol=1e-12)
        write_csv("own.csv", own)
        alone = list(
            csv.DictReader(ok("predict", "own.csv", "--model", f"run/models/{name}.json").splitlines())
        )
        np.testing.assert_allclose(
            [float(row["prediction"]) for row in alone], model.predict(own), rtol=1e-12
        )


def test_an_unseen_task_is_served_from_the_board(work: Path) -> None:
    Path("new.csv").write_text("school,age,sex\nnew,12,F\n000,12,F\n")
    result = cloister("predict", "run", "new.csv", "--json")
    said = json.loads(result.stdout)
    assert said["rows"] == 2
    assert said["tasks_from_board"] == 1
    assert "from the board alone" in result.stderr
    assert said["std"][0] > said["std"][1]
    shutil.rmtree("run/models")
    assert json.loads(ok("predict", "run", "new.csv", "--json"))["prediction"][0] == said["prediction"][0]


def test_classes_and_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    table = pupils()
    table["score"] = np.where(table["score"] > 30, "pass", "fail")
    table["school"] = table["school"].astype(int)
    pq.write_table(pa.table(table), "exam.parquet")
    Path("book.toml").write_text(BOOK.replace("bounds = [0, 50]", 'classes = ["fail", "pass"]'))
    assert json.loads(ok("fit", "exam.parquet", "--codebook", "book.toml", "--json"))["tasks"] == TASKS
    ok("verify", "exam-run")
    ok("predict", "exam-run", "exam.parquet", "-o", "p.csv")
    predicted = read_table("p.csv")
    np.testing.assert_allclose(predicted["p[fail]"] + predicted["p[pass]"], 1.0)
    assert np.mean(predicted["prediction"] == predicted["score"]) > 0.8
    ok("replay", "exam-run", "exam.parquet", "--task-name", "3", "-o", "mine.json")
    again, posted = TaskModel.load("mine.json"), TaskModel.load("exam-run/models/3.json")
    np.testing.assert_allclose(again.weights, posted.weights, rtol=1e-6)
    said = json.loads(ok("gain", "exam-run", "exam.parquet", "--task-name", "3", "--splits", "3", "--json"))
    assert said["splits"] == 3
    assert set(said["mean_log_loss"]) == {"joined", "own", "board"}


def test_gain_finds_that_joining_pays(work: Path) -> None:
    said = json.loads(ok("gain", "run", "exam.csv", "--task-name", "002", "--json"))
    assert said["private"] is True
    low, high = said["change_95"]
    assert -1 <= low <= said["change"] <= high
    errors = said["mean_squared_error"]
    assert said["change"] == pytest.approx(errors["joined"] / errors["own"] - 1)


def test_gain_says_when_nothing_was_heard() -> None:
    same = np.array([1.0, 2.0, 3.0])
    assert Gain({"joined": same, "own": same}, 7, 3).verdict("squared error").startswith("No difference: ")
    worse = Gain({"joined": same + 1, "own": same}, 7, 3).verdict("squared error")
    assert worse.startswith("Joining does not pay for you: ")
    better = Gain({"joined": same - 0.5, "own": same}, 7, 3).verdict("squared error")
    assert better.startswith("Joining pays for you: joined, your squared error on held-out rows is 25% lower")
    unclear = Gain({"joined": same[::-1], "own": same}, 7, 3).verdict("squared error")
    assert unclear.startswith("No clear difference: ")


def test_a_run_starts_from_an_earlier_one(work: Path) -> None:
    run = ["fit", "exam.csv", "--codebook", "book.toml"]
    ok(*run, "--epsilon", 20, "-o", "first")
    said = ok(*run, "--epsilon", 0.5, "--start-from", "first", "-o", "second")
    head = Path("first/head.txt").read_text().strip()
    assert f"earlier board {head[:16]}" in " ".join(said.split())
    ok("verify", "second", "--head", Path("second/head.txt").read_text().strip())
    assert "--start-from" in refused(
        *run, "--plan", "second/plan.toml", "--start-from", "first", "-o", "third"
    )


# --- what is said, and what is not -----------------------------------------------------------------------


def test_fit_says_nothing_that_depends_on_values(work: Path) -> None:
    table = pupils()
    write_csv("exam2.csv", table | {"score": table["score"][::-1].copy(), "age": table["age"][::-1].copy()})
    first = ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "a")
    shutil.rmtree("a")
    Path("exam2.csv").replace("exam.csv")
    second = ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "a")
    head = re.compile(r"\b[0-9a-f]{64}\b")  # of the noisy board, which is public
    assert head.sub("HEAD", second) == head.sub("HEAD", first)
    assert len(head.findall(second)) == 1


def test_the_price_is_said_before_values_are_read(work: Path) -> None:
    spoil("age", 3, "")
    result = cloister("fit", "exam.csv", "--codebook", "book.toml", "-o", "a")
    assert result.exit_code == 1
    assert "joint differential privacy" in result.stdout


def test_columns_that_the_codebook_does_not_name_are_carried_along(work: Path) -> None:
    table = pupils()
    write_csv("exam.csv", table | {"name": np.full(len(table["age"]), "secret")})
    result = cloister("fit", "exam.csv", "--codebook", "book.toml", "-o", "a")
    assert result.exit_code == 0
    assert "not used: name" in result.stderr
    ok("predict", "a", "exam.csv", "-o", "p.csv")
    assert "name" in read_table("p.csv")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "exam.csv", "--codebook", "book.toml", "-o", "other"],
        ["codebook", "exam.csv", "--task", "school", "--target", "score"],
        ["verify", "run"],
        ["predict", "run", "exam.csv"],
        ["replay", "run", "exam.csv", "--task-name", "000"],
        ["gain", "run", "exam.csv", "--task-name", "000"],
        ["account", "run/plan.toml"],
        ["account", "--epsilon", "1", "--tasks", "100"],
    ],
)
def test_json_alone_is_on_stdout(work: Path, arguments: list[str]) -> None:
    assert isinstance(json.loads(ok(*arguments, "--json")), dict)


@pytest.mark.parametrize(
    "command", ["codebook", "account", "fit", "verify", "predict", "replay", "gain", "demo", "museum"]
)
def test_help_teaches_by_example(command: str) -> None:
    said = ok(command, "--help")
    assert f"\n    cloister {command}" in said
    assert r"\b" not in said
    assert len(said.splitlines()) < 60


def test_the_entry_point_runs_and_shows_no_traceback(work: Path) -> None:
    code = [sys.executable, "-c", "from cloister.cli import main; main()"]
    done = subprocess.run([*code, "verify", "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*code, "verify", "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: There is no folder nowhere.")
    assert done.stdout == ""
    done = subprocess.run([*code, "verify"], capture_output=True, text=True, check=False)
    assert done.returncode == 2


def test_help_needs_neither_scipy_nor_scikit_learn() -> None:
    code = (
        "import sys; from cloister.cli import app; app(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('sklearn', 'scipy', 'pandas', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


# --- bad input: one sentence, and nothing is lost --------------------------------------------------------


def spoil(column: str, row: int, cell: str) -> None:
    """Change one cell of exam.csv; the row below the column names is row 1."""
    lines = [line.split(",") for line in Path("exam.csv").read_text().splitlines()]
    lines[row][lines[0].index(column)] = cell
    Path("exam.csv").write_text("\n".join(map(",".join, lines)) + "\n")


def fit(*options: object) -> list[object]:
    return ["fit", "exam.csv", "--codebook", "book.toml", "-o", "run", "--force", *options]


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (
            lambda: spoil("age", 3, ""),
            [],
            "Column 'age' must have a value in every row. Data row 3 of exam.csv has a missing value. ",
        ),
        (lambda: spoil("age", 3, "nan"), [], "Column 'age' must have a value in every row. "),
        (
            lambda: spoil("score", 2, "inf"),
            [],
            "Column 'score' must hold finite numbers, as the codebook says. Data row 2 ",
        ),
        (
            lambda: spoil("age", 4, "old"),
            [],
            "Column 'age' must hold finite numbers, as the codebook says. Data row 4 ",
        ),
        (
            lambda: spoil("sex", 5, "X"),
            [],
            "Column 'sex' must hold levels that the codebook lists ('F', 'M'). Data row 5 ",
        ),
        (
            lambda: spoil("sex", 5, ""),
            [],
            "Column 'sex' must have a value in every row. Data row 5 ",
        ),
        (
            lambda: spoil("school", 6, ""),
            [],
            "Task column 'school' of exam.csv must have an entry in every row. ",
        ),
        (
            lambda: spoil("school", 0, "School"),
            [],
            "exam.csv has no task column 'school'. It has: School, age, ",
        ),
        (
            lambda: spoil("age", 0, "Age"),
            [],
            "exam.csv has no column 'age'. It has: school, Age, sex, score. ",
        ),
        (lambda: None, ["--task", "age"], "--task must be the codebook's task column, 'school'. Got 'age'. "),
        (lambda: None, ["--target", "age"], "--target must be the codebook's target, 'score'. Got 'age'. "),
        (lambda: None, ["--epsilon", "0"], "--epsilon must be above 0 and finite. Got 0. "),
        (lambda: None, ["--epsilon", "-1"], "--epsilon must be above 0 and finite. Got -1. "),
        (lambda: None, ["--epsilon", "nan"], "--epsilon must be above 0 and finite. Got nan. "),
        (lambda: None, ["--delta", "0.5"], "delta must be at most 1/40: "),
        (lambda: None, ["--delta", "0"], "delta must be above 0 "),
        (lambda: None, ["--codebook", "nowhere.toml"], "codebook nowhere.toml must be readable TOML. "),
        (lambda: Path("exam.csv").unlink(), [], "There is no file exam.csv. "),
        (lambda: Path("exam.csv").write_text(""), [], "exam.csv is empty. "),
        (
            lambda: Path("exam.csv").write_text("school,age\na,1,2\n"),
            [],
            "Every line of exam.csv must have 2 cells.",
        ),
    ],
)
def test_bad_input_to_fit(
    work: Path, change: Callable[[], object], options: list[str], sentence: str
) -> None:
    change()
    before = contents(work)
    assert refused(*fit(*options)).startswith(sentence)
    assert contents(work) == before
    assert not list(work.glob(".*"))


@pytest.mark.parametrize(
    "option", [["--epsilon", "1"], ["--delta", "1e-4"], ["--relation", "replace"], ["--structure", "mean"]]
)
def test_a_plan_settles_what_these_options_say(work: Path, option: list[str]) -> None:
    sentence = refused(*fit("--plan", "run/plan.toml", *option))
    assert sentence.startswith(f"run/plan.toml settles {option[0]} itself: nothing would change. ")
    draft = Plan(SharedPrior(Regression(3)), Gaussian(), n_tasks=40)
    draft.save("draft.toml")
    if option[0] != "--epsilon":
        assert f"settles {option[0]} itself" in refused(*fit("--plan", "draft.toml", "--epsilon", 1, *option))


def test_one_task_only(work: Path) -> None:
    write_csv("exam.csv", pupils(1))
    assert refused(*fit()).startswith("Column 'school' of exam.csv must hold at least 2 tasks. Got 1, ")


def test_a_template_that_is_not_filled_in(work: Path) -> None:
    ok("codebook", "exam.csv", "--task", "school", "--target", "score", "-o", "template.toml")
    sentence = refused(*fit("--codebook", "template.toml"))
    assert sentence.startswith("bounds of 'age' in template.toml must be filled in. Got an empty list. ")


def test_the_template_holds_no_value(work: Path) -> None:
    table = pupils()
    unusual = {"age": table["age"] * 0 + 71.25, "sex": np.full(len(table["age"]), "rarely")}
    write_csv("exam.csv", table | unusual)
    ok("codebook", "exam.csv", "--task", "school", "--target", "score", "-o", "t.toml")
    text = Path("t.toml").read_text()
    assert "71" not in text
    assert "rarely" not in text
    assert "039" not in text


def test_codebook_refuses(work: Path) -> None:
    arguments = ["codebook", "exam.csv", "--task", "school", "--target", "score", "-o", "book.toml"]
    assert refused(*arguments).startswith("book.toml is already there and is left as it is. ")
    assert Path("book.toml").read_text() == BOOK
    ok(*arguments, "--force")
    assert Path("book.toml").read_text() != BOOK
    assert "no column 'Score'" in refused("codebook", "exam.csv", "--task", "school", "--target", "Score")
    assert "different columns" in refused("codebook", "exam.csv", "--task", "age", "--target", "age")
    assert "no folder" in refused(*arguments[:-1], "nowhere/book.toml")


def test_an_existing_folder_is_kept(work: Path) -> None:
    before = contents(work)
    sentence = refused("fit", "exam.csv", "--codebook", "book.toml", "-o", "run")
    assert sentence.startswith("run is already there and is left as it is. ")
    assert contents(work) == before
    ok(*fit())
    assert contents(work)["run/board"] != before["run/board"]
    assert not list(work.glob(".*"))
    ok("verify", "run")


def test_force_replaces_runs_only(work: Path) -> None:
    Path("thesis").mkdir()
    Path("thesis/only-copy.txt").write_text("years of work")
    arguments = ["fit", "exam.csv", "--codebook", "book.toml", "-o", "thesis", "--force"]
    assert refused(*arguments).startswith("thesis is not the folder of a run, so force does not replace it. ")
    assert Path("thesis/only-copy.txt").read_text() == "years of work"
    Path("empty").mkdir()
    ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "empty")
    ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "deep/er/run")
    ok("verify", "deep/er/run")


def test_a_failed_rename_restores_the_old_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    before, rename = contents(work), os.rename

    def fails(source: Path, target: Path) -> None:
        if str(source).endswith(".unfinished"):
            raise OSError(28, "No space left on device", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    assert "there is no space left. Free some space; the run is complete in" in refused(*fit())
    assert {k: v for k, v in contents(work).items() if ".run.unfinished" not in k} == before
    monkeypatch.undo()
    monkeypatch.chdir(work)
    assert "nothing was run" in " ".join(cloister(*fit()).stderr.split())
    assert contents(work)["run/board"] != before["run/board"]
    assert not list(work.glob(".*"))
    ok("verify", "run")


@pytest.mark.parametrize("command", ["predict", "replay"])
def test_an_existing_file_is_kept(work: Path, command: str) -> None:
    Path("out").write_text("old")
    arguments = [command, "run", "exam.csv", "-o", "out"] + ["--task-name", "000"] * (command == "replay")
    assert refused(*arguments).startswith("out is already there and is left as it is. ")
    assert Path("out").read_text() == "old"
    ok(*arguments, "--force")
    assert Path("out").read_text() != "old"


def test_predict_refuses(work: Path) -> None:
    model = "run/models/000.json"
    assert "rows of other tasks" in refused("predict", "exam.csv", "--model", model)
    Path("bare.csv").write_text("age,sex\n12,F\n")
    assert refused("predict", "run", "bare.csv").startswith("bare.csv has no task column 'school'. ")
    ok("predict", "bare.csv", "--model", model)
    Path("again.csv").write_text("age,sex,prediction\n12,F,1\n")
    assert "already has a column 'prediction'" in refused("predict", "again.csv", "--model", model)
    assert "is not a cloister task model" in refused("predict", "bare.csv", "--model", "book.toml")
    assert cloister("predict", "run").exit_code == 2
    shutil.copy(model, "run/models/001.json")
    assert "is the model of task '000', and not its file" in refused("predict", "run", "exam.csv")


def test_replay_and_gain_refuse(work: Path) -> None:
    assert "has no rows of task '3'" in refused("replay", "run", "exam.csv", "--task-name", "3")
    Path("few.csv").write_text("age,sex,score\n12,F,3\n13,M,4\n14,M,4\n")
    assert "at least 4 rows" in refused("gain", "run", "few.csv", "--task-name", "few")
    assert "--test must be" in refused("gain", "run", "exam.csv", "--task-name", "000", "--test", "1")
    shutil.copy("book.toml", "run/codebook.toml")
    text = Path("run/codebook.toml").read_text().replace('"M"]', '"M", "X"]')
    Path("run/codebook.toml").write_text(text)
    assert "Take the codebook of this run." in refused("replay", "run", "exam.csv", "--task-name", "000")


# --- verify ----------------------------------------------------------------------------------------------


def fails(check: str) -> dict[str, object]:
    result = cloister("verify", "run", "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["ok"] is False
    bad = {item["check"]: item["detail"] for item in said["checks"] if item["ok"] is False}
    assert check in bad
    assert "does NOT pass" in cloister("verify", "run").stdout
    return bad


def test_a_truncated_board(work: Path) -> None:
    data = Path("run/board").read_bytes()
    for size in (len(data) - 1, len(data) // 2, 30, 0):
        Path("run/board").write_bytes(data[:size])
        fails("the board is whole")
        before = contents(work)
        refused("predict", "run", "exam.csv", "-o", "p.csv")
        refused("replay", "run", "exam.csv", "--task-name", "000", "-o", "m.json")
        assert contents(work) == before


def test_an_edited_board(work: Path) -> None:
    data = bytearray(Path("run/board").read_bytes())
    data[len(data) // 2] ^= 1
    Path("run/board").write_bytes(data)
    fails("the board is whole")
    assert "was edited" in refused("replay", "run", "exam.csv", "--task-name", "000")


def test_no_changed_byte_is_passed_over_or_ends_in_a_traceback(work: Path) -> None:
    data = Path("run/board").read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data), 40, replace=False):
        changed = bytearray(data)
        changed[at] ^= 1 << rng.integers(8)
        Path("run/board").write_bytes(changed)
        assert cloister("verify", "run").exit_code == 1


def rebuild(change: Callable[[Release, dict], tuple[Release, dict]]) -> None:
    """Change every record and hash the board anew, as a forger would."""
    old = Billboard.load("run/board")
    new = Billboard.create(old.records[0].public, old.plan, old.capacity, old.noise)
    for record in old.records[1:]:
        assert record.release is not None
        new = new.post(*change(record.release, dict(record.public)))
    new.save("run/board")


def test_a_forged_board(work: Path) -> None:
    original = Path("run/board").read_bytes()
    rebuild(lambda release, digest: (Release(release.value, **release.facts() | {"noise": 0.1}), digest))
    fails("every release has the noise that the plan prices")
    Path("run/board").write_bytes(original)
    rebuild(lambda release, digest: (Release(release.value, **release.facts() | {"channel": 7}), digest))
    fails("every release has the noise that the plan prices")
    Path("run/board").write_bytes(original)
    rebuild(lambda release, digest: (release, digest | {"mean": digest["mean"] + 1e-3}))
    fails("what is posted follows from the releases")
    Path("run/board").write_bytes(original)
    rebuild(lambda release, digest: (release, digest))
    ok("verify", "run")


def test_an_unfinished_board(work: Path) -> None:
    board = Billboard.load("run/board")
    board.before(board.rounds - 1).save("run/board")
    fails("the run is complete")
    assert "Finish the run first" in refused("replay", "run", "exam.csv", "--task-name", "000")


def test_a_changed_plan_or_guarantee(work: Path) -> None:
    plan = Path("run/plan.toml").read_text()
    Path("run/plan.toml").write_text(plan.replace("n_tasks = 40", "n_tasks = 60"))
    fails("the board belongs to the plan")
    Path("run/plan.toml").write_text("n_tasks = ")
    fails("the plan can be read")
    Path("run/plan.toml").write_text(plan)
    said = Path("run/guarantee.json").read_text()
    Path("run/guarantee.json").write_text(re.sub(r'"epsilon": [\d.]+', '"epsilon": 0.1', said, count=1))
    bad = fails("the guarantee is what plan and board give")
    assert "epsilon = 0.1" in str(bad["the guarantee is what plan and board give"])
    Path("run/guarantee.json").unlink()
    fails("the guarantee is what plan and board give")
    Path("run/guarantee.json").write_text(said)
    Path("run/guarantee.txt").write_text("Perfectly safe.\n")
    fails("the guarantee is what plan and board give")
    claimed = dataclasses.replace(
        Guarantee.from_dict(json.loads(said)), noise="made by angels, perfectly private"
    )
    Path("run/guarantee.json").write_text(claimed.to_json())
    Path("run/guarantee.txt").write_text(f"{claimed}\n")
    fails("the guarantee is what plan and board give")  # the board itself says what noise it has


def test_verify_says_when_the_guarantee_does_not_hold(work: Path) -> None:
    said = ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "bare", "--epsilon", "inf")
    assert "NOT PRIVATE" in said
    assert "does NOT hold" in " ".join(ok("verify", "bare").split())
    assert json.loads(ok("verify", "bare", "--json"))["holds"] is False
    assert "is not the folder of a run: it has no plan.toml" in refused("verify", ".")


# --- account ---------------------------------------------------------------------------------------------


def test_noise_and_epsilon_are_inverse() -> None:
    for options in ([], ["--one-pass"], ["--rate", "0.1"], ["--fixed-size", "20"]):
        common = ["--tasks", "200", "--rounds", "10", "--delta", "1e-4", *options, "--json"]
        asked = json.loads(ok("account", "--epsilon", "1", *common))
        needed = {row["relation"]: row["noise_multiplier"] for row in asked["relations"]}
        for row in asked["relations"]:
            noise = ["--noise-multiplier", repr(row["noise_multiplier"])]
            given = json.loads(ok("account", *noise, "--relation", row["relation"], *common))
            assert given["guarantee"]["epsilon"] == pytest.approx(1.0, rel=2e-4)
            assert given["guarantee"]["relation"] == row["relation"]
        assert needed["replace"] == pytest.approx(2 * needed["zero_out"], rel=1e-6)


def test_one_gaussian_sum_has_the_exact_price() -> None:
    from cloister.privacy import gaussian_dp

    said = json.loads(ok("account", "--noise-multiplier", "4", "--tasks", "100", "--delta", "1e-3", "--json"))
    by_relation = {row["relation"]: row["epsilon"] for row in said["relations"]}
    assert by_relation["zero_out"] == pytest.approx(gaussian_dp.epsilon(1 / 4, 1e-3), rel=1e-6)
    assert by_relation["replace"] == pytest.approx(gaussian_dp.epsilon(2 / 4, 1e-3), rel=1e-6)


def test_a_plan_file_is_priced(work: Path) -> None:
    said = " ".join(ok("account", "run/plan.toml").split())
    assert "relation noise multiplier epsilon delta" in said
    assert "joint differential privacy for each of the 40 tasks" in said
    epsilons = {
        r["relation"]: r["epsilon"] for r in json.loads(ok("account", "run/plan.toml", "--json"))["relations"]
    }
    guarantee = Plan.load("run/plan.toml").guarantee
    assert epsilons == {"replace": guarantee.epsilon, "zero_out": guarantee.other_epsilon}
    Plan(SharedPrior(Regression(3)), Gaussian(), n_tasks=50).save("open.toml")
    assert refused("account", "open.toml").startswith("open.toml has no noise level yet. ")
    priced = json.loads(ok("account", "open.toml", "--epsilon", "2", "--json"))
    assert priced["guarantee"]["epsilon"] == pytest.approx(2, rel=1e-3)


def test_account_refuses(work: Path) -> None:
    plan = Plan(SharedPrior(Regression(3)), Gaussian(1.0), FixedSize(10), n_tasks=50)
    text = plan.to_toml()
    assert "hidden = false" in text
    Path("hidden.toml").write_text(text.replace("hidden = false", "hidden = true"))
    assert refused("account", "hidden.toml").startswith("FixedSize cannot be hidden: ")
    sentence = refused("account", "--epsilon", 1, "--tasks", 99, "--fixed-size", 9, "--hidden")
    assert sentence.startswith("FixedSize cannot be hidden: ")
    assert "There is no plan file" in refused("account", "nowhere.toml")
    assert "not a plan file" in refused("account", "exam.csv")
    Path("odd.toml").write_text('type = "cloister/plan/1"\nalgorithm = 3\nn_tasks = 5\n')
    assert "algorithm must be of a subclass of Algorithm" in refused("account", "odd.toml")
    assert "above 0" in refused("account", "--epsilon", "0", "--tasks", "9")
    assert "above 0" in refused("account", "--noise-multiplier", "-1", "--tasks", "9")
    assert "--rounds" in refused("account", "--noise-multiplier", "1", "--tasks", "9", "--rounds", "0")
    for usage in (
        [],
        ["--epsilon", "1"],
        ["--epsilon", "1", "--noise-multiplier", "1", "--tasks", "9"],
        ["--epsilon", "1", "--tasks", "9", "--hidden"],
        ["--epsilon", "1", "--tasks", "9", "--rate", "0.1", "--one-pass"],
        ["run/plan.toml", "--tasks", "9"],
        ["run/plan.toml", "--relation", "zero_out"],
        ["--epsilon", "one", "--tasks", "9"],
    ):
        assert cloister("account", *usage).exit_code == 2


# --- odd names -------------------------------------------------------------------------------------------

ODD = [
    "A/b",
    "a/b",
    "a%2Fb",
    "..",
    ".",
    "con",
    "CON",
    "x" * 249,
    "x" * 250,
    "X" * 250,
    "é",
    "1",
]
ODD += ["1.0", "01", 'say "hi"', "a,b", "*?<>|:\\", "-o", "nan", "None"]


def test_file_names_are_one_to_one_on_every_file_system() -> None:
    names = [file_name(task) for task in ODD]
    assert len({name.casefold() for name in names}) == len(ODD)
    assert all(re.fullmatch(r"[a-z0-9_%A-F.-]+\.json", name) and len(name) < 240 for name in names)
    assert not any(name.startswith(".") for name in names)
    for task, name in zip(ODD, names, strict=True):
        assert task_of(Path(name)) == (None if len(task) > 100 else task)
        assert len(task) > 100 or unquote(name.removesuffix(".json")) == task


def test_odd_names_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv("exam.csv", pupils(len(ODD), names=ODD.__getitem__))
    Path("book.toml").write_text(BOOK)
    ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "run")
    files = list(Path("run/models").glob("*.json"))
    assert {TaskModel.load(file).task for file in files} == set(ODD)
    assert len(files) == len(ODD)
    assert json.loads(ok("predict", "run", "exam.csv", "--json"))["tasks_from_board"] == 0
    for name in ("A/b", "x" * 250, "-o"):
        ok("replay", "run", "exam.csv", f"--task-name={name}", "-o", "m.json", "--force")
        assert TaskModel.load("m.json").task == name


def test_a_codebook_without_a_task_column_needs_the_option(work: Path) -> None:
    Path("book.toml").write_text(BOOK.replace('task = "school"\n', ""))
    assert "Add --task COLUMN" in refused("fit", "exam.csv", "--codebook", "book.toml", "-o", "new")
    ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "new", "--task", "school")
    assert Codebook.load("new/codebook.toml").task == "school"
    ok("predict", "new", "exam.csv")


def test_bounds_from_the_data_are_said_to_void_the_guarantee(work: Path) -> None:
    book = replace(Codebook.load("book.toml"), from_private_data=True)
    book.save("private.toml")
    said = ok("fit", "exam.csv", "--codebook", "private.toml", "-o", "new")
    assert "DOES NOT HOLD" in said
    assert "does NOT hold" in " ".join(ok("verify", "new").split())
