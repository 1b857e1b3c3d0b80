"""Doubts about a guarantee, each with a grade and a reason in words.

Whatever takes part in making a release declares its own doubts: a mechanism, a source of randomness, an
engine, a plan. They are gathered once, by `cloister.privacy.guarantee.guarantee_for`; the guarantee prints
them, and a ledger keeps them with the charge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

from cloister.core.errors import InputError


class Grade(StrEnum):
    """How much a doubt takes away.

    *void*: the guarantee does not hold. *not proven to the last bit*: it is proven for real numbers, and the
    lowest bits of the floating-point numbers that were released, or that models are made of, may tell more.
    """

    VOID = "void"
    LAST_BIT = "not proven to the last bit"


@dataclass(frozen=True)
class Caveat:
    """One reason to doubt a guarantee.

    Examples
    --------
    >>> doubt = Caveat(Grade.VOID, "the bounds were read from the data")
    >>> print(doubt)
    void: the bounds were read from the data
    >>> Caveat.from_dict(doubt.to_dict()) == doubt
    True
    """

    grade: Grade
    reason: str

    def __post_init__(self) -> None:
        if self.grade not in list(Grade):
            raise InputError(
                f"grade must be one of {', '.join(map(repr, map(str, Grade)))}. Got {self.grade!r}."
            )
        if not (isinstance(self.reason, str) and self.reason):
            raise InputError(f"The reason of a doubt must be a text. Got {self.reason!r}.")
        object.__setattr__(self, "grade", Grade(self.grade))

    def __str__(self) -> str:
        return f"{self.grade}: {self.reason}"

    def to_dict(self) -> dict[str, str]:
        return {"grade": str(self.grade), "reason": self.reason}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Caveat:
        if not isinstance(values, Mapping) or set(values) != {"grade", "reason"}:
            raise InputError(f"A doubt has a grade and a reason, and nothing else. Got {values!r}.")
        return cls(values["grade"], values["reason"])


SEEDED = Caveat(
    Grade.VOID, "the noise is drawn from a seed, and whoever knows the seed can draw it again and subtract it"
)
FLOATING_POINT = Caveat(
    Grade.LAST_BIT, "the noise is drawn in floating point, whose lowest bits can give a message away"
)
SHARED_DEVICE = Caveat(
    Grade.LAST_BIT,
    "tasks share a device's kernels, where the number of one task's rows can move the last bits of another's",
)


def merged(*groups: Iterable[Caveat]) -> tuple[Caveat, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(groups)))


def reasons_of(grade: Grade, doubts: Iterable[Caveat]) -> tuple[str, ...]:
    return tuple(doubt.reason for doubt in doubts if doubt.grade == grade)


def caveats_in_old_words(noise: str) -> tuple[Caveat, ...]:
    """Read the doubts of a file of cloister 0.1, where they were words about noise; nothing writes such now.

    Examples
    --------
    >>> for doubt in caveats_in_old_words("INSECURE: floating-point noise, from a seed, for tests"):
    ...     print(doubt.grade)
    void
    not proven to the last bit
    >>> caveats_in_old_words("exact integer noise on a fixed-point sum, from a cryptographic generator")
    ()
    """
    found = (
        (noise.startswith("INSECURE"), SEEDED),
        ("floating-point" in noise, FLOATING_POINT),
    )
    return tuple(doubt for is_there, doubt in found if is_there)
