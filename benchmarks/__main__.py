"""Run one benchmark: ``python -m benchmarks NAME [--quick] [--device cuda] [--seeds 3 4]``; or list them.

`body` also takes ``--out FILE``, and `frozen-accuracy` reads that file with ``--body FILE``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import operator
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks

#: What is handed to benchmarks that take it; every one may be run with --device.
OPTIONS = ("device", "seeds", "out", "body")
COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}


def find() -> dict[str, ModuleType]:
    """Import every module of this package that has a NAME, and whose libraries are installed."""
    modules = {}
    for item in pkgutil.iter_modules(benchmarks.__path__):
        try:
            module = importlib.import_module(f"benchmarks.{item.name}") if item.name != "__main__" else None
        except ImportError as error:
            print(f"{item.name} is left out: {error}", file=sys.stderr)
            continue
        if hasattr(module, "NAME"):
            modules[module.NAME] = module  # type: ignore[union-attr]
    return modules


def verdict(figures: dict[str, float], targets: dict[str, tuple[str, float]]) -> dict[str, Any]:
    """Return which targets are met, and which were not measured."""
    met = {
        key: bool(COMPARE[op](figures[key], goal)) for key, (op, goal) in targets.items() if key in figures
    }
    return {"met": met, "not_measured": [key for key in targets if key not in figures]}


def show(console: Console, rows: list[list[str]], document: dict[str, Any]) -> None:
    """Print the table, then figures against targets."""
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    goals = Table("figure", "measured", "target", "")
    for key, (op, goal) in document["targets"].items():
        found = document["figures"].get(key)
        passed = {True: "met", False: "[bold red]missed[/]", None: "not measured"}[document["met"].get(key)]
        goals.add_row(key, "-" if found is None else f"{found:.4g}", f"{op} {goal:g}", passed)
    console.print(goals)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the last line of the output is one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", help="which one; leave it out for a list")
    parser.add_argument("--quick", action="store_true", help="a smaller run, to see that it works")
    parser.add_argument("--device", default="cpu", help="for networks: cpu or cuda")
    parser.add_argument("--seeds", type=int, nargs="+", help="for networks: only these, to split a long run")
    parser.add_argument("--out", type=Path, help="for body: where to write its weights")
    parser.add_argument("--body", type=Path, help="for frozen-accuracy: weights that body has written")
    chosen = parser.parse_args(arguments)
    modules = find()
    if chosen.name is None:
        for name, module in sorted(modules.items()):
            print(f"{name:16} {(module.__doc__ or '').splitlines()[0]}")
        return 0
    if chosen.name not in modules:
        parser.error(f"there is no benchmark {chosen.name!r}. Choose one of {', '.join(sorted(modules))}.")
    run = modules[chosen.name].run
    taken = inspect.signature(run).parameters
    options = {name: getattr(chosen, name) for name in OPTIONS if name in taken}
    for name in OPTIONS[1:]:
        if getattr(chosen, name) and name not in taken:
            parser.error(f"{chosen.name} takes no --{name}.")
    figures, targets, rows = run(chosen.quick, **options)
    figures = {key: float(f"{value:.6g}") for key, value in figures.items()}
    document = {"name": chosen.name, "quick": chosen.quick, "figures": figures, "targets": targets}
    document |= verdict(figures, targets)
    show(Console(width=None if sys.stdout.isatty() else 160), rows, document)
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
