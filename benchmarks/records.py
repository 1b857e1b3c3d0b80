"""What is kept of a measurement: its figures and tables, and what made them.

A record says the command, the date, the commit, the machine, and eight digits of the code: of what measures,
and of the parts of the library that it measures, which a benchmark names (``MEASURES``, files or folders of
``src/cloister``, or ``file.py:name`` for one definition with what it uses there). Where these digits have
changed since, the figures are of older code. The figures of the papers (`papers.store`) are kept in the same
way.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import fingerprint
from benchmarks.fingerprint import ROOT

RESULTS = ROOT / "benchmarks" / "results"
LIBRARY = ROOT / "src" / "cloister"
LIBRARIES = ("cloister", "numpy", "scipy", "scikit-learn", "dp-accounting", "torch")

Record = dict[str, Any]


def made_by(command: str, path: Path) -> Record:
    """Return what a record says of its making, by the module at this path."""
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "code": code(path),
    }


def read(name: str, folder: Path = RESULTS) -> Record | None:
    """Return a kept record, or None."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write(record: Record, path: Path, spread: Collection[str] = ("figures", "targets", "tables")) -> None:
    """Write a record; what is to be spread has a line for each of its parts, so that changes can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    order = sorted(record, key=lambda name: (name != "name", name not in spread))
    entries = (
        f"{json.dumps(name)}: {_lines(record[name]) if name in spread else _line(record[name])}"
        for name in order
    )
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def taken(path: Path, here: str) -> Record:
    """Return a record that another machine kept, if it is of the code that is here.

    Parameters
    ----------
    path : Path
        Its file.
    here : str
        Digits of this code. A copy without a repository did not know its commit: with these it is this one's.
    """
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    if record["code"] != here:
        raise ValueError(
            f"{path.name} must be of the code that is here, {here}. Got {record['code']}: measure it again."
        )
    return record | ({"commit": commit()} if record["commit"] == "unknown" else {})


def _lines(parts: dict[str, Any]) -> str:
    shown = {key: _rows(part) if _is_table(part) else _line(part) for key, part in parts.items()}
    entries = ",\n".join(f"  {json.dumps(key)}: {part}" for key, part in shown.items())
    return f"{{\n{entries}\n}}" if shown else "{}"


def _is_table(value: Any) -> bool:
    rows = value if isinstance(value, list) else []
    return bool(rows) and all(isinstance(row, list) and all(isinstance(c, str) for c in row) for row in rows)


def _rows(rows: list[list[str]]) -> str:
    return "[\n" + ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows) + "\n  ]"


def _line(value: Any) -> str:
    return json.dumps(value)


def code(path: Path, name: str = fingerprint.EVERYTHING) -> str:
    """Return the digits of a benchmark, or of its function, and of the parts of the library that it names."""
    return fingerprint.code(path, name, _measured(path))


def _measured(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the library's files, and definitions in them, that a benchmark names in ``MEASURES``."""
    for name in constant(path, "MEASURES") or ():
        file, _, defined = name.partition(":")
        found = LIBRARY / file
        if not found.exists():
            raise FileNotFoundError(f"MEASURES must name parts of src/cloister. Got {name!r} in {path.name}.")
        for each in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            yield each, defined or fingerprint.EVERYTHING


def constant(path: Path, name: str) -> Any:
    """Return a constant of a module, None if there is none; the module's libraries need not be installed."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    return None


def machine(device: str = "cuda") -> str:
    """Return what results may say of the machine: its cores, and the graphics card if it was computed on."""
    torch = sys.modules.get("torch")
    there = torch is not None and device != "cpu" and torch.cuda.is_available()
    card = f", {torch.cuda.get_device_name()}" if there else ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{card}"


@cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def together(each: list[dict[str, str]]) -> dict[str, str]:
    """Return the versions that a result is of, where more than one was there as a list."""
    names = dict.fromkeys(name for one in each for name in one)
    return {name: ", ".join(sorted({one[name] for one in each if name in one})) for name in names}


@cache
def commit() -> str:
    """Return the commit that changed the library last, with a plus sign if it is not as committed."""
    try:
        head = _git("log", "-1", "--format=%h", "--abbrev=9", "--", "src")
        return head + ("+" if _git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
