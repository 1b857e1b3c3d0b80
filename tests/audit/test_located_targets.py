"""The searches stand every attack; planted versions of the one for targets that leak are convicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cloister import Plan
from cloister.algorithms import Locate, SharedPrior
from cloister.algorithms.locate import BINS, PLACES, ROUNDS
from cloister.audit import audit
from cloister.audit.noise_checks import check_noise
from cloister.channel import Absolute, Channel, Round
from cloister.core.channel import GRID
from cloister.learners import Regression
from cloister.mechanisms import Gaussian
from cloister.privacy.randomness import SeededRandomness

LEARNER, LOCATE = Regression(2), Locate()


def attacked(algorithm, relation="replace", seed=0):
    plan = Plan(algorithm, n_tasks=200, relation=relation).calibrate(1.0)
    return audit(plan, draws=2000, confidence=0.9999, random_state=seed)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
def test_the_search_is_acquitted(relation, seed):
    """A false alarm has probability 1e-4 each; the search's own channel is among those attacked."""
    found = attacked(SharedPrior(LEARNER, locate=LOCATE), relation, seed)
    assert found.verdict == "No contradiction found."
    assert found.isolation.holds
    assert found.sensitivity.ratio == pytest.approx(1.0, abs=1e-6)


# ------------------------------------------------------------------ versions that leak


@dataclass(frozen=True)
class Widened(Channel):
    """Messages that are scaled after their clip, by a public unit below 1."""

    unit: float = 0.8

    def units(self, messages):
        return super().units(messages) / self.unit

    def whole(self, messages):
        return np.trunc(replace(self, unit=1.0).units(messages) * GRID / self.unit)


@dataclass(frozen=True)
class ScalesAfterTheClip(SharedPrior):
    """All that follows the search is told in the unit that was found, and clipped in the codebook's."""

    def schedule(self, n_tasks, budget):
        search, rest = np.split(np.array(super().schedule(n_tasks, budget), dtype=object), [ROUNDS])
        scaled = [Round(one.share, tuple(map(_widened, one.channels))) for one in rest]
        return (*search, *scaled)

    def channel(self, board):
        channel = super().channel(board)
        return channel if board.rounds < ROUNDS else _widened(channel)


def _widened(channel):
    return Widened(channel.dim, channel.clip, channel.lift)


@dataclass(frozen=True)
class Histogram(Channel):
    """A channel that clips each count by itself."""

    def units(self, messages):
        return np.clip(np.nan_to_num(messages), 0.0, 1.0)

    def whole(self, messages):
        return np.trunc(self.units(messages) * GRID)


_HISTOGRAM = Histogram(BINS, 1.0, Absolute())


@dataclass(frozen=True)
class TwoBins(SharedPrior):
    """A task is in the bin of its median and in the next one, for a smoother histogram."""

    def schedule(self, n_tasks, budget):
        rounds = super().schedule(n_tasks, budget)
        return (*(Round(one.share, (_HISTOGRAM,)) for one in rounds[:ROUNDS]), *rounds[ROUNDS:])

    def channel(self, board):
        return _HISTOGRAM if board.rounds < ROUNDS else super().channel(board)

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        if board.rounds < ROUNDS:
            messages = messages + np.roll(messages, 1, axis=1)
        return messages, states


@dataclass(frozen=True)
class CentresAtHome(SharedPrior):
    """Targets less the mean of everybody's, which nobody has perturbed."""

    def finish(self, states, block, board):
        models = super().finish(states, block, board)
        coef = np.array(models["coef"])
        coef[:, 0] += block.y.mean() - float(board["located_center"])
        return models | {"coef": coef}


@dataclass(frozen=True)
class PostsTheSum(SharedPrior):
    """A center from the counts as they were before noise."""

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        if board.rounds == PLACES - 1:
            object.__setattr__(self, "counts", messages.sum(axis=0))
        return messages, states

    def update(self, release, board):
        posted = super().update(release, board)
        if board.rounds == PLACES - 1:
            counts = getattr(self, "counts", np.zeros(BINS))
            center = np.linspace(-1, 1, BINS) @ counts / max(1.0, counts.sum())
            posted = posted | {"located_center": np.array(center)}
        return posted


@pytest.mark.parametrize(
    ("kind", "relation", "reason"),
    [
        (ScalesAfterTheClip, "replace", "times as far"),
        pytest.param(ScalesAfterTheClip, "zero_out", "times as far", marks=pytest.mark.slow),
        (TwoBins, "replace", "times as far"),
        pytest.param(TwoBins, "zero_out", "times as far", marks=pytest.mark.slow),
        (CentresAtHome, "replace", "of other tasks"),
        (PostsTheSum, "replace", "more than follows from its releases"),
    ],
)
def test_versions_that_leak_are_convicted(kind, relation, reason):
    found = attacked(kind(LEARNER, locate=LOCATE), relation)
    assert found.convicted
    assert reason in found.verdict


# ------------------------------------------------------------------ the noise of the search


@dataclass(frozen=True)
class LouderSearch(Gaussian):
    """Noise of another scale than is said, in the rounds of one search alone."""

    dim: int = BINS
    factor: float = 1.0

    def perturb(self, total, channel, noise, source, round):
        scale = self.factor if channel.dim == self.dim else 1.0
        return super().perturb(total, channel, scale * noise, source, round)


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
@pytest.mark.parametrize(
    ("algorithm", "dim"),
    [
        (SharedPrior(LEARNER, locate=LOCATE), BINS),
        (SharedPrior(Regression(4), locate=Locate((1, 2, 3))), 3 * BINS),
    ],
    ids=["targets", "features"],
)
def test_the_noise_of_a_search_has_its_law(algorithm, dim, factor):
    """A false alarm has probability 1e-3; the channel of features has one number a bin of every column."""
    mu = Plan(algorithm, n_tasks=200).calibrate(1.0).mechanism.mu
    plan = Plan(algorithm, LouderSearch(mu, dim=dim, factor=factor), n_tasks=200)
    assert sum(one.channels[0].dim == dim for one in plan.rounds) == ROUNDS
    p_value = check_noise(plan, SeededRandomness(0), numbers=40_000).p_value
    assert p_value > 1e-3 if factor == 1 else p_value < 1e-6
