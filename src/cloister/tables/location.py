"""Where targets were found, in the user's units: what a board says of it, as a sentence."""

from __future__ import annotations

import math

from cloister.board.billboard import BoardView
from cloister.plan import Plan
from cloister.rows import Location
from cloister.tables.codebook import Codebook, Numeric

__all__ = ["location_found"]


def location_found(plan: Plan, board: BoardView, codebook: Codebook) -> str | None:
    """Say where a finished board has found targets, and features; None if nothing was asked. Public.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import Tasks, run
    >>> from cloister.algorithms import Located, SharedPrior
    >>> from cloister.learners import Regression
    >>> book = Codebook((Numeric("age", 0, 100),), Numeric("kelvin", 0, 1000))
    >>> y = book.encode_target(296 + np.random.default_rng(0).normal(size=1600)).reshape(200, 8)
    >>> tasks = Tasks.from_list([np.ones((8, 2)) / 2**0.5] * 200, list(y))
    >>> plan = Plan(Located(SharedPrior(Regression(2))), n_tasks=200).calibrate(epsilon=2.0)
    >>> location_found(plan, run(plan, tasks, random_state=0).board, book)  # doctest: +ELLIPSIS
    'Targets were found around 29..., most within ... (asked privately, in 3 rounds); the bounds were 0 ...'
    """
    found = plan.algorithm.location(board)
    if found is None or not isinstance(codebook.target, Numeric):
        return None
    bounds = f"{codebook.target.low:g} to {codebook.target.high:g}"
    columns = _columns_found(found, codebook)
    if not found.heard:
        return (
            "Where targets are was not heard above the noise: what tasks share is in the units of the "
            f"bounds, {bounds}, and each task's own model in its own.{columns}"
        )
    center, unit = float(codebook.decode_target(found.center)), codebook.target_scale * found.unit
    digits = max(0, 1 - math.floor(math.log10(unit)))
    how = f"asked privately, in {found.rounds} rounds" if found.rounds else "as the earlier board says"
    return (
        f"Targets were found around {center:.{digits}f}, most within {unit:.{digits}f} ({how}); the bounds "
        f"were {bounds}.{columns}"
    )


def _columns_found(found: Location, codebook: Codebook) -> str:
    """Say which features were found in a part of their bounds; nothing, if none was."""
    shown = []
    for one in found.columns:
        center, half = codebook.column_affine(one.column)
        middle, reach = center + half * one.center, half * one.unit
        digits = max(0, 1 - math.floor(math.log10(reach)))
        name = codebook.column_names[one.column - 1]
        shown.append(f"{name} around {middle:.{digits}f}, most within {reach:.{digits}f}")
    return f" Features were found in a part of their bounds: {'; '.join(shown)}." if shown else ""
