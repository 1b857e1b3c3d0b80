"""What is kept of a figure: cells as they finish, in ``build/papers``; results, in ``papers/results``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import fingerprint, records
from benchmarks.records import ROOT, commit, machine, versions
from papers.figure import Cell, Data, Figure, Found

RESULTS = ROOT / "papers" / "results"
BUILD = ROOT / "build" / "papers"


def key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True, allow_nan=False)


class Cells:
    """The finished cells of a figure: a file of lines, one added as each finishes.

    A line that a killed run left half-written is passed over.
    """

    def __init__(self, figure: Figure) -> None:
        self.path = BUILD / "cells" / f"{figure.name}.jsonl"
        self.code = code(figure.module)
        self.lines: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for text in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    line = json.loads(text)
                except json.JSONDecodeError:
                    continue
                self.lines[key(line["cell"])] = line

    def forget(self) -> None:
        """Start over."""
        self.lines = {}
        self.path.unlink(missing_ok=True)

    def missing(self, cells: list[Cell]) -> list[Cell]:
        return [cell for cell in cells if key(cell) not in self.lines]

    def older(self, cells: list[Cell]) -> int:
        """Return how many of these were measured by code that has changed since."""
        lines = (self.lines.get(key(cell)) for cell in cells)
        return sum(line is not None and line["code"] != self.code for line in lines)

    def add(self, cell: Cell, value: Any, seconds: float, device: str = "cpu") -> None:
        line = {"cell": cell, "value": value, "seconds": round(seconds, 2), "code": self.code}
        line |= {"machine": machine(device), "versions": versions(), "commit": commit()}
        self.lines[key(cell)] = line
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(line, allow_nan=False))  # after whatever a killed run left

    def found(self, cells: list[Cell]) -> Found:
        return [(cell, self.lines[key(cell)]["value"]) for cell in cells]

    def document(self, figure: Figure, cells: list[Cell], data: Data) -> dict[str, Any]:
        """Return what is kept of a figure whose cells are all there."""
        lines = [self.lines[key(cell)] for cell in cells]
        seeds = sorted({cell["seed"] for cell in cells if "seed" in cell})
        span = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else "".join(map(str, seeds))
        return {
            "name": figure.name,
            "command": f"python -m papers run {figure.name}",
            "data": data,
            "seeds": len(seeds),
            "first and last seed": span,
            "cells": len(cells),
            "seconds": round(sum(line["seconds"] for line in lines), 1),
            "machine": " and ".join(sorted({line["machine"] for line in lines})),
            "versions": records.together([line.get("versions", {}) for line in lines]),
            "commit": " and ".join(sorted({line["commit"] for line in lines})),
            "code": ", ".join(sorted({line["code"] for line in lines})),
            "summary": code(figure.module, "summarise"),
            "date": datetime.now(UTC).date().isoformat(),
        }


def write(document: dict[str, Any], path: Path) -> None:
    """Write a result, one top-level entry of its data a line, so that changes can be read."""
    records.write(document, path, spread=("data",))


def read(name: str) -> dict[str, Any] | None:
    """Return a kept result, or None."""
    return records.read(name, RESULTS)


def code(module: ModuleType, name: str = "measure") -> str:
    """Return the digits of a figure's function; which library it was says the commit."""
    return fingerprint.code(Path(module.__file__ or ""), name)


def is_older(figure: Figure, document: dict[str, Any]) -> bool:
    """Say whether the code that measures and sums up a figure has changed since its result was kept."""
    now = (code(figure.module), code(figure.module, "summarise"))
    return (document["code"], document["summary"]) != now
