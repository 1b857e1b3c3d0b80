"""What joining can be expected to bring, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Forecast", "forecast"]

#: (rho, low, high): share of the zero-noise gain kept, by signal to noise rho = m mu / sqrt(d).
BANDS = ((4.0, 0.0, 0.6), (10.0, 0.2, 0.9), (20.0, 0.5, 1.0), (35.0, 0.75, 1.0), (math.inf, 0.9, 1.0))


@dataclass(frozen=True)
class Forecast:
    """A band for the share of the noise-free gain that a run keeps."""

    rho: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"Expected to keep {self.low:.0%} to {self.high:.0%} of the gain (rho = {self.rho:.1f})."


def forecast(n_tasks: int, mu: float, dim: int) -> Forecast:
    """Forecast from the number of tasks, the Gaussian-DP budget and the number of shared parameters."""
    rho = n_tasks * mu / math.sqrt(dim)
    low, high = next((low, high) for limit, low, high in BANDS if rho <= limit)
    return Forecast(rho, low, high)
