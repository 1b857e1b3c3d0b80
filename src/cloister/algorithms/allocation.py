r"""How a budget is shared out over rounds.

Model-protected learning (arXiv:1809.06546, section 4.5) gives round t a budget :math:`\epsilon_t` that grows
like :math:`t^\alpha` or :math:`Q^{-t}`. Noise is inversely proportional to it, so under Gaussian DP
:math:`\mu_t` is proportional to :math:`\epsilon_t`, and a round's share of the squared budget is
:math:`\mu_t^2 / \sum_s \mu_s^2`: exact, where the paper's composition bound is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.errors import PlanError

__all__ = ["Allocation", "GeometricBudget", "PowerBudget"]


class Allocation(Protocol):
    """Shares of the squared budget, round by round."""

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return one share a round; they sum to 1."""


@dataclass(frozen=True)
class PowerBudget:
    """Budgets that change like t^alpha: grow with alpha > 0, stay even at 0, shrink below.

    Examples
    --------
    >>> PowerBudget(0.5).shares(3)
    (0.16666666666666666, 0.3333333333333333, 0.5)
    """

    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.alpha):
            raise PlanError(f"alpha must be finite. Got {self.alpha}.")

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return shares proportional to t^(2 alpha)."""
        return _normalised(2 * self.alpha * np.log(np.arange(1, rounds + 1)))


@dataclass(frozen=True)
class GeometricBudget:
    """Budgets that change like Q^-t: grow with Q < 1, stay even at 1, shrink above.

    Examples
    --------
    >>> [round(share, 4) for share in GeometricBudget(0.5).shares(3)]
    [0.0476, 0.1905, 0.7619]
    """

    q: float

    def __post_init__(self) -> None:
        if not 0 < self.q < math.inf:
            raise PlanError(f"Q must be > 0 and finite. Got {self.q}.")

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return shares proportional to Q^(-2 t)."""
        return _normalised(-2 * math.log(self.q) * np.arange(1, rounds + 1))


def _normalised(log_weights: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    weights = np.exp(log_weights - log_weights.max())
    if not weights.min() > 0:
        raise PlanError(
            f"Every round needs a share of the budget, and some of these {len(weights)} get none: "
            "use fewer rounds or a flatter allocation."
        )
    return tuple(float(share) for share in weights / weights.sum())
