"""Public groups in a shared prior: what is heard of them, what it costs, and what tasks make of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cloister import Plan, Tasks, check_algorithm, replay, run
from cloister.algorithms import GroupMeans, Groups, Joint, Mean, SharedPrior, Subspace
from cloister.audit import audit
from cloister.channel import Grouped
from cloister.errors import PlanError
from cloister.learners import Classification, Regression
from cloister.learners.home import Home
from cloister.mechanisms import Gaussian, NoNoise
from cloister.store.billboard import Billboard
from cloister.store.records import Release

DIM = 3


def make(seed=0, tasks=120, groups=4, rows=6, spread=0.4):
    """Return tasks whose intercept depends on their group, all true weights, and the groups' offsets."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(np.resize(np.arange(groups), tasks))
    offsets = np.zeros((groups, DIM))
    offsets[:, 0] = spread * rng.permutation(np.linspace(-1, 1, groups))
    weights = np.array([0.2, 0.5, -0.3]) + offsets[place] + rng.normal(0, 0.1, (tasks, DIM))
    X = rng.uniform(-1, 1, (tasks, rows, DIM)) / math.sqrt(DIM)
    X[:, :, 0] = 1 / math.sqrt(DIM)
    y = np.einsum("knd,kd->kn", X, weights) + rng.normal(0, 0.1, (tasks, rows))
    found = Tasks.from_arrays(X.reshape(-1, DIM), y.ravel(), np.repeat(np.arange(tasks), rows))
    return replace(found, groups=place.astype(str)), weights, offsets


TASKS, WEIGHTS, OFFSETS = make()
GROUPS = Groups.of(TASKS.groups)


def plan_for(structure, learner=None, tasks=TASKS, epsilon=None):
    algorithm = SharedPrior(learner or Regression(DIM), structure)
    if epsilon is None:
        return Plan(algorithm, NoNoise(), n_tasks=len(tasks))
    return Plan(algorithm, n_tasks=len(tasks)).calibrate(epsilon)


# --- as without -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [Joint(), Mean()])
def test_one_group_is_none(inside):
    """The same releases and models to the bit; the plan alone says that there is a group."""
    one = Groups(("all",), (len(TASKS),))
    bare, nested = (
        run(plan_for(structure, epsilon=1.0), replace(TASKS, groups=["all"] * len(TASKS)), random_state=3)
        for structure in (inside, GroupMeans(inside, one))
    )
    for mine, theirs in zip(bare.board.releases, nested.board.releases, strict=True):
        np.testing.assert_array_equal(mine.value, theirs.value)
    for name, array in bare.private.models.items():
        np.testing.assert_array_equal(array, nested.private.models[name])
    assert bare.plan.fingerprint != nested.plan.fingerprint


def test_groups_that_could_not_be_heard_are_not_asked():
    """At epsilon .1 nobody speaks to groups: the board is the one without, and so are all models."""
    bare, nested = (
        run(plan_for(structure, epsilon=0.1), TASKS, random_state=3)
        for structure in (Joint(), GroupMeans(Joint(), GROUPS))
    )
    assert {release.channel for release in nested.board.releases} <= {0, 1}
    np.testing.assert_array_equal(bare.private.models["coef"], nested.private.models["coef"])
    assert not nested.plan.algorithm.structure.offsets(Regression(DIM), nested.board).any()


def test_the_price_is_that_without_groups():
    for epsilon in (0.5, 8.0):
        bare, nested = (plan_for(s, epsilon=epsilon) for s in (Joint(), GroupMeans(Joint(), GROUPS)))
        assert nested.mechanism == bare.mechanism
        assert nested.cost == bare.cost
        assert [c.sensitivity("replace") for c in nested.rounds[3].channels] == [
            c.sensitivity("replace") for c in bare.rounds[3].channels
        ] * 2


# --- what is heard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [Joint(), Mean()])
def test_offsets_are_found_where_they_are(inside):
    """Without noise: those of the intercept within a fifth; in other coordinates groups do not differ."""
    done = run(plan_for(GroupMeans(inside, GROUPS)), TASKS)
    found = done.plan.algorithm.structure.offsets(Regression(DIM), done.board)
    centred = OFFSETS[:, 0] - OFFSETS[:, 0].mean()
    np.testing.assert_allclose(found[:, 0], centred, atol=0.2 * np.abs(centred).max())
    assert np.abs(found[:, 1:]).max() < 0.05


def board_of(algorithm, releases):
    """Post releases one after the other, as the curator does."""
    board = Billboard.create(algorithm.start(), "none", len(releases) + len(algorithm.learner.last))
    for release in releases:
        board = board.post(release, algorithm.update(release, board))
    return board


@pytest.mark.parametrize("inside", [Mean(), Joint()])
def test_the_noise_that_offsets_are_shrunk_by_is_theirs(inside):
    """Pure noise, groups of unequal size: the variance on the board is that of what was added up, to 12 %.

    And the common mean's is 1 / (b + (1-b) / G) times that without groups, not G times.
    """
    groups = Groups(("a", "b", "c"), (10, 30, 60))
    structure = GroupMeans(inside, groups)
    learner, rng = Classification(2), np.random.default_rng(0)
    number = len(inside.channels(learner))
    channel = structure.channels(learner)[number]
    assert isinstance(channel.lift, Grouped)
    start = Billboard.create(structure.start(learner), "none", 9)
    sums, means, noise = [], [], 3.0
    for _ in range(1500):
        release = Release(noise * rng.standard_normal(channel.size), noise, 100.0, 0.1, number)
        public = structure.update(learner, release, start)
        sums.append(public["group_sum"] / public["group_weight"])
        means.append(public["sum"] / public["precision"])
    claimed = public["group_noise"] / public["group_weight"] ** 2
    np.testing.assert_allclose(np.var(sums, axis=(0, 2)), claimed, rtol=0.12)
    a = Joint.moving if isinstance(inside, Joint) else 1.0
    alone = noise**2 / (a * 100**2)
    louder = 1 / (0.5 + 0.5 / 3)
    np.testing.assert_allclose(np.var(means), alone * louder, rtol=0.12)
    np.testing.assert_allclose(public["noise"] / public["precision"] ** 2, alone * louder, rtol=1e-12)


