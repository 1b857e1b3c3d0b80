"""`cloister predict`, `replay` and `gain`: what a task does with a finished run."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import cloister, contents, ok, pupils, refused

from cloister.app.gains import TaskGain
from cloister.app.predict import write_csv
from cloister.app.task_model import TaskModel
from cloister.errors import InputError
from cloister.tables.csv_files import Dialect
from cloister.tables.table_files import read_table


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
        np.testing.assert_allclose(predicted["prediction"][here], model.predict(own), rtol=5e-6)
        np.testing.assert_allclose(predicted["std"][here], model.predict_std(own), rtol=5e-6)
        write_csv("own.csv", own)
        alone = list(
            csv.DictReader(ok("predict", "own.csv", "--model", f"run/models/{name}.json").splitlines())
        )
        np.testing.assert_allclose([float(row["prediction"]) for row in alone], model.predict(own), rtol=5e-6)


def test_predictions_are_written_as_the_file_is(work: Path) -> None:
    """Separator, decimal comma and cells as they are in the file; all digits where machines read."""
    Path("office.csv").write_text('school;age;sex;note\n000;12,50;F;"a;b"\n007;13,0;M;\n')
    ok("predict", "run", "office.csv", "-o", "p.csv")
    head, first, second = Path("p.csv").read_text().splitlines()
    assert head == "school;age;sex;note;prediction;std;served_by"
    assert re.fullmatch(r'000;12,50;F;"a;b";-?\d+,\d{1,5};\d+(,\d+)?;own model', first)
    assert second.startswith("007;13,0;M;;")
    ok("predict", "run", "office.csv", "-o", "p.parquet")
    exact = json.loads(ok("predict", "run", "office.csv", "--json"))["prediction"]
    assert read_table("p.parquet")["prediction"].tolist() == exact
    shown = float(first.split(";")[-3].replace(",", "."))
    assert shown == float(f"{exact[0]:.6g}")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_predictions_have_the_encoding_of_the_table(work: Path, encoding: str) -> None:
    text = "school;age;sex;note\n000;12,50;F;M\u00fcller\n"
    Path("office.csv").write_text(text, encoding=encoding)
    ok("predict", "run", "office.csv", "-o", "p.csv")
    marks = {"utf-8-sig": b"\xef\xbb\xbf", "utf-16": b"\xff\xfe"}
    assert Path("p.csv").read_bytes().startswith(marks.get(encoding, b"school"))
    lines = Path("p.csv").read_text(encoding=encoding).splitlines()
    assert [line.split(";")[:4] for line in lines] == [line.split(";") for line in text.splitlines()]


def test_a_letter_that_the_encoding_of_the_table_lacks_is_named() -> None:
    with pytest.raises(InputError, match=r"1252, which lacks '\u0142'\. Save the table as 'CSV UTF-8'"):
        Dialect(encoding="cp1252").encode("M\u00fcller, \u00f3d\u0142", "p.csv")


@pytest.mark.parametrize("name", ["p.xlsx", "p.json", "p.csv.gz", "p.CSV"])
def test_no_other_kind_of_file_is_written(work: Path, name: str) -> None:
    assert refused("predict", "run", "exam.csv", "-o", name).startswith("Predictions are written as .csv")
    assert not Path(name).exists()


def test_intervals_by_command(work: Path) -> None:
    said = json.loads(ok("predict", "run", "exam.csv", "--interval", "0.8", "--json"))
    wide = json.loads(ok("predict", "run", "exam.csv", "--interval", "0.95", "--json"))
    score = np.array(pupils()["score"])
    low, high = np.array(said["low"]), np.array(said["high"])
    assert np.mean((low <= score) & (score <= high)) > 0.75
    assert (np.array(wide["low"]) <= low).all()
    assert (np.array(wide["high"]) >= high).all()
    assert "--interval must be between 0 and 1" in refused("predict", "run", "exam.csv", "--interval", "90")


def test_an_unseen_task_is_served_from_the_board(work: Path) -> None:
    Path("new.csv").write_text("school,age,sex\nnew,12,F\n000,12,F\n")
    result = cloister("predict", "run", "new.csv", "--json")
    said = json.loads(result.stdout)
    assert said["served_by"] == ["board", "own model"]
    assert "1 task without a model file in run is predicted" in " ".join(result.stderr.split())
    assert "'new'" in result.stderr
    assert said["rows"] == 2
    assert said["tasks_from_board"] == 1
    assert "from the board alone" in result.stderr
    assert said["std"][0] > said["std"][1]
    shutil.rmtree("run/models")
    assert json.loads(ok("predict", "run", "new.csv", "--json"))["prediction"][0] == said["prediction"][0]


def test_predict_says_what_was_clipped(work: Path) -> None:
    table = pupils()
    table["age"][:3] = [500, -1, 21]
    write_csv("new.csv", table)
    said = cloister("predict", "run", "new.csv", "-o", "p.csv").stderr
    assert "Beyond the bounds, and clipped to them: 3 cells of new.csv, in age." in " ".join(said.split())
    assert "clipped" not in cloister("predict", "run", "exam.csv", "-o", "q.csv").stderr


def test_gain_finds_that_joining_pays(work: Path) -> None:
    said = json.loads(ok("gain", "run", "exam.csv", "--task-name", "002", "--json"))
    assert said["private"] is True
    low, high = said["change_95"]
    assert -1 <= low <= said["change"] <= high
    errors = said["mean_squared_error"]
    assert said["change"] == pytest.approx(errors["joined"] / errors["own"] - 1)


def test_gain_says_when_nothing_was_heard() -> None:
    same = np.array([1.0, 2.0, 3.0])
    assert (
        TaskGain({"joined": same, "own": same}, 7, 3).verdict("squared error").startswith("No difference: ")
    )
    worse = TaskGain({"joined": same + 1, "own": same}, 7, 3).verdict("squared error")
    assert worse.startswith("Joining does not pay for you: ")
    better = TaskGain({"joined": same - 0.5, "own": same}, 7, 3).verdict("squared error")
    assert better.startswith("Joining pays for you: joined, your squared error on held-out rows is 25% lower")
    nearly = TaskGain({"joined": same * 1.001, "own": same}, 7, 3).verdict("squared error")
    assert nearly.startswith("No difference (under 0.5 %): ")
    unclear = TaskGain({"joined": same[::-1], "own": same}, 7, 3).verdict("squared error")
    assert unclear.startswith("No clear difference: ")


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
    assert "is not the model of a task" in refused("predict", "bare.csv", "--model", "book.toml")
    assert cloister("predict", "run").exit_code == 2
    shutil.copy(model, "run/models/001.json")
    assert "is the model of task '000', and not its file" in refused("predict", "run", "exam.csv")


def test_a_task_is_withdrawn(work: Path) -> None:
    """Its model goes, and its line in the index; the public part and all others' stay as they were."""
    before = contents(Path("run"))
    assert "no model of task '7'" in refused("withdraw", "run", "--task-name", "7", "--force")
    assert cloister("withdraw", "run", "--task-name", "007").exit_code == 1  # nobody said yes
    assert contents(Path("run")) == before
    said = " ".join(ok("withdraw", "run", "--task-name", "007", "--force").split())
    assert "Removed the model of task '007': run/models/007.json." in said
    assert "still within" not in said
    after = contents(Path("run"))
    assert before.keys() - after.keys() == {"models/007.json"}
    assert {name for name in after if after[name] != before[name]} == {"models/index.csv"}
    assert "007" not in Path("run/models/index.csv").read_text()
    ok("verify", "run")
    Path("new.csv").write_text("school,age,sex\n007,12,F\n")
    assert json.loads(ok("predict", "run", "new.csv", "--json"))["served_by"] == ["board"]


def test_replay_and_gain_refuse(work: Path) -> None:
    assert "has no rows of task '3'" in refused("replay", "run", "exam.csv", "--task-name", "3")
    Path("few.csv").write_text("age,sex,score\n12,F,3\n13,M,4\n14,M,4\n")
    assert "at least 4 rows" in refused("gain", "run", "few.csv", "--task-name", "few")
    assert "--test must be" in refused("gain", "run", "exam.csv", "--task-name", "000", "--test", "1")
    shutil.copy("book.toml", "run/codebook.toml")
    text = Path("run/codebook.toml").read_text().replace('"M"]', '"M", "X"]')
    Path("run/codebook.toml").write_text(text)
    said = refused("replay", "run", "exam.csv", "--task-name", "000")
    assert "Take the codebook that the plan was made with." in said
