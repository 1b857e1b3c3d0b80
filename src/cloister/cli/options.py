"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.channel import Relation
from cloister.cli.own_types import own_types

__all__ = [
    "Data",
    "Delta",
    "Detection",
    "FalseAlarms",
    "Folder",
    "Force",
    "Json",
    "Neighbours",
    "Output",
    "OwnData",
    "SkipMissingTargets",
    "TaskName",
    "Types",
]

Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV, Parquet, Arrow or Excel file with column names.")
]
OwnData = Annotated[
    Path, typer.Argument(metavar="DATA", help="The task's own rows; others in the file are passed over.")
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run; its public part is enough.")]
SkipMissingTargets = Annotated[
    bool, typer.Option("--skip-missing-targets", help="Leave out rows whose target is missing.")
]
TaskName = Annotated[str, typer.Option(help="Which task this is.")]
Delta = Annotated[float | None, typer.Option(help="Default: min(m^-1.5, 1/(10 m)) for m tasks.")]


def _rate(text: str) -> float:
    """Read 0.10 or 10%; whether the rate can be reached is asked where it is used."""
    number, percent, _ = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        raise typer.BadParameter("must be a number, such as 0.10, or 10%.") from None
    if not percent and 1 < value < 100:
        raise typer.BadParameter(f"must be below 1. Got {value:g}; write {value / 100:.4g} for {value:g} %.")
    return value / 100 if percent else value


Detection = Annotated[
    float | None,
    typer.Option(
        metavar="RATE",
        parser=_rate,
        help="Instead of --epsilon: how often the others together may detect one task's data.",
    ),
]
FalseAlarms = Annotated[float, typer.Option(help="With how many false alarms; guessing detects as many.")]
Neighbours = Annotated[Relation, typer.Option(help="Neighbours: a task's data replaced, or left out.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is already there.")]
Types = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:CLASS",
        callback=own_types,
        help="A class of your own that the plan names, or FILE.py:CLASS; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
