"""Public groups: labels on rosters and tasks, and one message in two slots at the price of one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from optional import array_and_tensor

from cloister import Tasks
from cloister.audit import audit_mechanism
from cloister.audit.noise_checks import examine
from cloister.audit.releases import ReleaseSource, in_release_units
from cloister.audit.sensitivity import furthest_on
from cloister.channel import Absolute, Channel, Diagonal, Grouped, MeanAndOuter, Outer, Plain, Relation
from cloister.core.channel import EXACT_ROWS, GRID
from cloister.core.roster import Groups, Roster
from cloister.errors import InputError, PlanError
from cloister.mechanisms import Gaussian
from cloister.privacy.noise import GaussianLaw
from cloister.privacy.randomness import SeededRandomness

INSIDE = [Plain(), Absolute(), MeanAndOuter(0.15), MeanAndOuter(0.4), MeanAndOuter(0.8)]
WILD = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e160, -1.7e308, math.nan]))


# --- labels -----------------------------------------------------------------------------------------------


def test_labels_are_text_and_one_each():
    roster = Roster(["Elm", "Oak"], ["north ", "south"])
    assert roster.groups == ("north", "south")
    assert roster.fingerprint != Roster(["Elm", "Oak"]).fingerprint != Roster(["Oak", "Elm"]).fingerprint
    assert roster.fingerprint != Roster(["Elm", "Oak"], ["south", "north"]).fingerprint
    assert Roster([1, 2], [7, 3]).groups == ("7", "3")
    with pytest.raises(InputError, match="one label a task, for 2 tasks"):
        Roster(["Elm", "Oak"], ["north"])
    with pytest.raises(InputError, match="label is written like a task's name"):
        Roster(["Elm", "Oak"], ["north", None])
    with pytest.raises(InputError, match="spelled in one way"):
        Roster(["Elm", "Oak"], ["north", "north "])


def test_tasks_keep_their_labels():
    X, names = np.arange(12.0)[:, None], np.repeat(["c", "a", "b"], 4)
    tasks = Tasks.from_arrays(X, X[:, 0], names).with_groups({"a": 1, "b": 2, "c": 1})
    assert tasks.roster == Roster(["a", "b", "c"], ["1", "2", "1"])
    assert tasks.select([2, 1]).groups.tolist() == ["1", "2"]
    assert tasks.only("b").groups.tolist() == ["2"]
    assert [part.groups.tolist() for part in tasks.split(0.5)] == [["1", "2", "1"]] * 2
    assert tasks.blanked(np.array([True, False, False])).groups is not None
    (block,) = tasks.blocks(groups=Groups.of(tasks.groups).positions(tasks.groups))
    assert block.group.tolist() == [0, 1, 0]
    assert block.take([1]).group.tolist() == [1]
    assert next(tasks.blocks()).group.tolist() == [-1, -1, -1]
    with pytest.raises(InputError, match="Task 'c' has none"):
        tasks.with_groups({"a": 1, "b": 2})


def test_groups_of_a_plan():
    groups = Groups.of(np.array([3, 1, 3]))
    assert (groups.names, groups.sizes, groups.tasks) == (("1", "3"), (1, 2), 3)
    assert groups.positions([3, 1]).tolist() == [1, 0]
    for names, sizes in (((), ()), (("a", "a"), (1, 1)), (("a",), (0,)), (("a", "b"), (1,))):
        with pytest.raises(PlanError):
            Groups(names, sizes)


# --- the lift ---------------------------------------------------------------------------------------------


def squared_weights(inside, dim, share=None, groups=0):
    """Return the squared weight of each lifted number, exactly; without a share, of the lift inside."""
    a = Fraction(inside.a) if isinstance(inside, MeanAndOuter) else Fraction(1)
    b = Fraction(1) if share is None else Fraction(share)
    outer = [(1 - a) * (1 if i == j else 2) for i in range(dim) for j in range(i, dim)]
    return [a * b] * dim + outer * (a < 1) + [a * (1 - b)] * dim * groups


def exact_square(channel, squares, rows, group):
    """Return the exact squared distance of what two whole rows of a task in one group add to the sum."""
    sums = (channel.lifted_sum(row[None], np.array([group])).tolist() for row in rows)
    degrees = channel.lift.weights(channel.dim)[1].tolist()
    moved = (Fraction(x - y, GRID**degree) for x, y, degree in zip(*sums, degrees, strict=True))
    return sum(weight * x**2 for weight, x in zip(squares, moved, strict=True))


@given(
    messages=st.integers(1, 4).flatmap(lambda d: arrays(np.float64, (4, d), elements=WILD)),
    inside=st.sampled_from(INSIDE),
    share=st.sampled_from([0.01, 0.3, 0.5, 0.97]),
    where=st.tuples(*[st.integers(0, 2)] * 3),
)
@example(messages=np.full((4, 3), 1e308), inside=MeanAndOuter(0.4), share=0.5, where=(0, 1, 2))
@settings(max_examples=300, deadline=None)
def test_no_data_moves_the_sum_by_more_than_without_groups(messages, inside, share, where):
    """Row 0 becomes row 1, or silence, in its own group; rows 2 and 3 are others, in any group."""
    dim, groups = messages.shape[1], np.array(where)
    plain, channel = Channel(dim, 0.37, inside), Channel(dim, 0.37, Grouped(inside, 3, share))
    squares = squared_weights(inside, dim), squared_weights(inside, dim, share, 3)
    np.testing.assert_allclose(channel.lift.weights(dim)[0] ** 2, [float(x) for x in squares[1]], rtol=1e-14)
    for relation, instead in ((Relation.REPLACE, messages[1]), (Relation.ZERO_OUT, np.zeros(dim))):
        bound = channel.sensitivity(relation)
        assert bound == plain.sensitivity(relation)
        worlds = [np.vstack([row[None], messages[2:]]) for row in (messages[0], instead)]
        moved = channel.total(worlds[0], groups=groups) - channel.total(worlds[1], groups=groups)
        assert np.linalg.norm(moved) <= bound * (1 + 1e-12)
        rows = [channel.rows(row[None])[0] for row in (messages[0], instead)]
        with_groups = exact_square(channel, squares[1], rows, where[0])
        assert with_groups == exact_square(plain, squares[0], rows, where[0])
        assert with_groups <= Fraction(bound) ** 2 * (1 + Fraction(1, 2**50))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("inside", INSIDE, ids=repr)
def test_the_bound_is_attained(inside, exact):
    """A witness within 0.1 % of the bound, in any group: the price is exact, not merely safe."""
    cosine = {Plain: -1.0, Absolute: 0.0}.get(type(inside))
    if cosine is None:
        cosine = max(-1.0, -inside.a / (2 * (1 - inside.a)))
    channel = Channel(2, 0.7, Grouped(inside, 4, 0.3))
    u, v = np.array([[1.0, 0.0]]), np.array([[cosine, math.sqrt(1 - cosine**2)]])
    for group in range(4):
        for relation, other in ((Relation.REPLACE, v), (Relation.ZERO_OUT, 0 * v)):
            sums = [channel.total(9 * row, exact, np.array([group])) for row in (u, other)]
            moved = np.linalg.norm((sums[0] - sums[1]) * (channel.steps if exact else 1.0))
            bound = channel.sensitivity(relation)
            assert 0.999 * bound <= moved <= bound * (1 + 1e-12)


@pytest.mark.parametrize("inside", INSIDE, ids=repr)
def test_sums_are_those_of_each_group_exactly(inside, monkeypatch):
    """On the grid: the common slot is the sum of all, a group's the sum of its members; on a tensor too."""
    monkeypatch.setattr("cloister.core.channel.EXACT_ROWS", 7)
    rng = np.random.default_rng(0)
    messages, groups = rng.normal(size=(40, 3)), rng.integers(0, 5, 40)
    groups[groups == 3] = 1  # one group is empty
    plain, channel = Channel(3, 1.0, inside), Channel(3, 1.0, Grouped(inside, 5, 0.4))
    total = channel.total(messages, True, groups)
    size, linear = plain.size, np.flatnonzero(inside.weights(3)[1] == 1)
    assert total[:size].tolist() == plain.total(messages, True).tolist()
    for g in range(5):
        own = plain.total(messages[groups == g], True)[linear]
        assert total[size + g * len(linear) :][: len(linear)].tolist() == own.tolist()
    for kind in array_and_tensor(channel.rows(messages)):
        assert channel.lifted_sum(kind, groups).tolist() == total.tolist()
    np.testing.assert_allclose(channel.total(messages, groups=groups), total * channel.steps, atol=1e-3)
    assert EXACT_ROWS > 7


