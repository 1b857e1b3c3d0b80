"""``cloister codebook``: a template of what is public about the columns, to be filled in by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cloister.cli.options import Data, Force, Json
from cloister.cli.shell import absent, emit, say

__all__ = ["codebook"]


def codebook(
    data: Data,
    task: Annotated[str, typer.Option(help="Column that says which task a row belongs to.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: DATA-codebook.toml here.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Write a codebook template to fill in.

    A codebook lists what is publicly possible in each column: bounds of numbers, levels of categories.
    The template holds column names only, and no value from the data. Delete the table of a column that
    is not to be used.

    \b
    For example:
      cloister codebook exam.csv --task school --target score
      cloister codebook exam.csv --task school --target score -o exam.toml
    """
    from cloister.tables.codebook import Codebook

    kinds = _kinds(data, task, target)
    file = absent(Path(f"{data.stem}-codebook.toml") if output is None else output, force)
    file.write_text(Codebook.template(kinds, task, target), encoding="utf-8")
    if json:
        return emit({"file": file, "columns": {k: v for k, v in kinds.items() if k != task}})
    say(
        f"Wrote {file}: {len(kinds) - 1} columns to fill in, with no value from the data.",
        "Write what is possible, not what is in the file. Then:",
        f"  cloister fit {data} --codebook {file}",
    )


def _kinds(data: Path, task: str, target: str) -> dict[str, Literal["numeric", "text"]]:
    from cloister.errors import InputError
    from cloister.tables.files import read_table

    table = read_table(data, text=[task])
    for name in (task, target):
        if name not in table:
            raise InputError(
                f"{data.name} has no column {name!r}. It has: {', '.join(table)}. Check the spelling."
            )
    if task == target:
        raise InputError(f"--task and --target must be different columns. Got {task!r} for both.")
    if len(table) < 3:
        raise InputError(f"{data.name} must have a column besides task and target to predict from. Add one.")
    return {name: "numeric" if column.dtype.kind == "f" else "text" for name, column in table.items()}
