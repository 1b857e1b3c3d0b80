r"""What joining can be expected to bring, from public numbers alone.

The noise in an average over m tasks of d numbers, released with a total budget of :math:`\mu`, is about
:math:`\sqrt d / (m\mu)` long where the messages have length 1 at most. Its inverse,
:math:`\rho = m\mu/\sqrt d`, decides how much of the gain of sharing survives. Tasks with few rows say less:
from n of them a task learns about n / (n + d) of its weights, and :math:`\rho` shrinks with that. A row with
a class counts as a quarter of one with a number: its Fisher information of the log-odds is p(1 - p).

How wide the codebook's bounds are does not enter: a private search for where the targets are costs at most a
tenth of the squared budget, whatever the width, and counts as four parameters. Where tasks and budget are too
few for it to find anything, what is forecast holds in narrow bounds alone, and `SilentSearch` says so.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.privacy import tradeoff
from cloister.privacy.accounting import default_delta

if TYPE_CHECKING:
    from cloister.plan.plan import Plan

#: (rho, low, high, pays): the shortest interval with what 88 % of runs on many tables kept of the noise-free
#: gain, so that it holds for 80 % on another one, and the share of runs that kept any; linear in log rho in
#: between. `python -m benchmarks forecast` regenerates it.
BAND = (
    (1.0, -0.15, 0.4, 0.39),
    (2.0, -0.15, 0.7, 0.56),
    (4.0, -0.05, 1.0, 0.79),
    (8.0, 0.2, 1.0, 0.95),
    (16.0, 0.6, 1.0, 0.99),
    (32.0, 0.8, 1.0, 0.99),
    (64.0, 0.9, 1.0, 0.99),
    (128.0, 0.9, 1.0, 0.99),
)
Band = tuple[tuple[float, float, float, float], ...]
#: As many parameters as a search for the units of targets and features counts as: it is heard, or not.
SEARCH = 4
#: Rows for each parameter in a task of an ordinary table, where nobody has a guess.
USUAL_ROWS = 3.0
#: The fewest tasks that the band was measured with: of fewer it says nothing.
FEWEST_TASKS = 16
#: Why there is no forecast of a network.
NETWORK = "a network (it is known for linear models)"
#: No larger epsilon is advised: it would protect hardly anybody.
MOST_EPSILON = 16.0
#: No more tasks are planned for.
MOST_TASKS = 10_000_000
#: A gain is dependable where at least this share of it is kept.
DEPENDABLE = 0.5
#: From which chance of a gain on joining is no gamble.
NO_GAMBLE = 0.7


@dataclass(frozen=True)
class SilentSearch:
    """A private search that cannot find any targets, by public numbers alone, and what would let it.

    Attributes
    ----------
    n_tasks, epsilon : int, float
        Those of the plan.
    enough_tasks : int, optional
        How many tasks would do at this epsilon; None if it is more than anybody has.
    enough_epsilon : float, optional
        Which epsilon would do with so many tasks, of two digits; None beyond what is advised.
    """

    n_tasks: int
    epsilon: float
    enough_tasks: int | None
    enough_epsilon: float | None

    @classmethod
    def of(cls, plan: Plan) -> SilentSearch | None:
        """Return it for a plan by task; None if its search can find targets, or it has none."""
        n_tasks, trust, needed = plan.n_tasks, plan.trust, plan.algorithm.audible_from
        if not (needed and plan.mechanism.calibrated):
            return None
        heard = n_tasks * plan.mechanism.budget / trust.deviation(1.0, n_tasks)
        if heard >= needed:
            return None
        assert plan.delta is not None
        epsilon, most = plan.guarantee.epsilon, plan.delta
        budget = tradeoff.mu(epsilon, most)

        def lacks(tasks: int) -> float:
            """Return how many times as much budget so many tasks would need."""
            mu = tradeoff.mu(epsilon, min(most, default_delta(tasks))) / trust.deviation(1.0, tasks)
            return needed / heard * (n_tasks * budget / trust.deviation(1.0, n_tasks)) / (tasks * mu)

        few, many = n_tasks, 2 * n_tasks
        while many <= MOST_TASKS and lacks(many) > 1:
            few, many = many, 2 * many
        tasks = few + bisect_left(range(few, many), -1.0, key=lambda count: -lacks(count))
        least = tradeoff.epsilon(min(needed / heard * budget, MOST_EPSILON), most)
        unit = 10.0 ** (math.floor(math.log10(least)) - 1)
        larger = round(math.ceil(least / unit) * unit, 12)
        return cls(
            n_tasks, epsilon, tasks if many <= MOST_TASKS else None, larger if least <= MOST_EPSILON else None
        )

    def __str__(self) -> str:
        larger = [] if self.enough_epsilon is None else [f"epsilon {self.enough_epsilon:g}"]
        more = [] if self.enough_tasks is None else [f"{self.enough_tasks:,} tasks"]
        instead = f", or take at least {' or '.join(larger + more)}" if larger or more else ""
        return (
            f"With {self.n_tasks:,} tasks at epsilon {self.epsilon:.3g} the search for targets cannot find "
            f"anything: give the target narrow public bounds{instead}."
        )


@dataclass(frozen=True)
class Forecast:
    """A band for the share of the noise-free gain that a run keeps.

    Attributes
    ----------
    rho : float
        Signal over noise, infinite without noise, 0 if nothing is shared.
    low, high : float
        What four of five runs keep; below 0, sharing costs as much.
    pays : float
        How many of all runs keep some of it.
    tasks_needed : int, optional
        About how many tasks would make half of the gain dependable at this epsilon; None if it is already.
    group_rho : float, optional
        Signal over noise of a typical public group's own mean, where there are groups.
    unknown : str, optional
        Why the band is no forecast, if it was not measured for such plans.
    silent : SilentSearch, optional
        Where a search for targets cannot find anything. All else then holds in narrow bounds alone.

    Examples
    --------
    >>> print(forecast(n_tasks=2410, mu=0.22, dim=4))  # doctest: +ELLIPSIS
    At rho = 265 (signal over noise) joining pays in about 99 of 100 runs: expect to keep ... would gain.
    """

    rho: float
    low: float
    high: float
    pays: float
    tasks_needed: int | None = None
    group_rho: float | None = None
    unknown: str | None = None
    silent: SilentSearch | None = None

    def __str__(self) -> str:
        if self.rho == 0:
            return "Nothing is shared: every task learns alone and gains nothing from the others."
        if math.isinf(self.rho):
            return "Without noise the whole gain of sharing is kept, and nothing protects the tasks."
        if self.silent is not None:
            told = str(replace(self, silent=None))
            narrow = f"In narrow bounds: {told[0].lower()}{told[1:]}"
            return f"{self.silent} {narrow if self.calibrated else told}"
        if not self.calibrated:
            return f"No forecast: {self.unknown}."
        ends = _percent(self.low, self.high)
        if self.low < 0:
            ends = f"anything from losing {_percent(-self.low)} to keeping {_percent(self.high)}"
        text = (
            f"At rho = {self.rho:.3g} (signal over noise) joining pays in about {self.chance} runs: expect "
            f"{'to keep ' * (self.low >= 0)}{ends} of what sharing without noise would gain"
        )
        if self.tasks_needed is not None:
            text += f"; about {self.tasks_needed:,} tasks would be needed at this epsilon to count on half"
        if self.group_rho is not None:
            text += f"; a typical group's own mean is heard at rho = {self.group_rho:.3g}"
        return f"{text}."

    def to_dict(self) -> dict[str, object]:
        """Return the numbers for JSON."""
        names = ("low", "high", "pays", "rho", "calibrated")
        silent = {} if self.silent is None else {"silent": asdict(self.silent)}
        return {name: getattr(self, name) for name in names} | silent

    @property
    def calibrated(self) -> bool:
        """Whether the band was measured for such plans: of linear models, and of as many tasks."""
        return self.unknown is None

    @property
    def chance(self) -> str:
        """How often joining pays, in words: of ten runs, or of a hundred where nearly all do."""
        of = 10 if self.pays < 0.95 else 100
        return f"{round(of * self.pays)} of {of}"


def forecast(
    n_tasks: int, mu: float, dim: int, rows: float | None = None, group: float | None = None
) -> Forecast:
    """Forecast from the number of tasks, the Gaussian-DP budget and the number of shared parameters.

    Parameters
    ----------
    n_tasks, mu, dim : int, float, int
        Tasks, budget of the rounds that are about the parameters, and parameters.
    rows : float, optional
        A public guess at how many rows a typical task has: a number that you know without the data. Of rows
        with classes, `rows_of_classes`.
    group : float, optional
        Tasks in a typical public group, which half of every message is for.

    Examples
    --------
    >>> forecast(n_tasks=50, mu=0.0, dim=4).high
    0.0
    >>> forecast(200, 0.25, 9, rows=5).low < forecast(200, 0.25, 9, rows=50).low
    True
    """
    if mu == 0:
        return Forecast(0.0, 0.0, 0.0, 0.0)
    rho = signal_to_noise(n_tasks, mu, dim, rows)
    if math.isinf(rho):
        return Forecast(rho, 1.0, 1.0, 1.0)
    low, high, pays = band_at(rho)
    needed = None if low >= DEPENDABLE else dependable_from(n_tasks, mu, dim, rows)
    group_rho = None if group is None else rho * group / n_tasks / math.sqrt(2)
    few = f"too few tasks (it is known from {FEWEST_TASKS} on)" if n_tasks < FEWEST_TASKS else None
    return Forecast(rho, low, high, pays, needed, group_rho, few)


def signal_to_noise(n_tasks: int, mu: float, dim: int, rows: float | None = None) -> float:
    """Return rho, by which the band is looked up; parameters are those of `forecast`."""
    return n_tasks * mu * _information(dim, rows) / math.sqrt(dim)


def rows_of_classes(dim: int, rows: float | None = None) -> float:
    """Return how many rows with numbers say as much of so many parameters as these rows with classes.

    Examples
    --------
    >>> rows_of_classes(dim=4, rows=40)
    10.0
    """
    return (USUAL_ROWS * dim if rows is None else rows) / 4


def band_at(rho: float, band: Band = BAND) -> tuple[float, float, float]:
    """Return the band, and the chance of a gain, at a ratio of signal to noise: linear in its log."""
    knots, *columns = np.array(band).T
    low, high, pays = (float(np.interp(math.log(rho), np.log(knots), column)) for column in columns)
    return low, high, pays


def dependable_from(n_tasks: int, mu: float, dim: int, rows: float | None = None) -> int:
    """Return about how many tasks make half of the gain dependable, whether or not there are so many.

    It is at the epsilon that this budget is at the default delta of so many tasks. Parameters are those of
    `forecast`.

    Examples
    --------
    >>> needed = dependable_from(50, 0.3, 9)
    >>> forecast(50, 0.3, 9).tasks_needed == needed, dependable_from(5000, 0.3, 9) < 5000
    (True, True)
    """
    epsilon = tradeoff.epsilon(mu, default_delta(n_tasks))
    needed = n_tasks * dependable_mu(n_tasks, dim, rows) / mu
    for _ in range(20 if epsilon > 0 else 0):  # mu depends on the number of tasks through delta, but weakly
        tasks = max(2, math.ceil(needed))
        needed = tasks * dependable_mu(tasks, dim, rows) / tradeoff.mu(epsilon, default_delta(tasks))
    unit = int(10 ** max(0, math.floor(math.log10(needed)) - 1))
    return math.ceil(needed / unit) * unit


def dependable_mu(n_tasks: int, dim: int, rows: float | None = None) -> float:
    """Return the budget at which half of the gain is dependable for so many tasks."""
    knots, low = np.array(BAND).T[:2]
    rho = math.exp(float(np.interp(DEPENDABLE, low, np.log(knots))))
    return rho * math.sqrt(dim) / n_tasks / _information(dim, rows)


def _information(dim: int, rows: float | None) -> float:
    """Return what a task learns of its weights from so many rows, against what it learns from usual ones."""
    return 1.0 if rows is None else rows / (rows + dim) * (USUAL_ROWS + 1) / USUAL_ROWS


def _percent(*shares: float) -> str:
    return " to ".join(f"{100 * share:.0f}" for share in shares) + " %"
