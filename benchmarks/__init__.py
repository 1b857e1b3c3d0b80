"""Benchmarks: what the library promises, measured; ``python -m benchmarks`` lists them.

A benchmark is a module of this package with a ``NAME``, a docstring whose first line says what it measures,
and ``run(quick)``, which returns figures ``{name: number}``, targets ``{figure: (op, number)}`` and the rows
of a table, the header first, or several tables by name. What could not be measured is left out of the figures
and said in a row. A target is a number that does not depend on the processor: a loss, a count, memory, or a
ratio of two times in one run. ``DATA`` names the data files that it reads, and ``PATHS`` the part of the
library that it is about, if it is about one (`harness.catalog`). Where these changed since a run was kept
(``--keep``), the tables of the docs say so. One that draws from seeds takes ``cells`` and asks it for the
results of its parts (`harness.cells`), each from ``measure``, so that a run that is stopped goes on.
"""

from __future__ import annotations

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]
Table = list[list[str]]
Tables = dict[str, Table]
