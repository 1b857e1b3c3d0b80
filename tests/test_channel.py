"""The bounds every guarantee rests on: clip, lift, sensitivity; exact, tight, and under any data."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from optional import array_and_tensor, torch

from cloister.channel import (
    Absolute,
    Channel,
    Diagonal,
    Grouped,
    MeanAndOuter,
    MeanAndSquares,
    Outer,
    Plain,
    Relation,
    SumOfOuters,
    SumOfSquares,
)
from cloister.core.channel import EXACT_ROWS, GRID, finite_rows
from cloister.core.lifts import svec, unsvec
from cloister.core.tasks import Block
from cloister.errors import InputError, PlanError
from cloister.learners import Classification, Regression
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate

SHARES = (0.05, 0.15, 0.3, 1 / 3, 0.4, 0.6, 0.66, 2 / 3, 0.67, 0.8, 0.95)
LIFTS = [Plain(), Absolute(), Diagonal(), Outer(), *map(MeanAndOuter, SHARES)]
WILD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, -2.3e-308, 1e-160, 1e160, 1e308, -1.7e308, math.nan]),
)
EPS = 2.0**-52


def exact_square(lift, u, v):
    """Return the exact squared distance of two lifted unit-ball vectors, as a fraction."""
    dot = lambda x, y: sum(a * b for a, b in zip(x, y, strict=True))  # noqa: E731
    u, v = ([Fraction(x) for x in w] for w in (u, v))
    if isinstance(lift, Absolute):
        u, v = [abs(x) for x in u], [abs(x) for x in v]
    if isinstance(lift, Diagonal):
        u, v = [x * x for x in u], [x * x for x in v]
    uu, vv, uv = dot(u, u), dot(v, v), dot(u, v)
    straight, outer = uu + vv - 2 * uv, uu**2 + vv**2 - 2 * uv**2
    if isinstance(lift, Outer):
        return outer
    if isinstance(lift, MeanAndOuter):
        return Fraction(lift.a) * straight + (1 - Fraction(lift.a)) * outer
    return straight


def exact_bound(lift, relation):
    """Return the squared sensitivity from the proof, as a fraction."""
    if relation is Relation.ZERO_OUT:
        return Fraction(1)
    if isinstance(lift, MeanAndOuter):
        a = Fraction(lift.a)
        return 2 + a**2 / (2 * (1 - a)) if a <= Fraction(2, 3) else 4 * a
    return Fraction(4 if isinstance(lift, Plain) else 2)


@given(
    messages=st.integers(1, 6).flatmap(lambda d: arrays(np.float64, (4, d), elements=WILD)),
    clip=st.sampled_from([5e-324, 1e-300, 0.37, 1.0, 3e7, 1e308]),
    lift=st.sampled_from(LIFTS),
)
@example(messages=np.full((4, 3), 1e308), clip=1.0, lift=Plain())
@example(messages=np.full((4, 6), 5e-324), clip=5e-324, lift=MeanAndOuter(0.15))
@example(messages=np.array([[3.0, 4.0], [-3.0, -4.0], [np.nan, 1.0], [np.inf, 0.0]]), clip=5.0, lift=Plain())
@settings(max_examples=400, deadline=None)
def test_no_data_moves_the_sum_by_more_than_the_sensitivity(messages, clip, lift):
    """Row 0 is the task, row 1 what it is replaced by; the other rows are everyone else."""
    channel = Channel(messages.shape[1], clip, lift)
    units = channel.units(messages)
    assert all(sum(Fraction(float(x)) ** 2 for x in u) <= 1 for u in units)
    assert not units[~np.isfinite(messages).all(axis=1)].any()
    zero = np.zeros(channel.dim)
    others = messages[2:]
    for relation, instead in ((Relation.REPLACE, 1), (Relation.ZERO_OUT, None)):
        v = zero if instead is None else units[instead]
        assert exact_square(lift, units[0], v) <= exact_bound(lift, relation)
        neighbour = zero if instead is None else messages[instead]
        moved = channel.total(np.vstack([messages[:1], others])) - channel.total(
            np.vstack([neighbour[None], others])
        )
        assert moved.shape == (channel.size,)
        assert np.linalg.norm(moved) <= channel.sensitivity(relation) * (1 + 1e-12)


@given(
    messages=st.integers(1, 5).flatmap(lambda d: arrays(np.float64, (4, d), elements=WILD)),
    clip=st.sampled_from([5e-324, 0.37, 1.0, 1e308]),
    lift=st.sampled_from(LIFTS),
)
@example(messages=np.ones((4, 5)), clip=1.0, lift=Outer())  # of norm 1: rounding to nearest leaves the ball
@example(messages=np.full((4, 5), 1e308), clip=0.37, lift=MeanAndOuter(0.15))
@settings(max_examples=300, deadline=None)
def test_on_the_grid_the_sum_is_exact_and_its_sensitivity_holds_exactly(messages, clip, lift):
    """Whole rows stay in the ball, hence no price is needed for rounding; sums are those of Python's ints."""
    dim = messages.shape[1]
    rows = [Channel(dim, clip).rows(row[None])[0] for row in messages]
    for row in rows:
        assert row.dtype == np.int64
        assert sum(int(x) ** 2 for x in row) <= GRID**2
    near, far = ([Fraction(int(x), GRID) for x in row] for row in rows[:2])
    assert exact_square(lift, near, far) <= exact_bound(lift, Relation.REPLACE)
    assert exact_square(lift, near, [Fraction(0)] * dim) <= exact_bound(lift, Relation.ZERO_OUT)
    channel = Channel(dim, clip, lift)
    degrees = lift.weights(dim)[1]
    by_hand = sum(np.array(lifted_by_hand(lift, [int(x) for x in row]), dtype=object) for row in rows)
    assert channel.total(messages, exact=True).tolist() == by_hand.tolist()
    error = np.abs(channel.total(messages, exact=True) * channel.steps - channel.total(messages))
    assert error.max() <= 4 * degrees.max() * 2 / GRID


