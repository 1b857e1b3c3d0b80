r"""What joining can be expected to bring, from public numbers alone.

The noise in an average over m tasks of d numbers, released with a total budget of :math:`\mu`, is about
:math:`\sqrt d / (m\mu)` long where the messages have length 1 at most. Its inverse,
:math:`\rho = m\mu/\sqrt d`, decides how much of the gain of sharing survives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cloister.privacy import gaussian_dp
from cloister.privacy.accounting import default_delta

__all__ = ["Forecast", "forecast"]

#: (rho, low, high): what the middle 80 % of runs kept of the noise-free gain, linear in log rho in between.
#: Fitted to shared priors on random subsets of real tables; `python -m benchmarks forecast` regenerates it.
BAND = (
    (2.0, -0.25, 0.25),
    (4.0, -0.15, 0.65),
    (8.0, 0.0, 0.9),
    (16.0, 0.35, 1.0),
    (32.0, 0.7, 1.0),
    (64.0, 0.8, 1.0),
    (128.0, 0.95, 1.0),
)
#: A gain is dependable where at least this share of it is kept.
DEPENDABLE = 0.5


@dataclass(frozen=True)
class Forecast:
    """A band for the share of the noise-free gain that a run keeps.

    Attributes
    ----------
    rho : float
        Signal over noise, infinite without noise, 0 if nothing is shared.
    low, high : float
        What four of five runs keep; below 0, sharing may cost a little.
    tasks_needed : int, optional
        About how many tasks would make half of the gain dependable at this epsilon; None if it is already.

    Examples
    --------
    >>> print(forecast(n_tasks=2410, mu=0.22, dim=4))  # doctest: +ELLIPSIS
    At rho = 265 expect to keep ... % of what sharing without noise would gain.
    """

    rho: float
    low: float
    high: float
    tasks_needed: int | None = None

    def __str__(self) -> str:
        if self.rho == 0:
            return "Nothing is shared: every task learns alone and gains nothing from the others."
        if math.isinf(self.rho):
            return "Without noise the whole gain of sharing is kept, and nothing protects the tasks."
        gain = "of what sharing without noise would gain"
        if self.low > 0:
            text = f"At rho = {self.rho:.3g} expect to keep {_percent(self.low, self.high)} {gain}"
        else:
            top = _percent(self.high)
            text = (
                f"At rho = {self.rho:.3g} nothing is dependable: anything from a small loss to {top} {gain}"
            )
        if self.tasks_needed is None:
            return f"{text}."
        return f"{text}; about {self.tasks_needed:,} tasks would be needed at this epsilon to count on half."


def forecast(n_tasks: int, mu: float, dim: int) -> Forecast:
    """Forecast from the number of tasks, the Gaussian-DP budget and the number of shared parameters.

    Examples
    --------
    >>> forecast(n_tasks=50, mu=0.0, dim=4).high
    0.0
    """
    if mu == 0:
        return Forecast(0.0, 0.0, 0.0)
    rho = n_tasks * mu / math.sqrt(dim)
    if math.isinf(rho):
        return Forecast(rho, 1.0, 1.0)
    low, high = band_at(rho)
    return Forecast(rho, low, high, None if low >= DEPENDABLE else _tasks_needed(n_tasks, mu, dim))


def band_at(rho: float, band: tuple[tuple[float, float, float], ...] = BAND) -> tuple[float, float]:
    """Return the band at a signal-to-noise ratio: linear in its log between the table's rows."""
    knots, low, high = np.array(band).T
    at = math.log(rho)
    return float(np.interp(at, np.log(knots), low)), float(np.interp(at, np.log(knots), high))


def _tasks_needed(n_tasks: int, mu: float, dim: int) -> int:
    """Return for how many tasks half is dependable, at the epsilon of this budget and default deltas."""
    knots, low, _ = np.array(BAND).T
    rho = math.exp(float(np.interp(DEPENDABLE, low, np.log(knots))))
    epsilon = gaussian_dp.epsilon(mu, default_delta(n_tasks))
    needed = rho * math.sqrt(dim) / mu
    for _ in range(20 if epsilon > 0 else 0):  # mu depends on the number of tasks through delta, but weakly
        needed = rho * math.sqrt(dim) / gaussian_dp.mu(epsilon, default_delta(math.ceil(needed)))
    unit = int(10 ** max(0, math.floor(math.log10(needed)) - 1))
    return math.ceil(needed / unit) * unit


def _percent(*shares: float) -> str:
    return " to ".join(f"{100 * share:.0f}" for share in shares) + " %"
