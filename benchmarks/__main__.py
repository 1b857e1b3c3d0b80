"""Run one benchmark: ``python -m benchmarks NAME [--quick] [--keep] [--device cuda] [--seeds 3 4]``.

Without a name they are listed. With ``--keep`` figures and tables are written to benchmarks/results, with the
command, date, commit, machine and code that made them, and the tables of README.md and docs are made anew
from what is there; ``python -m benchmarks pages`` does that alone. `body` also takes ``--out FILE``, and
`frozen-accuracy` reads that file with ``--body FILE``. Those made of parts keep them in ``--cells FOLDER`` as
they finish, and go on from there, also from a folder that another machine has filled. Whole records of
another machine are kept by ``python -m benchmarks take FILE ...``, if they are of the code that is here.
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
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks import Tables, cells, pages, records

#: What is handed to benchmarks that take it; every one may be run with --device.
OPTIONS = ("device", "seeds", "out", "body", "cells")
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


def show(console: Console, document: records.Record) -> None:
    """Print the tables, then figures against targets."""
    for title, rows in document["tables"].items():
        table = Table(*rows[0], title=title if len(document["tables"]) > 1 else None, title_justify="left")
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    goals = Table("figure", "measured", "target", "")
    for key, (op, goal) in document["targets"].items():
        found = document["figures"].get(key)
        passed = {True: "met", False: "[bold red]missed[/]", None: "not measured"}[document["met"].get(key)]
        goals.add_row(key, "-" if found is None else f"{found:.4g}", f"{op} {goal:g}", passed)
    console.print(goals)


def kept(name: str) -> str:
    """Say when a benchmark's records were made, and whether on older code."""
    found = [record for record in (records.read(name), records.read(f"{name}-cuda")) if record]
    said = (f"{one['name']} of {one['date']}" + ", on older code" * pages.is_older(one) for one in found)
    return "; ".join(said) or "nothing kept"


def measure(module: ModuleType, quick: bool, options: dict[str, Any]) -> records.Record:
    """Run a benchmark; return its record."""
    told = {name: value for name, value in options.items() if value and value != "cpu" and name != "cells"}
    words = [f"--{name} {said(value)}" for name, value in told.items()]
    command = " ".join([f"python -m benchmarks {module.NAME}", *words])
    made = records.made_by(command, Path(inspect.getfile(module))) | {"load": round(os.getloadavg()[0], 1)}
    figures, targets, shown = module.run(quick, **options)
    if options.get("cells"):
        del made["load"]
        made |= cells.makers(module.NAME, options["cells"], Path(inspect.getfile(module)))
    tables: Tables = shown if isinstance(shown, dict) else {module.NAME: shown}
    figures = {key: float(f"{value:.6g}") for key, value in figures.items()}
    card = str(options.get("device", "")).partition(":")[0] == "cuda"
    return {
        "name": module.NAME + "-cuda" * card,
        "quick": quick,
        "figures": figures,
        "targets": targets,
        **verdict(figures, targets),
        "tables": tables,
        **made,
    }


def keep(document: records.Record) -> None:
    """Write a record; say so if nobody can look up the code that it is of."""
    if "+" in document["commit"]:
        print(
            f"{document['name']} is of code that is not committed ({document['commit']}): commit src before "
            "you measure what is to stay.",
            file=sys.stderr,
        )
    records.write(document, records.RESULTS / f"{document['name']}.json")


def said(value: Any) -> str:
    """Return an option as it was typed; of a file its name."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value.name if isinstance(value, Path) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the last line of the output is one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", help="which one, pages or take; leave it out for a list")
    parser.add_argument("files", nargs="*", type=Path, help="for take: records that another machine has kept")
    parser.add_argument("--quick", action="store_true", help="a smaller run, to see that it works")
    parser.add_argument(
        "--keep", action="store_true", help="keep what is found, and write the docs' tables of it"
    )
    parser.add_argument("--device", default="cpu", help="for networks: cpu or cuda")
    parser.add_argument("--seeds", type=int, nargs="+", help="for networks: only these, to split a long run")
    parser.add_argument("--out", type=Path, help="for body: where to write its weights")
    parser.add_argument("--body", type=Path, help="for frozen-accuracy: weights that body has written")
    parser.add_argument("--cells", type=Path, help="a folder that keeps finished parts, to go on from")
    chosen = parser.parse_args(arguments)
    if bool(chosen.files) != (chosen.name == "take"):
        parser.error("take needs files, and nothing else does: python -m benchmarks take FILE ...")
    for path in chosen.files:
        if not path.is_file():
            parser.error(f"there is no file {path}. Name records that another machine has kept.")
    if chosen.name in ("pages", "take"):
        for path in chosen.files:
            keep(records.taken(path, pages.code_of(path.stem)))
        pages.write_pages()
        return 0
    modules = find()
    if chosen.name is None:
        for name, module in sorted(modules.items()):
            print(f"{name:16} {(module.__doc__ or '').splitlines()[0]} [{kept(name)}]")
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
    document = measure(modules[chosen.name], chosen.quick, options)
    show(Console(width=None if sys.stdout.isatty() else 160), document)
    print(json.dumps(document))
    if chosen.keep:
        keep(document)
        pages.write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
