"""One table as every kind of input, through fit, predict, save, load and the commands: always the same."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloister as cl
from cloister.app.task_model import TaskModel
from cloister.cli import app
from cloister.tables.codebook import Codebook
from cloister.tables.table_files import read_table

M, N = 30, 8
RNG = np.random.default_rng(0)
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(int(day)) for day in RNG.integers(0, 900, M * N)]
TABLE: dict[str, list[Any]] = {
    "school": [f"s{i:02}" for i in np.repeat(range(M), N)],
    "age": RNG.uniform(6, 18, M * N).round(1).tolist(),
    "pay": RNG.lognormal(8, 1, M * N).round(2).tolist(),
    "rank": RNG.integers(1, 5, M * N).tolist(),
    "member": (RNG.random(M * N) < 0.5).tolist(),
    "sex": RNG.choice(["F", "M"], M * N).tolist(),
    "start": DAYS,
}
for name in ("age", "pay", "rank", "member", "sex", "start"):  # a hole in each, in rows of its own
    TABLE[name][len(name) * 7 + 3] = None
SCORE = np.array([10 + i % N for i in range(M * N)]) + RNG.normal(0, 1, M * N).round(2)
PASSED = (SCORE > 13).tolist()
FEATURES = {
    "age": {"bounds": (5, 20), "missing": 12},
    "pay": {"bounds": (1, 1e6), "transform": "log", "missing": 3000},
    "rank": {"levels": [1, 2, 3, 4], "ordinal": True, "missing": "none"},
    "member": {"levels": [False, True], "missing": "unknown"},
    "sex": {"levels": ["F", "M"], "missing": "unknown"},
    "start": {
        "bounds": (datetime.date(2024, 1, 1), datetime.date(2026, 12, 31)),
        "missing": datetime.date(2025, 1, 1),
    },
}
BOOK = Codebook.from_mapping(
    FEATURES | {"score": (0, 20)}, [*FEATURES], "score", "school", interactions=[("age", "sex")]
)


def pandas(table: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(table)


def nullable(table: dict[str, list[Any]]) -> Any:
    return pandas(table).convert_dtypes()


def polars(table: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(table)


def lazy(table: dict[str, list[Any]]) -> Any:
    return polars(table).lazy()


def pyarrow(table: dict[str, list[Any]]) -> Any:
    pa = pytest.importorskip("pyarrow")
    frame = pa.table(table)
    at = frame.column_names.index("sex")
    return frame.set_column(at, "sex", frame["sex"].dictionary_encode())


def numpy(table: dict[str, list[Any]]) -> np.ndarray:
    return np.array([*table.values()], dtype=object).T


@pytest.fixture(scope="module")
def fitted() -> cl.SharedPriorRegressor:
    return cl.SharedPriorRegressor("school", bounds=BOOK, random_state=0).fit(TABLE, SCORE)


@pytest.mark.parametrize(
    "kind", [dict, pandas, nullable, polars, lazy, pyarrow, numpy], ids=lambda kind: kind.__name__
)
def test_every_kind_of_table_gives_the_same(
    fitted: cl.SharedPriorRegressor, kind: Callable[[dict[str, list[Any]]], Any], tmp_path: Path
) -> None:
    table, book, task = kind(TABLE), BOOK, "school"
    if kind is numpy:  # columns without names go by their position
        names = [f"x{i}" for i in range(1, len(TABLE))]
        bounds = dict(zip(names, FEATURES.values(), strict=True)) | {"score": (0, 20)}
        book, task = Codebook.from_mapping(bounds, names, "score", interactions=[("x1", "x5")]), 0
    model = cl.SharedPriorRegressor(task, bounds=book, random_state=0).fit(table, SCORE)
    np.testing.assert_array_equal(model.coef_, fitted.coef_)
    expected = fitted.predict(TABLE)
    np.testing.assert_array_equal(model.predict(table), expected)
    loaded = cl.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.predict(table), expected)
    assert loaded.codebook_ == model.codebook_


@pytest.mark.parametrize("kind", [dict, pandas, polars, pyarrow])
def test_a_time_with_a_zone_is_refused_whatever_it_comes_as(kind: Callable[..., Any]) -> None:
    """Which day it is depends on the zone."""
    bounds = {name: FEATURES[name] for name in ("start", "sex")} | {"y": (0, 1)}
    book = Codebook.from_mapping(bounds, ["start", "sex"])
    when = datetime.datetime(2025, 1, 1, 23, tzinfo=datetime.timezone(datetime.timedelta(hours=-5)))
    with pytest.raises(cl.CloisterError, match="without a time zone"):
        book.encode(kind({"start": [when], "sex": ["F"]}))


def test_an_earlier_run_had_the_same_interactions(fitted: cl.SharedPriorRegressor) -> None:
    other = replace(BOOK, interactions=(("age", "member"),))
    assert other.width == BOOK.width
    with pytest.raises(cl.CloisterError, match="same codebook: the columns differ"):
        cl.SharedPriorRegressor("school", bounds=other, start_from=fitted).fit(TABLE, SCORE)


def write(path: Path, separator: str, words: tuple[str, str]) -> None:
    """Write the table as CSV, with these words for False and True."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*TABLE, "score", "passed"])
        for *row, score, passed in zip(*TABLE.values(), SCORE, PASSED, strict=True):
            writer.writerow([written(cell, separator, words) for cell in (*row, score, passed)])


