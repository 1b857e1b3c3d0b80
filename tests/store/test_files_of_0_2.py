"""Files that cloister 0.2.0 wrote before its algorithms became stages are read, verified, replayed, resumed.

`old_files/make_v0_2.py` wrote them. Numbers are compared to rounding: this may be another processor.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cloister as cl
from cloister.cli import app
from cloister.ledger import Ledger
from cloister.tables.codebook import Codebook

HOME = Path(__file__).parent / "old_files" / "v0.2"
EXPECTED = json.loads((HOME / "expected.json").read_text(encoding="utf-8"))
FOLDERS = EXPECTED["folders"]
ROWS = np.genfromtxt(HOME / "rows.csv", delimiter=",", dtype=None, names=True, encoding="utf-8")


@pytest.fixture
def old(tmp_path):
    return shutil.copytree(HOME, tmp_path / "old")


def invoke(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_loaded_verified_and_predict(old, name):
    model, expected = cl.load(old / name), FOLDERS[name]
    assert model.billboard_.head.hex() == expected["head"]
    assert model.plan_.fingerprint == expected["plan"]
    assert model.guarantee_.epsilon == pytest.approx(expected["epsilon"], rel=1e-9)
    X = {key: ROWS[key] for key in ("school", "hours", "age", *(["district"] if name == "grouped" else []))}
    np.testing.assert_allclose(model.predict(X), expected["predictions"], rtol=1e-7, atol=1e-9)
    invoke("verify", old / name)


@pytest.mark.parametrize("name", ["shared-prior", "low-rank", "grouped", "next"])
def test_a_task_gets_its_model_again_from_the_board(old, name):
    invoke("replay", old / name, old / "rows.csv", "--task-name", "s3", "-o", old / "again.json")
    again, kept = (
        json.loads(path.read_text()) for path in (old / "again.json", old / name / "models" / "s3.json")
    )
    assert again["columns"] == kept["columns"]
    # What is posted stays. What a task makes of it at home has been improved since: few rows, answers.
    for key in ("coef", "intercept"):
        np.testing.assert_allclose(again[key], kept[key], rtol=0.05, atol=1e-9)


@pytest.mark.parametrize("name", EXPECTED["half"])
def test_a_killed_run_goes_on(old, name):
    """Rounds that were posted stay as they are; the last release is that of the code of then, to rounding."""
    book = Codebook.load(old / "score.toml")
    X = book.encode({"hours": ROWS["hours"], "age": ROWS["age"]})
    tasks = cl.Tasks.from_arrays(X, book.encode_target(ROWS["score"]), ROWS["school"])
    plan, before = (
        cl.Plan.load(old / name / "plan.toml"),
        cl.Billboard.recover(old / f"{name}-half" / "board"),
    )
    done = cl.run(plan, tasks, journal=old / f"{name}-half")
    assert done.board.before(before.rounds).head == before.head
    plan.check(done.board)
    assert len(done.board.releases) == len(plan.rounds)


def test_the_ledger_is_read_and_charged(old):
    ledger, expected = Ledger.open(old / "ledger.sqlite"), EXPECTED["ledger"]
    assert (ledger.head, len(ledger.history)) == (expected["head"], expected["charges"])
    assert ledger.spent == pytest.approx(expected["spent"], rel=1e-9)
    invoke(
        "fit",
        old / "rows.csv",
        "--codebook",
        old / "score.toml",
        "--ledger",
        old / "ledger.sqlite",
        "-o",
        old / "new",
    )
    assert len(Ledger.open(old / "ledger.sqlite").history) == expected["charges"] + 1