def test_nothing_is_made_of_noise():
    """Pure noise over eight rounds: in nine of ten boards no group has an offset in any coordinate."""
    algorithm = SharedPrior(Classification(2), GroupMeans(Mean(), Groups.of(np.arange(60) % 6)))
    structure, learner, rng = algorithm.structure, algorithm.learner, np.random.default_rng(1)
    channel = structure.channels(learner)[1]
    heard = 0
    for _ in range(60):
        releases = [Release(3.0 * rng.standard_normal(channel.size), 3.0, 60.0, 0.1, 1) for _ in range(8)]
        heard += structure.offsets(learner, board_of(algorithm, releases)).any()
    assert heard <= 12


# --- what tasks make of it --------------------------------------------------------------------------------


def error(done):
    return float(((done.private.models["coef"] - WEIGHTS) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("epsilon", [8.0, None])
def test_groups_that_differ_help(epsilon):
    bare, nested = (
        np.mean([error(run(plan_for(s, epsilon=epsilon), TASKS, random_state=r)) for r in range(6)])
        for s in (Joint(), GroupMeans(Joint(), GROUPS))
    )
    assert nested < 0.9 * bare


def test_a_group_is_a_candidate_only_where_something_is_heard():
    done = run(plan_for(GroupMeans(Joint(), GROUPS)), TASKS)
    algorithm, board = done.plan.algorithm, done.board
    structure, learner = algorithm.structure, algorithm.learner
    common, offset = structure.candidates(learner, False, board), structure.offsets(learner, board)[0]
    own = structure.group_candidates(learner, False, offset, board)
    assert sum(c.weight for c in own) == pytest.approx(sum(c.weight for c in common))
    shared = [c for c in common if c.shared]
    assert len(own) == len(common) + len(shared)
    np.testing.assert_allclose(own[-1].mean, common[-1].mean + offset)
    stranger = replace(TASKS.only(5), groups=None)
    alone = replay(done.plan, board, stranger)["coef"][0]
    block = next(stranger.blocks())
    home = Home(learner.prepare(block), block)
    expected = learner.finish(home, common, algorithm.answers(board))["coef"][0]
    np.testing.assert_allclose(alone, expected, rtol=1e-12)
    assert not np.allclose(alone, done.model(5)["coef"], rtol=1e-6)
    np.testing.assert_allclose(
        replay(done.plan, board, TASKS.only(5))["coef"][0], done.model(5)["coef"], rtol=1e-9
    )


def test_a_newcomer_is_served_by_its_group():
    done = run(plan_for(GroupMeans(Joint(), GROUPS)), TASKS)
    models = done.plan.algorithm.model_without_data(done.board)
    assert models["coef"].shape == (5, DIM)
    offsets = done.plan.algorithm.structure.offsets(Regression(DIM), done.board)
    moved = models["coef"][1:] - models["coef"][0]
    np.testing.assert_allclose(moved, 0.8 * offsets, atol=1e-9)


@pytest.mark.parametrize(
    ("learner", "inside"),
    [
        (Regression(DIM), Joint()),
        pytest.param(Classification(DIM), Joint(), marks=pytest.mark.slow),
        pytest.param(Classification(DIM, 3), Mean(), marks=pytest.mark.slow),
    ],
)
def test_the_contract_holds(learner, inside):
    tasks, _, _ = make(2, tasks=24, groups=2, rows=5, spread=0.9)
    if isinstance(learner, Classification):
        classes = np.digitize(tasks.y, [0.0, 0.3][: learner.classes - 1])
        tasks = replace(tasks, y=classes)
    check_algorithm(SharedPrior(learner, GroupMeans(inside, Groups.of(tasks.groups))), tasks, epsilon=60.0)


@pytest.mark.usefixtures("brief_search")
@pytest.mark.parametrize("inside", [Mean(), pytest.param(Joint(), marks=pytest.mark.slow)])
def test_the_auditor_acquits_a_plan_with_groups(inside):
    plan = plan_for(GroupMeans(inside, GROUPS), epsilon=1.0)
    found = audit(plan, draws=5_000, random_state=0)
    assert found.verdict == "No contradiction found."
    assert found.isolation.holds


def test_plans_with_groups_are_plans():
    plan = plan_for(GroupMeans(Joint(), GROUPS), epsilon=1.0)
    assert Plan.from_toml(plan.to_toml()) == plan
    renamed = Groups(("w", "x", "y", "z"), GROUPS.sizes)
    assert plan_for(GroupMeans(Joint(), renamed), epsilon=1.0).fingerprint != plan.fingerprint
    assert replace(plan, mechanism=Gaussian(1.0)).algorithm.with_groups(renamed).groups == renamed
    with pytest.raises(PlanError, match=r"Got Subspace\(\), which says none"):
        GroupMeans(Subspace(), GROUPS)
    with pytest.raises(PlanError, match="share a mean, and what matters"):
        SharedPrior(Classification(3, 4), GroupMeans(Joint(), GROUPS))
