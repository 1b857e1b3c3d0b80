"""What joining brings on two tables that nothing in this library was chosen with: scored once, as they came.

Radon in the houses of 85 counties and immunized children of 161 communities, chosen by size and meaning, with
codebooks from their documentation, committed before any model was fitted to them. Whoever changes the library
after having seen these figures needs other tables, as had become of ``nlswork`` and ``migraine``. Measured as
in ``prior-accuracy``.
"""

from __future__ import annotations

from benchmarks import Figures, Tables, Targets
from benchmarks.prior_accuracy import measure, measure_all, summarise, tables
from harness.cells import Cells

NAME = "unseen"

TABLES = ("radon", "immunization")
__all__ = ["measure", "run"]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Tables]:
    """Measure both tables.

    Parameters
    ----------
    quick : bool
        Two re-splits of an old table in their place, to see that it works without scoring them.
    """
    sets = [(name, "joint") for name in (("scotssec",) if quick else TABLES)]
    found = measure_all(sets, 2 if quick else 10, cells)
    shown = tables(found)
    return summarise(found), {}, {NAME: shown["prior-accuracy"], "beside": shown["beside"]}
