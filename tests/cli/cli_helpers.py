"""What tests of commands share: a small table of pupils, and ways to give a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from cloister import Billboard
from cloister.app.folder import write_manifest
from cloister.cli import app
from cloister.store import Release

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


def spoil(column: str, row: int, cell: str) -> None:
    """Change one cell of exam.csv; the row below the column names is row 1."""
    lines = [line.split(",") for line in Path("exam.csv").read_text().splitlines()]
    lines[row][lines[0].index(column)] = cell
    Path("exam.csv").write_text("\n".join(map(",".join, lines)) + "\n")


def fit(*options: object) -> list[object]:
    usual = (("--codebook", "book.toml"), ("-o", "run"), ("--force",))
    words = [word for option in usual if option[0] not in options for word in option]
    return ["fit", "exam.csv", *words, *options]


def rebuild(change: Callable[[Release, dict], tuple[Release, dict]]) -> None:
    """Change every record and hash the board anew, as a forger would."""
    old = Billboard.load("run/board")
    new = Billboard.create(old.records[0].public, old.plan, old.capacity, old.noise)
    for record in old.records[1:]:
        assert record.release is not None
        new = new.post(*change(record.release, dict(record.public)))
    new.save("run/board")
    seal()


def seal() -> None:
    """Hash all public files anew, as a forger would."""
    Path("run/head.txt").write_text(write_manifest(Path("run")))
