"""Handwriting by writer, from files of your own: MNIST with its writers, and FEMNIST.

A task is a writer. Both files are ``.npz`` archives with ``X``, bytes of shape (rows, 28, 28); ``y``, the
class; and whose hand it is, called ``writer`` (MNIST) or ``task`` (FEMNIST). MNIST is white on black,
FEMNIST black on white; neither is inverted here.

References
----------
.. [1] C. Yadav and L. Bottou, "Cold case: the lost MNIST digits", arXiv:1905.10498 (who wrote which).
.. [2] S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097 (FEMNIST).
"""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from cloister.arrays import Array
from cloister.errors import InputError
from cloister.tasks import Tasks, local_key, local_uniforms

__all__ = ["femnist", "mnist_by_writer"]

#: Share of a writer's images that is kept for testing.
TEST_SHARE = 0.3
WHITE = np.float32(255)


def mnist_by_writer(
    path: str | Path, rows_per_writer: int | None = None, min_rows: int = 100, seed: int = 0
) -> tuple[Tasks, Tasks]:
    """Read MNIST with one task a writer, split into training and test images.

    All 836 writers of the 70,000 digits are read, from the training and the test part of MNIST alike (no
    writer is in both). Two choices have been measured:

    * ``min_rows=100``: the 473 writers with at least 100 images, 70 % of them for training (82 on average);
    * ``rows_per_writer=20, min_rows=60``: the 580 writers with at least 60 images, 20 of them for training.

    Parameters
    ----------
    path : path
        An ``.npz`` file with X, y and writer.
    rows_per_writer : int, optional
        Training images of each writer; the others are for testing. By default 70 % are for training.
    min_rows : int, default=100
        Writers with fewer images are left out.
    seed : int, default=0
        Of the split. A writer's own split depends on (seed, writer) only, not on who else is there.

    Returns
    -------
    train, test : Tasks
        The same writers in both; X is float32 in [0, 1] of shape (rows, 1, 28, 28), y is int64 in 0..9.

    Notes
    -----
    **Privacy.** How many images somebody has is data. A guarantee for the writers chosen by `min_rows` takes
    the list of tasks as public, and does not hide who was left out.
    """
    if rows_per_writer is not None and not 1 <= rows_per_writer < min_rows:
        raise InputError(
            f"rows_per_writer must be at least 1 and less than min_rows, {min_rows}, so that every writer "
            f"has an image to test on. Got {rows_per_writer}. Lower it or raise min_rows."
        )
    writers = _read(Path(path), "writer", 10, min_rows)
    if rows_per_writer is None:
        return _pixels_of(*writers.split(TEST_SHARE, seed))
    return _pixels_of(*_first_rows(writers, rows_per_writer, seed))


def femnist(path: str | Path, min_rows: int = 20, seed: int = 0) -> tuple[Tasks, Tasks]:
    """Read FEMNIST (digits and letters, 62 classes) with one task a writer, 70 % of the images for training.

    Of the 206 writers in the file of the private-MTL experiments (the test part of their split: its training
    part is not published), 189 have at least 20 images, the default; they train on 22 on average. For a copy
    in LEAF's own format use `leaf_femnist`.

    Parameters
    ----------
    path : path
        An ``.npz`` file with X, y and task.
    min_rows : int, default=20
        Writers with fewer images are left out.
    seed : int, default=0
        Of the split. A writer's own split depends on (seed, writer) only, not on who else is there.

    Returns
    -------
    train, test : Tasks
        The same writers in both; X is float32 in [0, 1] of shape (rows, 1, 28, 28), y is int64 in 0..61.

    Notes
    -----
    **Privacy.** As for `mnist_by_writer`: the list of tasks is taken as public.
    """
    return _pixels_of(*_read(Path(path), "task", 62, min_rows).split(TEST_SHARE, seed))


def _read(path: Path, writer: str, classes: int, min_rows: int) -> Tasks:
    """Return the writers with enough images, these as bytes."""
    if min_rows < 2:
        raise InputError(
            f"min_rows must be at least 2: an image to train and one to test on. Got {min_rows}."
        )
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            X, y, names = (np.asarray(file[key]) for key in ("X", "y", writer))
    except (OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile) as error:
        raise InputError(
            f"{path} must be an .npz file with the arrays X, y and {writer}. Got: {error}. Save your copy so."
        ) from error
    if X.shape[1:] != (28, 28) or X.dtype != np.uint8 or not y.shape == names.shape == X.shape[:1]:
        raise InputError(
            f"{path} must have X of bytes, shape (rows, 28, 28), and y and {writer} with one entry a row. "
            f"Got {X.dtype} of shape {X.shape}, and shapes {y.shape} and {names.shape}."
        )
    if y.dtype.kind not in "iu" or not np.isin(y, np.arange(classes)).all():
        raise InputError(f"{path} must have whole numbers from 0 to {classes - 1} in y. Check the data set.")
    _, inverse, sizes = np.unique(names, return_inverse=True, return_counts=True)
    enough = (sizes >= min_rows)[inverse]
    if not enough.any():
        raise InputError(f"{path} has no writer with {min_rows} images. Lower min_rows.")
    return Tasks.from_arrays(X[enough], y[enough].astype(np.int64), names[enough])


def _first_rows(writers: Tasks, count: int, seed: int) -> tuple[Tasks, Tasks]:
    """Split off `count` random rows of every writer, by the writer's own draws."""
    chosen = np.zeros(len(writers.y), dtype=bool)
    for name, start, size in zip(writers.ids, writers.offsets[:-1], writers.sizes, strict=True):
        draws = local_uniforms(np.array([local_key(seed, name)]), 0, int(size))[0]
        chosen[start + np.argsort(draws)[:count]] = True
    names = np.repeat(writers.ids, writers.sizes)
    train, test = (
        Tasks.from_arrays(writers.X[rows], writers.y[rows], names[rows]) for rows in (chosen, ~chosen)
    )
    return train, test


def _pixels_of(train: Tasks, test: Tasks) -> tuple[Tasks, Tasks]:
    return _pixels(train), _pixels(test)


def _pixels(writers: Tasks) -> Tasks:
    """Bytes to numbers in [0, 1], with an axis for the one colour."""
    X: Array = writers.X[:, None].astype(np.float32) / WHITE
    return Tasks(writers.ids, X, writers.y, writers.weight, writers.offsets)
