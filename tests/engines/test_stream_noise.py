"""A stream of tasks: how far one task moves a sum, the noise that it gets, and an attack on both."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import numpy as np
import pytest
from scipy import stats
from test_task_stream import DIM, ftmrl, plan_of

import cloister as cl
from cloister.algorithms import FTMRL
from cloister.audit import lower_bound
from cloister.audit.verdict import claimed_epsilon
from cloister.engines import TaskStream
from cloister.errors import InputError
from cloister.learners import Convex, ExactSolver, LeastSquares
from cloister.mechanisms import Gaussian, Toeplitz
from cloister.privacy import tradeoff
from cloister.sampling import InOrder


def loud(sign):
    """Rows whose message is as long as the clip allows, in one direction or the other; and silent ones."""
    return np.array([[100.0, 0.0, 0.0]]), np.array([sign * 1e6])


SILENT = np.zeros((1, DIM)), np.zeros(1)


@pytest.mark.parametrize(("relation", "reach"), [("replace", 2.0), ("zero_out", 1.0)])
@pytest.mark.parametrize("mechanism", [Gaussian(), Toeplitz()], ids=repr)
def test_a_task_moves_the_sum_of_its_own_round_and_no_other(mechanism, relation, reach):
    """By the sensitivity and no further, and that is reached: the same noise, one task with other rows."""
    plan, boards = plan_of(12, 4, mechanism, relation=relation), []
    for rows in (loud(1), loud(-1) if relation == "replace" else SILENT):
        stream = TaskStream(plan, random_state=0)
        for i in range(12):
            stream.join(i, *(rows if i == 4 else SILENT))
        boards.append(np.array([release.value for release in stream.board.releases]))
    moved = np.linalg.norm(boards[0] - boards[1], axis=1)
    assert moved == pytest.approx([0.0, reach, 0.0, 0.0], abs=1e-6)
    assert moved.max() <= plan.schedule.channel.sensitivity(plan.relation) * (1 + 1e-9)


@pytest.mark.parametrize("saved", [False, True], ids=["memory", "opened again"])
def test_the_noise_is_that_of_the_plan(tmp_path, saved):
    """Kolmogorov and Smirnov accept the deviation that is claimed, and reject 2/3 and 3/2 of it."""
    wide = FTMRL(Convex(LeastSquares(20)), ExactSolver(), rounds=90)
    plan = cl.Plan(wide, Gaussian(), InOrder(), n_tasks=90).calibrate(2.0)
    stream = TaskStream(plan, journal=tmp_path if saved else None)
    for i in range(90):
        if saved and i % 30 == 5:
            stream.close()
            stream = TaskStream(plan, journal=tmp_path)
        stream.join(i, np.zeros((1, 20)), np.zeros(1))
    drawn = np.concatenate([release.value for release in stream.board.releases])
    stream.close()
    deviation = plan.noise(0, plan.schedule.channel)
    for scale, rejected in ((1.0, False), (2 / 3, True), (3 / 2, True)):
        assert bool(stats.kstest(drawn / (scale * deviation), "norm").pvalue < 1e-6) is rejected


class Forgetful(TaskStream):
    """Does not know a task again that has joined."""

    def join(self, name, X, y):
        return super().join(f"{name}, {len(self)}", X, y)


def attacked(kind, plan, games, times):
    """Return scores of targets that say one thing or the opposite, each as often as it may, of so many times.

    Nothing that is said depends on the board, and noise is fresh: every target is a game of its own.
    """
    stream, worlds = kind(plan, random_state=0), ([], [])
    for game in range(2 * games):
        first = stream.board.rounds
        for again in range(times):
            with suppress(InputError) if again else nullcontext():
                stream.join(game, *loud(-1 if game % 2 else 1))
        worlds[game % 2].append(sum(release.value[0] for release in stream.board.releases[first:]))
    return [np.array(world) for world in worlds]


def test_a_task_that_speaks_again_is_convicted_and_the_stream_is_not():
    """120 pairs of games at 95 %: eight times convicts nearly always, at a seed it is certain."""
    games, times, delta = 120, 8, 0.2
    rounds = 2 * games * times
    plan = cl.Plan(ftmrl(rounds), Gaussian(0.6 * rounds**0.5), InOrder(), n_tasks=rounds)
    claimed = claimed_epsilon(plan, delta)
    assert claimed == pytest.approx(tradeoff.epsilon(0.6, delta))
    found = {
        kind: lower_bound(*attacked(kind, plan, games, times), delta) for kind in (TaskStream, Forgetful)
    }
    assert found[TaskStream].epsilon <= claimed
    assert found[Forgetful].epsilon > 2 * claimed
