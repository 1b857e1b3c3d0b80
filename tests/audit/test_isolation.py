"""Data of one task that reach another's model are found; what cannot be tested is said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import cloister as cl
from cloister import Plan
from cloister.algorithms import MeanRegularized
from cloister.audit.isolation import check_isolation, invented_tasks
from cloister.engines.local import LocalWorkers
from cloister.learners import LeastSquares

ALGORITHMS = [
    MeanRegularized(LeastSquares(3), rounds=3),
    MeanRegularized(cl.learners.Softmax(2, classes=3), rounds=2),
    cl.algorithms.SharedPrior(cl.learners.Regression(3)),
    cl.algorithms.SharedPrior(cl.learners.Classification(3)),
    cl.algorithms.SharedPrior(cl.learners.CountRegression(2, exposure=True), cl.algorithms.Mean()),
    cl.algorithms.SharedPrior(cl.learners.OrderedClassification(1, 3), cl.algorithms.Mean()),
    cl.algorithms.LowRank(cl.learners.Logistic(3), rounds=2),
    cl.algorithms.LocalNoise(cl.algorithms.GroupSparse(LeastSquares(3), rounds=2), epsilon=10.0),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_shipped_algorithms_isolate(algorithm):
    found = check_isolation(Plan(algorithm, n_tasks=500).calibrate(1.0))
    assert found.holds, found.detail


def test_it_works_with_sampling():
    for sampling in (cl.sampling.Poisson(0.5), cl.sampling.FixedSize(40), cl.sampling.OnePass()):
        plan = Plan(MeanRegularized(LeastSquares(2), rounds=3), sampling=sampling, n_tasks=60).calibrate(1.0)
        assert check_isolation(plan).holds


@dataclass(frozen=True)
class Mixing(MeanRegularized):
    """Models that are centred over all tasks at home: they see each other's."""

    def finish(self, states, block, board):
        models = super().finish(states, block, board)
        return {name: array - array.mean(axis=0) for name, array in models.items()}


@dataclass(frozen=True)
class Leftover(MeanRegularized):
    """A task starts its round from what the task before it left behind."""

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        return messages, {name: np.roll(array, 1, axis=0) for name, array in states.items()}


@pytest.mark.parametrize("kind", [Mixing, Leftover])
def test_rows_that_mix_are_convicted(kind):
    found = check_isolation(Plan(kind(LeastSquares(3), rounds=3), n_tasks=100).calibrate(1.0))
    assert found.holds is False
    assert "other tasks" in found.detail


@dataclass(frozen=True)
class MixingWhatIsSent(MeanRegularized):
    """Everybody says what the block says, as with a batch statistic; models are as they should be."""

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        return messages + 1e6 * np.median(block.y, axis=0).sum(), states


@dataclass(frozen=True)
class FollowsOne(MeanRegularized):
    """Everybody says what one task holds: the first, the last, the smallest or the largest."""

    place: str = "first"

    def send(self, states, block, board):
        messages, states = super().send(states, block, board)
        rows = (block.weight > 0).sum(axis=1)
        at = {"first": 0, "last": -1, "smallest": rows.argmin(), "largest": rows.argmax()}[self.place]
        return messages + np.nan_to_num(block.y[at]).sum(), states


PLACES = ["first", "last", "smallest", "largest"]


def sending(algorithm):
    return Plan(algorithm, n_tasks=60).calibrate(1.0)


def test_messages_that_mix_are_convicted():
    found = check_isolation(sending(MixingWhatIsSent(LeastSquares(2), rounds=3)))
    assert (found.holds, "what other tasks send in round 1" in found.detail) == (False, True)


@pytest.mark.parametrize("place", PLACES)
def test_whoever_is_listened_to_is_among_the_victims(place):
    algorithm = FollowsOne(LeastSquares(2), rounds=1, place=place)
    found = check_isolation(sending(algorithm))
    assert (found.holds, "what other tasks send" in found.detail) == (False, True)
    tasks = invented_tasks(sending(MeanRegularized(LeastSquares(2))), 11, seed=1)
    with pytest.raises(cl.errors.AlgorithmError, match="send in round 0 mixes rows"):
        cl.check_algorithm(algorithm, tasks)


def test_a_task_that_counts_twice_is_convicted(monkeypatch):
    def twice(self, board, channel, coins):
        return collect(self, board, channel, coins) + np.ones(channel.size, dtype=np.int64)

    collect = LocalWorkers.collect
    monkeypatch.setattr(LocalWorkers, "collect", twice)
    found = check_isolation(sending(MeanRegularized(LeastSquares(2), rounds=3)))
    assert (found.holds, "a sum is not that of one message" in found.detail) == (False, True)


SUMS: dict[str, float] = {}


@dataclass(frozen=True)
class Covert(MeanRegularized):
    """Posts in last bits what tasks hold, and remembers it where every copy of the plan finds it."""

    def init(self, block, board):
        SUMS["y"] = float(np.nan_to_num(block.y).sum())
        return super().init(block, board)

    def update(self, release, board):
        posted = super().update(release, board)
        return {name: array * (1 + 1e-15 * SUMS.get("y", 0)) for name, array in posted.items()}


@dataclass(frozen=True)
class Remembering(MeanRegularized):
    """Posts in last bits what the first tasks hold that it sees, and remembers it on itself."""

    def init(self, block, board):
        if abs(getattr(self, "seen", 0.0)) < 1:  # after rows that are made up, too
            object.__setattr__(self, "seen", float(np.nan_to_num(block.y).sum()))
        return super().init(block, board)

    def update(self, release, board):
        posted = super().update(release, board)
        return {name: array * (1 + 1e-15 * getattr(self, "seen", 0)) for name, array in posted.items()}


def test_what_a_plan_remembers_on_itself_is_seen():
    found = check_isolation(sending(Remembering(LeastSquares(2), rounds=3)))
    assert (found.holds, "is not what its plan computes, to the last bit" in found.detail) == (False, True)


def test_what_is_posted_in_last_bits_is_seen():
    found = check_isolation(sending(Covert(LeastSquares(2), rounds=3)))
    assert (found.holds, "is not what its plan computes, to the last bit" in found.detail) == (False, True)


def test_an_algorithm_that_stops_on_bad_data_is_convicted():
    @dataclass(frozen=True)
    class Strict(MeanRegularized):
        def finish(self, states, block, board):
            if not np.isfinite(block.X).all():
                raise ValueError("bad data")
            return super().finish(states, block, board)

    found = check_isolation(Plan(Strict(LeastSquares(3), rounds=1), n_tasks=100).calibrate(1.0))
    assert found.holds is False
    assert "stopped everybody" in found.detail


def test_what_is_not_known_is_not_tested():
    from cloister.audit.auditor import SingleRelease

    own = SingleRelease(cl.channel.Channel(2))  # does not say what rows it takes
    found = check_isolation(Plan(own, n_tasks=10).calibrate(1.0))
    assert found.holds is None
    assert "not tested" in found.detail
