"""Tables of counts and of ordered classes by commands, from a codebook to a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import ok, refused

import cloister as cl
from cloister.app.predict import write_csv
from cloister.tables.table_files import read_table

BOOK = """
task = "line"
[target]
name = "accidents"
kind = "count"
bounds = [0, 100]
exposure = "months"
[features.months]
bounds = [1, 1000]
[features.age]
bounds = [0, 30]
"""


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    line = np.repeat(np.arange(30), 6)
    months, age = rng.integers(5, 300, len(line)), rng.integers(0, 31, len(line))
    mean = months / 60 * np.exp(0.03 * age + 0.4 * rng.normal(size=30)[line])
    table = {"line": line, "months": months, "age": age, "accidents": rng.poisson(mean)}
    write_csv("ships.csv", table)
    Path("book.toml").write_text(BOOK)
    return table


def test_counts_from_end_to_end(lines: dict[str, np.ndarray]) -> None:
    ok("fit", "ships.csv", "--codebook", "book.toml", "-o", "run", "--epsilon", 8)
    ok("predict", "run", "ships.csv", "-o", "said.csv", "--interval", 0.9)
    said = read_table("said.csv")
    assert (said["low"] == np.floor(said["low"])).all()
    inside = (said["low"] <= lines["accidents"]) & (lines["accidents"] <= said["high"])
    assert inside.mean() > 0.85
    model = cl.load("run").task_model("7")
    own = {name: column[lines["line"] == 7] for name, column in lines.items()}
    np.testing.assert_allclose(said["prediction"][lines["line"] == 7], model.predict(own), rtol=5e-6)
    summary = " ".join(ok("summary", "run").split())
    assert "rate ratio" in summary
    assert "for one unit of months" in summary
    gain = json.loads(ok("gain", "run", "ships.csv", "--task-name", "7", "--json"))
    assert set(gain["mean_Poisson_deviance"]) == {"joined", "own", "board"}
    again = json.loads(ok("replay", "run", "ships.csv", "--task-name", "7", "-o", "7.json", "--json"))
    np.testing.assert_allclose(again["coef"], model.coef, rtol=1e-9)
    ok("report", "run", "--data", "ships.csv", "-o", "page.html")
    page = Path("page.html").read_text()
    assert "Poisson deviance" in page
    assert "“accidents”, counted over “months”, from “age”." in page
    ok("verify", "run")
    ok("fit", "ships.csv", "--codebook", "book.toml", "-o", "next", "--start-from", "run")


def test_what_is_no_count_is_refused(lines: dict[str, np.ndarray]) -> None:
    write_csv("odd.csv", lines | {"accidents": lines["accidents"] - 0.5})
    assert "whole numbers from 0 on" in refused("fit", "odd.csv", "--codebook", "book.toml")
    assert "for SharedPrior" in refused(
        "fit", "ships.csv", "--codebook", "book.toml", "--method", "low-rank", "-o", "other"
    )
    for old, new, word in (
        ('kind = "count"', 'kind = "cuont"', "kind of the target"),
        ("bounds = [0, 100]", "bounds = [0.5, 100]", "whole numbers from 0 on"),
        ("bounds = [1, 1000]", "bounds = [0, 1000]", "positive numbers"),
        ('exposure = "months"', 'exposure = "days"', "'days'"),
        ('exposure = "months"', 'exposed = "months"', "exposed"),
    ):
        Path("wrong.toml").write_text(BOOK.replace(old, new))
        assert word in refused("fit", "ships.csv", "--codebook", "wrong.toml")


def test_ordered_classes_from_end_to_end(lines: dict[str, np.ndarray]) -> None:
    words = np.array(["none", "few", "many"])
    found = words[np.digitize(lines["accidents"], [1, 4])].astype("U6")
    found[::3] = np.char.upper(found[::3])
    found[0] = "a lot"
    write_csv("ships.csv", lines | {"accidents": found})
    book = BOOK.replace('kind = "count"', 'kind = "ordered"').replace('exposure = "months"\n', "")
    classes = 'classes = ["none", "few", "many"]\nignore_case = true\naliases = { "a lot" = "many" }'
    Path("book.toml").write_text(book.replace("bounds = [0, 100]", classes))
    ok("fit", "ships.csv", "--codebook", "book.toml", "-o", "run", "--epsilon", 8)
    ok("predict", "run", "ships.csv", "-o", "said.csv")
    said = read_table("said.csv")
    np.testing.assert_allclose(said["p[none]"] + said["p[few]"] + said["p[many]"], 1.0, atol=2e-6)
    summary = " ".join(ok("summary", "run").split())
    assert "few or more" in summary
    assert "log-odds of a higher class of accidents" in summary
    model = cl.load("run").task_model("7")
    again = json.loads(ok("replay", "run", "ships.csv", "--task-name", "7", "-o", "7.json", "--json"))
    np.testing.assert_allclose(again["intercept"], model.intercept, rtol=1e-6)
    ok("gain", "run", "ships.csv", "--task-name", "7", "--splits", "2")
    ok("verify", "run")
    Path("wrong.toml").write_text(Path("book.toml").read_text().replace('"few", "many"]', '"many"]'))
    assert "three or more" in refused("fit", "ships.csv", "--codebook", "wrong.toml")
