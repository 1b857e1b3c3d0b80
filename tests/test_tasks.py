"""Tasks: every way in gives the same thing, ragged sizes cost little memory, and nothing private prints."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cloister import Tasks
from cloister.core.tasks import local_key, local_uniforms, public_seeds
from cloister.errors import InputError

NAMES = ["b", "a", "b", "c", "a", "b"]
X = np.array([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0], [4.0, -4.0], [5.0, -5.0], [6.0, -6.0]])
Y = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])


def same(one, two):
    for name in ("ids", "X", "y", "weight", "offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def make(sizes, width=2, seed=0):
    rng = np.random.default_rng(seed)
    names = np.repeat([f"t{i:04d}" for i in range(len(sizes))], sizes)
    return Tasks.from_arrays(rng.normal(size=(len(names), width)), rng.normal(size=len(names)), names)


def test_every_way_in_gives_the_same_tasks():
    columns = {"task": NAMES, "x": X[:, 0], "z": X[:, 1], "y": Y}
    reference = Tasks.from_arrays(X, Y, NAMES)
    assert reference.ids.tolist() == ["a", "b", "c"]
    assert reference.y.tolist() == [20, 50, 10, 30, 60, 40]  # by task, in the order they came
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
        same(Tasks.from_table(frame, "task", "y"), reference)
        same(Tasks.from_table(frame, "task", "y", features=["x", "z"]), reference)
    same(Tasks.from_arrays(X.tolist(), Y.tolist(), pd.Series(NAMES, dtype="category")), reference)
    parts = [[i for i, name in enumerate(NAMES) if name == task] for task in "cab"]
    same(Tasks.from_list([X[at] for at in parts], [Y[at] for at in parts], "cab"), reference)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([3, 1, 3], [1, 3]),
        ([np.int64(3), 1, 3], [1, 3]),
        (np.array([25.0, 1.0, 25.0]), [1, 25]),
        (pd.Series(["b", "a", "b"], dtype="category"), ["a", "b"]),
    ],
)
def test_ids_of_many_kinds(ids, expected):
    tasks = Tasks.from_arrays(X[:3], Y[:3], ids)
    assert tasks.sizes.tolist() == [1, 2]
    assert tasks.ids.tolist() == expected


def test_blocks_hold_every_row_once_and_pad_with_zero_weight():
    tasks = make([3, 1, 4, 1, 5, 2, 2])
    seen = {}
    for block in tasks.blocks():
        for i, name in enumerate(block.ids):
            real = block.weight[i] > 0
            seen[name] = (block.X[i][real], block.y[i][real])
            assert not block.X[i][~real].any()
            assert not block.y[i][~real].any()
    assert sorted(seen) == tasks.ids.tolist()
    for name, (rows, targets) in seen.items():
        one = tasks.only(name)
        np.testing.assert_array_equal(rows, one.X)
        np.testing.assert_array_equal(targets, one.y)


@pytest.mark.parametrize("shape", ["pareto", "one giant", "two sizes"])
def test_ragged_sizes_do_not_blow_up_memory(shape):
    """Padding everything to the largest task would take 20 to 2000 times the data."""
    rng = np.random.default_rng(0)
    sizes = {
        "pareto": (1 + rng.pareto(1.2, 20000) * 2).astype(int).clip(1, 20000),
        "one giant": np.array([1] * 2000 + [100_000]),
        "two sizes": np.array([2] * 3000 + [2000] * 10),
    }[shape]
    tasks = make(sizes, width=5)
    blocks = list(tasks.blocks())
    padded = sum(block.X.size for block in blocks)
    assert padded <= 1.6 * tasks.X.size
    assert len(tasks) * sizes.max() * 5 > 15 * padded
    assert len(blocks) < 60
    assert max(block.X.size for block in blocks) <= max(1 << 22, sizes.max() * 5)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_every_task_is_in_exactly_one_block(sizes):
    tasks = make(sizes)
    assert sorted(np.concatenate(tasks.layout()).tolist()) == list(range(len(sizes)))


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=30),
    st.integers(1, 300),
    st.sampled_from([500, 1 << 18]),
)
@settings(max_examples=50, deadline=None)
def test_how_far_a_task_is_padded_does_not_depend_on_others(sizes, other, quick):
    """To 64 rows or fewer than twice its own while there is little to compute, else to a quarter more."""

    def width(sizes):
        (mine,) = (block for block in make(sizes).blocks() if "t0000" in block.ids)
        return mine.X.shape[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.core.tasks.PADDED_ELEMENTS", quick)
        padded = width(sizes)
        assert padded == width([sizes[0], *[other] * (len(sizes) - 1)])
        assert sizes[0] <= padded < max(2 * sizes[0], 65)
        assert padded * len(sizes) * 2 <= quick or 4 * padded <= 5 * sizes[0] + 3


def test_equal_sizes_are_views():
    tasks = make([64] * 30)
    (block,) = tasks.blocks()
    for part, whole in ((block.X, tasks.X), (block.y, tasks.y), (block.weight, tasks.weight)):
        assert np.shares_memory(part, whole)
    assert block.X.shape == (30, 64, 2)


def test_one_row_and_one_task():
    for tasks in (make([1]), make([1, 1, 1])):
        (block,) = tasks.blocks()
        assert block.weight.sum(axis=1).tolist() == [1.0] * len(tasks)
        assert [b.X.shape for b in tasks.blocks(per_row=1 << 18)] == [(len(tasks), 1, 2)]


def test_split_depends_on_the_seed_and_the_own_name_only():
    tasks = make([9, 1, 14, 2])
    train, test = tasks.split(0.3, seed=4)
    assert train.sizes.tolist() == [6, 1, 10, 1]
    assert test.ids.tolist() == ["t0000", "t0002", "t0003"]
    alone = tasks.only("t0002").split(0.3, seed=4)
    same(alone[0], train.only("t0002"))
    same(alone[1], test.only("t0002"))
    again = tasks.select([2, 3, 0, 1]).split(0.3, seed=4)
    same(again[0], train)
    assert not np.array_equal(tasks.split(0.3, seed=5)[1].y, test.y)
    rows = np.concatenate([train.y, test.y])
    assert sorted(rows.tolist()) == sorted(tasks.y.tolist())


def test_select_by_position_and_by_mask():
    tasks = make([1, 2, 3, 4])
    for index in ([2, 3], [2, -1], np.array([False, False, True, True])):
        same(tasks.select(index), tasks.select([2, 3]))
    assert tasks.select([2, 0]).ids.tolist() == ["t0002", "t0000"]
    assert len(tasks.select([])) == 0
    with pytest.raises(IndexError):
        tasks.select([4])


def test_nothing_private_prints():
    secret = Tasks.from_arrays([[123.456]], [654.321], ["secret"])
    (block,) = secret.blocks()
    for thing in (secret, block):
        assert repr(thing) == str(thing)
        assert not any(word in repr(thing) for word in ("123", "654", "secret"))
    assert repr(secret) == "Tasks(1 tasks, 1 rows, 1 features, private)"


def test_local_uniforms_are_uniform_and_independent():
    """KS and correlations at 2e5 draws, 5 sd: false alarm below 1e-5."""
    keys = np.array([local_key(0, i) for i in range(100)])
    draws = np.stack([local_uniforms(keys, round, 100) for round in range(20)])
    assert draws.shape == (20, 100, 100)
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-5
    assert len(np.unique(draws)) == draws.size
    z = (draws - 0.5) * np.sqrt(12)
    for one, two in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1]), (z[..., 1:], z[..., :-1])):
        assert abs(np.mean(one * two)) < 5 / np.sqrt(one.size)


def test_local_uniforms_know_neither_order_nor_company():
    tasks = make([4, 2, 4, 3])
    together = {}
    for block in tasks.blocks(seeds=public_seeds(tasks.ids, 9)):
        together |= dict(zip(block.ids.tolist(), block.uniforms(5), strict=True))
    for name in tasks.ids.tolist():
        (block,) = tasks.only(name).blocks(seeds=public_seeds(np.array([name]), 9))
        alone = block.uniforms(5)[0]
        np.testing.assert_array_equal(alone, together[name][: len(alone)])
        (other,) = tasks.only(name).blocks(seeds=public_seeds(np.array([name]), 8))
        assert not np.intersect1d(other.uniforms(5), alone).size


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"X": np.where(X == -3, np.nan, X)}, r"Task 'b' has a missing or infinite value in column 1\."),
        ({"X": np.where(X == 4, np.inf, X)}, r"Task 'c' has a missing or infinite value in column 0\."),
        ({"y": np.where(Y == 20, np.nan, Y)}, r"Task 'a' has a missing or infinite value in the target\."),
        ({"y": Y[:-1]}, r"one entry a row: X has 6, y has 5, task has 6, weight has 5\."),
        ({"task": NAMES[:-1]}, r"task has 5"),
        ({"weight": np.ones(5)}, r"weight has 5"),
        ({"weight": [1, 1, 1, 1, 1, -1]}, r"Row weights must be finite and >= 0"),
        ({"weight": [1, 1, 1, 1, 1, np.nan]}, r"Row weights must be finite and >= 0"),
        ({"X": X.astype(object)}, r"feature column is not numeric\. Encode it first"),
        ({"X": X.astype(str)}, r"feature column is not numeric"),
        ({"y": np.array(["u"] * 6)}, r"target column is not numeric"),
        ({"task": ["a", None, "b", "b", "b", "b"]}, r"must not be missing"),
        ({"task": ["a", np.nan, "b", "b", "b", "b"]}, r"must not be missing"),
        ({"task": [1.0, np.nan, 2, 2, 2, 2]}, r"must not be missing"),
        ({"task": pd.Series(["a", None, "b", "b", "b", "b"], dtype="string")}, r"must not be missing"),
        ({"task": np.array(["2024", "NaT"] * 3, dtype="M8[D]")}, r"must not be missing"),
        ({"task": np.zeros((6, 2))}, r"one-dimensional\. Got shape \(6, 2\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(change, sentence):
    given = {"X": X, "y": Y, "task": NAMES} | change
    with pytest.raises(InputError, match=sentence):
        Tasks.from_arrays(given["X"], given["y"], given["task"], given.get("weight"))


def test_tables_and_lists_that_cannot_be_used():
    frame = pd.DataFrame({"task": ["a", None], "x": [1, 2], "word": ["u", "v"], "y": [1.0, 2.0]})
    with pytest.raises(InputError, match=r"no column 'z'\. It has: task, x, word, y"):
        Tasks.from_table(frame, "task", "z")
    with pytest.raises(InputError, match="Column 'word' is not numeric"):
        Tasks.from_table(frame, "task", "y")
    with pytest.raises(InputError, match="Task column 'task' has missing values"):
        Tasks.from_table(frame, "task", "y", ["x"])
    with pytest.raises(InputError, match="X has 1, y has 2"):
        Tasks.from_list([X], [Y, Y])
    with pytest.raises(InputError, match="Task 'q' has 6 rows of X but 5 of y"):
        Tasks.from_list([X], [Y[:5]], ["q"])
    with pytest.raises(InputError, match="Task 1 has no rows"):
        Tasks.from_list([X, X[:0]], [Y, Y[:0]])
    with pytest.raises(InputError, match="no two alike"):
        Tasks.from_list([X, X], [Y, Y], ["q", "q"])
    with pytest.raises(InputError, match="There is no task 'q' here"):
        Tasks.from_arrays(X, Y, NAMES).only("q")
    for share in (0.0, 1.0, np.nan):
        with pytest.raises(InputError, match=r"test must be a share in \(0, 1\)"):
            make([3]).split(share)
