"""Accountants: each reads a cost and returns an epsilon or a delta with a proof, or says that it cannot.

They hold no state. All bounds are for what the *other* tasks see together: the whole billboard, their own
data, coins and models. Nothing here depends on data.

Composition and groups in closed form hold for every mechanism, and serve guarantees that are known only as
numbers. Where the mechanism is known, its own accounting is tighter.

References
----------
Kairouz, Oh, Viswanath, *The composition theorem for differential privacy*, arXiv:1311.0776, Theorem 3.5.
Vadhan, *The complexity of differential privacy*, 2017, Lemma 2.2 (groups).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from cloister.core.errors import InputError
from cloister.privacy import chi_square_pld, hidden_sampling, tradeoff, visible_sampling
from cloister.privacy.events import Cost, GammaEvent, GaussianEvent, PureEvent
from cloister.privacy.sampling import Epochs, Everyone, FixedSize, OnePass


def composition_bound(epsilons: Sequence[float], delta: float) -> float:
    r"""Epsilon at ``delta`` of releases that are purely ``epsilons``-DP, each chosen after the ones before.

    The smallest of three bounds, with :math:`A = \sum_t \epsilon_t \tanh(\epsilon_t/2)` and
    :math:`Q = \sum_t \epsilon_t^2`:

    .. math::
        \sum_t \epsilon_t, \quad A + \sqrt{2Q\log(1/\delta)}, \quad A + \sqrt{2Q\log(e + \sqrt Q/\delta)}.

    Parameters
    ----------
    epsilons : sequence of float
        Price of each release, at least 0.
    delta : float
        In [0, 1). At 0 only the sum holds.

    Returns
    -------
    float
        Epsilon of all of them together.

    References
    ----------
    Paper "Privacy-preserving multi-task learning" (MP-MTL), Definition 7, from Kairouz et al., Theorem 3.5.

    Examples
    --------
    >>> round(composition_bound([0.1] * 100, 1e-5), 4)
    5.2981
    >>> composition_bound([0.5, 0.25], 0.0)
    0.75
    """
    if not all(epsilon >= 0 for epsilon in epsilons) or not 0 <= delta < 1:
        raise InputError(f"Epsilons must be at least 0 and delta in [0, 1). Got delta = {delta!r}.")
    total = math.fsum(epsilons)
    if delta == 0 or math.isinf(total):
        return total
    drift = math.fsum(epsilon * math.tanh(epsilon / 2) for epsilon in epsilons)
    squares = math.fsum(epsilon * epsilon for epsilon in epsilons)
    smaller = min(math.log(1 / delta), math.log(math.e + math.sqrt(squares) / delta))
    return min(total, drift + math.sqrt(2 * squares * smaller))


def composition_delta(epsilons: Sequence[float], epsilon: float) -> float:
    """Delta at ``epsilon``: the inverse of :func:`composition_bound`, rounded up.

    Examples
    --------
    >>> delta = composition_delta([0.1] * 100, 5.3)
    >>> 0.99e-5 < delta < 1e-5, composition_bound([0.1] * 100, delta) <= 5.3
    (True, True)
    >>> composition_delta([0.5, 0.25], 0.75), composition_delta([0.5, 0.25], 0.01)
    (0.0, 1.0)
    """
    total = composition_bound(epsilons, 0.0)
    if total <= epsilon:
        return 0.0
    drift = math.fsum(each * math.tanh(each / 2) for each in epsilons)
    squares = math.fsum(each * each for each in epsilons)
    if math.isinf(total) or epsilon <= drift:
        return 1.0
    log = (epsilon - drift) ** 2 / (2 * squares) * (1 - 1e-12)
    first = math.exp(-log)
    second = math.sqrt(squares) / (math.exp(min(log, 700.0)) - math.e) if log > 1.1 else 1.0
    return min(1.0, min(first, second) * (1 + 1e-12))


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    r"""Guarantee for ``size`` units that change at once, from that of one.

    The epsilons add up, and
    :math:`\delta (1 + e^\epsilon + \ldots + e^{(n-1)\epsilon}) = \delta (e^{n\epsilon}-1)/(e^\epsilon-1)`.

    Parameters
    ----------
    epsilon, delta : float
        Guarantee of one unit.
    size : int
        Units in the group; a public number.

    Returns
    -------
    tuple of float
        Epsilon and delta of the group; a delta of 1 promises nothing.

    Examples
    --------
    >>> epsilon, delta = group_privacy(0.5, 1e-6, 2)
    >>> epsilon, round(1e6 * delta, 3)
    (1.0, 2.649)
    """
    _check_group(epsilon, delta, size)
    if epsilon == 0:
        return 0.0, min(1.0, size * delta)
    # (e^{n eps} - 1) / (e^eps - 1), with the largest factor taken out lest it overflow.
    steps = math.expm1(-size * epsilon) / math.expm1(-epsilon)
    return size * epsilon, _scaled(delta, (size - 1) * epsilon, steps)


def published_group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    r"""Guarantee of a group as MP-MTL prints it, :math:`(n\epsilon, n e^{n\epsilon}\delta)`: never tighter.

    References
    ----------
    Paper "Privacy-preserving multi-task learning" (MP-MTL), Proposition 3.

    Examples
    --------
    >>> epsilon, delta = published_group_privacy(0.5, 1e-6, 2)
    >>> epsilon, round(1e6 * delta, 3)
    (1.0, 5.437)
    """
    _check_group(epsilon, delta, size)
    return size * epsilon, _scaled(delta, size * epsilon, size)


def _scaled(delta: float, exponent: float, factor: float) -> float:
    """Return delta * factor * exp(exponent), at most 1."""
    if delta == 0:
        return 0.0
    logarithm = math.log(delta) + math.log(factor) + exponent
    return min(1.0, math.exp(min(logarithm, 0.0) * (1 - 4e-16)))  # rounded up, as a bound should be


def _check_group(epsilon: float, delta: float, size: int) -> None:
    if not (0 <= epsilon < math.inf and 0 <= delta <= 1 and size >= 1):
        raise InputError(
            "A group needs a finite epsilon >= 0, a delta in [0, 1] and at least one unit. "
            f"Got {epsilon!r}, {delta!r} and {size!r}."
        )


class Accountant(Protocol):
    """Turns a cost into an epsilon or a delta, with a proof."""

    @property
    def name(self) -> str:
        """Name for the guarantee."""

    @property
    def exact(self) -> bool:
        """Whether no accountant can do better on what this one supports."""

    def supports(self, cost: Cost) -> bool:
        """Whether this cost can be priced."""

    def epsilon(self, cost: Cost, delta: float) -> float:
        """Epsilon at ``delta``; never understated."""

    def delta(self, cost: Cost, epsilon: float) -> float:
        """Delta at ``epsilon``; never understated."""


@dataclass(frozen=True)
class GaussianDP:
    r"""Exact Gaussian DP, for participation that is full or visible.

    Everyone: :math:`\mu = \sqrt{\sum_t \mu_t^2}`. One pass: the largest :math:`\mu_t`, whatever the order in
    which tasks come. Several passes: the costliest place in a pass. Visible sampling: the average over the
    task's own coins, see :mod:`cloister.privacy.visible_sampling`.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> cost = Cost((GaussianEvent(0.2),) * 1000, Everyone(), n_tasks=205)
    >>> round(GaussianDP().epsilon(cost, 1 / 205), 1)
    35.5
    """

    name: ClassVar[str] = "exact Gaussian DP"
    exact: ClassVar[bool] = True

    def supports(self, cost: Cost) -> bool:
        """Whether noise is Gaussian, and nothing is hidden, nothing is said, or nothing is private."""
        return cost.only(GaussianEvent) and (not amplified(cost) or not cost.private)

    def epsilon(self, cost: Cost, delta: float) -> float:
        return visible_epsilon(cost, delta, size=1)

    def delta(self, cost: Cost, epsilon: float) -> float:
        if not cost.private:
            return 1.0
        mu = single_mu(cost, size=1)
        if mu is not None:
            return tradeoff.delta(mu, epsilon)
        return visible_sampling.mixture_delta(_exposure(cost), _takers(cost, 1), epsilon)


@dataclass(frozen=True)
class Unamplified:
    """Gaussian DP as if the hidden coins were visible: a bound where finer ones fail.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Poisson
    >>> cost = Cost((GaussianEvent(1e3),) * 1000, Poisson(0.5, hidden=True), n_tasks=205)
    >>> PLD().supports(cost), Unamplified().supports(cost)
    (False, True)
    """

    name: ClassVar[str] = "Gaussian DP, amplification not used"
    exact: ClassVar[bool] = False

    def supports(self, cost: Cost) -> bool:
        """Whether noise is Gaussian and participation hidden."""
        return cost.only(GaussianEvent) and amplified(cost) and cost.private

    def epsilon(self, cost: Cost, delta: float) -> float:
        return visible_sampling.mixture_epsilon(_exposure(cost), _takers(cost, 1), delta)

    def delta(self, cost: Cost, epsilon: float) -> float:
        return visible_sampling.mixture_delta(_exposure(cost), _takers(cost, 1), epsilon)


@dataclass(frozen=True)
class PLD:
    """Privacy loss distributions, for hidden Poisson sampling (:mod:`cloister.privacy.hidden_sampling`).

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Poisson
    >>> cost = Cost((GaussianEvent(0.2),) * 1000, Poisson(100 / 205, hidden=True), 205, "zero_out")
    >>> round(PLD().epsilon(cost, 1 / 205), 1)
    12.1
    """

    name: ClassVar[str] = "privacy loss distributions"
    exact: ClassVar[bool] = False

    def supports(self, cost: Cost) -> bool:
        """Whether noise is Gaussian, participation hidden and the loss of a size that fits on a grid."""
        if not cost.only(GaussianEvent) or not amplified(cost) or not cost.private:
            return False
        return hidden_sampling.feasible(cost.groups, cost.probability, 1)

    def epsilon(self, cost: Cost, delta: float) -> float:
        return hidden_sampling.pld_epsilon(cost.groups, cost.probability, cost.relation, 1, delta)

    def delta(self, cost: Cost, epsilon: float) -> float:
        return hidden_sampling.pld_delta(cost.groups, cost.probability, cost.relation, 1, epsilon)


@dataclass(frozen=True)
class RDP:
    """Rényi DP by dp_accounting, at whole orders: hidden Poisson under zero-out, and full participation.

    Looser than the others, and independent of them: a cross-check, and a fallback for very small deltas.

    Examples
    --------
    >>> from cloister.privacy.events import GaussianEvent
    >>> from cloister.privacy.sampling import Poisson
    >>> cost = Cost((GaussianEvent(0.2),) * 1000, Poisson(100 / 205, hidden=True), 205, "zero_out")
    >>> round(RDP().epsilon(cost, 1 / 205), 1)
    13.6
    """

    name: ClassVar[str] = "Rényi DP"
    exact: ClassVar[bool] = False
    orders: ClassVar[tuple[int, ...]] = (*range(2, 17), 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256)

    def supports(self, cost: Cost) -> bool:
        """Whether the Rényi divergence of a round is proven: not for replacement under hidden sampling."""
        if not cost.only(GaussianEvent) or not cost.private or len(cost.groups) > 64:
            return False
        return isinstance(cost.sampling, Everyone) or (amplified(cost) and cost.relation == "zero_out")

    def epsilon(self, cost: Cost, delta: float) -> float:
        return float(self._compose(cost).get_epsilon(delta))

    def delta(self, cost: Cost, epsilon: float) -> float:
        return float(self._compose(cost).get_delta(epsilon))

    def _compose(self, cost: Cost) -> Any:
        import dp_accounting

        # Of the library's two readings of "replace one", neither is used: mu carries the relation already.
        relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        accountant = dp_accounting.rdp.RdpAccountant(self.orders, relation)
        for mu, _, count in cost.groups:
            event = dp_accounting.GaussianDpEvent(1 / float(mu))
            accountant.compose(dp_accounting.PoissonSampledDpEvent(float(cost.probability), event), count)
        return accountant


@dataclass(frozen=True)
class WishartPLD:
    """Privacy loss distributions of chi-square noise (`cloister.privacy.chi_square_pld`), with everyone in.

    Examples
    --------
    >>> cost = Cost((GammaEvent(300, 2.0),) * 10, Everyone(), n_tasks=320, relation="zero_out")
    >>> round(WishartPLD().epsilon(cost, 1e-3), 3)
    0.652
    """

    name: ClassVar[str] = "PLD of the Wishart mechanism"
    exact: ClassVar[bool] = False

    def supports(self, cost: Cost) -> bool:
        """Whether noise is chi-square and every task takes part in every round."""
        return cost.only(GammaEvent) and isinstance(cost.sampling, Everyone)

    def epsilon(self, cost: Cost, delta: float) -> float:
        return (
            chi_square_pld.gamma_epsilon(self._rounds(cost), cost.relation, delta)
            if cost.private
            else math.inf
        )

    def delta(self, cost: Cost, epsilon: float) -> float:
        return chi_square_pld.gamma_delta(self._rounds(cost), cost.relation, epsilon) if cost.private else 1.0

    def _rounds(self, cost: Cost) -> chi_square_pld.Shifts:
        events = (e for e in cost.events if isinstance(e, GammaEvent) and e.shift > 0)
        counts = Counter((float(e.degrees), float(e.shift)) for e in events)
        return tuple((degrees, shift, n) for (degrees, shift), n in sorted(counts.items()))


@dataclass(frozen=True)
class PureDP:
    """Sum of pure epsilons, or what :func:`~cloister.privacy.accountants.composition_bound` makes of them.

    One pass costs its most expensive round. Other sampling is priced as if all tasks were in every round.

    Examples
    --------
    >>> cost = Cost((PureEvent(0.1),) * 100, Everyone(), n_tasks=320)
    >>> round(PureDP().epsilon(cost, 1e-5), 4)
    5.2981
    """

    name: ClassVar[str] = "composition of pure DP"
    exact: ClassVar[bool] = False

    def supports(self, cost: Cost) -> bool:
        return cost.only(PureEvent)

    def epsilon(self, cost: Cost, delta: float) -> float:
        return composition_bound(self._epsilons(cost), delta)

    def delta(self, cost: Cost, epsilon: float) -> float:
        return composition_delta(self._epsilons(cost), epsilon)

    def _epsilons(self, cost: Cost) -> tuple[float, ...]:
        epsilons = tuple(e.epsilon for e in cost.events if isinstance(e, PureEvent))
        return (max(epsilons),) if isinstance(cost.sampling, OnePass) else epsilons


ACCOUNTANTS: tuple[Accountant, ...] = (GaussianDP(), PLD(), RDP(), WishartPLD(), PureDP())
FALLBACK: Accountant = Unamplified()


def amplified(cost: Cost) -> bool:
    """Whether hidden coins can make the price smaller."""
    return cost.sampling.hidden and cost.probability < 1 and bool(cost.groups)


def _exposure(cost: Cost) -> visible_sampling.Exposure:
    counts: dict[float, int] = {}
    for mu, _, n in cost.groups:
        counts[mu] = counts.get(mu, 0) + n
    return tuple(counts.items())


def single_mu(cost: Cost, size: int) -> float | None:
    """GDP parameter of the whole cost, if no coin is tossed."""
    if isinstance(cost.sampling, OnePass):  # at worst all of an owner's tasks fall into one round
        return size * max((mu for mu, _, _ in cost.groups), default=0.0)
    if isinstance(cost.sampling, Epochs):
        gap = cost.sampling.slots(cost.rounds)
        squares = [e.mu**2 for e in cost.events if isinstance(e, GaussianEvent)]
        return size * math.sqrt(max(math.fsum(squares[slot::gap]) for slot in range(gap)))
    if cost.probability >= 1:
        return size * math.sqrt(sum(n * mu * mu for mu, _, n in cost.groups))
    return None


def _takers(cost: Cost, size: int) -> tuple[float, ...]:
    """Probabilities that 0, 1, ... of an owner's tasks take part in a round."""
    if isinstance(cost.sampling, FixedSize):
        return visible_sampling.hypergeometric(size, cost.sampling.size, cost.n_tasks)
    return visible_sampling.binomial(size, cost.probability)


def visible_epsilon(cost: Cost, delta: float, size: int) -> float:
    """Epsilon for the owner of ``size`` tasks, as if everybody saw who takes part."""
    if not cost.private:
        return math.inf
    mu = single_mu(cost, size)
    if mu is not None:
        return tradeoff.epsilon(mu, delta)
    return visible_sampling.mixture_epsilon(_exposure(cost), _takers(cost, size), delta)
