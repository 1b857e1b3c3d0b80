r"""How a budget is shared out over rounds.

MP-MTL (section 4.5) gives round t a budget :math:`\epsilon_t` that grows like :math:`t^\alpha` or
:math:`Q^{-t}`. Noise is inversely proportional to it, so under Gaussian DP :math:`\mu_t` is proportional to
:math:`\epsilon_t`, and a round's share of the squared budget is :math:`\mu_t^2 / \sum_s \mu_s^2`: exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloister.errors import PlanError

__all__ = ["Allocation", "Geometric", "Power"]


class Allocation(Protocol):
    """Shares of the squared budget, round by round."""

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return one share a round; they sum to 1."""


@dataclass(frozen=True)
class Power:
    """Budgets that grow like t^alpha; 0 is even.

    Examples
    --------
    >>> Power(0.5).shares(3)
    (0.16666666666666666, 0.3333333333333333, 0.5)
    """

    alpha: float = 0.0

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return shares proportional to t^(2 alpha)."""
        return _normalised(2 * self.alpha * np.log(np.arange(1, rounds + 1)))


@dataclass(frozen=True)
class Geometric:
    """Budgets that grow like Q^-t, for 0 < Q < 1.

    Examples
    --------
    >>> [round(share, 4) for share in Geometric(0.5).shares(3)]
    [0.0476, 0.1905, 0.7619]
    """

    q: float

    def __post_init__(self) -> None:
        if not self.q > 0:
            raise PlanError(f"Q must be > 0. Got {self.q}.")

    def shares(self, rounds: int) -> tuple[float, ...]:
        """Return shares proportional to Q^(-2 t)."""
        return _normalised(-2 * np.log(self.q) * np.arange(1, rounds + 1))


def _normalised(log_weights: np.ndarray) -> tuple[float, ...]:
    weights = np.exp(log_weights - log_weights.max())
    return tuple(float(share) for share in weights / weights.sum())
