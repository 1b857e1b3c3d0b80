"""Where targets were found, in the user's units: what a board says of it, as a sentence."""

from __future__ import annotations

import math

from cloister.findings import Location
from cloister.plan import Plan
from cloister.store.billboard import BoardView
from cloister.tables.codebook import Codebook, Numeric

__all__ = ["location_found"]


def location_found(plan: Plan, board: BoardView, codebook: Codebook) -> str | None:
    """Say where a finished board has found targets, and features; None if nothing was asked. Public.

    The answer is noisy, and said with the digits that another run would agree on: a center may be off by half
    of the reach around it, and a reach by a factor of two. Where that reach is all of the bounds, the center
    would say nothing, and is left out.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import Tasks, run
    >>> from cloister.algorithms import Locate, SharedPrior
    >>> from cloister.learners import Regression
    >>> book = Codebook((Numeric("age", 0, 100),), Numeric("kelvin", 0, 1000))
    >>> y = book.encode_target(296 + np.random.default_rng(0).normal(size=1600)).reshape(200, 8)
    >>> tasks = Tasks.from_list([np.ones((8, 2)) / 2**0.5] * 200, list(y))
    >>> plan = Plan(SharedPrior(Regression(2), locate=Locate()), n_tasks=200).calibrate(epsilon=2.0)
    >>> location_found(plan, run(plan, tasks, random_state=0).board, book)  # doctest: +ELLIPSIS
    'Targets were found around 29..., most within about ... (a noisy answer, asked privately in 3 rounds: ...'
    """
    found = plan.algorithm.findings(board).location
    if found is None or not isinstance(codebook.target, Numeric):
        return None
    bounds = f"{codebook.target.low:g} to {codebook.target.high:g}"
    columns = _columns_found(found, codebook)
    if not found.found:
        return (
            "Where targets are was not heard above the noise: what tasks share is in the units of the "
            f"bounds, {bounds}, and each task's own model in its own.{columns}"
        )
    how = f"asked privately in {found.rounds} rounds" if found.rounds else "which the earlier board has"
    if found.unit >= 1:
        return f"Targets were found all over their bounds, {bounds} (a noisy answer, {how}).{columns}"
    where = _around(float(codebook.decode_target(found.center)), codebook.target_scale * found.unit)
    return (
        f"Targets were found {where} (a noisy answer, {how}: the center may be off by half as much); "
        f"the bounds were {bounds}.{columns}"
    )


def _columns_found(found: Location, codebook: Codebook) -> str:
    """Say which features were found in a part of their bounds; nothing, if none was."""
    shown = []
    for one in found.columns:
        if one.unit < 1:
            center, half = codebook.column_affine(one.column)
            where = _around(center + half * one.center, half * one.unit)
            shown.append(f"{codebook.column_names[one.column - 1]} {where}")
    return f" Features were found in a part of their bounds: {'; '.join(shown)}." if shown else ""


def _around(center: float, reach: float) -> str:
    """Say where and how far, in steps of the reach's first digit."""
    size = math.floor(math.log10(reach))
    center, reach = (round(value, -size) for value in (center, reach))
    digits = max(0, -size)
    return f"around {center + 0.0:.{digits}f}, most within about {reach:.{digits}f}"