def written(cell: Any, separator: str, words: tuple[str, str]) -> str:
    if isinstance(cell, float):
        return str(cell).replace(".", "," if separator == ";" else ".")
    return "" if cell is None else words[cell] if isinstance(cell, bool) else str(cell)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Python's, with a boolean target, and boolean, missing and dated features."""
    book = Codebook.from_mapping(FEATURES | {"passed": [False, True]}, [*FEATURES], "passed", "school")
    model = cl.SharedPriorClassifier("school", bounds=book, random_state=0)
    return model.fit(nullable(TABLE), np.array(PASSED)).save(tmp_path_factory.mktemp("office") / "run")


@pytest.mark.parametrize(
    ("separator", "words"), [(",", ("False", "True")), (";", ("no", "yes")), ("\t", ("0", "1"))]
)
def test_a_folder_from_python_serves_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, words: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = cl.load(folder)
    write(tmp_path / "new.csv", separator, words)
    app(["predict", str(folder), "new.csv", "-o", "said.csv"], standalone_mode=False)
    said = read_table("said.csv")
    assert said["prediction"].tolist() == [str(label) for label in model.predict(TABLE).tolist()]
    np.testing.assert_allclose(said["p[True]"], model.predict_proba(TABLE)[:, 1], rtol=5e-6)
    app(["replay", str(folder), "new.csv", "--task-name", "s03", "-o", "own.json"], standalone_mode=False)
    own = TaskModel.load("own.json")
    np.testing.assert_allclose(own.coef, model.task_model("s03").coef, rtol=1e-9)


def test_predictions_are_within_the_public_range() -> None:
    X = {"school": np.repeat(range(20), 5), "x": np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 20)}
    bounds = {"x": (-1, 1), "target": (0, 8)}
    model = cl.SharedPriorRegressor("school", bounds=bounds, epsilon=float("inf"), random_state=0)
    model.fit(X, np.where(X["x"] == 1, 8.0, 0.0))
    found, std = model.predict(X, return_std=True)
    free = model.intercept_[X["school"]] + model.coef_[X["school"], 0] * X["x"]
    assert free.min() < -0.1
    np.testing.assert_allclose(found, np.clip(free, 0, 8), atol=1e-9)
    assert (std > 0).all()
    np.testing.assert_allclose(model.task_model(3).predict({"x": [-1.0]}), found[[15]], atol=1e-12)
