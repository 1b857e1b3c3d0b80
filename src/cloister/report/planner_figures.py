"""Pictures of what a plan would bring: over budgets, and over numbers of tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cloister.core.arrays import Floats
from cloister.report.figures import Frame, caption

_SHARES = [-0.5, 0.0, 0.5, 1.0]


def epsilon_picture(
    points: Sequence[tuple[float, float, float, float]], chosen: float, width: int, height: int
) -> str:
    """Draw what is kept of the gain of sharing, as a band, and what an attacker detects, against epsilon.

    Parameters
    ----------
    points : sequence of (epsilon, detection, low, high)
        In order; low and high are NaN where there is no forecast, and no band is drawn.
    chosen : float
        The epsilon of the plan.
    width, height : int
        Of the picture, in pixels.
    """
    epsilon, detected, low, high = np.array(points).T
    at = np.log(epsilon)
    frame = _frame(at, width, height)
    known = bool(np.isfinite(low).all())
    parts = [*(_band(frame, at, low, high) if known else ()), *_shares(frame)]
    marks = [e for e in (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16) if epsilon[0] <= e <= epsilon[-1]]
    if width < 500:
        marks = [e for e in marks if e not in (0.25, 0.5, 2, 8)]
    parts += frame.x_axis([(math.log(e), f"{e:g}") for e in marks], "epsilon: smaller is more private")
    parts.append(f'<polyline class="claim" points="{frame.points(at, detected)}"/>')
    parts += _here(frame, math.log(chosen))
    parts += _legend(
        frame,
        [
            ("band", "kept of the gain of sharing" if known else "no forecast of so few tasks"),
            ("claim", "detected by the best attack"),
        ],
    )
    label = "What is kept of the gain of sharing, and what the best attack detects, against epsilon."
    return frame.svg(parts, f"w{width}", label)


def tasks_picture(
    points: Sequence[tuple[int, float, float]], tasks: int, pays_from: int, width: int, height: int
) -> str:
    """Draw what is kept of the gain of sharing against the number of tasks.

    Parameters
    ----------
    points : sequence of (tasks, low, high)
        In order.
    tasks, pays_from : int
        How many there are, and how many make half of the gain dependable.
    width, height : int
        Of the picture, in pixels.
    """
    count, low, high = np.array(points, dtype=np.float64).T
    at = np.log(count)
    frame = _frame(at, width, height)
    parts = [*_band(frame, at, low, high), *_shares(frame)]
    powers = [10**p for p in range(1, 8, 1 if width > 500 else 2) if count[0] <= 10**p <= count[-1]]
    parts += frame.x_axis([(math.log(n), f"{n:,}") for n in powers], "tasks")
    if count[0] <= pays_from <= count[-1]:
        x = frame.px(math.log(pays_from))
        parts.append(f'<path class="level shared" d="M{x} {frame.top}V{frame.height - frame.bottom}"/>')
    parts += _here(frame, math.log(min(max(tasks, count[0]), count[-1])))
    parts += _legend(
        frame,
        [("band", "kept of the gain of sharing"), ("level shared", f"pays from about {pays_from:,} tasks")],
    )
    label = (
        f"What is kept of the gain of sharing against the number of tasks; it pays from about {pays_from}."
    )
    return frame.svg(parts, f"w{width}", label)


def _frame(at: Floats, width: int, height: int) -> Frame:
    return Frame(
        width, height, (float(at[0]), float(at[-1])), (-0.7, 1.05), right=36, top=64 if width < 500 else 42
    )


def _shares(frame: Frame) -> list[str]:
    parts = frame.y_axis(_SHARES, ".0%", "share")
    zero = f'<path class="zero" d="M{frame.left} {frame.py(0)}H{frame.width - frame.right}"/>'
    return [part.replace(">-", ">−") for part in parts] + [zero]


def _band(frame: Frame, at: Floats, low: Floats, high: Floats) -> list[str]:
    there, back = frame.points(at, high), frame.points(at[::-1], low[::-1])
    return [
        f'<polygon class="band" points="{there} {back}"/>',
        f'<polyline class="curve" points="{frame.points(at, low)}"/>',
    ]


def _here(frame: Frame, at: float) -> list[str]:
    x = frame.px(min(max(at, frame.x[0]), frame.x[1]))
    return [f'<path class="base strong-line" d="M{x} {frame.top}V{frame.height - frame.bottom}"/>']


def _legend(frame: Frame, entries: Sequence[tuple[str, str]]) -> list[str]:
    parts = []
    for number, (kind, text) in enumerate(entries):
        x, y = (frame.left + 270 * number, 20) if frame.width > 500 else (frame.left, 20 + 22 * number)
        mark = (
            f'<rect class="band" x="{x}" y="{y - 10}" width="26" height="12"/>'
            if kind == "band"
            else f'<path class="{kind}" d="M{x} {y - 4}h26"/>'
        )
        parts += [mark, caption(x + 34, y, text, "soft")]
    return parts
