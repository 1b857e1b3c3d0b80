"""Tables of numbers as text of at most 80 columns, and as HTML for notebooks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape

__all__ = ["WIDTH", "as_html", "as_text", "number", "wrapped"]

WIDTH = 79


def number(value: float | None) -> str:
    """Return a number in four digits; a dash for none.

    Examples
    --------
    >>> number(3.14159), number(-0.0001234), number(12345678.0), number(None)
    ('3.142', '-0.0001234', '1.235e+07', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    return "0" if value == 0 else f"{value:.4g}"


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns of text, the first to the left, the others to the right; long names are cut.

    Examples
    --------
    >>> print(as_text(["", "estimate"], [["age", "0.25"], ["sex[M]", "-1"]]))
            estimate
    age         0.25
    sex[M]        -1
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    room = WIDTH - sum(width + 2 for width in widths[1:])
    widths[0] = min(widths[0], max(room, 8))
    lines = []
    for name, *cells in (head, *rows):
        short = name if len(name) <= widths[0] else name[: widths[0] - 1] + "…"
        right = (f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append((f"{short:<{widths[0]}}" + "".join(right)).rstrip())
    return "\n".join(lines)


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the same as an HTML table."""
    top = "".join(f"<th style='text-align: right'>{escape(cell)}</th>" for cell in head)
    lines = [
        f"<tr><th style='text-align: left'>{escape(name)}</th>"
        + "".join(f"<td style='text-align: right'>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    ]
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, break_on_hyphens=False)
