"""Which earlier run an estimator starts from: a fitted estimator, a folder, or a plan and its board."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cloister.earlier import EarlierPrior
from cloister.errors import InputError
from cloister.plan import Plan
from cloister.store.billboard import Billboard
from cloister.tables.codebook import Codebook
from cloister.tables.folder import read_public
from cloister.tables.table_run import TableRun

__all__ = ["earlier_prior"]


def earlier_prior(given: Any, codebook: Codebook) -> EarlierPrior:
    """Return the prior that an earlier run found, verified.

    Parameters
    ----------
    given : fitted estimator, TableRun, path, or (Plan, Billboard)
        The earlier run; of a folder the public part is read.
    codebook : Codebook
        That of the new run. Features, interactions and target must be those of the earlier one, bounds
        included.
    """
    plan, board, units = _parts(given)
    if units is not None and _encoding(units) != _encoding(codebook):
        differing = [
            new.name
            for old, new in zip(
                (*units.features, units.target), (*codebook.features, codebook.target), strict=False
            )
            if old != new
        ]
        what = f"{differing[0]!r} differs" if differing else "the columns differ"
        raise InputError(
            f"start_from must be a run with the same codebook: {what}. Pass bounds= of the earlier run, or "
            "start anew."
        )
    return plan.prior_on(board)


def _encoding(codebook: Codebook) -> tuple[object, ...]:
    return codebook.features, codebook.interactions, codebook.target


def _parts(given: Any) -> tuple[Plan, Billboard, Codebook | None]:
    if isinstance(given, tuple) and len(given) == 2:
        plan, board = given
        if isinstance(plan, Plan) and isinstance(board, Billboard):
            return plan, board, None
    run = read_public(Path(given)) if isinstance(given, str | os.PathLike) else given
    run = getattr(run, "_fitted", run)
    if not isinstance(run, TableRun) or not isinstance(run.units, Codebook):
        got = f"{type(given).__name__}{' that is not fitted' if hasattr(given, 'fit') else ''}"
        raise InputError(
            "start_from must be a fitted estimator with bounds, the folder of a finished run, or (plan, "
            f"board). Got {got}."
        )
    return run.plan, run.board, run.units