@given(
    messages=st.integers(1, 6).flatmap(
        lambda d: st.one_of(
            arrays(np.float64, (4, d), elements=WILD),
            arrays(np.float32, (4, d), elements=st.floats(width=32)),
        )
    ),
    clip=st.sampled_from([5e-324, 1e-3, 0.37, 1.0, 3e7]),
    lift=st.sampled_from(LIFTS),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.skipif(torch is None, reason="needs the extra torch")
def test_tensors_go_the_same_way_as_arrays(messages, clip, lift):
    """Norms are at most 1 as fractions, whole rows stay in the ball, and sums of whole rows are equal."""
    channel, tensor = Channel(messages.shape[1], clip, lift), torch.from_numpy(messages.copy())
    units, rows = channel.units(tensor), channel.rows(tensor)
    assert (units.dtype, rows.dtype) == (torch.float64, torch.int64)
    assert all(sum(Fraction(x) ** 2 for x in u) <= 1 for u in units.tolist())
    np.testing.assert_allclose(units.numpy(), channel.units(messages), rtol=1e-12)
    assert np.abs(rows.numpy() - channel.rows(messages)).max() <= 1
    channel.check_rows(rows)
    np.testing.assert_array_equal(channel.lifted_sum(rows).numpy(), channel.lifted_sum(rows.numpy()))
    np.testing.assert_allclose(channel.total(tensor).numpy(), channel.total(messages), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(finite_rows(tensor).numpy(), finite_rows(messages))


@pytest.mark.parametrize("size", [3.4e38, 1.0, 1e-38, 1e-45])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 7.0])
def test_long_messages_are_bounded_too(size, clip):
    """A hundred thousand numbers near the ends of what 32 bits hold."""
    rng = np.random.default_rng(0)
    messages = (size * rng.choice([-1.0, 1.0, 0.3], (2, 100_000))).astype(np.float32)
    channel = Channel(100_000, clip)
    for kind in array_and_tensor(messages):
        assert (np.linalg.norm(np.asarray(channel.units(kind)), axis=1) <= 1).all()
        assert ((np.asarray(channel.rows(kind)) ** 2).sum(axis=1) <= GRID**2).all()


