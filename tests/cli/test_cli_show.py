"""`cloister summary` and `cloister show`: the public page of a run, and one task's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cli_helpers import contents, ok, refused

import cloister
from cloister.app.task_model import TaskModel


def test_the_summary_is_that_of_the_estimator_and_needs_no_model(work: Path) -> None:
    model = cloister.load("run")
    shutil.rmtree("run/models")
    said = ok("summary", "run")
    assert said == f"{model.summary()}\n"
    assert "age" in said
    assert max(map(len, said.splitlines())) <= 80
    assert json.loads(ok("summary", "run", "--json")) == json.loads(json.dumps(model.summary().to_dict()))


def test_a_task_sees_its_own_page_in_the_folder_or_from_its_file(work: Path) -> None:
    page = ok("show", "run", "007")
    assert page.startswith("Task 007, ")
    assert "Private: for this task alone" in page
    assert max(map(len, page.splitlines())) <= 80
    assert ok("show", "run/models/007.json") == page
    shown = json.loads(ok("show", "run", "007", "--json"))
    assert shown["private"] is True
    model = TaskModel.load("run/models/007.json")
    estimates = [each["estimate"] for each in shown["coefficients"]]
    assert estimates == [float(model.intercept), *model.coef.tolist()]


def test_what_cannot_be_shown_is_a_sentence(work: Path) -> None:
    before = contents(work)
    assert refused("show", "run", "nobody").startswith("run has no model of task 'nobody'. Check the name, ")
    assert refused("show", "run").startswith("Name the task whose page to show: cloister show run TASK.")
    assert refused("show", "nowhere", "007").startswith("There is no folder nowhere. ")
    assert refused("show", "run/models/007.json", "008").startswith(
        "run/models/007.json is the model of task '007'"
    )
    assert "is not the model of a task" in refused("show", "book.toml")
    assert refused("summary", "nowhere").startswith("There is no folder nowhere. ")
    assert refused("summary", ".").startswith(". is not the folder of a run: it has no plan.toml.")
    assert refused("summary", "exam.csv").startswith("exam.csv is a file. ")
    assert contents(work) == before
    Path("run/board").write_bytes(Path("run/board").read_bytes()[:-9])
    refused("summary", "run")
    refused("show", "run", "007")
