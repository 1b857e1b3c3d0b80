"""Engines and groups: every message counts for the group that the roster says, wherever tasks live."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Ledger, Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import FedAvg
from cloister.channel import Channel, Grouped, MeanAndOuter, Round
from cloister.core.roster import Groups, Roster
from cloister.engines import Batched, Local, MultiDevice
from cloister.engines.workers import GridRows, group_positions
from cloister.errors import InputError, PlanError
from cloister.learners import Descent, Module
from cloister.mechanisms import Gaussian, NoNoise
from cloister.plan.algorithm import Algorithm
from cloister.privacy.chacha_proposals import on_processor
from cloister.privacy.randomness import SeededRandomness
from cloister.sampling import Poisson

M, G = 12, 3
LABELS = np.array(["b", "a", "c", "b", "b", "a", "c", "c", "b", "b", "a", "b"])
GROUPS = Groups.of(LABELS)


@dataclass(frozen=True)
class GroupMeans(Algorithm):
    """Tasks say their rows' mean; each ends with the mean of its group, or of all if it is in none."""

    own: Groups

    def _channel(self):
        return Channel(2, 1.0, Grouped(MeanAndOuter(0.4), len(self.own), 0.5))

    @property
    def groups(self):
        return self.own

    def with_groups(self, groups):
        return replace(self, own=groups)

    def schedule(self, n_tasks, budget):
        return (Round(0.5, (self._channel(),)),) * 2

    def start(self):
        return {"common": np.zeros(2), "group": np.zeros((len(self.own), 2))}

    def channel(self, board):
        return self._channel()

    def init(self, block, board):
        with np.errstate(all="ignore"):
            return {"mean": block.X.sum(axis=1) / np.maximum(block.weight.sum(axis=1), 1)[:, None]}

    def send(self, states, block, board):
        return states["mean"], states

    def update(self, release, board):
        value = release.value
        slots = value[5:].reshape(-1, 2) / self.own.counts[:, None] / np.sqrt(0.4 * 0.5)
        return {"common": value[:2] / np.sqrt(0.4 * 0.5) / release.denominator, "group": slots}

    def finish(self, states, block, board):
        means = np.vstack([board["group"], board["common"]])  # -1 is the common one
        return {"coef": means[block.group]}


def make_tasks(labels=LABELS):
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(M), rng.integers(2, 9, M))
    X = rng.uniform(-0.3, 0.3, (len(ids), 2))
    return replace(Tasks.from_arrays(X, np.zeros(len(ids)), ids), groups=labels)


TASKS = make_tasks()
PLAN = Plan(GroupMeans(GROUPS), Gaussian(0.8), n_tasks=M)


def means():
    return np.array([TASKS.X[slice(*TASKS.offsets[i : i + 2])].mean(axis=0) for i in range(M)])


ENGINES = [
    Local(),
    Local(threads=2),
    MultiDevice((Local(), Local(), Local())),
]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_every_engine_places_messages_by_label(engine, monkeypatch):
    monkeypatch.setattr("cloister.core.tasks.PADDED_ELEMENTS", 8)  # many small blocks
    monkeypatch.setattr("cloister.engines.local.QUICK_ELEMENTS", 8)
    done = run(replace(PLAN, mechanism=NoNoise()), TASKS, engine=engine)
    expected = [means()[name == LABELS].mean(axis=0) for name in GROUPS.names]
    np.testing.assert_allclose(done.board["group"], expected, atol=1e-5)
    np.testing.assert_allclose(done.board["common"], means().mean(axis=0), atol=1e-5)
    assert (
        run(PLAN, TASKS, random_state=1, engine=engine).board.head
        == run(PLAN, TASKS, random_state=1).board.head
    )


def test_sampled_tasks_take_their_labels_along():
    plan = replace(PLAN, mechanism=NoNoise(), sampling=Poisson(0.5))
    done = run(plan, TASKS, random_state=3)
    own = means() * np.asarray(done.private.coins[1])[:, None]
    expected = [own[name == LABELS].sum(axis=0) / (name == LABELS).sum() for name in GROUPS.names]
    np.testing.assert_allclose(done.board["group"], expected, atol=1e-5)


def test_the_contract_holds_and_replay_needs_the_label():
    check_algorithm(GroupMeans(GROUPS), TASKS)
    done = run(PLAN, TASKS, random_state=0)
    alone = replay(PLAN, done.board, TASKS.only(2))["coef"][0]
    np.testing.assert_array_equal(alone, done.board["group"][2])
    stranger = replace(TASKS.only(2), groups=None)
    np.testing.assert_array_equal(replay(PLAN, done.board, stranger)["coef"][0], done.board["common"])
    with pytest.raises(InputError, match="no group 'z' in this plan"):
        replay(PLAN, done.board, replace(TASKS.only(2), groups=["z"]))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (None, "these have no labels"),
        (np.where(LABELS == "c", "z", LABELS), "no group 'z' in this plan"),
        (np.where(np.arange(M) == 0, "a", LABELS), "plan is for 3 tasks in group 'a'. Got 4"),
    ],
)
def test_wrong_labels_are_refused_before_the_charge(labels, words):
    ledger = Ledger(20.0, PLAN.delta)
    with pytest.raises(InputError, match=words):
        run(PLAN, replace(TASKS, groups=labels), ledger=ledger)
    with pytest.raises(InputError, match=words):
        run(PLAN, replace(TASKS, groups=labels).roster, ledger=ledger, engine=Apart())
    assert not ledger.history