def test_a_task_without_a_group_is_not_summed_somewhere_else():
    channel = Channel(2, 1.0, Grouped(Plain(), 2))
    for groups in ([0, -1], [0, 2], [0]):
        with pytest.raises(InputError, match="one of the plan's 2 groups"):
            channel.total(np.ones((2, 2)), groups=np.array(groups))
    for wrong in (lambda: Grouped(Plain(), 0), lambda: Grouped(Plain(), 2, 1.0), lambda: Grouped(Outer(), 2)):
        with pytest.raises(PlanError):
            wrong()
    with pytest.raises(PlanError, match="says no mean"):
        Grouped(Diagonal(), 2)


# --- noise and audit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("louder", "holds"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_all_slots_have_the_noise_of_the_claim(louder, holds):
    """Also those of groups; two thirds and three halves of it are told apart."""
    mechanism = Gaussian(0.7)
    channel = Channel(3, 0.5, Grouped(MeanAndOuter(0.4), 6, 0.5))
    noise = channel.sensitivity(Relation.REPLACE) / 0.7
    curator = ReleaseSource(mechanism, SeededRandomness(4))
    messages, groups = np.eye(3), np.array([5, 0, 5])
    total = channel.total(messages, mechanism.exact, groups)
    drawn = [
        (curator.releases(total, channel, noise, 600) - in_release_units(channel, total)) * louder
        for _ in range(2)
    ]
    for slot in (slice(None), slice(9, None)):
        found = examine(GaussianLaw(noise), *(part[:, slot] for part in drawn))
        assert (min(found["law"], found["scale"]) > 1e-4) == holds


