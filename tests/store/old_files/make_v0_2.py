"""Write `v0.2`: what version 0.2.0 writes, before its algorithms became stages. Run once, by that code.

Folders of three methods, of classes, of a grouped run, of one that started from another and of one chosen by
vote; a ledger that they were charged to; the journals of two runs that were killed half-way. `expected.json`
has their heads and predictions, and the heads that the killed runs came to when the same code resumed them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

import cloister as cl
from cloister.cli import app
from cloister.tables.codebook import Codebook

HERE = Path(__file__).parent / "v0.2"
METHODS = ("shared-prior", "low-rank", "decomposed")
CODEBOOK = """task = "school"

[target]
name = "{target}"
{bounds}

[features.hours]
bounds = [0.0, 100.0]

[features.age]
bounds = [0.0, 120.0]
"""


def write_rows() -> None:
    rng = np.random.default_rng(0)
    lines = ["school,district,hours,age,score,passed"]
    for school in range(8):
        slope = rng.normal(1, 0.2)
        for _ in range(rng.integers(3, 9)):
            hours, age = rng.uniform(0, 10), rng.uniform(10, 20)
            score = np.clip(20 + slope * hours - 0.5 * age + rng.normal(), 0, 50)
            district = "north" if school % 2 else "south"
            lines.append(f"s{school},{district},{hours:.2f},{age:.1f},{score:.2f},{int(score > 17)}")
    (HERE / "rows.csv").write_text("\n".join(lines) + "\n")
    (HERE / "score.toml").write_text(CODEBOOK.format(target="score", bounds="bounds = [0.0, 200.0]"))
    (HERE / "passed.toml").write_text(CODEBOOK.format(target="passed", bounds="classes = [0, 1]"))


def command(*words: object) -> None:
    app(["fit", str(HERE / "rows.csv"), *map(str, words)], standalone_mode=False)


def fit_all() -> None:
    ledger = HERE / "ledger.sqlite"
    app(
        ["ledger", "create", str(ledger), "--tasks", "8", "--epsilon", "200", "--delta", "0.013"],
        standalone_mode=False,
    )
    score, passed = ("--codebook", HERE / "score.toml"), ("--codebook", HERE / "passed.toml")
    for method in METHODS:
        fewer = () if method == "shared-prior" else ("--set", "rounds=6")
        command(*score, "--method", method, *fewer, "--epsilon", 4, "-o", HERE / method, "--ledger", ledger)
    command(*passed, "--epsilon", 4, "-o", HERE / "classes", "--ledger", ledger)
    command(*score, "--epsilon", 8, "--groups", "district", "-o", HERE / "grouped", "--ledger", ledger)
    command(
        *score, "--epsilon", 2, "--start-from", HERE / "shared-prior", "-o", HERE / "next", "--ledger", ledger
    )
    several = ("--method", "shared-prior", "--method", "single-task")
    command(*score, "--epsilon", 8, *several, "-o", HERE / "chosen", "--ledger", ledger)


def kill_half_way(name: str, rounds: int) -> str:
    """Leave a journal after so many rounds; return the head that a copy of it comes to."""
    plan = cl.Plan.load(HERE / name / "plan.toml")
    tasks = encoded()

    class Killed(Exception):
        pass

    def stop(posted: object) -> None:
        if posted.done == rounds:  # type: ignore[attr-defined]
            raise Killed

    journal = HERE / f"{name}-half"
    with suppress(Killed):
        cl.run(plan, tasks, journal=journal, progress=stop)
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(journal, Path(folder) / "journal")
        return cl.run(plan, tasks, journal=copy).board.head.hex()


def encoded() -> cl.Tasks:
    rows = np.genfromtxt(HERE / "rows.csv", delimiter=",", dtype=None, names=True, encoding="utf-8")
    book = Codebook.load(HERE / "score.toml")
    X = book.encode({"hours": rows["hours"], "age": rows["age"]})
    return cl.Tasks.from_arrays(X, book.encode_target(rows["score"]), rows["school"])


def seen(name: str) -> dict[str, object]:
    """Return what a folder gives: its head, predictions, and the population that it prints."""
    model = cl.load(HERE / name)
    rows = np.genfromtxt(HERE / "rows.csv", delimiter=",", dtype=None, names=True, encoding="utf-8")
    X = {"school": rows["school"], "hours": rows["hours"], "age": rows["age"]}
    if name == "grouped":
        X["district"] = rows["district"]
    return {
        "head": model.billboard_.head.hex(),
        "plan": model.plan_.fingerprint,
        "predictions": np.asarray(model.predict(X), dtype=float).tolist(),
        "epsilon": model.guarantee_.epsilon,
    }


def main() -> int:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    write_rows()
    fit_all()
    folders = [*METHODS, "classes", "grouped", "next", "chosen"]
    ledger = cl.Ledger.open(HERE / "ledger.sqlite")
    expected = {
        "folders": {name: seen(name) for name in folders},
        "half": {name: kill_half_way(name, 5) for name in ("shared-prior", "low-rank")},
        "ledger": {"head": ledger.head, "spent": ledger.spent, "charges": len(ledger.history)},
    }
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
