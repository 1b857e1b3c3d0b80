"""Making a figure: cells measured side by side and kept as they finish, then summarised, shown and drawn."""

from __future__ import annotations

import sys
from concurrent.futures import Executor
from functools import partial

from rich.console import Console
from rich.table import Table

from harness import catalog, records
from harness.cells import Cells
from harness.records import Record
from harness.sources import ROOT
from papers.figure import COLUMNS, Figure, Options, Skipped
from papers.pictures import picture

BUILD = ROOT / "build" / "papers"


def make(figure: Figure, options: Options, pool: Executor) -> bool:
    """Make one figure and show it; return whether it could be made."""
    try:
        cells = figure.module.cells(options)
    except Skipped as reason:
        print(f"{figure.name} is skipped: {reason}")
        return False
    source = catalog.source(figure.name, options.data)
    kept = Cells(figure.name, source, options.device, pool)
    found = kept.measured(partial(figure.module.measure, options=options), cells)
    data = figure.module.summarise(list(zip(cells, found, strict=True)))
    command = f"python -m papers run {figure.name}" + " --quick" * options.quick
    command += f" --seeds {options.seeds}" if options.seeds else ""
    command += f" --device {options.device}" if options.device != "cpu" else ""
    record = (
        records.provenance_fields(command, source, options.device)
        | kept.summary()
        | {"name": figure.name, "data": data}
        | {"seeds": len({cell["seed"] for cell in cells if "seed" in cell})}
    )
    # Results of data that only the user has, and of quick runs, are not for the repository.
    quick_run = options.quick or options.seeds
    folder = BUILD / "quick" if quick_run else BUILD
    records.write(
        record,
        folder / f"{figure.name}.json" if quick_run or options.data else catalog.result_path(figure.name),
    )
    show(figure, record)
    try:
        picture(figure, data, folder / f"{figure.name}.svg", folder / f"{figure.name}.png")
    except ImportError as error:
        print(f"No picture: {error}. Install the extra tables.")
    return True


def show(figure: Figure, record: Record) -> None:
    table = Table(*COLUMNS, title=f"{figure.name}: {figure.title}", title_justify="left")
    for row in figure.module.table(record["data"]):
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    data = record["data"]
    for claim in figure.claims(data):
        shown = [
            f"{how}: {one.verdict}, {one.measured}"
            for how, one in (("as published", claim.published), ("repaired", claim.repaired))
            if one
        ]
        console.print(f"[bold]{claim.says}[/] {'; '.join(shown)}.")
    made = records.provenance(record, catalog.source(figure.name))
    finding = figure.module.finding(data)
    console.print(f"The finding [bold]{figure.verdict(data)}[/]. {finding}\n{made}\n")
