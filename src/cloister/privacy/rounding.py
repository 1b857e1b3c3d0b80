"""Bounds in a few digits: an upper one never smaller than it is, a lower one never larger."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

__all__ = ["ceiling", "rounded_down", "rounded_up"]


def ceiling(value: float, digits: int) -> float:
    """Return the smallest number of so many significant digits that is at least `value`.

    Examples
    --------
    >>> ceiling(0.12341, 4), ceiling(0.5, 4)
    (0.1235, 0.5)
    """
    if not math.isfinite(value):
        return value
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a bound in a few digits, never smaller than it is.

    Examples
    --------
    >>> rounded_up(12.12001), rounded_up(8.386, 2)
    ('12.13', '8.4')
    """
    return str(value) if not math.isfinite(value) else format(ceiling(value, digits), f".{digits}g")


def rounded_down(value: float, digits: int = 3) -> str:
    """Write a lower bound in a few digits, never larger than it is.

    Examples
    --------
    >>> rounded_down(0.8999), rounded_down(12.19)
    ('0.899', '12.1')
    """
    if not math.isfinite(value):
        return str(value)
    floor = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))
    return format(float(floor), f".{digits}g")
