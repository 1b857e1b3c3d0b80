"""Trying an exhibit: run it in both worlds, bound its epsilon from below, compare with the claim."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from cloister.audit.bound import Bound, lower_bound
from cloister.audit.museum.exhibit import Attack, Claim, Exhibit

__all__ = ["Conviction", "convict", "convict_repaired", "each"]


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
    >>> from cloister.audit.museum.randomness import randomness_exhibits
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
    >>> from cloister.audit.museum.randomness import randomness_exhibits
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
