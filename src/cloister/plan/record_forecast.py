r"""What records as units can be expected to bring, and which unit to choose: from public numbers alone.

With N records in all, a budget of :math:`\mu` for each and p parameters, the noise in what is learned of the
mean is about :math:`p^2 / (N \mu)^2`, however many tasks there are. Its inverse root, :math:`Q = N\mu/p`,
says how well the mean is heard; where each of m tasks adds all of the noise it is :math:`\sqrt m` smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.plan.forecast import DEPENDABLE, Forecast
from cloister.privacy.events import UnitName

#: From which Q on about half of the gain of sharing is kept, and from which on most of it; below the first of
#: all hardly anything is. `python -m benchmarks records` shows it.
FAINT, HEARD, WELL_HEARD = 10.0, 20.0, 60.0
#: A factor on what would be needed, which is rounded.
_DIGITS = 2


def records_heard(records: int, mu: float, parameters: int) -> float:
    """Return Q, by which it is said what is kept.

    Examples
    --------
    >>> round(records_heard(10_000, 0.24, 51), 1)
    47.1
    """
    return records * mu / parameters


@dataclass(frozen=True)
class RecordForecast(Forecast):
    """What a plan by record keeps, in words: a band was measured for no such plans.

    Examples
    --------
    >>> print(RecordForecast.of(9.0))
    At Q = 9 (records times mu, over parameters) hardly anything of the others is heard.
    """

    @classmethod
    def of(cls, heard: float) -> RecordForecast:
        return cls(heard, 0.0, 1.0, 0.0, unknown="it is said by Q")

    def __str__(self) -> str:
        if self.rho == 0 or math.isinf(self.rho):
            return super().__str__()
        return f"At Q = {self.rho:.3g} (records times mu, over parameters) {_kept(self.rho)}."

    def to_dict(self) -> dict[str, object]:
        """Return Q for JSON: a band and odds, which it has none of, would be taken for some."""
        return {"heard": self.rho, "calibrated": False}


def _kept(heard: float) -> str:
    if heard < FAINT:
        return "hardly anything of the others is heard"
    gain = "of what sharing would gain without noise"
    if heard < HEARD:
        return f"less than half {gain} is kept"
    return f"{'about half' if heard < WELL_HEARD else 'most'} {gain} is kept"


@dataclass(frozen=True)
class UnitAdvice:
    """Which unit to choose, and why; None where neither brings anything that one can count on.

    Attributes
    ----------
    unit : {"task", "record"}, optional
        The strongest promise with which about half of the gain is kept.
    heard : float
        Q, with records as units.
    records_needed : int
        About how many records would make Q large enough.

    Examples
    --------
    >>> print(UnitAdvice.of(0.1, heard=47.1, records=10_000))  # doctest: +NORMALIZE_WHITESPACE
    Which unit: a record, if records are what must be protected. A whole task as unit leaves nothing to count
    on; at Q = 47.1 (records times mu, over parameters) about half of what sharing would gain without noise is
    kept.
    """

    unit: UnitName | None
    heard: float
    records_needed: int

    @classmethod
    def of(cls, low: float | None, heard: float, records: int) -> UnitAdvice:
        """Advise, where tasks as units keep `low` of the gain, if that is known."""
        needed = math.ceil(records * HEARD / heard) if heard > 0 else 0
        step = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) + 1 - _DIGITS))
        by_task = low is not None and low >= DEPENDABLE
        unit: UnitName | None = "task" if by_task else "record" if heard >= HEARD else None
        return cls(unit, heard, math.ceil(needed / step) * step)

    def __str__(self) -> str:
        if self.unit == "task":
            return (
                "Which unit: a task. It is the stronger promise, of all that a task holds, and half of the "
                "gain is dependable with it."
            )
        nothing, heard = "A whole task as unit leaves nothing to count on", RecordForecast.of(self.heard)
        said = f"{str(heard)[:1].lower()}{str(heard)[1:]}"
        if self.unit == "record":
            return f"Which unit: a record, if records are what must be protected. {nothing}; {said}"
        return (
            f"Which unit: neither. {nothing}; with a record as unit, {said} About {self.records_needed:,} "
            "records in all would be needed."
        )
