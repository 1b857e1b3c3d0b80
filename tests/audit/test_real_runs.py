"""The auditor attacks what a run does: its own state of the noise, in every round, on every channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cloister import Plan
from cloister.algorithms import MeanRegularized
from cloister.audit import audit
from cloister.audit.noise_checks import check_last_bits
from cloister.channel import Channel, Plain, Round
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.plan.algorithm import Algorithm
from cloister.privacy.mechanisms import _Fresh
from cloister.privacy.randomness import SeededRandomness

MEAN = MeanRegularized(LeastSquares(2), rounds=3)


class Silent(_Fresh):
    """Releases bare sums, from some round on."""

    first = 0

    def release(self, total, channel):
        if self.turn < self.first:
            return super().release(total, channel)
        self.turn += 1
        return np.asarray(total) * channel.steps


class SilentInTheEnd(Silent):
    first = 2


@dataclass(frozen=True)
class Cheat(Gaussian):
    """`perturb` adds noise, and what a run begins does not."""

    def begin(self, schedule, source):
        return Silent(self, schedule, source)


@dataclass(frozen=True)
class CheatInTheEnd(Gaussian):
    def begin(self, schedule, source):
        return SilentInTheEnd(self, schedule, source)


@pytest.mark.parametrize("kind", [Cheat, CheatInTheEnd])
def test_noise_that_is_missing_in_a_run_is_missed(kind):
    plan = Plan(MEAN, kind(), n_tasks=60).calibrate(1.0)
    assert "the same under another key" in audit(plan, draws=2000, random_state=0).verdict


@dataclass(frozen=True)
class Leaky(Gaussian):
    """The last bits of a release say whether its first bare number is odd."""

    def perturb(self, total, channel, noise, source, round):
        value = super().perturb(total, channel, noise, source, round)
        return value * (1 + 1e-13 * float(np.asarray(total).ravel()[0] % 2))


@dataclass(frozen=True)
class Even(Gaussian):
    """Whole noise that is always even, so that a release has the parity of its sum."""

    def perturb(self, total, channel, noise, source, round):
        value = super().perturb(0 * total, channel, noise, source, round) / channel.steps
        return channel.steps * (total + 2 * np.rint(value / 2))


def test_last_bits_that_hang_on_the_sum_are_seen():
    plan = Plan(MEAN, Leaky(1.0), n_tasks=100)
    assert check_last_bits(plan, SeededRandomness(0)).between > 1000
    assert "lowest bits of" in audit(Plan(MEAN, Even(1.0), n_tasks=100), draws=2000, random_state=0).verdict


@dataclass(frozen=True)
class Liar(Plain):
    """A lift that says half of what a task can move its sum."""

    def sensitivity(self, relation):
        return super().sensitivity(relation) / 2


@dataclass(frozen=True)
class Many(Algorithm):
    """Eight rounds on channels of their own, one of which lies."""

    place: int

    def _all(self):
        return [Channel(2, 1.0 + k, Liar() if k == self.place else Plain()) for k in range(8)]

    def schedule(self, n_tasks, budget):
        return tuple(Round(0.02 if k == self.place else 0.14, (c,)) for k, c in enumerate(self._all()))

    def start(self):
        return {"x": np.zeros(1)}

    def channel(self, board):
        return self._all()[board.rounds]

    def init(self, block, board):
        return {}

    def send(self, states, block, board):
        return np.zeros((len(block), 2)), states

    def update(self, release, board):
        return {"x": np.zeros(1)}

    def finish(self, states, block, board):
        return {"coef": np.zeros((len(block), 1))}


@pytest.mark.parametrize("place", [0, 7])
def test_every_channel_is_searched_and_counted(place):
    found = audit(Plan(Many(place), n_tasks=100).calibrate(1.0), draws=2000, random_state=0)
    assert "2 times as far as is claimed" in found.verdict
    assert dict(found.rows())["sensitivity"].endswith("tries on all 8 channels)")
