"""The papers' figures by command: ``python -m papers list``, ``run``, ``stale``, ``confirm``, ``pages``."""

from __future__ import annotations

import argparse
import sys
import traceback
from functools import partial
from pathlib import Path

from harness import catalog, commands, records
from harness import pages as tables
from harness.cells import processes
from papers import pages
from papers.figure import Figure, Options, figures
from papers.running import make


def chosen(names: list[str], every: bool, there: dict[str, Figure]) -> list[Figure]:
    """Return the figures that are asked for: by name, or all of a paper's by the paper's."""
    if every:
        return list(there.values())
    found = []
    for name in names:
        mine = [figure for figure in there.values() if name in (figure.name, figure.paper)]
        if not mine:
            sys.exit(f"There is no figure {name!r}: python -m papers list says what there is.")
        found += mine
    return found


def listing(there: dict[str, Figure]) -> None:
    """Say what there is, and whose result is older than the code that measures it."""
    for figure in there.values():
        record = catalog.record(figure.name)
        state = "no result kept" if record is None else f"kept, {record['date']}"
        if record and records.is_older(record, catalog.source(figure.name)):
            state += ", of older code"
        print(f"{figure.name:24} {figure.title} [{state}]")


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it must be 1 or more. Got {text!r}.")
    return int(text)


def named(text: str) -> tuple[str, Path]:
    name, found, path = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"it must be NAME=PATH. Got {text!r}.")
    return name, Path(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m papers", description=__doc__)
    named_commands = parser.add_subparsers(dest="command", required=True)
    named_commands.add_parser("list", help="what there is, and what is kept of it")
    named_commands.add_parser("pages", help="write docs/papers from what is kept")
    named_commands.add_parser("stale", help="what is to be measured again, why, and how long it takes")
    again = named_commands.add_parser(
        "confirm", help="measure some cells of kept results again: they must agree"
    )
    again.add_argument("names", nargs="+", help="figures, or papers")
    again.add_argument("--device", default="cpu", help="for networks: cpu or cuda")
    run = named_commands.add_parser("run", help="make figures; goes on where it was stopped")
    run.add_argument("names", nargs="*", help="figures, or papers")
    run.add_argument("--all", action="store_true", help="everything")
    run.add_argument(
        "--quick", action="store_true", help="a look; its results are not kept in papers/results"
    )
    run.add_argument(
        "--seeds", type=count, help="replications, instead of each figure's own number; not kept, either"
    )
    run.add_argument("--workers", type=count, help="processes (default: one a core)")
    run.add_argument("--device", default="cpu", help="for networks: cpu or cuda")
    run.add_argument(
        "--data", type=named, action="append", default=[], help="NAME=PATH of data that you have"
    )
    given = parser.parse_args(arguments)
    there = figures()
    if given.command == "list":
        listing(there)
        return 0
    if given.command == "pages":
        pages.write_pages(list(there.values()))
        tables.write_pages()
        return 0
    if given.command == "stale":
        commands.print_stale(there)
        return 0
    if given.command == "confirm":
        options = Options(device=given.device)
        figures_chosen = chosen(given.names, False, there)
        measures = {one.name: partial(one.module.measure, options=options) for one in figures_chosen}
        failed = commands.confirm(measures, given.device)
        pages.write_pages(list(there.values()))
        tables.write_pages()
        return int(failed > 0)
    if not given.names and not given.all:
        run.error("name a figure or a paper, or say --all.")
    options = Options(given.quick, given.seeds, given.device, dict(given.data))
    failed = 0
    with processes(given.workers) as pool:
        for figure in chosen(given.names, given.all, there):
            try:
                make(figure, options, pool)
            except Exception:  # the others are made all the same
                traceback.print_exc()
                failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
