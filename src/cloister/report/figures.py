"""Small pictures as inline SVG: no script, colors from the page, so that they follow light and dark mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from cloister.core.arrays import Floats


@dataclass(frozen=True)
class Point:
    """A point of a curve with its standard deviation."""

    x: float
    y: float
    sd: float
    text: str = ""


@dataclass(frozen=True)
class Level:
    """A horizontal line with a name."""

    name: str
    y: float
    kind: str


@dataclass(frozen=True)
class Frame:
    """The plot's place in the picture, and how numbers become pixels."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    left: int = 66
    right: int = 14
    top: int = 14
    bottom: int = 48

    def px(self, x: float) -> float:
        """Return the pixel of a number on the axis across."""
        share = (x - self.x[0]) / (self.x[1] - self.x[0])
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def py(self, y: float) -> float:
        """Return the pixel of a number on the axis upwards."""
        share = (y - self.y[0]) / (self.y[1] - self.y[0])
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def points(self, x: Floats, y: Floats) -> str:
        """Return the points of a curve, as a polyline has them."""
        return " ".join(f"{self.px(float(a))},{self.py(float(b))}" for a, b in zip(x, y, strict=True))

    def svg(self, parts: Sequence[str], name: str, label: str) -> str:
        """Return the whole picture, with a label for those who hear it."""
        head = (
            f'<svg class="{name}" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{escape(label)}">'
        )
        return head + "".join(parts) + "</svg>"

    def y_axis(self, ticks: Sequence[float], form: str, title: str) -> list[str]:
        end = self.width - self.right
        grid = [f'<path class="grid" d="M{self.left} {self.py(t)}H{end}"/>' for t in ticks]
        texts = [caption(self.left - 8, self.py(t) + 4, format(t, form), "tick end") for t in ticks]
        middle = (self.top + self.height - self.bottom) / 2
        turned = f'<text class="axis" transform="translate(13 {middle}) rotate(-90)">{escape(title)}</text>'
        return [*grid, *texts, turned]

    def x_axis(self, ticks: Sequence[tuple[float, str]], title: str) -> list[str]:
        base = self.height - self.bottom
        line = f'<path class="base" d="M{self.left} {base}H{self.width - self.right}"/>'
        texts = [caption(self.px(t), base + 18, text, "tick mid") for t, text in ticks]
        middle = (self.left + self.width - self.right) / 2
        return [line, *texts, caption(middle, self.height - 8, title, "axis")]


def tradeoff(points: Sequence[Point], levels: Sequence[Level], width: int, height: int) -> str:
    """Draw error against epsilon (log scale), with error bars and reference lines.

    Parameters
    ----------
    points : sequence of Point
        One for each epsilon; the one with a text is drawn larger and named.
    levels : sequence of Level
        Reference lines.
    width, height : int
        Of the picture, in pixels.
    """
    values = [p.y + s * p.sd for p in points for s in (-1, 1)] + [level.y for level in levels]
    ticks = nice(min(values), max(values), 5)
    xs = [math.log(p.x) for p in points]
    margin = 0.06 * (max(xs) - min(xs)) or 1.0
    top = 54 if width > 500 else 32 + 22 * len(levels)
    frame = Frame(width, height, (min(xs) - margin, max(xs) + margin), (ticks[0], ticks[-1]), top=top)
    parts = frame.y_axis(ticks, f".{digits(ticks)}f", "test error (nMSE)")
    parts += frame.x_axis([(math.log(p.x), f"{p.x:g}") for p in points], "epsilon: smaller is more private")
    parts += _levels(frame, levels)
    line = " ".join(f"{frame.px(x)},{frame.py(p.y)}" for x, p in zip(xs, points, strict=True))
    parts.append(f'<polyline class="curve" points="{line}"/>')
    for x, point in zip(xs, points, strict=True):
        parts += _marker(frame, x, point)
    spoken = "; ".join(f"epsilon {p.x:g}: {p.y:.3f}" for p in points)
    named = "; ".join(f"{level.name}: {level.y:.3f}" for level in levels)
    return frame.svg(parts, f"w{width}", f"Test error against epsilon. {spoken}. For comparison, {named}.")


