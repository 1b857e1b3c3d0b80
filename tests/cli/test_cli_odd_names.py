"""Task names that file systems, shells and tables do not like."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from cli_helpers import BOOK, ok, pupils

from cloister.app.predict import write_csv
from cloister.app.task_model import TaskModel, file_name, task_of

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
