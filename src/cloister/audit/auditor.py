"""The auditor: every attack on a plan at once, or on a bare mechanism.

A mechanism without an algorithm is audited as a plan of one release on one channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.audit import game
from cloister.audit.bound import lower_bound, lower_mu
from cloister.audit.isolation import check_isolation
from cloister.audit.masks import check_masks
from cloister.audit.noise_checks import check_freshness, check_last_bits, check_noise
from cloister.audit.one_run import one_run
from cloister.audit.price import reckon
from cloister.audit.real_runs import check_real_runs
from cloister.audit.releases import released_total
from cloister.audit.sensitivity import Furthest, furthest_on
from cloister.audit.verdict import Audit, Measured, MeasuredMu, claimed_epsilon
from cloister.core.arrays import Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.lifts import Relation
from cloister.core.tasks import Block
from cloister.plan.algorithm import Algorithm, Budget
from cloister.plan.plan import Plan
from cloister.privacy.chacha_proposals import Sampler, on_processor
from cloister.privacy.mechanisms import Mechanism
from cloister.privacy.randomness import Randomness, source_of
from cloister.privacy.statement import rounded_up
from cloister.store.billboard import BoardView
from cloister.store.records import Release

Progress = Callable[[int, int], None]

#: The claim is also tested where it is easier to measure than at the plan's own delta.
_DELTAS = (1e-2, 1e-1)
#: Pairs of messages that the search looks at on a channel: fewer where there are many, but all known ones.
_TRIES, _FEWEST, _ALTOGETHER = 1000, 400, 12_000
#: Steps of the progress bar: of one game, and of each other test.
_GAME, _TEST = 100, 25


def audit(
    plan: Plan,
    *,
    draws: int = 1_000_000,
    confidence: float = 0.95,
    progress: Progress | None = None,
    random_state: int | None = None,
    sampler: Sampler = on_processor,
) -> Audit:
    """Attack a plan's own releases in every way the auditor knows, and compare with what it claims.

    Parameters
    ----------
    plan : Plan
        Calibrated. No data are needed: the adversary of the guarantee chooses them.
    draws : int
        Games in each of the two worlds; fewer where they would take minutes.
    confidence : float, default=0.95
        A plan that keeps its promise is acquitted with at least this probability.
    progress : callable, optional
        Called with (steps done, steps in all).
    random_state : int, optional
        Makes the audit reproducible.
    sampler : Sampler
        Who computes exact noise: ``engine.noise_sampler()`` for that of an engine. By default the processor.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> found = audit(plan, draws=20_000, random_state=0)
    >>> found.verdict, 0.3 < found.bound.epsilon < 1
    ('No contradiction found.', True)
    """
    check_auditable(plan)
    seed = int(np.random.SeedSequence(random_state).generate_state(1)[0])
    source = source_of(random_state).sampled_by(sampler)
    error, games = 1 - confidence, game.choices(plan)

    def step(number: int) -> None:
        if progress is not None:
            progress(number, _GAME * games + 5 * _TEST)

    measured: list[Measured] = []
    curves: list[MeasuredMu] = []
    for choice in range(games):
        bounds, mu = _measure(plan, source, draws, choice, error / 2, step)
        measured += bounds
        curves += mu
    measured.sort(key=lambda m: m.bound.delta)
    price = reckon(plan, {m.bound.delta: m.claimed for m in measured})
    noise = check_noise(plan, _other(source, 1))
    fresh = check_freshness(plan, _other(source, 3))
    bits = check_last_bits(plan, _other(source, 4))
    step(_GAME * games + _TEST)
    ratio = _furthest(plan, seed)
    step(_GAME * games + 2 * _TEST)
    isolation = check_isolation(plan, seed % 2**31)
    step(_GAME * games + 3 * _TEST)
    runs = check_real_runs(plan, seed % 2**31)
    noise = runs.noise if noise is None else noise.beside("real runs", runs.noise)
    step(_GAME * games + 4 * _TEST)
    single = one_run(plan, _other(source, 2), 1 - error / 4)
    step(_GAME * games + 5 * _TEST)
    return Audit(
        plan.guarantee,
        tuple(measured),
        price,
        noise,
        fresh,
        bits,
        ratio,
        isolation,
        runs,
        single,
        confidence,
        check_masks(plan),
        tuple(curves),
    )


def check_auditable(plan: Plan) -> None:
    """Refuse a plan that has no release or no claim to attack."""
    if not plan.has_rounds:
        raise PlanError("A plan to audit must have releases. Got one without: its epsilon is 0.")
    if not math.isfinite(plan.mechanism.budget):
        raise PlanError(
            "This plan has no noise and claims nothing (epsilon is infinite). Audit a private one."
        )
    claim = plan.guarantee
    if not math.isfinite(claim.epsilon):
        raise PlanError(
            f"This plan claims nothing at delta {rounded_up(claim.delta)}. Audit it at a larger delta."
        )


def _measure(
    plan: Plan, source: Randomness, draws: int, choice: int, error: float, step: Callable[[int], None]
) -> tuple[list[Measured], list[MeasuredMu]]:
    """Play one game many times; bound epsilon at each delta, and mu where it is claimed.

    All bounds together, those of other choices too, err with probability `error`.
    """
    deltas = [delta for delta in (plan.delta, *_DELTAS) if delta is not None]
    deltas = [delta for delta in deltas if delta >= deltas[0]]
    mu = plan.guarantee.mu
    each = error / ((len(deltas) + (mu is not None)) * game.choices(plan))
    scores = game.play(
        plan,
        _other(source, 10 + choice),
        game.affordable(plan, draws),
        choice=choice,
        progress=lambda done, of: step(_GAME * choice + _GAME * done // of),
    )
    worlds = scores.silent, scores.speaking
    bounds = [
        Measured(claimed_epsilon(plan, delta), lower_bound(*worlds, delta, 1 - each), choice)
        for delta in deltas
    ]
    return bounds, [] if mu is None else [MeasuredMu(mu, lower_mu(*worlds, 1 - each), choice)]


def _other(source: Randomness, number: int) -> Randomness:
    """Return an independent source for another part of the audit."""
    return source.derived("audit", number)


def _furthest(plan: Plan, seed: int) -> Furthest:
    """Search every channel of a plan for the pair that moves its sum furthest."""
    channels = list(dict.fromkeys(channel for round in plan.rounds for channel in round.channels))
    total = partial(released_total, plan.mechanism)
    tries = min(_TRIES, max(_FEWEST, _ALTOGETHER // len(channels)))
    found = [furthest_on(c, plan.relation, total=total, tries=tries, seed=seed) for c in channels]
    return replace(
        max(found, key=lambda one: math.inf if math.isnan(one.ratio) else one.ratio),
        tries=sum(one.tries for one in found),
        channels=len(channels),
    )


def audit_mechanism(
    mechanism: Mechanism,
    channel: Channel,
    *,
    n_tasks: int,
    relation: Relation = Relation.REPLACE,
    delta: float | None = None,
    draws: int = 1_000_000,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] | None = None,
    random_state: int | None = None,
) -> Audit:
    """Attack one release of a mechanism on a channel; what is claimed is the price of its own event.

    Parameters
    ----------
    mechanism : Mechanism
        With its level set, e.g. ``Gaussian(mu=0.5)``.
    channel : Channel
        What tasks may say.
    n_tasks : int
        Public number of tasks.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    delta : float, optional
        By default that of a plan for so many tasks.
    draws, confidence, progress, random_state
        As for :func:`~cloister.audit.audit`. Isolation is not tested: there is no model.

    Examples
    --------
    >>> from cloister.channel import Channel, Outer
    >>> from cloister.mechanisms import Gaussian
    >>> channel = Channel(3, lift=Outer())
    >>> found = audit_mechanism(Gaussian(mu=0.5), channel, n_tasks=100, draws=20_000, random_state=0)
    >>> found.verdict, found.bound.epsilon < found.guarantee.epsilon
    ('No contradiction found. Isolation was not tested.', True)
    """
    plan = Plan(SingleRelease(channel), mechanism, n_tasks=n_tasks, relation=relation, delta=delta)
    return audit(plan, draws=draws, confidence=confidence, progress=progress, random_state=random_state)


@dataclass(frozen=True)
class SingleRelease(Algorithm):
    """An algorithm of one round on one channel, in which nobody has anything to say or to learn."""

    only: Channel

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return (Round(1.0, (self.only,)),)

    def start(self) -> Public:
        return {}

    def channel(self, board: BoardView) -> Channel:
        return self.only

    def init(self, block: Block, board: BoardView) -> States:
        return {}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[NDArray[Any], States]:
        return np.zeros((len(block), self.only.dim)), states

    def update(self, release: Release, board: BoardView) -> Public:
        return {}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {}
