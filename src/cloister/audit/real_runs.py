"""Small real runs under several keys: their noise is what was posted less what was collected.

Here everything takes part that a run goes through, the curator and its journal too. Every sum of a run is
collected again, by replay; what its release holds beside must follow the claimed law. What follows from a
run's key must differ under another key: releases, seeds of tasks and, where they are tossed, coins. It must
also differ where the operating system gives the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloister.audit.isolation import NotTestedError, Replayed, small_run
from cloister.audit.noise_checks import NoiseLaw, law_and_scale
from cloister.audit.releases import apart, fine, in_release_units, rounds_played
from cloister.core.arrays import Array, Floats
from cloister.core.errors import CloisterError
from cloister.engines.run import Run, run
from cloister.plan.plan import Plan
from cloister.privacy.noise import GaussianLaw
from cloister.privacy.sampling import Everyone, InOrder, may_take_part

#: Runs at least and at most, their rounds together, and numbers of noise that are enough.
_FEWEST, _MOST, _ROUNDS, _ENOUGH = 3, 24, 120, 300
#: Rounds of runs beyond which none are made.
_LONG = 300
#: Honest runs that agree with less than this chance may not; chance that two draws of little noise are equal.
_NEVER, _EQUAL = 1e-12, 0.06


@dataclass(frozen=True)
class RealRuns:
    """What small real runs under several keys showed.

    Parameters
    ----------
    runs : int
        How many there were; 0 if none could be made, for the reason in `detail`.
    noise : NoiseLaw, optional
        Of what was posted less what was collected; None if no law of it is known.
    same : tuple of str
        What was the same under all keys, and may not be.
    broken : str
        What else was not as it must be.
    """

    runs: int
    noise: NoiseLaw | None = None
    same: tuple[str, ...] = ()
    broken: str = ""
    detail: str = field(default="", compare=False)


def check_real_runs(plan: Plan, seed: int = 0) -> RealRuns:
    """Make small runs of a plan on invented tasks, and look at their noise, seeds and coins.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> found = check_real_runs(plan)
    >>> found.runs, found.noise.numbers, found.noise.p_value > 1e-3, found.same
    (24, 144, True, ())
    """
    if len(plan.rounds) > _LONG:
        return RealRuns(0, detail=f"runs of {len(plan.rounds)} rounds take too long here")
    try:
        small, tasks = small_run(plan, seed)
        made: list[Run] = []
        scores = np.zeros(0)
        while len(made) < _FEWEST or (
            len(made) < min(_MOST, _ROUNDS // max(1, len(small.rounds))) and scores.size < _ENOUGH
        ):
            made.append(run(small, tasks, random_state=seed + len(made)))
            scores = np.concatenate([scores, _uniforms(made[-1], Replayed.of(made[-1], tasks))])
        secret = [run(small, tasks) for _ in range(_FEWEST)]
    except (NotTestedError, CloisterError) as error:
        return RealRuns(0, detail=str(error))
    same = dict.fromkeys([*_same(made), *_same(secret)])
    if any(_beyond_what_is_priced(one) for one in made):
        return RealRuns(len(made), broken="a task takes part in more rounds than its price is made for")
    noise = NoiseLaw(law_and_scale(scores), scores.size) if scores.size else None
    return RealRuns(len(made), noise, tuple(same))


def _uniforms(finished: Run, replayed: Replayed) -> Floats:
    """Return the noise of a run's releases, turned into uniforms by its claimed law."""
    plan, board = finished.plan, finished.board
    noise = [
        release.value - in_release_units(channel, np.asarray(total))
        for release, channel, total in zip(board.releases, replayed.channels, replayed.sums, strict=True)
    ]
    if plan.mechanism.correlated:
        if not fine(plan):
            return np.zeros(0)
        return GaussianLaw(1.0).uniforms(apart(plan, np.array(noise[: rounds_played(plan)]))).ravel()
    laws = [
        plan.mechanism.law(channel, plan.noise(t, channel)) for t, channel in enumerate(replayed.channels)
    ]
    found = [law.uniforms(one[None]).ravel() for law, one in zip(laws, noise, strict=True) if law is not None]
    return np.concatenate([np.zeros(0), *found])


def _same(runs: Sequence[Run]) -> list[str]:
    """Say what is the same in all runs, where honest ones would hardly ever agree."""
    plan, size = runs[0].plan, len(runs[0].private.seeds)
    numbers = sum(release.value.size for release in runs[0].board.releases)
    chances: dict[str, tuple[float, Callable[[Run], Array]]] = {
        "releases": (numbers * math.log(_EQUAL), lambda one: _released(one)),
        "seeds of tasks": (-64.0, lambda one: one.private.seeds),
    }
    if not isinstance(plan.sampling, (Everyone, InOrder)):
        p = plan.sampling.probability(size, len(plan.rounds))
        # Of coins that are tossed together, for a set of some size, two sets agree at most as often as the
        # root of what coins by themselves do.
        tossed = size * len(plan.rounds) / 2 * math.log(p**2 + (1 - p) ** 2)
        chances["coins"] = (tossed, lambda one: np.asarray(one.private.coins))
    return [
        name
        for name, (log, what) in chances.items()
        if (len(runs) - 1) * log < math.log(_NEVER)
        and all(np.array_equal(what(runs[0]), what(one), equal_nan=True) for one in runs[1:])
    ]


def _beyond_what_is_priced(one: Run) -> bool:
    """Say whether a task takes part in other rounds than its price allows."""
    sampling, rounds = one.plan.sampling, len(one.plan.rounds)
    taken = (np.flatnonzero(column).tolist() for column in np.asarray(one.private.coins).T)
    return not all(may_take_part(sampling, rounds, own) for own in taken)


def _released(one: Run) -> Floats:
    return np.concatenate([release.value for release in one.board.releases])