@given(arrays(np.int64, (3, 2), elements=st.integers(-GRID - 2, GRID + 2)))
@example(np.array([[GRID, 0], [0, -GRID], [0, 0]]))
@example(np.array([[0, 0], [0, 0], [GRID, 1]]))
@example(np.array([[0, 0], [-(2**63), 0], [0, 0]]))
@example(np.array([[0, 0], [2**32, 0], [0, 0]]))  # its square is 0 in 64 bits
def test_received_rows_are_checked_exactly(rows):
    channel = Channel(2)
    long = [number for number, row in enumerate(rows.tolist()) if sum(x * x for x in row) > GRID**2]
    for kind in array_and_tensor(rows):
        if long:
            with pytest.raises(InputError, match=f"Row {long[0]} is longer than its channel allows"):
                channel.check_rows(kind)
        else:
            channel.check_rows(kind)


@pytest.mark.parametrize(("shape", "kind"), [((1, 3), np.int64), ((2,), np.int64), ((1, 2), float)])
def test_received_rows_of_another_shape_or_kind_are_refused(shape, kind):
    with pytest.raises(InputError, match=r"64-bit integers of shape \(tasks, 2\)\. Got"):
        Channel(2).check_rows(np.zeros(shape, kind))


def lifted_by_hand(lift, row):
    outer = [row[i] * row[j] for i in range(len(row)) for j in range(i, len(row))]
    if isinstance(lift, MeanAndOuter):
        return row + outer
    kinds = {Absolute: [abs(x) for x in row], Diagonal: [x * x for x in row], Outer: outer, Plain: row}
    return kinds[type(lift)]


@pytest.mark.parametrize(
    "rows", [np.full((1, 3), np.nan), np.array([[np.nan, 0.5, 0.0]]), np.full((1, 3), 2.0)]
)
def test_whole_rows_are_bounded_whatever_the_clip_before_them_does(rows, monkeypatch):
    """A compiler for another device may make something else of it; what is added is checked in the end."""
    monkeypatch.setattr(Channel, "_clipped", lambda self, messages, steps: (rows * steps, np.ones((1, 1))))
    assert not Channel(3).whole(rows).any()
    monkeypatch.setattr("cloister.core.channel.on_card", lambda rows: True)  # the program without a branch
    assert not Channel(3).whole(rows).any()


@pytest.mark.parametrize(
    ("clip", "kind"), [(5e-324, "f8"), (3e-303, "f8"), (0.7, "f8"), (0.7, "f4"), (1e300, "f8")]
)
def test_rows_on_the_grid_are_those_in_units_of_the_clip_to_the_bit(clip, kind):
    """Inside the ball, on its edge and far outside."""
    rows = np.random.default_rng(0).normal(size=(60, 20)) * np.geomspace(1e-3, 1e3, 60)[:, None]
    channel, messages = Channel(20, clip), (rows * clip).astype(kind)
    rows, divisors = channel._clipped(messages, GRID)
    np.testing.assert_array_equal(rows / divisors, channel.units(messages) * GRID)


