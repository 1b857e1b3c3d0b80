"""Where a number comes from that something chooses by: derived from a sentence, or tuned by a measurement."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

#: What measures again what is tuned: ``python -m benchmarks`` and these names.
GAIN_AND_HARM = "prior-accuracy, harm"


def derived(value: Any, why: str) -> Any:
    """Return the field of a number that follows from something."""
    return field(default=value, metadata={"derived": why})


def tuned(value: Any, what: str, by: str = GAIN_AND_HARM) -> Any:
    """Return the field of a number that was chosen by measuring, with the benchmarks to measure it by."""
    return field(default=value, metadata={"tuned": what, "by": by})


def told(constants: Any) -> list[tuple[str, Any, dict[str, str]]]:
    """Return name, value and origin of all numbers of a stage."""
    return [(item.name, item.default, dict(item.metadata)) for item in fields(constants)]
