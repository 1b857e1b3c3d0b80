"""An audit as one self-contained HTML page: the measured trade-off curve against the claimed one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from cloister.audit.bound import TestPoint
from cloister.audit.verdict import Audit, claimed_missed
from cloister.core.arrays import Floats
from cloister.core.spelling import counted
from cloister.plan.plan import Plan
from cloister.privacy.statement import percent, rounded_down, rounded_up
from cloister.report.figures import Frame, caption
from cloister.report.html_page import Stamp, load_template

#: The smallest share on the logarithmic axes.
_LEAST = 1e-5


def render(plan: Plan, found: Audit, source: str | Path | None = None) -> str:
    """Return the page: HTML with its style and pictures inside, no script and nothing to fetch.

    Parameters
    ----------
    plan : Plan
        What was audited.
    found : Audit
        What was found.
    source : path, optional
        The file that the plan was read from, for the page to name.
    """
    alarms = np.concatenate(
        [[0.0], np.geomspace(_LEAST, 0.5, 120), 1 - np.geomspace(0.5, _LEAST, 120), [1.0]]
    )
    missed = claimed_missed(plan, alarms)
    template = load_template("audit.html")
    return str(
        template.render(
            audit=found,
            statement=found.guarantee.statement,
            plan=plan,
            curve=[
                curve_picture(alarms, missed, found.bound.curve, *size) for size in ((760, 420), (380, 360))
            ],
            tail=[
                tail_picture(alarms, missed, found.bound.curve, *size) for size in ((760, 360), (380, 330))
            ],
            rows=list(found.rows()),
            rate=percent(found.guarantee.detection()),
            facts=facts(plan, source),
            up=rounded_up,
            down=rounded_down,
            stamp=Stamp.of(plan),
        )
    )


def save(plan: Plan, found: Audit, path: str | Path, source: str | Path | None = None) -> Path:
    """Write the page to a file; `source` is where the plan was read from."""
    Path(path).write_text(render(plan, found, source), encoding="utf-8")
    return Path(path)


def facts(plan: Plan, source: str | Path | None = None) -> dict[str, str]:
    """Say what was audited, so that its audit is not taken for that of another plan.

    Parameters
    ----------
    plan : Plan
        What was audited.
    source : path, optional
        The file that it was read from.
    """
    rounds, stamp = len(plan.rounds), Stamp.of(plan)
    noise = f"{type(plan.mechanism).__name__} noise of level {plan.mechanism.budget:.4g}"
    return {
        "Algorithm": type(plan.algorithm).__name__,
        "Plan": f"{plan.n_tasks} tasks, {counted(rounds, 'noisy sum')}; {plan.sampling.describe()}; {noise}",
        "File": "a plan in memory" if source is None else str(source),
        "Fingerprint": plan.fingerprint,
        "Audited": f"{stamp.date}, by cloister {stamp.version}",
    }


def curve_picture(
    alarms: Floats, missed: Floats, points: Sequence[TestPoint], width: int, height: int
) -> str:
    """Draw missed cases against false alarms: the claimed curve, below which no test may fall, and the tests.

    Parameters
    ----------
    alarms, missed : array of shape (n,)
        The claimed curve.
    points : sequence of Point
        What was measured, with its limits.
    width, height : int
        Of the picture, in pixels.
    """
    frame = Frame(width, height, (0.0, 1.0), (0.0, 1.0))
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    parts = frame.y_axis(ticks, ".2f", "missed")
    parts += frame.x_axis([(t, f"{t:g}") for t in ticks], "false alarms")
    line = frame.points(alarms, missed)
    corner = f"{frame.px(0)},{frame.py(0)}"
    parts.append(f'<polygon class="forbidden" points="{corner} {line} {corner}"/>')
    parts.append(f'<path class="zero" d="M{frame.px(0)} {frame.py(1)}L{frame.px(1)} {frame.py(0)}"/>')
    parts.append(f'<polyline class="claim" points="{line}"/>')
    for point in points:
        parts += _cross(
            frame, (point.false_alarm, *point.false_alarm_limits), (point.missed, *point.missed_limits)
        )
    parts.append(caption(frame.px(0.04), frame.py(0.06), "a test here would break the claim", "name"))
    label = "Missed cases against false alarms: no measured test is below the claimed curve but by chance."
    return frame.svg(parts, f"w{width}", label)


def tail_picture(alarms: Floats, missed: Floats, points: Sequence[TestPoint], width: int, height: int) -> str:
    """Draw detected cases against false alarms on logarithmic axes, where small probabilities can be seen.

    Everything given is as in `curve_picture`.
    """
    end = math.log10(_LEAST)
    frame = Frame(width, height, (end, 0.0), (end, 0.0))
    powers = [float(p) for p in range(int(end), 1)]
    parts = frame.y_axis(powers, ".0f", "detected, power of ten")
    parts += frame.x_axis([(p, f"{p:.0f}".replace("-", "−")) for p in powers], "false alarms, power of ten")
    inside = alarms > 0
    line = frame.points(_log(alarms[inside]), _log(1 - missed[inside]))
    parts.append(f'<polyline class="claim" points="{line}"/>')
    parts.append(f'<path class="zero" d="M{frame.px(end)} {frame.py(end)}L{frame.px(0)} {frame.py(0)}"/>')
    for point in points:
        if point.false_alarm > _LEAST and point.missed < 1 - _LEAST:
            x = _log(np.array([point.false_alarm, *point.false_alarm_limits]))
            y = _log(1 - np.array([point.missed, *point.missed_limits]))
            parts += _cross(frame, tuple(x), tuple(y))
    return frame.svg(parts, f"w{width}", "Detected cases against false alarms on logarithmic axes.")


def _log(values: Floats) -> Floats:
    return np.log10(np.maximum(values, _LEAST))


def _cross(frame: Frame, x: tuple[float, ...], y: tuple[float, ...]) -> list[str]:
    """Draw a point with its limits in both directions."""
    (at, left, right), (up, low, high) = [frame.px(v) for v in x], [frame.py(v) for v in y]
    tip = escape(f"false alarms {x[0]:.4g} ({x[1]:.4g} to {x[2]:.4g}), {y[0]:.4g} ({y[1]:.4g} to {y[2]:.4g})")
    return [
        f'<path class="bar" d="M{left} {up}H{right}M{at} {low}V{high}"/>',
        f'<circle class="dot" cx="{at}" cy="{up}" r="3"><title>{tip}</title></circle>',
    ]
