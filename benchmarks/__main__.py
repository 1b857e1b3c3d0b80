"""Run one benchmark: ``python -m benchmarks NAME [--quick] [--keep] [--device cuda] [--seeds 3 4]``.

=============== =============================================================================================
no name         list them, and what is kept of each
NAME            run it, and print figures, targets and tables
NAME --keep     also keep them in benchmarks/results, and regenerate the tables of the docs
pages           regenerate the tables of the docs from what is kept
stale           list what is to be measured again, why, and how long it takes
confirm NAME    measure some cells of a kept result again; if they agree to the last digit it is not stale
take FILE       keep results of another machine, if they are of the code that is here
=============== =============================================================================================

`body` also takes ``--out FILE``, and `frozen-accuracy` reads that file with ``--body FILE``. Parts of a
benchmark are kept in build/cells as they finish: a run that is stopped goes on, also on another machine that
has a copy of that folder.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import operator
import os
import pkgutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks import Tables
from harness import catalog, commands, pages, records
from harness.cells import Cells
from harness.records import Record

#: What is handed to benchmarks that take it; every one may be run with --device.
OPTIONS = ("device", "seeds", "out", "body")
#: What takes words after it.
COMMANDS = ("confirm", "take")
#: What --body takes the place of.
BODY = ".cache/omniglot_body.npz"
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


def show(console: Console, record: Record) -> None:
    """Print the tables, then figures against targets."""
    for title, rows in record["tables"].items():
        table = Table(*rows[0], title=title if len(record["tables"]) > 1 else None, title_justify="left")
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    goals = Table("figure", "measured", "target", "")
    for key, (op, goal) in record["targets"].items():
        found = record["figures"].get(key)
        passed = {True: "met", False: "[bold red]missed[/]", None: "not measured"}[record["met"].get(key)]
        goals.add_row(key, "-" if found is None else f"{found:.4g}", f"{op} {goal:g}", passed)
    console.print(goals)


def results(name: str) -> list[Record]:
    """Return what is kept of a benchmark, on processors and on cards."""
    return [record for record in (catalog.record(name), catalog.record(f"{name}-cuda")) if record]


def listing(modules: dict[str, ModuleType]) -> None:
    """Say what there is, and when its results were made."""
    for name, module in sorted(modules.items()):
        source = catalog.source(name)
        older = ((one, ", on older code" * records.is_older(one, source)) for one in results(name))
        kept = "; ".join(f"{one['name']} of {one['date']}{said}" for one, said in older) or "nothing kept"
        print(f"{name:16} {(module.__doc__ or '').splitlines()[0]} [{kept}]")


def measure(module: ModuleType, quick: bool, options: dict[str, Any]) -> Record:
    """Run a benchmark; return its record."""
    name, device = module.NAME, str(options.get("device", "cpu"))
    given = {key: value for key, value in options.items() if value and value != "cpu"}
    words = [f"--{key} {option_text(value)}" for key, value in given.items()]
    source = catalog.source(name, {BODY: given["body"]} if "body" in given else {})
    made = records.provenance_fields(" ".join([f"python -m benchmarks {name}", *words]), source, device)
    cells, load, start = Cells(name, source, device), os.getloadavg()[0], time.monotonic()
    in_cells = {"cells": cells} if "cells" in inspect.signature(module.run).parameters else {}
    figures, targets, shown = module.run(quick, **options, **in_cells)
    whole = {"seconds": round(time.monotonic() - start, 1), "load": round(load, 1)}
    made |= cells.summary() or whole
    tables: Tables = shown if isinstance(shown, dict) else {name: shown}
    figures = {key: float(f"{value:.6g}") for key, value in figures.items()}
    return {
        "name": name + "-cuda" * device.startswith("cuda"),
        "quick": quick,
        "figures": figures,
        "targets": targets,
        **verdict(figures, targets),
        "tables": tables,
        **made,
    }


def keep(record: Record) -> None:
    """Write a record; say so if nobody can look up the code that it is of."""
    if "+" in record["commit"]:
        print(
            f"{record['name']} is of code that is not committed ({record['commit']}): commit it before "
            "you measure what is to stay.",
            file=sys.stderr,
        )
    records.write(record, catalog.result_path(record["name"]))


def option_text(value: Any) -> str:
    """Return an option as it was typed; of a file its name."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value.name if isinstance(value, Path) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the last line of the output is one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="which one, or pages, stale, confirm, take; none for a list")
    parser.add_argument("words", nargs="*", help="for confirm: results; for take: files")
    parser.add_argument("--quick", action="store_true", help="a smaller run, to see that it works")
    parser.add_argument(
        "--keep", action="store_true", help="keep the results, and regenerate the tables of the docs"
    )
    parser.add_argument("--device", default="cpu", help="for networks: cpu or cuda")
    parser.add_argument("--seeds", type=int, nargs="+", help="for networks: only these, to split a long run")
    parser.add_argument("--out", type=Path, help="for body: where to write its weights")
    parser.add_argument("--body", type=Path, help="for frozen-accuracy: weights that body has written")
    chosen = parser.parse_args(arguments)
    if bool(chosen.words) != (chosen.name in COMMANDS):
        parser.error("confirm needs names of results, take needs files, and nothing else takes either.")
    if chosen.name == "stale":
        commands.print_stale(
            name for name, path in catalog.modules().items() if path.parent.name == "benchmarks"
        )
        return 0
    if chosen.name in ("pages", "take"):
        for path in map(Path, chosen.words):
            if not path.is_file():
                parser.error(f"there is no file {path}. Name results that another machine has kept.")
            keep(records.import_record(path, catalog.source(path.stem)))
        pages.write_pages()
        return 0
    modules = find()
    if chosen.name == "confirm":
        for name in chosen.words:
            if not hasattr(modules.get(name), "measure"):
                parser.error(f"there is no benchmark {name!r} that is measured in cells.")
        failed = commands.confirm({name: modules[name].measure for name in chosen.words}, chosen.device)
        pages.write_pages()
        return int(failed > 0)
    if chosen.name is None:
        listing(modules)
        return 0
    if chosen.name not in modules:
        parser.error(f"there is no benchmark {chosen.name!r}. Choose one of {', '.join(sorted(modules))}.")
    taken = inspect.signature(modules[chosen.name].run).parameters
    options = {name: getattr(chosen, name) for name in OPTIONS if name in taken}
    for name in OPTIONS[1:]:
        if getattr(chosen, name) and name not in taken:
            parser.error(f"{chosen.name} takes no --{name}.")
    if chosen.quick and chosen.keep:
        parser.error("a quick run is not kept: leave out --quick or --keep.")
    record = measure(modules[chosen.name], chosen.quick, options)
    show(Console(width=None if sys.stdout.isatty() else 160), record)
    print(json.dumps(record))
    if chosen.keep:
        keep(record)
        pages.write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
