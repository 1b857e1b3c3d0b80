"""`cloister fit`: from a table to models, and what is said on the way."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, TASKS, cloister, ok, pupils, refused, spoil

from cloister import Billboard, Codebook, Ledger, __version__
from cloister.app.predict import write_csv
from cloister.app.run_record import RunRecord
from cloister.app.source import TableFile, own_rows
from cloister.app.task_model import TaskModel
from cloister.tables.table_files import read_table


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
    assert "could not find the targets" in said or "Targets were found around" in said
    assert "Their number is taken to be public" in " ".join(said.split())
    assert "each of the 40 tasks, with all its rows" in " ".join(said.split())
    assert "Forecast" in said
    names = {path.name for path in Path("exam-run").iterdir()}
    public = {
        "plan.toml",
        "board",
        "codebook.toml",
        "guarantee.json",
        "guarantee.txt",
        "head.txt",
        "manifest.txt",
        "estimator.toml",
        "README.txt",
        "run.toml",
    }
    assert names == public | {"models"}
    assert len(list(Path("exam-run/models").glob("*.json"))) == TASKS
    assert "nobody else" in Path("exam-run/README.txt").read_text()

    assert "NO" not in ok("verify", "exam-run").split()
    ok("predict", "exam-run", "exam.csv", "-o", "predicted.csv")
    predicted = read_table("predicted.csv", text=["school"])
    assert list(predicted) == ["school", "age", "sex", "score", "prediction", "std", "served_by"]
    assert np.mean((predicted["prediction"] - predicted["score"]) ** 2) < 0.3 * predicted["score"].var()

    said = ok("replay", "exam-run", "exam.csv", "--task-name", "003", "-o", "mine.json")
    assert "nothing left and nothing was spent" in " ".join(said.split())
    assert "sex[M]" in said
    said = " ".join(ok("gain", "exam-run", "exam.csv", "--task-name", "003").split())
    assert "20 random splits" in said
    assert "flatters joining" in said
    assert "This number is private to you." in said


def test_rows_without_a_target_are_left_out_if_that_is_said(work: Path) -> None:
    """The fit is that of a file without them, and nothing public tells that there were any."""
    table = pupils()
    whole = {name: np.delete(column, [6, 41]) for name, column in table.items()}
    table["score"][[6, 41]] = np.nan
    write_csv("holes.csv", table)
    write_csv("whole.csv", whole)
    options = ("--codebook", "book.toml", "-o", "again")
    said = refused("fit", "holes.csv", *options)
    assert "Data row 7 of holes.csv has a missing value (the first of 2 rows). Leave such rows out" in said
    assert not Path("again").exists()

    book = Codebook.load("book.toml")
    left, deleted = (
        TableFile(Path("holes.csv"), book, skip=True).tasks(),
        TableFile(Path("whole.csv"), book).tasks(),
    )
    for one, other in ((getattr(t, n) for t in (left, deleted)) for n in ("X", "y", "ids", "sizes")):
        np.testing.assert_array_equal(one, other)
    ok("fit", "holes.csv", *options, "--skip-missing-targets")
    for name in ("plan.toml", "codebook.toml", "estimator.toml", "guarantee.json", "README.txt"):
        assert Path("again", name).read_bytes() == Path("run", name).read_bytes()
    ok("replay", "run", "holes.csv", "--task-name", "000", "--skip-missing-targets")
    ok("gain", "run", "holes.csv", "--task-name", "001", "--skip-missing-targets", "--splits", "2")

    table["score"][table["school"] == "007"] = np.nan
    write_csv("holes.csv", table)
    said = refused("fit", "holes.csv", "--codebook", "book.toml", "-o", "third", "--skip-missing-targets")
    assert "Task '007' has none." in said
    assert "For the operator alone" in said
    for command in ("replay", "gain"):
        said = refused(command, "run", "holes.csv", "--task-name", "007", "--skip-missing-targets")
        assert said.startswith(
            "Task '007' must have a row whose 'score' is not missing. It has none in holes.csv."
        )
    said = refused("replay", "run", "holes.csv", "--task-name", "7", "--skip-missing-targets")
    assert "has no rows of task '7'. Write the name as it is in the file" in said


def test_rows_without_a_target_in_a_folder_are_left_out_if_that_is_said(work: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table, book, folder = pupils(), Codebook.load("book.toml"), work / "parts"
    whole = np.flatnonzero(table["school"] == "003")[1:]
    table["score"][[whole[0] - 1, *np.flatnonzero(table["school"] == "007")]] = np.nan
    folder.mkdir()
    for number, half in enumerate((slice(150), slice(150, None))):
        part = pa.table({name: column[half] for name, column in table.items()})
        pq.write_table(part, folder / f"{number}.parquet")
    rows = own_rows(folder, book, "003", skip=True)
    np.testing.assert_array_equal(rows.table["age"], table["age"][whole])
    np.testing.assert_array_equal(rows.y, book.encode_target(table["score"][whole]))
    ok("replay", "run", "parts", "--task-name", "003", "--skip-missing-targets")
    assert "Task '007' must have" in refused(
        "gain", "run", "parts", "--task-name", "007", "--skip-missing-targets"
    )


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
    np.testing.assert_allclose(predicted["p[fail]"] + predicted["p[pass]"], 1.0, rtol=1e-5)
    assert np.mean(predicted["prediction"] == predicted["score"]) > 0.8
    ok("replay", "exam-run", "exam.parquet", "--task-name", "3", "-o", "mine.json")
    again, posted = TaskModel.load("mine.json"), TaskModel.load("exam-run/models/3.json")
    np.testing.assert_allclose(again.weights, posted.weights, rtol=1e-6)
    said = json.loads(ok("gain", "exam-run", "exam.parquet", "--task-name", "3", "--splits", "3", "--json"))
    assert said["splits"] == 3
    assert set(said["mean_log_loss"]) == {"joined", "own", "board"}


def test_a_run_starts_from_an_earlier_one(work: Path) -> None:
    run = ["fit", "exam.csv", "--codebook", "book.toml"]
    ok(*run, "--epsilon", 20, "-o", "first")
    said = ok(*run, "--epsilon", 0.5, "--start-from", "first", "-o", "second", "--verbose")
    head = Billboard.load("first/board").head.hex()
    assert head in ok("verify", "first")
    assert f"earlier board {head[:16]}" in " ".join(said.split())
    ok("verify", "second", "--head", Path("second/head.txt").read_text().strip())
    assert "--start-from" in refused(
        *run, "--plan", "second/plan.toml", "--start-from", "first", "-o", "third"
    )


def test_a_run_that_was_replaced_counts_too(work: Path) -> None:
    run = ("fit", "exam.csv", "--codebook", "book.toml", "--method", "mean-regularized", "--set", "rounds=2")
    assert "earlier run" not in ok(*run, "-o", "other")
    said = " ".join(ok(*run, "-o", "other", "--force").split())
    assert "other held an earlier run: if anybody saw it, it counts too. --ledger adds up" in said


def test_without_a_codebook_fit_says_how_to_begin_one(work: Path) -> None:
    result = cloister("fit", "exam.csv")
    assert result.exit_code == 2
    assert "cloister codebook exam.csv --task COLUMN --target COLUMN" in " ".join(result.stderr.split())


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


def test_rows_that_do_not_fit_are_refused_before_anything_else_is_said(work: Path) -> None:
    Ledger.create("ledger", "schools", epsilon=4, delta=1e-3)
    spoil("age", 3, "")
    result = cloister("fit", "exam.csv", "--codebook", "book.toml", "--ledger", "ledger", "-o", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert not Ledger.open("ledger").history


def test_four_lines_on_screen_and_all_of_it_on_request(work: Path) -> None:
    run = ("fit", "exam.csv", "--codebook", "book.toml", "-o", "new")
    said = ok(*run)
    assert "This guarantee holds." in said
    assert "Technically" not in said
    assert "Epsilon 1, delta 0.0025, replace; new/guarantee.txt will have the rest" in " ".join(said.split())
    assert "joint differential privacy for each of the 40 tasks" in Path("new/guarantee.txt").read_text()
    assert "Technically" in ok(*run, "--force", "--verbose")


def test_a_run_says_who_held_rows_who_approved_it_and_what_paid_for_it(work: Path) -> None:
    Ledger.create("ledger", "schools", epsilon=4, delta=1e-3)
    run = ("fit", "exam.csv", "--codebook", "book.toml", "--approved-by", "A. Officer", "--ledger", "ledger")
    ok(*run, "-o", "new")
    record = RunRecord.load(Path("new/run.toml"))
    account = Ledger.open("ledger")
    assert record.rows_together
    assert (record.approved_by, record.approved_on) == ("A. Officer", date.today().isoformat())
    assert (record.account, record.charge, record.ledger_head) == ("schools", 1, account.head)
    assert (record.in_ledger, record.finished_on, record.version) == (True, record.approved_on, __version__)
    assert ok("verify", "new", "--head", Path("new/head.txt").read_text().strip())
    ok("report", "new", "--public")
    page = Path("new-public.html").read_text()
    assert "One operator held the rows of all tasks" in page
    assert "A. Officer" in page
    assert account.head in page
    assert f"Finished on {record.finished_on}, by version {__version__} of cloister." in page
    unpaid = RunRecord.load(Path("run/run.toml"))
    assert (unpaid.in_ledger, unpaid.version) == (False, __version__)
    ok("report", "run", "--public")
    assert "No ledger was charged" in Path("run-public.html").read_text()
    lines = Path("run/run.toml").read_text().splitlines()
    new = ("finished_on", "version", "in_ledger")  # which development versions did not write
    Path("run/run.toml").write_text("\n".join(line for line in lines if not line.startswith(new)))
    assert RunRecord.load(Path("run/run.toml")) == RunRecord(rows_together=True)
    Path("new/run.toml").write_text(Path("new/run.toml").read_text().replace("A. Officer", "B. Other"))
    assert "run.toml was changed since" in cloister("verify", "new").stdout


def test_columns_that_the_codebook_does_not_name_are_carried_along(work: Path) -> None:
    table = pupils()
    write_csv("exam.csv", table | {"name": np.full(len(table["age"]), "secret")})
    result = cloister("fit", "exam.csv", "--codebook", "book.toml", "-o", "a")
    assert result.exit_code == 0
    assert "not used: name" in result.stderr
    ok("predict", "a", "exam.csv", "-o", "p.csv")
    assert "name" in read_table("p.csv")


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
