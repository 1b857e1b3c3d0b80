"""The verdict on a plan: what was measured beside what is claimed.

A plan claims an epsilon at every delta, and a trade-off curve (`cloister.privacy.tradeoff`). It is convicted

* if a lower bound on epsilon, measured or reckoned, is above the claim;
* if the noise does not follow its claimed law, comes again, or claims to be exact and is not;
* if keys, coins or seeds can be made again by others;
* if two messages move a sum further than its sensitivity;
* if a task's data reach what others send or learn, or the billboard, past the noise.

The probability that an innocent plan is convicted is at most 1 - confidence: half of it for the games, a
quarter each for the law of the noise and for the single run. The other tests never convict by chance. To be
acquitted proves nothing: the guarantee rests on its proof, not on this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloister.audit.bound import Bound, MuBound
from cloister.audit.isolation import Isolation
from cloister.audit.masks import Masks
from cloister.audit.noise_checks import Freshness, LastBits, NoiseLaw
from cloister.audit.one_run import OneRunBound
from cloister.audit.price import Reckoned
from cloister.audit.real_runs import RealRuns
from cloister.audit.sensitivity import Furthest
from cloister.core.arrays import Floats
from cloister.plan.plan import Plan
from cloister.privacy import accounting, tradeoff
from cloister.privacy.caveats import FLOATING_POINT
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.statement import rounded_down, rounded_up


def claimed_epsilon(plan: Plan, delta: float) -> float:
    """Return the epsilon that a plan claims at a delta."""
    if delta == plan.delta:
        return plan.guarantee.epsilon
    return accounting.price(plan.cost, delta).epsilon


def claimed_missed(plan: Plan, false_alarms: Floats) -> Floats:
    """Return the least share of cases that a test with such false alarms must miss.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3)), n_tasks=100).calibrate(epsilon=1.0)
    >>> claimed_missed(plan, np.array([0.0, 0.05, 1.0])).round(3).tolist()
    [1.0, 0.896, 0.0]
    """
    return plan.guarantee.tradeoff.missed(false_alarms)


@dataclass(frozen=True)
class Measured:
    """A claim and what was measured against it; `choice` says which declared channel was in use."""

    claimed: float
    bound: Bound
    choice: int

    @property
    def breach(self) -> bool:
        return self.bound.epsilon > self.claimed * (1 + 1e-9)


@dataclass(frozen=True)
class MeasuredMu:
    """A claim of Gaussian DP, and what was measured against it."""

    claimed: float
    bound: MuBound
    choice: int

    @property
    def breach(self) -> bool:
        return self.bound.mu > self.claimed * (1 + 1e-9)


@dataclass(frozen=True)
class Audit:
    """What the auditor found.

    Parameters
    ----------
    guarantee : Guarantee
        The claim.
    measured : tuple of Measured
        Lower bounds from games; those at the plan's own delta come first. All hold together.
    price : tuple of Reckoned
        Lower bounds that follow from all deviations of the noise; none where the auditor knows none.
    noise : NoiseLaw or None
        None if the law of the noise is not known to the auditor.
    freshness : Freshness
        Whether another key and another round make other noise, and a release has none twice.
    last_bits : LastBits or None
        None if the noise does not claim to be exact.
    sensitivity : Furthest
        The pair of messages that moves a sum furthest, against what is claimed.
    isolation : Isolation
        Whether data reached other models past the billboard.
    runs : RealRuns
        What small real runs under several keys showed.
    one_run : OneRun or None
        None if there is no channel for canaries.
    confidence : float
        Of everything together.
    masks : Masks or None
        What a curator's view of secure sums gave away; None where messages are not masked.
    gaussian : tuple of MeasuredMu
        Lower bounds on mu from the same games; none where the claim is not one of Gaussian DP.
    """

    guarantee: Guarantee
    measured: tuple[Measured, ...]
    price: tuple[Reckoned, ...]
    noise: NoiseLaw | None
    freshness: Freshness
    last_bits: LastBits | None
    sensitivity: Furthest
    isolation: Isolation
    runs: RealRuns
    one_run: OneRunBound | None
    confidence: float
    masks: Masks | None = None
    gaussian: tuple[MeasuredMu, ...] = ()

    @property
    def bound(self) -> Bound:
        """The largest lower bound at the plan's own delta."""
        own = [m.bound for m in self.measured if m.bound.delta == self.guarantee.delta]
        return max(own, key=lambda bound: bound.epsilon)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the plan is convicted; none if it is not."""
        return tuple(reason for _, reason in self.breaches())

    def breaches(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each test that convicts, as in `rows`, and why."""
        for m in self.measured:
            if m.breach:
                measured, claimed = rounded_down(m.bound.epsilon), rounded_up(m.claimed)
                at = f"measured at delta {rounded_up(m.bound.delta)}, {claimed} claimed"
                yield "game", f"epsilon >= {measured} {at}"
        for one in self.gaussian:
            if one.breach:
                least, claimed = rounded_down(one.bound.mu), rounded_up(one.claimed)
                yield "game", f"mu >= {least} measured, Gaussian DP with {claimed} claimed"
        for r in self.price:
            if r.breach:
                least, claimed = rounded_down(r.least), rounded_up(r.claimed)
                yield "price", f"the noise of all rounds makes {r.what} >= {least}, {claimed} claimed"
        yield from self._noise_breaches()
        if self.sensitivity.breach:
            further = f"two messages move the sum {self.sensitivity.ratio:.4g} times as far as is claimed"
            yield "sensitivity", further
        if self.isolation.holds is False:
            yield "isolation", self.isolation.detail
        yield from (() if self.masks is None else (("masks", why) for why in self.masks.reasons))
        for what in self.runs.same:
            yield "real runs", f"{what} are the same in runs under different keys"
        if self.runs.broken:
            yield "real runs", self.runs.broken
        if self.one_run is not None and self.one_run.epsilon > self.guarantee.epsilon * (1 + 1e-9):
            yield "one run", f"epsilon >= {rounded_down(self.one_run.epsilon)} measured in one run"

    def _noise_breaches(self) -> Iterator[tuple[str, str]]:
        level, fresh = (1 - self.confidence) / 4, self.freshness
        if self.noise is not None and self.noise.p_value < level:
            worst = f"{self.noise.worst}: p = {self.noise.p_value:.1g}"
            yield "noise law", f"the noise is not what it is said to be ({worst})"
        if not fresh.keys:
            yield "fresh noise", "the noise is the same under another key: who runs it again can subtract it"
        if not fresh.rounds:
            yield "fresh noise", "the noise of one round comes again in another"
        if not fresh.numbers:
            yield "fresh noise", "the noise of some numbers of a release comes again in others"
        if not fresh.secret:
            yield "fresh noise", "keys can be made again from what is public, or guessed"
        if self.last_bits is not None and self.last_bits.breach:
            yield (
                "last bits",
                "the noise is said to be exact, and its lowest bits are those of floating-point numbers",
            )

    @property
    def convicted(self) -> bool:
        """Whether anything speaks against the claim."""
        return bool(self.reasons)

    @property
    def verdict(self) -> str:
        """The outcome in one line: also whether there is a guarantee at all."""
        if self.convicted:
            return f"CONVICTED: {'; '.join(self.reasons)}."
        if self.guarantee.holds:
            untested = self.isolation.holds is None
            return "No contradiction found." + " Isolation was not tested." * untested
        return (
            f"No contradiction found, but the guarantee does not hold: {'; '.join(self.guarantee.reasons)}."
        )

    def __str__(self) -> str:
        g, rows = self.guarantee, list(self.rows())
        measured = rounded_down(self.bound.epsilon)
        claim = f"epsilon <= {rounded_up(g.epsilon)} claimed, epsilon >= {measured} measured"
        width = max(len(name) for name, _ in rows)
        return "\n".join(
            [
                self.verdict,
                *self._void(),
                f"{claim}, at delta {rounded_up(g.delta)} under {g.relation}.",
                *(f"  {name:{width}}  {text}" for name, text in rows),
                f"Everything together errs with probability {1 - self.confidence:.2g} at most.",
            ]
        )

    def _void(self) -> Iterator[str]:
        """Say why there is no guarantee at all, where the verdict is about something else."""
        if self.convicted and not self.guarantee.holds:
            yield f"Apart from that, the guarantee does not hold: {'; '.join(self.guarantee.reasons)}."

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each test and what it found, in words."""
        several = any(m.choice for m in self.measured)
        for m in self.measured:
            name = f"game, channel {m.choice + 1}" if several else "game"
            reached = f"epsilon >= {rounded_down(m.bound.epsilon)} of {rounded_up(m.claimed)}"
            games = m.bound.hits[1] + m.bound.false_hits[1]
            yield name, f"{reached} at delta {rounded_up(m.bound.delta)} ({games:,} games)"
        for one in self.gaussian:
            name = f"curve, channel {one.choice + 1}" if several else "curve"
            meant = rounded_down(tradeoff.epsilon(one.bound.mu, self.guarantee.delta))
            yield (
                name,
                (
                    f"mu >= {rounded_down(one.bound.mu)} of {rounded_up(one.claimed)}: as Gaussian DP, "
                    f"epsilon >= {meant} at delta {rounded_up(self.guarantee.delta)}"
                ),
            )
        for r in self.price[:1]:
            least = f"{rounded_down(r.least)} of {rounded_up(r.claimed)}"
            yield "price", f"{r.what} >= {least}, from the noise of all rounds"
        if not self.price:
            yield "price", "not reckoned: coins are hidden, or no noise is Gaussian"
        if self.one_run is None:
            yield "one run", "not tested: no channel or noise on which canaries have a number each"
        else:
            guessed = f"{self.one_run.correct} of {self.one_run.guesses} guesses right"
            measured = rounded_down(self.one_run.epsilon)
            yield "one run", f"epsilon >= {measured} ({guessed}, {self.one_run.canaries} canaries)"
        if self.noise is None:
            yield "noise law", "not tested: the auditor knows no law for noise like this"
        else:
            yield "noise law", f"p = {self.noise.p_value:.2g} ({self.noise.numbers:,} numbers)"
        fresh = self.freshness
        kinds = {"keys": fresh.keys, "rounds": fresh.rounds, "numbers": fresh.numbers}
        again = " and ".join(name for name, differ in kinds.items() if not differ)
        secret = "keys are the operating system's" if fresh.secret else "KEYS CAN BE MADE AGAIN"
        yield "fresh noise", f"NO: the same in two {again}" if again else f"in every round, by key; {secret}"
        yield "last bits", self._bits()
        searched = self.sensitivity.channels
        where = "the only channel" if searched == 1 else f"all {searched} channels"
        tried = f"{self.sensitivity.tries:,} tries on {where}"
        yield "sensitivity", f"{self.sensitivity.ratio:.4f} of the claim reached ({tried})"
        if self.masks is not None:
            yield "masks", str(self.masks)
        yield "isolation", ("holds: " if self.isolation.holds else "") + self.isolation.detail
        yield "real runs", self._of_runs()

    def _of_runs(self) -> str:
        if not self.runs.runs:
            return f"not tested: {self.runs.detail}"
        if self.runs.same:
            return f"NO: {' and '.join(self.runs.same)} are the same under {self.runs.runs} keys"
        if self.runs.broken:
            return f"NO: {self.runs.broken}"
        numbers = 0 if self.runs.noise is None else self.runs.noise.numbers
        return f"{numbers} numbers of noise in {self.runs.runs} runs; all is other under another key"

    def _bits(self) -> str:
        if self.last_bits is None:
            exact = FLOATING_POINT not in self.guarantee.doubts
            decoded = "releases do not say which whole numbers they were decoded from"
            return f"not tested: {decoded if exact else 'this noise does not claim to be exact'}"
        found = f"{self.last_bits.between:,} of {self.last_bits.numbers:,} numbers between the steps"
        return f"{found}, {self.last_bits.hits:,} impossible ones"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold."""
        bound, run = self.bound, self.one_run
        return {
            "verdict": "convicted" if self.convicted else "no contradiction found",
            "guarantee_holds": self.guarantee.holds,
            "reasons": list(self.reasons),
            "claimed_epsilon": self.guarantee.epsilon,
            "measured_epsilon": bound.epsilon,
            "delta": bound.delta,
            "confidence": self.confidence,
            "games": [
                {
                    "delta": m.bound.delta,
                    "claimed_epsilon": m.claimed if math.isfinite(m.claimed) else "inf",
                    "measured_epsilon": m.bound.epsilon,
                    "event": m.bound.event,
                    "hits": list(m.bound.hits),
                    "false_hits": list(m.bound.false_hits),
                }
                for m in self.measured
            ],
            "gaussian": [
                {"claimed_mu": one.claimed, "measured_mu": one.bound.mu, "event": one.bound.event}
                for one in self.gaussian
            ],
            "price": [vars(r) for r in self.price],
            "real_runs": {"runs": self.runs.runs, "same": list(self.runs.same)},
            "one_run": None if run is None else {k: getattr(run, k) for k in run.__dataclass_fields__},
            "noise_law": None
            if self.noise is None
            else {"p_value": self.noise.p_value, **self.noise.p_values},
            "fresh_noise": not self.freshness.breach,
            "last_bits": None if self.last_bits is None else vars(self.last_bits),
            "channels_searched": self.sensitivity.channels,
            "sensitivity_ratio": self.sensitivity.ratio if math.isfinite(self.sensitivity.ratio) else "inf",
            **({} if self.masks is None else {"masks": list(self.masks.reasons)}),
            "isolation": {"holds": self.isolation.holds, "detail": self.isolation.detail},
            "guarantee": self.guarantee.to_dict(),
        }
