"""Small pictures of coefficients, one for each row of a table: every row has its own scale, around zero."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cloister.app.summary import Coefficient, OwnCoefficient, number
from cloister.arrays import Floats
from cloister.report.figures import Frame, caption

WIDTH, HEIGHT = 150, 26


def population_row(found: Coefficient) -> str:
    """Draw a coefficient of the population: its error, how far tasks lie apart, and what a new task gets."""
    if found.estimate is None and found.new_task is None:
        return ""
    centre = found.new_task if found.estimate is None else found.estimate
    assert centre is not None
    ends = [centre, found.new_task or 0.0]
    ends += [centre + s * 2 * (half or 0.0) for half in (found.std_error, found.spread) for s in (-1, 1)]
    frame = _around_zero(ends)
    parts = [_zero(frame)]
    if found.spread is not None:
        parts.append(_span(frame, centre - 2 * found.spread, centre + 2 * found.spread, "span"))
    if found.std_error is not None:
        parts.append(_span(frame, centre - 2 * found.std_error, centre + 2 * found.std_error, "thick"))
    if found.estimate is not None:
        parts.append(f'<circle class="dot" cx="{frame.px(centre)}" cy="{HEIGHT / 2}" r="4.5"/>')
    if found.new_task is not None:
        parts.append(f'<circle class="ring" cx="{frame.px(found.new_task)}" cy="{HEIGHT / 2}" r="3"/>')
    label = f"{found.name}: estimate {number(found.estimate)}, standard error {number(found.std_error)}"
    return frame.svg(parts, "row", label)


def own_row(found: OwnCoefficient) -> str:
    """Draw one task's coefficient: its error, what its rows say alone, and the prior it was drawn to."""
    ends = [found.estimate, found.alone or 0.0]
    ends += [found.estimate + s * 2 * (found.std_error or 0.0) for s in (-1, 1)]
    if found.prior is not None:
        ends += [found.prior + s * 2 * (found.prior_sd or 0.0) for s in (-1, 1)]
    frame = _around_zero(ends)
    parts = [_zero(frame)]
    if found.prior is not None and found.prior_sd is not None:
        parts.append(_span(frame, found.prior - 2 * found.prior_sd, found.prior + 2 * found.prior_sd, "span"))
    if found.std_error is not None:
        error = 2 * found.std_error
        parts.append(_span(frame, found.estimate - error, found.estimate + error, "thick"))
    parts.append(f'<circle class="dot" cx="{frame.px(found.estimate)}" cy="{HEIGHT / 2}" r="4.5"/>')
    if found.alone is not None:
        parts.append(f'<path class="bar warm" d="M{frame.px(found.alone)} 4v{HEIGHT - 8}"/>')
    return frame.svg(parts, "row", f"{found.name}: {number(found.estimate)}, alone {number(found.alone)}")


def leaning_picture(rows: Floats, weight: Floats, width: int, height: int) -> str:
    """Draw for each task how many rows it has and how far its own rows trust what tasks share. Private."""
    size = np.log10(np.maximum(rows, 1.0))
    first, last = (
        np.floor(size.min() * 2) / 2,
        max(np.ceil(size.max() * 2) / 2, np.floor(size.min() * 2) / 2 + 0.5),
    )
    frame = Frame(width, height, (first - 0.05, last + 0.05), (-0.04, 1.04))
    parts = frame.y_axis([0.0, 0.25, 0.5, 0.75, 1.0], ".0%", "weight of the others")
    marks = [m * 10**p for p in range(9) for m in (1, 2, 5) if first <= np.log10(m * 10**p) <= last]
    parts += frame.x_axis([(float(np.log10(m)), f"{m:,}") for m in marks], "rows of the task")
    for x, y in zip(size.tolist(), weight.tolist(), strict=True):
        parts.append(f'<circle class="better" opacity=".45" cx="{frame.px(x)}" cy="{frame.py(y)}" r="3.5"/>')
    middle = float(np.median(weight))
    at = frame.py(middle)
    parts.append(f'<path class="level shared" d="M{frame.left} {at}H{width - frame.right}"/>')
    below = at + 18 if middle > 0.9 else at - 7
    parts.append(caption(width - frame.right - 4, below, f"median {middle:.0%}", "end shared"))
    label = f"Weight of what tasks share against their rows, for {len(rows)} tasks. Median {middle:.0%}."
    return frame.svg(parts, f"w{width}", label)


def _around_zero(ends: Iterable[float]) -> Frame:
    reach = max(max(abs(end) for end in ends), 1e-300) * 1.06
    return Frame(WIDTH, HEIGHT, (-reach, reach), (0.0, 1.0), left=5, right=5, top=2, bottom=2)


def _zero(frame: Frame) -> str:
    return f'<path class="zero" d="M{frame.px(0)} 2V{HEIGHT - 2}"/>'


def _span(frame: Frame, low: float, high: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{frame.px(low)} {HEIGHT / 2}H{frame.px(high)}"/>'
