"""Wrong input to `cloister fit`: one sentence, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import cloister, contents, fit, ok, pupils, refused, spoil

from cloister import Plan
from cloister.algorithms import SharedPrior
from cloister.app.predict import write_csv
from cloister.learners.linear.regression import Regression
from cloister.mechanisms import Gaussian


def _folder(name: str) -> None:
    Path(name).unlink()
    Path(name).mkdir()


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
        (lambda: None, ["--delta", "0.5"], "--delta must be at most 1/40: "),
        (lambda: None, ["--delta", "0"], "--delta must be above 0 "),
        (lambda: None, ["--codebook", "run"], "run is a folder. Name the file of a codebook, "),
        (lambda: None, ["--codebook", "nowhere.toml"], "There is no codebook nowhere.toml. Check the path, "),
        (
            lambda: _folder("exam.csv"),
            [],
            "exam.csv is a folder with no table in it. Name the file of a table.",
        ),
        (lambda: None, ["--engine", "ray"], "--engine ray reads a folder of Parquet files. Got exam.csv. "),
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
    "option",
    [
        ["--epsilon", "1"],
        ["--delta", "1e-4"],
        ["--relation", "replace"],
        ["--method", "meta"],
        ["--set", "structure=mean"],
        ["--rate", "0.2"],
        ["--mechanism", "tree"],
    ],
)
def test_a_plan_settles_what_these_options_say(work: Path, option: list[str]) -> None:
    sentence = refused(*fit("--plan", "run/plan.toml", *option))
    assert sentence.startswith(f"run/plan.toml settles {option[0]} itself: nothing would change. ")
    draft = Plan(SharedPrior(Regression(3)), Gaussian(), n_tasks=40)
    draft.save("draft.toml")
    if option[0] != "--epsilon":
        assert f"settles {option[0]} itself" in refused(*fit("--plan", "draft.toml", "--epsilon", 1, *option))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit", "exam.csv", "--epsilon", "abc"], "--epsilon must be a number, such as 1.5."),
        (["fit", "exam.csv", "--relation", "add"], "--relation: 'add' is not one of 'replace', 'zero_out'."),
        (["account", "run", "--tasks", "1.5"], "--tasks must be a whole number."),
        (["audit", "run", "--draws", "10"], "--draws must be at least 1000."),
        (
            ["account", "run", "--rate", "1"],
            "A plan file says --rate itself: only --epsilon or --detection, ",
        ),
        (["predict", "exam.csv"], "Give FOLDER and DATA, or DATA and --model FILE."),
    ],
)
def test_what_is_not_understood_is_a_sentence_too(work: Path, arguments: list[str], sentence: str) -> None:
    result = cloister(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {sentence}")
    assert result.stderr.count("\n") == 1


def test_one_task_only(work: Path) -> None:
    write_csv("exam.csv", pupils(1))
    assert refused(*fit()).startswith("Column 'school' of exam.csv must hold at least 2 tasks. Got 1, ")


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
