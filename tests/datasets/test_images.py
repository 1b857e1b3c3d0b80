"""Handwriting by writer: the published counts from the real files, and the split from small ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister.datasets import femnist, mnist_by_writer
from cloister.errors import InputError


@pytest.fixture(scope="module")
def real(data_folder: Path):
    def find(name: str) -> Path:
        if not (data_folder / name).exists():
            pytest.skip(f"no file {data_folder / name}: it is not part of the project")
        return data_folder / name

    return find


def check(train, test, writers, classes):
    assert (len(train), len(test)) == (writers, writers)
    np.testing.assert_array_equal(train.ids, test.ids)
    for part in (train, test):
        assert part.X.shape[1:] == (1, 28, 28)
        assert part.X.dtype == np.float32
        assert part.y.dtype == np.int64
        assert (part.X.min(), part.X.max()) == (0, 1)
        assert set(np.unique(part.y)) == set(range(classes))


def test_mnist_at_seventy_percent(real):
    train, test = mnist_by_writer(real("mnist_by_writer.npz"))
    check(train, test, 473, 10)
    assert (train.sizes + test.sizes).min() >= 100
    assert round(train.sizes.mean()) == 82


def test_mnist_with_twenty_images_each(real):
    train, test = mnist_by_writer(real("mnist_by_writer.npz"), rows_per_writer=20, min_rows=60)
    check(train, test, 580, 10)
    assert set(train.sizes) == {20}
    assert test.sizes.min() >= 40


def test_femnist(real):
    train, test = femnist(real("femnist_pmtl_test.npz"))
    check(train, test, 189, 62)
    assert round(train.sizes.mean()) == 22


@pytest.fixture
def small(tmp_path):
    """Four writers with 4, 6, 8 and 10 images; the first two pixels hold the row's number."""
    rng = np.random.default_rng(0)
    writer = rng.permutation(np.repeat([7, 3, 5, 1], [4, 6, 8, 10])).astype(np.int16)
    X = np.zeros((28, 28, 28), dtype=np.uint8)
    X[:, 0, 0] = np.arange(28)
    arrays = {"X": X, "y": np.arange(28, dtype=np.uint8) % 10, "writer": writer}
    path = tmp_path / "digits.npz"
    np.savez(path, **arrays)
    return path, arrays


def numbers(tasks):
    return np.rint(tasks.X[:, 0, 0, 0] * 255).astype(int)


@pytest.mark.parametrize(("rows", "sizes"), [(None, [7, 4, 6]), (2, [2, 2, 2])])
def test_writers_with_enough_images_are_split(small, rows, sizes):
    path, arrays = small
    train, test = mnist_by_writer(path, rows_per_writer=rows, min_rows=5, seed=1)
    assert train.ids.tolist() == test.ids.tolist() == [1, 3, 5]
    assert train.sizes.tolist() == sizes
    both = np.concatenate([numbers(train), numbers(test)])
    np.testing.assert_array_equal(np.sort(both), np.flatnonzero(arrays["writer"] != 7))
    np.testing.assert_array_equal(train.y, arrays["y"][numbers(train)])
    np.testing.assert_array_equal(np.repeat(train.ids, train.sizes), arrays["writer"][numbers(train)])


@pytest.mark.parametrize("rows", [None, 3])
def test_a_writers_split_depends_on_nobody_else(small, rows, tmp_path):
    path, arrays = small
    few, many = (mnist_by_writer(path, rows, min_rows=least)[0] for least in (8, 4))
    for writer in few.ids:
        np.testing.assert_array_equal(numbers(few.only(writer)), numbers(many.only(writer)))
    # Other writers' rows may stand in between in another order.
    order = np.argsort(arrays["writer"], kind="stable")
    np.savez(tmp_path / "sorted.npz", **{name: array[order] for name, array in arrays.items()})
    np.testing.assert_array_equal(
        numbers(mnist_by_writer(tmp_path / "sorted.npz", rows, min_rows=8)[0]), numbers(few)
    )
    other = mnist_by_writer(path, rows, min_rows=8, seed=1)[0]
    assert not np.array_equal(numbers(other), numbers(few))


def test_other_files_are_refused(small, tmp_path):
    path, arrays = small
    with pytest.raises(InputError, match=r"arrays X, y and task. Got: .*task"):
        femnist(path)
    with pytest.raises(InputError, match=r"no writer with 11 images. Lower min_rows"):
        mnist_by_writer(path, min_rows=11)
    with pytest.raises(InputError, match=r"less than min_rows, 5, .* Got 5"):
        mnist_by_writer(path, rows_per_writer=5, min_rows=5)
    with pytest.raises(InputError, match="min_rows must be at least 2"):
        femnist(path, min_rows=1)
    changes = {"X": arrays["X"] / 255}, {"X": arrays["X"][1:]}, {"y": arrays["y"] + 1}, {"y": arrays["y"] / 9}
    for change in changes:
        np.savez(tmp_path / "other.npz", **(arrays | change))
        with pytest.raises(InputError, match=r"must have X of bytes|whole numbers from 0 to 9 in y"):
            mnist_by_writer(tmp_path / "other.npz", min_rows=5)


@pytest.mark.parametrize("content", [b"", b"X,y,writer\n", b"PK\x03\x04 no archive", None])
def test_no_archive_is_refused(content, tmp_path):
    path = tmp_path / "broken.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"must be an .npz file with the arrays X, y and writer"):
        mnist_by_writer(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"must be an .npz file"):
        mnist_by_writer(tmp_path / "array.npy")