@pytest.mark.usefixtures("brief_search")
@pytest.mark.parametrize("inside", [Plain(), MeanAndOuter(0.4)], ids=repr)
def test_the_auditor_acquits_groups(inside):
    channel = Channel(4, 0.5, Grouped(inside, 7, 0.5))
    found = audit_mechanism(Gaussian(0.6), channel, n_tasks=100, draws=20_000, random_state=0)
    assert not found.convicted
    assert 0.99 < furthest_on(channel, Relation.REPLACE, tries=300).ratio <= 1 + 1e-9


@dataclass(frozen=True)
class BothInFull(Grouped):
    """Planted: what a task says to its group comes on top of what it says to all, at the price of one."""

    def weights(self, dim):
        inside = self.lift.weights(dim)[0]
        return np.concatenate([inside] + [inside[:dim]] * self.groups), super().weights(dim)[1]


@dataclass(frozen=True)
class InTwoGroups(Grouped):
    """Planted: a task counts in the next group too."""

    def placed_sums(self, units, groups):
        own, other = (
            super(InTwoGroups, self).placed_sums(units, g) for g in (groups, (groups + 1) % self.groups)
        )
        size = len(self.lift.weights(units.shape[1])[0])
        return np.concatenate([own[:size], own[size:] + other[size:]])


@pytest.mark.usefixtures("brief_search")
@pytest.mark.parametrize("planted", [BothInFull, InTwoGroups])
def test_the_auditor_convicts_a_task_that_counts_twice(planted):
    channel = Channel(4, 0.5, planted(Plain(), 3, 0.5))
    assert furthest_on(channel, Relation.REPLACE, tries=50).breach
    found = audit_mechanism(Gaussian(0.6), channel, n_tasks=100, draws=20_000, random_state=0)
    assert found.convicted
