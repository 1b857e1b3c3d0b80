"""Stages: who gets which share of the budget, which part of the board they see, and where states begin."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Plan, Tasks, run
from cloister.algorithms import ChooseAtHome, Locate, LowRank, MeanRegularized, Rescaled, SharedPrior
from cloister.algorithms.staged import RoundsOf, Staged
from cloister.algorithms.stages import PartOfBoard, Stage
from cloister.channel import Channel, Round
from cloister.engines import Batched, Local
from cloister.engines.run import replay
from cloister.errors import PlanError
from cloister.learners import LeastSquares, Regression
from cloister.plan.algorithm import Budget
from cloister.sampling import Poisson
from cloister.store import Billboard, Release

TASKS = Tasks.from_list([np.full((4, 2), 0.5)] * 30, [np.full(4, 0.01 * i) for i in range(30)])


@dataclass(frozen=True)
class Fixed(Stage):
    """A stage that only has a share."""

    part: float | None
    about = "a share"

    def share(self, n_tasks, budget):
        return self.part

    def rounds(self, n_tasks, budget, share):
        return (Round(share, (Channel(1, 1.0),)),)

    def start(self):
        return {}

    def channel(self, board):
        return Channel(1, 1.0)

    def message(self, home, board):
        return np.zeros((len(home), 1)), {}

    def update(self, release, board):
        return {}


@dataclass(frozen=True)
class Shares(Staged):
    """Stages of given shares."""

    parts: tuple[float | None, ...]
    locate: Locate | None = None
    rows = Regression(2).rows

    @property
    def stages(self):
        return (*self.searches, *map(Fixed, self.parts))

    def prepare(self, home, board):
        return {}

    def solve(self, home, board):
        return {"coef": np.zeros((len(home), 2))}


@pytest.mark.parametrize("parts", [(None, None), (0.6, 0.5), (0.6, None, 0.6)])
def test_one_budget_is_shared(parts):
    with pytest.raises(PlanError, match="one budget"):
        Shares(parts).schedule(10, Budget(1.0))


@given(
    st.lists(st.floats(0.0, 0.3), max_size=3),
    st.integers(10, 10_000),
    st.floats(1e-3, 10.0),
    st.sampled_from([None, Locate(), Locate((1,)), Locate((1,), targets=False)]),
)
def test_whatever_the_stages_take_it_is_the_whole_budget(parts, n_tasks, mu, locate):
    rounds = Shares((*parts, None), locate).schedule(n_tasks, Budget(mu))
    assert sum(one.share for one in rounds) == pytest.approx(1.0)
    assert min(one.share for one in rounds) >= 0


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 6))
def test_a_part_of_a_board_is_a_board(first, after, posted):
    board = Billboard.create({"n": np.zeros(())}, "p", 8)
    for t in range(max(first, posted)):
        board = board.post(Release(np.full(1, t), 0.0, 1.0), {"n": np.array(t + 1)})
    part = PartOfBoard(board, first, after)
    assert part.capacity == 8 - first - after
    assert len(part.releases) == part.rounds == min(board.rounds - first, part.capacity)
    assert [release.value.item() for release in part.releases] == [first + i for i in range(part.rounds)]
    for t in range(part.rounds):
        assert part.before(t).rounds == t
        assert part.before(t)["n"] == first + t
        assert part.derive(lambda own: own.rounds) == part.rounds


@pytest.mark.parametrize("block", [None, 1])
def test_a_task_that_does_not_search_begins_with_the_others(block):
    """Its state is of the board where the search ends, whenever it takes part first."""
    algorithm = Rescaled(MeanRegularized(LeastSquares(2), rounds=4), Locate())
    plan = Plan(algorithm, sampling=Poisson(0.5), n_tasks=30).calibrate(5.0)
    done = run(plan, TASKS, random_state=1, engine=Local(block=block))
    private = done.private
    own = {"coins": private.coins[:], "seeds": private.seeds}
    again = replay(plan, done.board, TASKS, **own, engine=Local(block=block))
    np.testing.assert_array_equal(again["coef"], private.models["coef"])
    assert algorithm.begins(7) == 3


def test_searches_inside_of_searches_are_refused():
    with pytest.raises(PlanError, match="searches by itself"):
        Rescaled(SharedPrior(Regression(2), locate=Locate()), Locate())
    inside = Rescaled(LowRank(LeastSquares(2)), Locate())
    with pytest.raises(PlanError, match="searches for all that is inside"):
        ChooseAtHome(inside, Regression(2))


def test_an_algorithm_keeps_what_its_rounds_are_about():
    """Stages inside of a stage are told apart, too."""
    outer = RoundsOf(SharedPrior(Regression(2)))
    rounds = outer.rounds(200, Budget(1.0), 0.5)
    assert {one.about for one in rounds} > {"how far tasks differ"}
    assert sum(one.share for one in rounds) == pytest.approx(0.5)
    assert Round(0.5, (), "a") == Round(0.5, (), "b")  # names are for people, and no part of a schedule


def test_networks_are_not_searched_for():
    plan = Plan(Rescaled(MeanRegularized(LeastSquares(2), rounds=2), Locate()), n_tasks=30).calibrate(5.0)
    with pytest.raises(PlanError, match="trains networks"):
        run(plan, TASKS, engine=Batched("cpu"))
    assert replace(plan, n_tasks=31).fingerprint != plan.fingerprint
