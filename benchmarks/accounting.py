"""How long it takes to price and to calibrate a plan, and whether the numbers are right.

Twelve plans, from one round to 20,000. Each is priced at a known budget and then calibrated back from the
reference epsilon, with cold caches; both answers are compared with references computed by other means. Times
are compared with dp_accounting's: its accountant of privacy loss distributions prices 1000 rounds of hidden
Poisson sampling in the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cloister.privacy import hidden_sampling, visible_sampling
from cloister.privacy.accounting import calibrate, price
from cloister.privacy.events import Cost, GaussianEvent, RelationName
from cloister.privacy.sampling import Everyone, FixedSize, OnePass, Poisson, Sampling

NAME = "accounting"
PATHS = (
    "src/cloister/privacy/accounting.py",
    "src/cloister/privacy/accountants.py",
    "src/cloister/privacy/hidden_sampling.py",
    "src/cloister/privacy/visible_sampling.py",
)

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]


@dataclass(frozen=True)
class Case:
    """One plan: how it is sampled, its rounds and their shares, its budget and its known epsilon."""

    name: str
    sampling: Sampling
    rounds: int
    mu: float
    delta: float
    reference: float
    relation: RelationName = "zero_out"
    silence: float = 1.0  # sensitivity under zero-out over that under the relation
    shape: Callable[[int], float] = lambda t: 1.0
    n_tasks: int = 1000

    def cost_of(self) -> Callable[[float], Cost]:
        """Build the cost from the budget."""
        raw = [self.shape(t) for t in range(self.rounds)]
        norm = math.sqrt(sum(x * x for x in raw))
        shares = [x / norm for x in raw]

        def cost(mu: float) -> Cost:
            events = tuple(GaussianEvent(mu * s, self.silence * mu * s) for s in shares)
            return Cost(events, self.sampling, self.n_tasks, self.relation)

        return cost


def rising(t: int) -> float:
    return float((t + 1) ** 0.4)


def two_levels(t: int) -> float:
    return 1.0 if t < 100 else 2.0


# References. Everyone, one pass: the closed form by bisection at 40 digits (mpmath). Visible: direct sums
# over the binomial law (scipy.stats), for the rising shape a 2**22-point Fourier transform with nearest
# rounding. Hidden, zero-out: dp_accounting's PLDAccountant(REPLACE_SPECIAL) at a discretisation of 5e-5
# (T=1000), 2.5e-5 (T=20000) and 1e-4 (unequal). Hidden, replace: dp_accounting's connect-the-dots
# distributions at 1e-4, the split of delta optimised by a scalar search (mean channel), and at 1e-5 the pair
# with both halves (covariance channel).
CASES = (
    Case("everyone", Everyone(), 1, 0.5, 1e-5, 1.993091404415120),
    Case("everyone, rising budget", Everyone(), 20000, 2.0, 1e-6, 10.99715121422065, shape=rising),
    Case("one pass", OnePass(), 20, 4.0, 1e-5, 3.848610282537984),
    Case("visible Poisson", Poisson(0.25), 300, 2.0, 1e-5, 4.484337246303101),
    Case("fixed size", FixedSize(100), 1000, 0.4 * math.sqrt(1000), 1e-5, 76.67588174745184, n_tasks=205),
    Case("visible Poisson, two levels", Poisson(0.3), 200, 2.0, 1e-5, 5.055605048585917, shape=two_levels),
    Case("visible Poisson, rising budget", Poisson(0.3), 200, 2.0, 1e-5, 5.040452172001263, shape=rising),
    Case(
        "hidden Poisson", Poisson(100 / 205, True), 1000, 0.2 * math.sqrt(1000), 1 / 205, 12.122774164447328
    ),
    Case("hidden Poisson, long", Poisson(0.005, True), 20000, 100.0, 1e-6, 2.638569556120791),
    Case(
        "hidden Poisson, rising budget", Poisson(0.1, True), 100, 3.0, 1e-5, 1.2468331044277197, shape=rising
    ),
    Case("hidden, replace, mean", Poisson(0.1, True), 1000, 6.0, 1e-5, 2.4488858790163808, "replace", 0.5),
    Case(
        "hidden, replace, covariance",
        Poisson(0.02, True),
        20000,
        20.0,
        1e-6,
        1.8790916065881194,
        "replace",
        math.sqrt(0.5),
    ),
)


def run(quick: bool) -> tuple[Figures, Targets, list[list[str]]]:
    """Price and calibrate every plan.

    Parameters
    ----------
    quick : bool
        Leave out the plans of more than 1000 rounds.

    Returns
    -------
    figures, targets, table
        Numbers, what they should be, and rows of text with the header first.
    """
    import dp_accounting.pld  # noqa: F401  (its import, about a second, is not what is measured)
    import scipy.signal  # noqa: F401

    table = [["plan", "rounds", "epsilon", "reference", "price, s", "calibrate, s", "relative error"]]
    slowest = worst = 0.0
    for case in CASES:
        if quick and case.rounds > 1000:
            continue
        cost_of = case.cost_of()
        cost = cost_of(case.mu)
        paid, price_s = _timed(lambda cost=cost, case=case: price(cost, case.delta).epsilon)
        mu, calibrate_s = _timed(lambda f=cost_of, case=case: calibrate(f, case.reference, case.delta))
        error = max(abs(paid / case.reference - 1), abs(mu / case.mu - 1))
        slowest, worst = max(slowest, price_s, calibrate_s), max(worst, error)
        numbers = [
            f"{paid:.4f}",
            f"{case.reference:.4f}",
            f"{price_s:.3f}",
            f"{calibrate_s:.3f}",
            f"{error:.1e}",
        ]
        table.append([case.name, str(case.rounds), *numbers])
    figures = {"slowest_s": slowest, "slowest_over_dp_accounting": slowest / dp_accounting_seconds()}
    figures["worst_relative_error"] = worst
    targets = {"slowest_over_dp_accounting": ("<=", 4.5), "worst_relative_error": ("<=", 2e-3)}
    return figures, targets, table


def dp_accounting_seconds() -> float:
    """Return the processor seconds in which dp_accounting prices the hidden Poisson plan of 1000 rounds."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    event = dp_accounting.PoissonSampledDpEvent(100 / 205, dp_accounting.GaussianDpEvent(5.0))
    start = time.process_time()
    PLDAccountant(value_discretization_interval=1e-4).compose(event, 1000).get_epsilon(1 / 205)
    return time.process_time() - start


def _timed(work: Callable[[], float]) -> tuple[float, float]:
    """Return the result and the processor seconds it took, starting with empty caches."""
    price.cache_clear()
    hidden_sampling.clear()
    visible_sampling.clear()
    start = time.process_time()
    result = work()
    return result, time.process_time() - start