@given(arrays(bool, (6, 4)), st.sampled_from(LIFTS), st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_zeros_and_ones_are_summed_as_any_numbers_are(messages, lift, clip):
    """To the bit, whatever the clip and however many ones a row has; by groups, and not on the grid too."""
    channel, numbers = Channel(4, clip, lift), messages.astype(float)
    assert np.array_equal(channel.total(messages, True), channel.total(numbers, True))
    assert np.array_equal(channel.total(messages), channel.total(numbers))
    grouped, groups = Channel(4, clip, Grouped(Plain(), 2)), np.array([0, 1, 1, 0, 0, 1])
    assert np.array_equal(grouped.total(messages, True, groups), grouped.total(numbers, True, groups))


def test_sums_of_many_tasks_are_exact_as_well(monkeypatch):
    """Rows go in parts that floating point adds without error; the parts are added as integers."""
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    channel = Channel(3, 0.5, MeanAndOuter(0.3))
    whole = channel.total(rows, exact=True)
    monkeypatch.setattr("cloister.core.channel.EXACT_ROWS", 7)
    np.testing.assert_array_equal(channel.total(rows, exact=True), whole)
    assert channel.total(rows[:0], exact=True).tolist() == [0] * channel.size
    assert GRID**2 * EXACT_ROWS <= 2**53  # entries of one part's sum of outer products


@pytest.mark.parametrize("lift", LIFTS, ids=repr)
def test_bounds_are_attained(lift):
    """A witness within 0.1 % of each bound: the prices are exact, not merely safe."""
    if isinstance(lift, Plain):
        cosine = -1.0
    elif isinstance(lift, MeanAndOuter):
        cosine = max(-1.0, -lift.a / (2 * (1 - lift.a)))
    else:
        cosine = 0.0
    channel = Channel(2, 0.7, lift)
    u, v = np.array([[1.0, 0.0]]), np.array([[cosine, math.sqrt(1 - cosine**2)]])
    for relation, neighbour in ((Relation.REPLACE, v), (Relation.ZERO_OUT, 0 * v)):
        moved = np.linalg.norm(
            (channel.total(9 * u, exact=True) - channel.total(9 * neighbour, exact=True)) * channel.steps
        )
        assert 0.999 * channel.sensitivity(relation) <= moved <= channel.sensitivity(relation) * (1 + 1e-12)
        moved = np.linalg.norm(channel.total(9 * u) - channel.total(9 * neighbour))
        assert 0.999 * channel.sensitivity(relation) <= moved
        assert moved <= channel.sensitivity(relation) * (1 + 1e-12)
        assert channel.sensitivity(relation) ** 2 == pytest.approx(float(exact_bound(lift, relation)), 1e-14)


@pytest.mark.parametrize("lift", LIFTS, ids=repr)
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_random_search_finds_nothing_beyond_the_bound(lift, dim):
    """All norms and angles, boundaries among them: no pair is further apart than the bound."""
    rng = np.random.default_rng(7)
    u, v = rng.normal(size=(2, 900, dim))
    v[::3] = -u[::3] * rng.uniform(0.5, 2, (300, 1))  # opposite
    radii = np.where(rng.random((2, 900)) < 0.5, 1.0, rng.random((2, 900)))
    u *= (radii[0] / np.linalg.norm(u, axis=1))[:, None]
    v *= (radii[1] / np.linalg.norm(v, axis=1))[:, None]
    channel = Channel(dim, 1.0, lift)
    lifted = [np.array([channel.total(row[None]) for row in rows]) for rows in (u, v)]
    assert np.linalg.norm(lifted[0] - lifted[1], axis=1).max() <= channel.sensitivity("replace") + 1e-12
    assert np.linalg.norm(lifted[0], axis=1).max() <= channel.sensitivity("zero_out") + 1e-12


# --- messages of several vectors, one for each class


VECTORS = [SumOfOuters, SumOfSquares, *(lambda q, a=a: MeanAndSquares(a, q) for a in SHARES)]


def vectors_by_hand(lift, row):
    """Return the lifted numbers of one message, weights left out, by Python's own arithmetic."""
    width = len(row) // lift.vectors
    parts = [row[at : at + width] for at in range(0, len(row), width)]
    if isinstance(lift, SumOfOuters):
        return [sum(p[i] * p[j] for p in parts) for i in range(width) for j in range(i, width)]
    squares = [sum(p[j] ** 2 for p in parts) for j in range(width)]
    return [*row, *squares] if isinstance(lift, MeanAndSquares) else squares


def vectors_bound(lift, relation):
    if isinstance(lift, MeanAndSquares):
        return exact_bound(MeanAndOuter(lift.a), relation)
    return Fraction(1 if relation is Relation.ZERO_OUT else 2)


@given(data=st.data(), kind=st.sampled_from(VECTORS), shape=st.sampled_from([(1, 3), (2, 1), (2, 2), (3, 2)]))
@settings(max_examples=300, deadline=None)
def test_several_vectors_move_the_sum_by_no_more_than_the_sensitivity(data, kind, shape):
    """In fractions on the grid: the squared change is at most the squared bound; sums are those of ints."""
    lift, dim = kind(shape[0]), math.prod(shape)
    messages = data.draw(arrays(np.float64, (4, dim), elements=WILD))
    channel = Channel(dim, 0.7, lift)
    rows = [[int(x) for x in row] for row in channel.rows(messages)]
    weights, degrees = lift.weights(dim)
    squared = [
        Fraction(1) if isinstance(lift, SumOfSquares) else Fraction(round(w**2))
        for w in ([] if isinstance(lift, MeanAndSquares) else weights)
    ] or [Fraction(lift.a)] * dim + [1 - Fraction(lift.a)] * shape[1]
    near, far, none = (
        [Fraction(x) / GRID**d for x, d in zip(vectors_by_hand(lift, row), degrees.tolist(), strict=True)]
        for row in (*rows[:2], [0] * dim)
    )
    for relation, other in ((Relation.REPLACE, far), (Relation.ZERO_OUT, none)):
        change = sum(w * (x - y) ** 2 for w, x, y in zip(squared, near, other, strict=True))
        assert change <= vectors_bound(lift, relation)
        assert channel.sensitivity(relation) ** 2 == pytest.approx(
            float(vectors_bound(lift, relation)), 1e-14
        )
    by_hand = sum(np.array(vectors_by_hand(lift, row), dtype=object) for row in rows)
    assert channel.total(messages, exact=True).tolist() == by_hand.tolist()
    for kind in array_and_tensor(np.array(rows, dtype=np.int64)):
        assert channel.lifted_sum(kind).tolist() == by_hand.tolist()


@pytest.mark.parametrize("kind", VECTORS)
def test_bounds_of_several_vectors_are_attained(kind):
    """Two features, one of three classes says something: within 0.1 % of each bound."""
    lift = kind(3)
    twice = min(1.0, lift.a / (2 * (1 - lift.a))) if isinstance(lift, MeanAndSquares) else 0.0
    angle, (u, v) = math.asin(twice) / 2, np.zeros((2, 1, 6))
    u[0, 2:4], v[0, 2:4] = (math.cos(angle), math.sin(angle)), (-math.sin(angle), -math.cos(angle))
    channel = Channel(6, 0.7, lift)
    for relation, neighbour in ((Relation.REPLACE, v), (Relation.ZERO_OUT, 0 * v)):
        one = np.array([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]) if relation is Relation.ZERO_OUT else u
        for exact, step in ((True, channel.steps), (False, 1.0)):
            moved = np.linalg.norm(
                (channel.total(9 * one, exact) - channel.total(9 * neighbour, exact)) * step
            )
            assert (
                0.999 * channel.sensitivity(relation) <= moved <= channel.sensitivity(relation) * (1 + 1e-12)
            )


def test_one_vector_is_the_lift_without_vectors():
    messages = np.random.default_rng(0).normal(size=(5, 3))
    for several, one in ((SumOfOuters(1), Outer()), (SumOfSquares(1), Diagonal())):
        totals = [Channel(3, 1.0, lift).total(messages, exact=True) for lift in (several, one)]
        np.testing.assert_array_equal(*totals)
    with pytest.raises(PlanError, match="at least one vector"):
        SumOfSquares(0)


def test_a_relation_may_be_a_word_but_not_any_word():
    """A plain string must never fall through to the smaller sensitivity."""
    for lift in LIFTS:
        channel = Channel(2, 1.0, lift)
        for relation in Relation:
            assert channel.sensitivity(relation.value) == lift.sensitivity(relation.value)
            assert channel.sensitivity(relation.value) == lift.sensitivity(relation)
    with pytest.raises(ValueError, match="add_remove"):
        Channel(2).sensitivity("add_remove")


@given(arrays(np.float64, (3, 4), elements=st.floats(-1e100, 1e100)), st.floats(1e-50, 1e50))
def test_clip_keeps_what_is_inside_and_the_direction_of_what_is_not(messages, clip):
    units = Channel(4, clip).units(messages)
    length = np.array([math.hypot(*row) for row in messages])
    inside = length <= clip * (1 - 1e-14)
    np.testing.assert_array_equal(units[inside], messages[inside] / clip)
    outside = length >= clip * (1 + 1e-14)
    np.testing.assert_allclose(units[outside], messages[outside] / length[outside, None], atol=1e-14)


def test_clip_comes_before_the_lift():
    """Lifting first and clipping the lifted vector would give another sum, with a larger sensitivity."""
    messages = np.array([[3.0, 4.0], [0.3, 0.4]])
    channel = Channel(2, 1.0, Outer())
    clipped = np.array([[0.6, 0.8], [0.3, 0.4]])
    np.testing.assert_allclose(unsvec(channel.total(messages), 2), clipped.T @ clipped, rtol=1e-14)
    joint = Channel(2, 1.0, MeanAndOuter(0.4)).total(messages)
    np.testing.assert_allclose(joint[:2], math.sqrt(0.4) * clipped.sum(axis=0), rtol=1e-14)
    np.testing.assert_allclose(joint[2:], math.sqrt(0.6) * svec(clipped.T @ clipped), rtol=1e-14)


@given(arrays(np.float64, (2, 5, 5), elements=st.floats(-10, 10)))
def test_svec_is_an_isometry(matrices):
    a, b = matrices + matrices.swapaxes(1, 2)
    assert svec(a) @ svec(b) == pytest.approx(float((a * b).sum()), rel=1e-12, abs=1e-9)
    np.testing.assert_allclose(unsvec(svec(a), 5), a, rtol=2 * EPS)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan, "1"])
