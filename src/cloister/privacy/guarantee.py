"""The guarantee: what was proven, about whom, against whom, and on which conditions, as a value.

It prints as one paragraph that a data-protection officer can read, and as JSON that a machine can. One
function, `guarantee_for`, builds every one of them: before a run from what its noise will be, after it from
how its noise was really made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, Context
from typing import Any, Protocol

from cloister.document import check_format
from cloister.doubts import Doubt, Grade, doubts_in_old_words, merged
from cloister.errors import InputError
from cloister.privacy.accounting import Prices
from cloister.privacy.events import RelationName
from cloister.privacy.randomness import Origin

__all__ = [
    "DOMAIN",
    "PUBLIC_GROUPS",
    "TRUSTED_CURATOR",
    "Guarantee",
    "NoiseMade",
    "detection_bound",
    "guarantee_for",
    "rounded_up",
]

#: The first had words for doubts, and did not say its format.
FORMAT = "cloister guarantee 2"
TRUSTED_CURATOR = (
    "a trusted curator sees each clipped message; nothing is claimed against the curator or network observers"
)

#: Which data the guarantee covers. Whether a task's data fit shows to nobody but those who hold them.
DOMAIN = (
    "any other data that fit the codebook; where one operator holds all rows, data that do not fit are "
    "refused before anything is charged, to the operator alone; where tasks are apart, a task whose data do "
    "not fit sends zeros and is told at home"
)

#: Added where tasks are in groups.
PUBLIC_GROUPS = (
    "which group a task is in is public, and not protected: other data are those of a task in the same group"
)

_WORLDS: dict[RelationName, str] = {
    "replace": "holds one set of data rather than any other that fits the codebook",
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


class _Noise(Protocol):
    """What this module needs of a mechanism."""

    @property
    def kind(self) -> str: ...

    @property
    def doubts(self) -> tuple[Doubt, ...]: ...


@dataclass(frozen=True)
class NoiseMade:
    """How the noise of a run is made: which kind, from where, and its doubts.

    `doubts` are those of the mechanism, of the source of randomness and of the engine.

    Examples
    --------
    >>> from cloister.privacy.mechanisms import Gaussian
    >>> made = NoiseMade.by(Gaussian(1.0), Origin.SEED)
    >>> str(made), [str(doubt.grade) for doubt in made.doubts]
    ('INSECURE: exact integer noise on a fixed-point sum, from a seed, for tests and papers', ['void'])
    """

    kind: str
    origin: Origin
    doubts: tuple[Doubt, ...] = ()

    @classmethod
    def by(cls, mechanism: _Noise, origin: Origin, engine: Iterable[Doubt] = ()) -> NoiseMade:
        """Noise that a mechanism makes from randomness of this origin; `engine` are the engine's doubts."""
        return cls(mechanism.kind, origin, merged(mechanism.doubts, origin.doubts, engine))

    @classmethod
    def none(cls, engine: Iterable[Doubt] = ()) -> NoiseMade:
        """No noise: nothing is released, or it is released as it is."""
        return cls("none", Origin.NOWHERE, merged(engine))

    def __str__(self) -> str:
        return self.origin.describe(self.kind)


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
        Where the noise comes from.
    unit : str, default="task"
        What is protected.
    trust : str
        Who is trusted with what.
    other_epsilon : float, optional
        Epsilon under the other relation, at the same delta.
    doubts : tuple of Doubt, default=()
        Doubts about it. With one of grade void it does not hold; with others, not proven to the last
        bit, it does, and says so.
    domain : str
        Which other data a task's data cannot be told from, and what becomes of data outside.

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
    doubts: tuple[Doubt, ...] = ()
    domain: str = DOMAIN

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InputError(f"epsilon must be at least 0. Got {self.epsilon!r}. Price the plan first.")
        if not 0 <= self.delta <= 1:
            raise InputError(f"delta must be in [0, 1]. Got {self.delta!r}. Use default_delta(n_tasks).")
        if self.relation not in _WORLDS:
            raise InputError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}. Choose one.")
        object.__setattr__(self, "doubts", tuple(self.doubts))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it does not hold, if it does not."""
        return tuple(doubt.reason for doubt in self.doubts if doubt.grade == Grade.VOID)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why it is not proven to the last bit, if it is not."""
        return tuple(doubt.reason for doubt in self.doubts if doubt.grade == Grade.LAST_BIT)

    @property
    def holds(self) -> bool:
        """Whether epsilon is finite and nothing makes it void."""
        return math.isfinite(self.epsilon) and not self.reasons

    @property
    def proven_to_the_last_bit(self) -> bool:
        """Whether it holds, lowest bits of floating-point numbers included."""
        return self.holds and not self.doubts

    def __str__(self) -> str:
        parts = [self._verdict(), self._unproven(), self._meaning(), self._other(), self._conditions()]
        return " ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold; infinity becomes the text "inf".

        Examples
        --------
        >>> g = Guarantee(float("inf"), 1e-5, "replace", 9, "exact Gaussian DP", "everyone", "none")
        >>> g.to_dict()["epsilon"]
        'inf'
        """
        out: dict[str, Any] = {"format": FORMAT} | {f.name: getattr(self, f.name) for f in fields(self)}
        out["doubts"] = [doubt.to_dict() for doubt in self.doubts]
        for name in ("epsilon", "other_epsilon"):
            if out[name] is not None and math.isinf(out[name]):
                out[name] = "inf"
        return out

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Guarantee:
        """Read what :meth:`to_dict` wrote, here or in an older version."""
        check_format(values.get("format"), FORMAT, "A guarantee")
        values = _without_old_words(values) if "caveats" in values else values
        known = {"format"} | {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(
                f"A guarantee has no field {unknown[0]!r}. Got {unknown}. Remove what is unknown."
            )
        given = {name: value for name, value in values.items() if name != "format"}
        for name in ("epsilon", "other_epsilon"):
            if given.get(name) is not None:
                given[name] = float(given[name])
        given["doubts"] = tuple(map(Doubt.from_dict, given.get("doubts", ())))
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

    def _unproven(self) -> str:
        if not self.unproven or math.isinf(self.epsilon):
            return ""
        return f"NOT PROVEN TO THE LAST BIT: {'; '.join(self.unproven)}."

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
            f"Domain: {self.domain}. Participation: {self.participation}. Trust: {self.trust}. "
            f"Noise: {self.noise}. Accounting: {self.accountant}."
        )


def guarantee_for(
    prices: Prices,
    made: NoiseMade,
    doubts: Iterable[Doubt] = (),
    *,
    n_tasks: int,
    participation: str,
    trust: str = TRUSTED_CURATOR,
    domain: str = DOMAIN,
) -> Guarantee:
    """Build a guarantee: what was priced, how the noise is made, and all doubts about it.

    Parameters
    ----------
    prices : Prices
        Epsilon and delta under both relations, and who proved them.
    made : NoiseMade
        How the noise is made, or will be; without noise that protects, it says none.
    doubts : iterable of Doubt
        Those of the plan, and of whatever the release rests on.
    n_tasks : int
        Public number of tasks.
    participation, trust, domain : str
        Who takes part when, who is trusted with what, and which data it covers.

    Examples
    --------
    >>> from cloister.privacy.accounting import Price
    >>> from cloister.channel import Relation
    >>> prices = Prices(Relation.REPLACE, Price(1.0, 1e-5, "exact Gaussian DP"), Price(0.5, 1e-5, "the same"))
    >>> seeded = NoiseMade("integer noise", Origin.SEED, Origin.SEED.doubts)
    >>> guarantee_for(prices, seeded, n_tasks=9, participation="everyone").holds
    False
    """
    return Guarantee(
        epsilon=prices.own.epsilon,
        delta=prices.own.delta,
        relation=prices.relation.value,
        n_tasks=n_tasks,
        accountant=prices.own.accountant,
        participation=participation,
        noise=str(made),
        trust=trust,
        other_epsilon=prices.other.epsilon,
        doubts=merged(doubts, made.doubts),
        domain=domain,
    )


def _without_old_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a guarantee that was written when doubts were words: before 0.2."""
    caveats = [Doubt(Grade.VOID, caveat).to_dict() for caveat in values["caveats"]]
    made = [doubt.to_dict() for doubt in doubts_in_old_words(str(values.get("noise", "")))]
    return {name: value for name, value in values.items() if name != "caveats"} | {"doubts": caveats + made}


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a bound in a few digits, never smaller than it is."""
    if not math.isfinite(value):
        return str(value)
    return format(
        float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value))), f".{digits}g"
    )
