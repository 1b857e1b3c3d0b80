"""Model files are called as their tasks are, where that is safe; an index says which is whose."""

from __future__ import annotations

import csv
import os
import stat
import sys
import unicodedata
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from cloister import SharedPriorRegressor, load
from cloister.app.task_model import INDEX, TaskModel, file_name, file_names, names_of_files
from cloister.errors import InputError
from cloister.tables.codebook import Codebook

NAMES = [
    "Elm",
    "Oak",
    "oak",
    "Straße 7",
    "STRASSE 7",
    "Müller, Nord (2)",
    "../../etc/passwd",
    "con.1",
    "..",
    "a\\b",
]
NAMES += [
    "index",
    "=1+1",
    "-rf",
    ".hidden",
    "x.",
    "%45lm",
    "x" * 250,
    "ﬁ",
    'Lycée "Hugo"',
    "St. Mary's",
    "a:b",
]


def test_names_are_plain_where_that_is_safe_and_different_everywhere():
    files = file_names(NAMES)
    plain = [task for task in NAMES if files[task] == f"{task}.json"]
    assert plain == ["Elm", "oak", "Müller, Nord (2)", "index", "-rf", "St. Mary's"]
    assert files['Lycée "Hugo"'] == "Lycée %22Hugo%22.json"
    seen = {unicodedata.normalize("NFKD", name).casefold() for name in files.values()}
    assert len(seen) == len(NAMES)
    for task, name in files.items():
        assert Path("folder", name).name == name  # no place, on POSIX
        assert not set(name) & set('/\\:*?"<>|\n')
        assert not name.startswith(".")
        assert len(name.encode()) < 255
        assert name in names_of_files(task)
        assert file_name(task) in names_of_files(task)
        assert len(task) > 100 or {unquote(name[:-5]) for name in names_of_files(task)} == {task}
    with_many = {name for task in NAMES for name in names_of_files(task)}
    assert len(with_many) == sum(len(names_of_files(task)) for task in NAMES)  # none may be two tasks'


@pytest.fixture(scope="module")
def model() -> SharedPriorRegressor:
    school, x = np.repeat(NAMES, 4), np.tile(np.linspace(0, 1, 4), len(NAMES))
    model = SharedPriorRegressor("school", bounds={"x": (0, 1), "y": (0, 1)}, random_state=0)
    return model.fit({"school": school, "x": x}, x)


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_index_names_every_file_and_all_are_their_owners_alone(model, tmp_path, umask):
    folder = model.save(tmp_path / "run") / "models"
    with (folder / INDEX).open(newline="", encoding="utf-8") as file:
        index = {row["task"]: row["file"] for row in csv.DictReader(file)}
    assert index == file_names(model.task_ids_.tolist())
    assert {path.name for path in folder.iterdir()} == {*index.values(), INDEX}
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again.coef_, model.coef_)
    if sys.platform != "win32":
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_files_with_encoded_names_and_without_an_index_are_read_as_before(model, tmp_path):
    folder = model.save(tmp_path / "run") / "models"
    (folder / INDEX).unlink()
    for task, name in file_names(model.task_ids_.tolist()).items():
        (folder / name).rename(folder / file_name(task))
    np.testing.assert_array_equal(load(tmp_path / "run").coef_, model.coef_)


def test_a_file_that_is_not_its_tasks_is_refused(model, tmp_path):
    folder = model.save(tmp_path / "run") / "models"
    (folder / "Elm.json").rename(folder / "Ash.json")
    with pytest.raises(InputError, match="is the model of task 'Elm', and not its file"):
        load(tmp_path / "run")
    (folder / "Ash.json").rename(folder / "Elm.json")
    (folder / file_name("Elm")).write_bytes((folder / "Elm.json").read_bytes())
    with pytest.raises(InputError, match="is a second model of task 'Elm'"):
        load(tmp_path / "run")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "x = " + "[" * 100_000])
def test_a_file_too_deep_to_read_is_refused_in_a_sentence(text, tmp_path):
    path = tmp_path / "deep"
    path.write_text(text)
    for read in (load, TaskModel.load, Codebook.load):
        with pytest.raises(InputError, match=r"deep (is|must be)"):
            read(path)