def test_a_run_does_not_go_on_with_other_labels(tmp_path):
    class Stopped(Exception):
        pass

    def stop(posted):
        raise Stopped

    swapped = LABELS.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    with pytest.raises(Stopped):
        run(PLAN, TASKS, random_state=1, journal=tmp_path, progress=stop)
    with pytest.raises(InputError, match="data, or how it is encoded, has changed"):
        run(PLAN, replace(TASKS, groups=swapped), random_state=1, journal=tmp_path)
    done = run(PLAN, TASKS, random_state=1, journal=tmp_path)
    assert done.board.head == run(PLAN, TASKS, random_state=1).board.head


# --- tasks that are elsewhere -----------------------------------------------------------------------------


@dataclass
class Apart:
    """Tasks in other places, which send rows on the grid in an order of their own, and no label."""

    order: np.ndarray = field(default_factory=lambda: np.random.default_rng(1).permutation(M))

    remote = True

    def noise_sampler(self):
        return on_processor

    def doubts_of(self, plan):
        return ()

    @contextmanager
    def workers(self, plan, tasks, seeds):
        assert isinstance(tasks, Roster)
        self.plan = plan
        yield self

    def start(self, board):
        pass

    def collect(self, board, channel, coins):
        return GridRows(channel.rows(means()[self.order]), self.order)

    def listen(self, board, coins):
        pass

    def finish(self, board, folder=None):
        return {}

    def rejected(self):
        return 0


@pytest.mark.parametrize("mechanism", [Gaussian(0.8), Gaussian(0.8, exact=False)])
def test_the_curator_places_rows_by_the_roster(mechanism):
    plan = replace(PLAN, mechanism=mechanism)
    here = run(plan, TASKS, random_state=1).board
    there = run(plan, TASKS.roster, random_state=1, engine=Apart()).board
    for one, two in zip(here.releases, there.releases, strict=True):
        np.testing.assert_allclose(one.value, two.value, atol=1e-3)
    swapped = Roster(TASKS.ids, np.roll(LABELS, 1))
    other = run(replace(plan, mechanism=NoNoise()), swapped, random_state=1, engine=Apart()).board
    rolled = [means()[np.roll(LABELS, 1) == name].mean(axis=0) for name in GROUPS.names]
    np.testing.assert_allclose(other["group"], rolled, atol=1e-5)


# --- networks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedFedAvg(FedAvg):
    """FedAvg that says its update to groups as well, and does nothing with that."""

    own: Groups = GROUPS

    @property
    def groups(self):
        return self.own

    def _with_slots(self, channel):
        return replace(channel, lift=Grouped(channel.lift, len(self.own), 0.5))

    def schedule(self, n_tasks, budget):
        rounds = super().schedule(n_tasks, budget)
        return tuple(replace(r, channels=tuple(map(self._with_slots, r.channels))) for r in rounds)

    def channel(self, board):
        return self._with_slots(super().channel(board))

    def update(self, release, board):
        dim = self.learner.size
        return super().update(replace(release, value=release.value[:dim] / np.sqrt(0.5)), board)


def test_the_batched_engine_places_messages_by_label(monkeypatch):
    monkeypatch.setattr("cloister.networks.batched.CHUNK", 1)  # messages are added one by one
    torch.manual_seed(0)
    algorithm = GroupedFedAvg(Module(nn.Linear(2, 2)), Descent(epochs=1, lr=0.1), clip=0.3, rounds=2)
    plan = Plan(algorithm, Gaussian(2.0), n_tasks=M)
    data = replace(TASKS, y=np.arange(len(TASKS.y)) % 2)
    seeds = SeededRandomness(0).task_seeds(data.ids)
    board = plan.create_board()
    sums = []
    for engine in (Local(), Batched("cpu", block=5)):
        with engine.workers(plan, data, seeds) as workers:
            workers.start(board)
            channel = algorithm.channel(board)
            sums.append(np.asarray(workers.collect(board, channel, np.ones(M, dtype=bool))))
    np.testing.assert_allclose(sums[1], sums[0], atol=60)  # in 2^18ths of a clip
    dim = algorithm.learner.size
    np.testing.assert_array_equal(sums[1][dim:].reshape(G, dim).sum(axis=0), sums[1][:dim])
    assert (np.abs(sums[1][dim:].reshape(G, dim)).max(axis=1) > 1000).all()


# --- without ----------------------------------------------------------------------------------------------


def test_labels_change_nothing_for_algorithms_that_know_no_groups():
    from cloister.algorithms import MeanRegularized
    from cloister.learners import LeastSquares

    plan = Plan(MeanRegularized(LeastSquares(2), rounds=2), Gaussian(1.0), n_tasks=M)
    assert plan.algorithm.groups is None
    assert (group_positions(plan, TASKS) == -1).all()
    bare = replace(TASKS, groups=None)
    assert run(plan, TASKS, random_state=0).board.head == run(plan, bare, random_state=0).board.head
    with pytest.raises(PlanError, match="MeanRegularized knows no groups"):
        plan.algorithm.with_groups(GROUPS)
