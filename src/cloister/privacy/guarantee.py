"""The guarantee: what was proven, about whom, against whom, and on which conditions, as a value.

It prints as one paragraph that a data-protection officer can read, and as JSON that a machine can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, Context
from typing import Any

from cloister.errors import InputError
from cloister.privacy.events import RelationName

__all__ = ["TRUSTED_CURATOR", "Guarantee", "detection_bound", "rounded_up"]

TRUSTED_CURATOR = (
    "a trusted curator sees each clipped message; nothing is claimed against the curator or network observers"
)

_WORLDS: dict[RelationName, str] = {
    "replace": "holds one set of data rather than any other",
    "zero_out": "takes part with its data rather than stays silent",
}


def detection_bound(epsilon: float, delta: float, false_alarms: float = 0.05) -> float:
    r"""Largest power of any test of one hypothesis about one task.

    Every test with false-positive rate :math:`f` has a true-positive rate of at most
    :math:`\min(e^\varepsilon f + \delta,\; 1 - e^{-\varepsilon}(1 - \delta - f))`.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    false_alarms : float, default=0.05
        False-positive rate of the test.

    Returns
    -------
    float
        Upper bound on the true-positive rate; ``false_alarms`` itself is what guessing achieves.

    References
    ----------
    Kairouz, Oh, Viswanath, *The composition theorem for differential privacy*, arXiv:1311.0776, Theorem 2.1.

    Examples
    --------
    >>> round(detection_bound(1.0, 1e-5), 3)
    0.136
    >>> detection_bound(0.0, 0.0), detection_bound(float("inf"), 1e-5)
    (0.05, 1.0)
    """
    if epsilon > 700:
        return 1.0
    likely = math.exp(epsilon) * false_alarms + delta
    rest = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, likely, rest)


@dataclass(frozen=True)
class Guarantee:
    """What the other tasks, even all colluding, can learn about one task.

    Parameters
    ----------
    epsilon, delta : float
        Joint differential privacy parameters; epsilon may be infinite.
    relation : {"replace", "zero_out"}
        Which two worlds cannot be told apart.
    n_tasks : int
        Public number of tasks.
    accountant : str
        Who proved it.
    participation : str
        Who takes part when, and who may know it.
    noise : str
        Where the noise comes from. A text that begins with ``INSECURE`` makes the guarantee void.
    unit : str, default="task"
        What is protected.
    trust : str
        Who is trusted with what.
    other_epsilon : float, optional
        Epsilon under the other relation, at the same delta.
    caveats : tuple of str, default=()
        Reasons why the guarantee does *not* hold.

    Examples
    --------
    >>> g = Guarantee(1.0, 1e-5, "replace", 139, "exact Gaussian DP", "every task takes part in every round",
    ...     "floating point, system entropy", other_epsilon=0.47)
    >>> g.holds
    True
    >>> print(str(g)[:63])
    (1, 1e-05)-joint differential privacy for each of the 139 tasks
    >>> Guarantee.from_dict(g.to_dict()) == g
    True
    """

    epsilon: float
    delta: float
    relation: RelationName
    n_tasks: int
    accountant: str
    participation: str
    noise: str
    unit: str = "task"
    trust: str = TRUSTED_CURATOR
    other_epsilon: float | None = None
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InputError(f"epsilon must be at least 0. Got {self.epsilon!r}. Price the plan first.")
        if not 0 <= self.delta <= 1:
            raise InputError(f"delta must be in [0, 1]. Got {self.delta!r}. Use default_delta(n_tasks).")
        if self.relation not in _WORLDS:
            raise InputError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}. Choose one.")
        object.__setattr__(self, "caveats", tuple(self.caveats))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the guarantee does not hold: the caveats, and noise that can be reproduced."""
        seeded = self.noise.startswith("INSECURE")
        return self.caveats + ((f"the noise can be reproduced ({self.noise})",) if seeded else ())

    @property
    def holds(self) -> bool:
        """Whether epsilon is finite and nothing speaks against it."""
        return math.isfinite(self.epsilon) and not self.reasons

    def __str__(self) -> str:
        parts = [self._verdict(), self._meaning(), self._other(), self._conditions()]
        return " ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold; infinity becomes the text "inf".

        Examples
        --------
        >>> g = Guarantee(float("inf"), 1e-5, "replace", 9, "exact Gaussian DP", "everyone", "none")
        >>> g.to_dict()["epsilon"]
        'inf'
        """
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["caveats"] = list(self.caveats)
        for name in ("epsilon", "other_epsilon"):
            if out[name] is not None and math.isinf(out[name]):
                out[name] = "inf"
        return out

    def to_json(self) -> str:
        """Return strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Guarantee:
        """Read what :meth:`to_dict` wrote."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(
                f"A guarantee has no field {unknown[0]!r}. Got {unknown}. Remove what is unknown."
            )
        given = dict(values)
        for name in ("epsilon", "other_epsilon"):
            if given.get(name) is not None:
                given[name] = float(given[name])
        try:
            return cls(**given)
        except TypeError as error:
            raise InputError(f"A guarantee needs all its fields. Got {sorted(given)}: {error}.") from error

    def _verdict(self) -> str:
        """Say first whether to read on."""
        if math.isinf(self.epsilon):
            return "NOT PRIVATE: no noise protects what tasks say, and the others may learn everything."
        if self.reasons:
            return f"DOES NOT HOLD: {'; '.join(self.reasons)}. What follows would hold otherwise."
        return ""

    def _meaning(self) -> str:
        if math.isinf(self.epsilon):
            return ""
        if self.epsilon == 0 and self.delta == 0:
            return f"Nothing leaves any {self.unit}: the others learn nothing from it (epsilon 0)."
        power = rounded_up(100 * detection_bound(self.epsilon, self.delta), 3)
        return (
            f"({rounded_up(self.epsilon)}, {rounded_up(self.delta)})-joint differential privacy for each of "
            f"the {self.n_tasks} {self.unit}s, relation {self.relation}. Suppose that all other {self.unit}s "
            "collude, pool their data, their models and everything that was ever published, and test whether "
            f"one {self.unit} {_WORLDS[self.relation]}: with 5 % false alarms they detect it in at most "
            f"{power} % of cases (5 % is guessing)."
        )

    def _other(self) -> str:
        if self.other_epsilon is None or math.isinf(self.epsilon):
            return ""
        other = "zero_out" if self.relation == "replace" else "replace"
        return f"Under the relation {other} epsilon is {rounded_up(self.other_epsilon)} at the same delta."

    def _conditions(self) -> str:
        if self.epsilon == 0 and self.delta == 0:
            return ""
        return (
            f"Participation: {self.participation}. Trust: {self.trust}. Noise: {self.noise}. "
            f"Accounting: {self.accountant}."
        )


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a bound in a few digits, never smaller than it is."""
    if not math.isfinite(value):
        return str(value)
    return format(
        float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value))), f".{digits}g"
    )
