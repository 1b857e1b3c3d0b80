"""Making a figure: cells measured side by side and kept as they finish, then summarised, shown and drawn."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from papers import pages, store
from papers.figure import COLUMNS, Cell, Figure, Options, Skipped
from papers.pictures import picture

NOTES = Console(stderr=True)


def measured(name: str, cell: Cell, options: Options) -> tuple[Cell, Any, float]:
    """Measure one cell of the figure that is this module; one thread, as the other cores have cells too."""
    module, start = importlib.import_module(name), time.process_time()
    with threadpool_limits(limits=1):
        value = module.measure(cell, options)
    return cell, value, time.process_time() - start


def fill(kept: store.Cells, figure: Figure, cells: list[Cell], options: Options, pool: Executor) -> None:
    """Measure the cells that are missing, with a progress bar; each is kept as it finishes."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = kept.missing(cells)
    older = kept.older(cells)
    if older:
        NOTES.print(f"{figure.name}: {older} cells are of older code; --again measures them anew.")
    with Progress(*columns, console=NOTES, transient=True) as progress:
        bar = progress.add_task(figure.name, total=len(cells), completed=len(cells) - len(left))
        jobs = [pool.submit(measured, figure.module.__name__, cell, options) for cell in left]
        failed = None
        for job in as_completed(jobs):
            if job.cancelled():
                continue
            if job.exception():  # no more is begun, and what is under way is kept
                failed = failed or job.exception()
                for other in jobs:
                    other.cancel()
                continue
            kept.add(*job.result(), options.device)
            progress.advance(bar)
    if failed:
        raise failed


def make(figure: Figure, options: Options, again: bool, pool: Executor) -> bool:
    """Make one figure and show it; return whether it could be made."""
    try:
        cells = figure.module.cells(options)
    except Skipped as reason:
        print(f"{figure.name} is skipped: {reason}")
        return False
    kept = store.Cells(figure)
    if again:
        kept.forget()
    fill(kept, figure, cells, options, pool)
    document = kept.document(figure, cells, figure.module.summarise(kept.found(cells)))
    document["command"] += " --quick" * options.quick + (f" --seeds {options.seeds}" if options.seeds else "")
    folder = store.BUILD / "quick" if options.quick else store.BUILD
    # What was made of data that only the user has is not for the repository, and a look is not worth keeping.
    home = folder if options.quick or options.data else store.RESULTS
    store.write(document, home / f"{figure.name}.json")
    show(figure, document)
    try:
        picture(figure, document["data"], folder / f"{figure.name}.svg", folder / f"{figure.name}.png")
    except ImportError as error:
        print(f"No picture: {error}. Install the extra plots.")
    return True


def show(figure: Figure, document: dict[str, Any]) -> None:
    table = Table(*COLUMNS, title=f"{figure.name}: {figure.title}", title_justify="left")
    for row in figure.module.table(document["data"]):
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    finding = figure.module.finding(document["data"])
    console.print(
        f"The finding [bold]{finding.verdict}[/]. {finding.sentence}\n{pages.provenance(document)}\n"
    )


@contextmanager
def workers(count: int) -> Iterator[Executor]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield pool
