"""Channels: the public promise about a message, clipped, on a grid, and lifted."""

from __future__ import annotations

from cloister.core.channel import Channel, Round, equal_rounds
from cloister.core.lifts import (
    Absolute,
    Diagonal,
    Grouped,
    Lift,
    MeanAndOuter,
    MeanAndSquares,
    Outer,
    Plain,
    Relation,
    SumOfOuters,
    SumOfSquares,
)

__all__ = [
    "Absolute",
    "Channel",
    "Diagonal",
    "Grouped",
    "Lift",
    "MeanAndOuter",
    "MeanAndSquares",
    "Outer",
    "Plain",
    "Relation",
    "Round",
    "SumOfOuters",
    "SumOfSquares",
    "equal_rounds",
]