def test_a_clip_that_bounds_nothing_is_refused(clip):
    with pytest.raises(PlanError, match=r"clip must be a number > 0 and finite\. Got .*\. Use NoNoise"):
        Channel(2, clip)


def test_other_channels_that_mean_nothing_are_refused():
    with pytest.raises(PlanError, match="at least one number"):
        Channel(0)
    for a in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(PlanError, match=r"must be in \(0, 1\)"):
            MeanAndOuter(a)


def wild_block(classes=None):
    """Tasks an adversary would bring: ordinary, empty, huge, tiny, missing, infinite, perfectly fitted."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (9, 30, 3)) / math.sqrt(3)
    y = X.sum(axis=2) if classes is None else rng.integers(0, classes, (9, 30)).astype(float)
    weight = np.ones((9, 30))
    weight[1] = 0
    X[2], X[3], X[4], X[5, 0, 0] = 1e300, 1e-300, np.nan, np.inf
    y[6], weight[7] = (1e200, 1e25) if classes is None else (classes - 1, 1e25)
    weight[8, 1:] = 0
    return Block(np.arange(9), X, y, weight, np.zeros(9, np.uint64))


def test_the_level_message_of_regression_is_non_negative_and_short():
    """(p l, p (1 - l)): that is why its replace sensitivity is sqrt(2) and nothing is clipped."""
    learner, block = Regression(3), wild_block()
    question = learner.questions["level"]
    with np.errstate(all="ignore"):
        message = question.answer(Home(learner.prepare(block), block), (), {})
    assert (message >= 0).all()
    assert (message.sum(axis=1) <= 1 + 1e-12).all()
    assert message.sum(axis=1)[0] > 0.96  # 30 rows
    assert not message[1].any()  # no rows: none
    channel = question.channel
    np.testing.assert_allclose(channel.units(message), message, atol=1e-14)
    assert channel.sensitivity(Relation.REPLACE) == math.sqrt(2)


@pytest.mark.parametrize("classes", [None, 2])
def test_the_trust_message_is_two_parts_of_one(classes):
    """Non-negative and of norm at most 1, whatever the data: its replace sensitivity is sqrt(2)."""
    learner = Regression(3) if classes is None else Classification(3, classes)
    block = wild_block(classes)
    question = learner.questions["trust"]
    around = Candidate(0.6, np.array([0.1, 0.2, -0.1]), np.eye(3), True)
    with np.errstate(all="ignore"):
        message = question.answer(Home(learner.prepare(block), block), [around], {})
    assert (message >= 0).all()
    assert (message.sum(axis=1) <= 1 + 1e-12).all()
    assert message[0].sum() == pytest.approx(1.0)
    assert not message[1].any()  # no rows: nothing to say
    assert question.channel.sensitivity(Relation.REPLACE) == math.sqrt(2)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_the_scale_message_is_centred_and_clipped(classes):
    learner = Regression(3) if classes is None else Classification(3, classes)
    block, question = wild_block(classes), learner.questions["scale"]
    with np.errstate(all="ignore"):
        around_zero = Candidate(1.0, np.zeros(learner.size), np.eye(learner.size), True)
        message = question.answer(Home(learner.prepare(block), block), [around_zero], {})
    assert np.isfinite(message).all()
    said = np.delete(message, 7, axis=0)  # a weight of 1e25 leaves nothing but rounding
    np.testing.assert_allclose(said.sum(axis=1), 0, atol=1e-9 * np.abs(said).max())
    np.testing.assert_allclose(message[1], 0, atol=1e-14)  # no rows: nothing to say
    channel = question.channel
    assert (channel.clip, channel.sensitivity(Relation.REPLACE)) == (2.0, 2.0)
    assert (np.linalg.norm(channel.units(message), axis=1) <= 1).all()
