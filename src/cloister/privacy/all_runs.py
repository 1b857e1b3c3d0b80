"""What all runs that were charged to one account promise together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cloister.doubts import Doubt, Grade, reasons_of
from cloister.errors import InputError
from cloister.privacy.events import RelationName
from cloister.privacy.statement import percent
from cloister.privacy.tradeoff import FALSE_ALARMS, Envelope, GaussianCurve

__all__ = ["AllRuns"]


@dataclass(frozen=True)
class AllRuns:
    r"""Gaussian DP of all runs of a population: those so far, and all there may ever be.

    Parameters
    ----------
    population : str
        Whose account.
    runs : int
        Charges so far.
    relation : {"replace", "zero_out"}
        The account's.
    spent : float
        :math:`\mu` of all charges so far, the root of their sum of squares: proven if their plans were not
        chosen by what earlier runs showed.
    budget : float
        :math:`\mu` of the account, which all charges together never pass: proven however plans are chosen.
    doubts : tuple of Doubt
        Those of all charges.

    References
    ----------
    Smith and Thakurta, "Fully adaptive composition for Gaussian differential privacy", arXiv:2210.17520.

    Examples
    --------
    >>> together = AllRuns("schools", 2, "replace", spent=0.5, budget=1.0)
    >>> round(together.detection(), 3)
    0.26
    """

    population: str
    runs: int
    relation: RelationName
    spent: float
    budget: float
    doubts: tuple[Doubt, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubts", tuple(self.doubts))
        if not (0 <= self.spent <= self.budget * (1 + 1e-6)):
            raise InputError(f"What is spent must be within the budget. Got {self.spent!r}, {self.budget!r}.")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why nothing can be promised, if that is so."""
        return reasons_of(Grade.VOID, self.doubts)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why it is not proven to the last bit, if it is not."""
        return reasons_of(Grade.LAST_BIT, self.doubts)

    def detection(self, false_alarms: float = FALSE_ALARMS, *, tasks: int = 1) -> float:
        """Return what any test can detect from everything that any charged run shows, ever.

        It is everything, 1, where nothing can be promised.
        """
        curve = Envelope(()) if self.reasons else GaussianCurve(self.budget)
        return curve.detection(false_alarms, tasks)

    def __str__(self) -> str:
        if self.reasons:
            return (
                f"Over all runs charged to the account of {self.population!r} nothing can be promised, "
                f"because of one of them {'; '.join(self.reasons)}"
            )
        so_far = percent(GaussianCurve(self.spent).detection())
        runs = f"the {self.runs} runs" if self.runs != 1 else "the 1 run"
        last_bit = "; this is not proven to the last bit, because of one of them " if self.unproven else ""
        last_bit += "; ".join(self.unproven)
        return (
            f"Over {runs} charged so far to the account of {self.population!r}, under {self.relation}, they "
            f"detect at most {so_far} of cases if none was chosen by what another showed, and at most "
            f"{percent(self.detection())} over all runs there may ever be, however they are chosen (with 5 % "
            f"false alarms){last_bit}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"doubts": [doubt.to_dict() for doubt in self.doubts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AllRuns:
        try:
            return cls(**{**values, "doubts": tuple(map(Doubt.from_dict, values["doubts"]))})
        except (TypeError, KeyError) as error:
            raise InputError(f"What all runs promise needs all its fields. Got {values!r}.") from error