def _marker(frame: Frame, x: float, point: Point) -> list[str]:
    at, low, high = frame.px(x), frame.py(point.y - point.sd), frame.py(point.y + point.sd)
    bar = f'<path class="bar" d="M{at} {low}V{high}M{at - 4} {low}h8M{at - 4} {high}h8"/>'
    tip = f"<title>epsilon {point.x:g}: {point.y:.4f} ± {point.sd:.4f}</title>"
    size = 6.5 if point.text else 4.5
    parts = [bar, f'<circle class="dot" cx="{at}" cy="{frame.py(point.y)}" r="{size}">{tip}</circle>']
    if point.text:
        parts.append(caption(at + 4, min(low, high) - 12, point.text, "strong"))  # curves fall to the right
    return parts


def _levels(frame: Frame, levels: Sequence[Level]) -> list[str]:
    """Draw the lines, and their names above the plot, where nothing else is."""
    parts, end = [], frame.width - frame.right
    for number, level in enumerate(sorted(levels, key=lambda level: -level.y)):
        parts.append(f'<path class="level {level.kind}" d="M{frame.left} {frame.py(level.y)}H{end}"/>')
        x, y = (frame.left + 220 * number, 18) if frame.width > 500 else (frame.left, 18 + 22 * number)
        parts.append(f'<path class="level {level.kind}" d="M{x} {y - 4}h28"/>')
        parts.append(caption(x + 36, y, f"{level.name} {level.y:.3f}", f"name {level.kind}"))
    return parts


def histogram(
    changes: Floats,
    limit: float,
    width: int,
    height: int,
    tasks: str = "tasks",
    axis: str = "change of error",
) -> str:
    """Draw how many tasks change by how much; what lies beyond the limit is in the outermost bars.

    Parameters
    ----------
    changes : array of shape (tasks,)
        Change of each task's error; below zero is better.
    limit : float
        End of the axis on both sides.
    width, height : int
        Of the picture, in pixels.
    tasks, axis : str
        What tasks are called, and what changes.
    """
    half = 20 if width > 500 else 12
    edges = np.linspace(-limit, limit, 2 * half + 1)
    counts, _ = np.histogram(np.clip(changes, -limit, limit), edges)
    ticks = nice(0.0, float(counts.max()), 4, whole=True)
    frame = Frame(width, height, (-limit, limit), (0.0, ticks[-1]), top=40)
    parts = frame.y_axis(ticks, ".0f", tasks)
    for count, left, right in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        kind = "better" if right <= 1e-12 else "worse"
        x, top = frame.px(float(left)), frame.py(count)
        size = f'width="{frame.px(float(right)) - x - 1:.1f}" height="{frame.py(0) - top:.1f}"'
        tip = f"<title>{left:+.2f} to {right:+.2f}: {count}</title>"
        parts.append(f'<rect class="{kind}" x="{x}" y="{top}" {size}>{tip}</rect>')
    marks = [
        (t, f"{t:+g}".replace("-", "−") if t else "0") for t in nice(-limit, limit, 5) if abs(t) <= limit
    ]
    parts += frame.x_axis(marks, axis)
    middle = frame.px(0.0)
    parts.append(f'<path class="zero" d="M{middle} 10V{height - frame.bottom}"/>')
    share, alone = float(np.mean(changes < 0)), float(np.mean(changes > 0))
    parts.append(caption(middle - 10, 24, f"◀ better together: {share:.0%}", "strong end better-text"))
    parts.append(caption(middle + 10, 24, f"better alone: {alone:.0%} ▶", "strong worse-text"))
    label = f"Histogram of the change of each one's error: {share:.0%} of {tasks} improve."
    return frame.svg(parts, f"w{width}", label)


def caption(x: float, y: float, text: str, kind: str) -> str:
    """Return a text at a place, of a class that the page styles."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def nice(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Return round numbers, or whole ones, evenly spaced, from at most `low` to at least `high`.

    Examples
    --------
    >>> nice(0.0, 9.0, 4), nice(0.0, 9.0, 4, whole=True)
    ([0.0, 2.5, 5.0, 7.5, 10.0], [0.0, 5.0, 10.0])
    """
    raw = max(max(high - low, 1e-9) / count, 1.0 * whole)
    power = 10.0 ** math.floor(math.log10(raw))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(m * power for m in factors if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]


def digits(ticks: Sequence[float]) -> int:
    """Return how many decimals tell the ticks apart."""
    step = ticks[1] - ticks[0]
    return next(d for d in range(9) if abs(step * 10**d - round(step * 10**d)) < 1e-6)
