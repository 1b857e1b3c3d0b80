"""An exhibit and its trial: a claim, the broken thing that makes it, an attack, and the thing repaired.

Both the broken thing and the repaired one run in both worlds; the epsilon that the attack proves is compared
with the claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np

from cloister.audit.bound import Bound, lower_bound
from cloister.core.arrays import Floats
from cloister.core.lifts import Relation


@dataclass(frozen=True)
class Claim:
    """What is promised of one task: an epsilon at a delta, against which neighbours."""

    epsilon: float
    delta: float
    relation: Relation


class Attack(Protocol):
    """A mechanism, run in one of two neighbouring worlds, and what the colluding others make of it."""

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Run `count` times; return one score a run, larger where the task seems to speak.

        In the world that is not `speaking` the task is silent, or says the opposite where the claim is about
        replacement.
        """


@dataclass(frozen=True)
class Repaired:
    """The same mechanism without the flaw, under the very same attack.

    Parameters
    ----------
    title : str
        What is different.
    claim : Claim
        What may be promised of it.
    attack : Attack
        The attack of the exhibit, pointed at it.
    """

    title: str
    claim: Claim
    attack: Attack


@dataclass(frozen=True)
class Exhibit:
    """A guarantee that is printed or shipped, and false.

    Parameters
    ----------
    name : str
        A short name to ask for it.
    title : str
        What is wrong, in a phrase.
    claim : Claim
        What is promised.
    source : str
        Who promises it, and where.
    story : str
        Why it is false.
    attack : Attack
        A small implementation of the broken thing, seen through the eyes of the colluding others.
    repaired : Repaired
        The thing repaired; the same attack must find nothing there.
    draws : int
        How many runs in each world convict it with room to spare.
    impossible : float, optional
        Where silence can make an output that speech cannot: the exact chance of it. Such runs, and no others,
        score below zero.
    """

    name: str
    title: str
    claim: Claim
    source: str
    story: str
    attack: Attack
    repaired: Repaired
    draws: int = 20_000
    impossible: float | None = None

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the scores of `count` runs in one of the two worlds."""
        return self.attack.draw(speaking, count, rng)


@dataclass(frozen=True)
class Conviction:
    """What was claimed and what was measured.

    Parameters
    ----------
    claim : Claim
        The promise.
    bound : Bound
        The lower bound on epsilon, at the claim's delta.
    draws, seed : int
        Runs in each world, and the seed of all of them.
    impossible : float
        Share of the silent runs that scored below zero: where an exhibit says so, outputs which speech cannot
        make.
    """

    claim: Claim
    bound: Bound
    draws: int
    seed: int
    impossible: float

    @property
    def stands(self) -> bool:
        """Whether the claim is refuted: more was measured than promised."""
        return self.bound.epsilon > self.claim.epsilon


def convict(
    exhibit: Exhibit, draws: int | None = None, seed: int = 0, confidence: float = 0.95
) -> Conviction:
    """Run an exhibit in both worlds and bound its epsilon from below.

    Parameters
    ----------
    exhibit : Exhibit
        What is accused.
    draws : int, optional
        Runs in each world; by default what the exhibit asks for.
    seed : int
        Of everything random.
    confidence : float
        Chance that the bound is not above the truth.

    Examples
    --------
    >>> from cloister.audit.museum.noise_exhibits import randomness_exhibits
    >>> found = convict(randomness_exhibits()[1], draws=1000)
    >>> found.stands, found.bound.epsilon > 4
    (True, True)
    """
    return _measure(exhibit, exhibit.claim, exhibit.attack, draws or exhibit.draws, seed, confidence)


def convict_repaired(
    exhibit: Exhibit, draws: int | None = None, seed: int = 0, confidence: float = 0.95
) -> Conviction:
    """Try to convict the repaired thing by the same attack; with at least this confidence it fails.

    Examples
    --------
    >>> from cloister.audit.museum.noise_exhibits import randomness_exhibits
    >>> convict_repaired(randomness_exhibits()[1], draws=1000).stands
    False
    """
    repaired = exhibit.repaired
    return _measure(exhibit, repaired.claim, repaired.attack, draws or exhibit.draws, seed, confidence)


def each(together: float, count: int) -> float:
    """Return the confidence of each of `count` statements that makes all of them hold together (Bonferroni).

    Examples
    --------
    >>> round(each(0.95, 5), 4)
    0.99
    """
    return 1 - (1 - together) / count


def _measure(
    exhibit: Exhibit, claim: Claim, attack: Attack, draws: int, seed: int, confidence: float
) -> Conviction:
    worlds = np.random.default_rng([seed, crc32(exhibit.name.encode())]).spawn(2)
    silent, speaking = (attack.draw(bool(w), draws, rng) for w, rng in enumerate(worlds))
    bound = lower_bound(silent, speaking, claim.delta, confidence)
    return Conviction(claim, bound, draws, seed, float(np.mean(silent < 0)))
