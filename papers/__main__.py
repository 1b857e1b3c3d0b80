"""The papers' figures by command: ``python -m papers list``, ``run NAME...``, ``run --all``, ``pages``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from papers import pages, store
from papers.figure import Figure, Options, figures
from papers.running import make, workers


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
        document = store.read(figure.name)
        state = "no result kept" if document is None else f"kept, {document['date']}"
        if document and store.is_older(figure, document):
            state += ", of older code"
        print(f"{figure.name:24} {figure.title} [{state}]")


def named(text: str) -> tuple[str, Path]:
    name, found, path = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"it must be NAME=PATH. Got {text!r}.")
    return name, Path(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m papers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is, and what is kept of it")
    commands.add_parser("pages", help="write docs/papers from what is kept")
    run = commands.add_parser("run", help="make figures; goes on where it was stopped")
    run.add_argument("names", nargs="*", help="figures, or papers")
    run.add_argument("--all", action="store_true", help="everything")
    run.add_argument(
        "--quick", action="store_true", help="a look; its results are not kept in papers/results"
    )
    run.add_argument("--again", action="store_true", help="forget what was measured before")
    run.add_argument("--seeds", type=int, help="replications, instead of each figure's own number")
    run.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)"
    )
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
        return 0
    if not given.names and not given.all:
        run.error("name a figure or a paper, or say --all.")
    options = Options(given.quick, given.seeds, given.device, dict(given.data))
    with workers(given.workers) as pool:
        for figure in chosen(given.names, given.all, there):
            make(figure, options, given.again, pool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
