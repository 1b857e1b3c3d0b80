"""What an exhibit is: a claim, the broken thing that makes it, an attack on it, and the thing repaired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloister.arrays import Floats
from cloister.channel import Relation

__all__ = ["Attack", "Claim", "Exhibit", "Repaired"]


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
