"""Benchmarks: what the library promises, measured; ``python -m benchmarks`` lists them.

A benchmark is a module of this package with a ``NAME``, a docstring whose first line says what it measures,
and ``run(quick)``, which returns figures ``{name: number}``, targets ``{figure: (op, number)}`` and the rows
of a table, the header first, or several tables by name. What could not be measured is left out of the figures
and said in a row. ``MEASURES`` names the files and folders of ``src/cloister`` that its figures depend on
(``file.py:name`` one definition): where one of these has changed since a run was kept (``--keep``), the docs'
tables of it say so. One that takes ``cells`` is measured in parts, which can be on several machines
(`benchmarks.cells`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]
Table = list[list[str]]
Tables = dict[str, Table]


def data_file(name: str) -> Path:
    """Return where a data file that is not part of the project should be: in ``$CLOISTER_DATA``."""
    default = Path(__file__).parents[1] / "data"
    return Path(os.environ.get("CLOISTER_DATA", default)).resolve() / name


def track(steps: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Pass steps on and show a progress bar meanwhile, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(steps, total=total, description=description)
