"""Handwriting: MNIST and FEMNIST by writer, and Omniglot cut into few-shot tasks, from files of your own.

*MNIST and FEMNIST.* A task is a writer. Both files are ``.npz`` archives with ``X``, bytes of shape (rows,
28, 28); ``y``, the class; and whose hand it is, called ``writer`` (MNIST) or ``task`` (FEMNIST). MNIST is
white on black, FEMNIST black on white; neither is inverted here.

*Omniglot*, handwritten characters of fifty alphabets. A task is an *episode*: some characters, a few images
of each, labels 0 to ways - 1 given at random. Who is protected by a task-level guarantee depends on how
episodes are cut, so each way of cutting says it:

==================== ================================================= ===================================
cut                  a task                                            what one task's privacy protects
==================== ================================================= ===================================
`episodes`           characters and images drawn anew, with overlap    a task; an image only as one of a
                                                                       group, of a hundred tasks or so
`disjoint_episodes`  characters and images dealt out, none twice       an image (and any rows of one task)
`drawer_episodes`    some characters of one alphabet, in one hand      an image; with one task a hand, all
                                                                       of a person's images in that task
==================== ================================================= ===================================

`cloister.plan.overlap.overlap` counts what is shared, and `cloister.plan.overlap.Overlap` prices it.

References
----------
.. [1] C. Yadav and L. Bottou, "Cold case: the lost MNIST digits", arXiv:1905.10498 (who wrote which).
.. [2] S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097 (FEMNIST).
.. [3] B. Lake, R. Salakhutdinov, J. Tenenbaum, "Human-level concept learning through probabilistic program
   induction", Science 350 (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Integers
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks, local_key, local_uniforms

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


#: Characters kept for testing, of 1623.
TEST_CHARACTERS = 162
WORD = 8


@dataclass(frozen=True, eq=False, repr=False)
class Omniglot:
    """Images and what is known of each; the same number of images of every character.

    Attributes
    ----------
    images : bytes of shape (n, 28, 28)
        White on black.
    character, alphabet, drawer : int arrays of shape (n,)
        Drawers are numbered within an alphabet: the hand is (alphabet, drawer).
    """

    images: NDArray[np.uint8]
    character: Integers
    alphabet: Integers
    drawer: Integers

    def __repr__(self) -> str:
        return f"Omniglot({len(np.unique(self.character))} characters, {len(self.images)} images)"

    @property
    def hand(self) -> Integers:
        """Whose hand drew each image: alphabet and drawer in one number."""
        return self.alphabet * 100 + self.drawer

    def take(self, rows: Array) -> Omniglot:
        """Return these images alone, by their places or a mask."""
        return Omniglot(self.images[rows], self.character[rows], self.alphabet[rows], self.drawer[rows])

    def split(self, test: int = TEST_CHARACTERS, seed: int = 0) -> tuple[Omniglot, Omniglot]:
        """Keep `test` random characters, all their images, for testing; return (training, test)."""
        characters = np.unique(self.character)
        if not 0 < test < len(characters):
            raise InputError(
                f"test must leave characters on both sides: between 1 and {len(characters) - 1}. Got {test}."
            )
        held_out = np.random.default_rng(seed).permutation(characters)[:test]
        mask = np.isin(self.character, held_out)
        return self.take(~mask), self.take(mask)

    @property
    def table(self) -> Integers:
        """Positions of the images, a row a character."""
        characters = len(np.unique(self.character))
        return np.argsort(self.character, kind="stable").reshape(characters, -1)


@dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """Few-shot tasks, and which image each of their rows is.

    Attributes
    ----------
    tasks : Tasks
        What a task learns from: X is packed (see `pack`), y is 0 to ways - 1.
    queries : Tasks or None
        Other images of the same characters, with the same labels, to test on.
    images : int array of shape (rows,)
        For each row of `tasks`, the position of its image in the data set: for
        `cloister.plan.overlap.overlap`.
    """

    tasks: Tasks
    queries: Tasks | None
    images: Integers

    def __repr__(self) -> str:
        return f"Episodes({len(self.tasks)} tasks, {len(self.images)} rows, private)"


def load_omniglot(path: str | Path) -> Omniglot:
    """Read Omniglot from an ``.npz`` file of your own.

    Parameters
    ----------
    path : path
        A file with the arrays X, bytes of shape (rows, 28, 28), and char, alphabet and drawer, whole numbers,
        one a row.

    Returns
    -------
    Omniglot
        1623 characters of 50 alphabets, 20 images of each.
    """
    path = Path(path)
    keys = ("X", "char", "alphabet", "drawer")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            X, *labels = (np.asarray(file[key]) for key in keys)
    except (OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile) as error:
        raise InputError(
            f"{path} must be an .npz file with the arrays {', '.join(keys)}. Got: {error}. Save your copy so."
        ) from error
    if X.dtype != np.uint8 or X.shape[1:] != (28, 28) or any(a.shape != X.shape[:1] for a in labels):
        raise InputError(
            f"{path} must have X of bytes, shape (rows, 28, 28), and {', '.join(keys[1:])} with one entry a "
            f"row. Got {X.dtype} of shape {X.shape}."
        )
    if any(a.dtype.kind not in "iu" for a in labels):
        raise InputError(f"{path} must have whole numbers in {', '.join(keys[1:])}. Check the data set.")
    _, sizes = np.unique(labels[0], return_counts=True)
    if not len(sizes) or (sizes != sizes[0]).any():
        raise InputError(f"{path} must have as many images of every character. Leave out incomplete ones.")
    return Omniglot(X, *(a.astype(np.int64) for a in labels))


def pack(images: NDArray[np.uint8]) -> Integers:
    """Put eight bytes of an image into one whole number; the network's `Unpack` layer takes them apart.

    Parameters
    ----------
    images : bytes of shape (n, ...)
        Anything of one byte a number.

    Returns
    -------
    int64 array of shape (n, numbers / 8, rounded up)

    Examples
    --------
    >>> pack(np.array([[255, 51, 0, 0, 0, 0, 0, 0, 1]], dtype=np.uint8)).tolist()
    [[13311, 1]]
    """
    flat = images.reshape(len(images), -1)
    padded = np.pad(flat, [(0, 0), (0, -flat.shape[1] % WORD)])
    return np.ascontiguousarray(padded).view("<i8").astype(np.int64)


def episodes(
    data: Omniglot, count: int, ways: int = 5, shots: int = 10, queries: int = 0, seed: int = 0
) -> Episodes:
    """Draw tasks at random: for each, `ways` characters, and `shots` + `queries` images of each.

    Parameters
    ----------
    data : Omniglot
        Characters to draw from.
    count : int
        Number of tasks.
    ways, shots, queries : int
        Characters of a task; images of each to learn from, and to test on.
    seed : int, default=0
        Of all draws.

    Notes
    -----
    **Privacy.** Every task draws from the same images, so that one image sits in many tasks: with 50,000
    tasks of 5 ways and 10 shots from 1461 characters, in 86 on average. A task-level guarantee protects a
    task, as if each were somebody's own data. It does not protect an image, a character or a drawer as well
    as it says: ask `cloister.plan.overlap.overlap`.
    """
    table = data.table
    _check_sizes(table, ways, shots + queries)
    rng = np.random.default_rng(seed)
    characters = _distinct(rng, len(table), count, ways)
    order = rng.random((count, ways, table.shape[1])).argsort(axis=2)[:, :, : shots + queries]
    rows = table[characters[:, :, None], order]
    return _cut(data, rows[:, :, :shots], rows[:, :, shots:])


def disjoint_episodes(data: Omniglot, ways: int = 5, shots: int = 10, seed: int = 0) -> Episodes:
    """Deal every image into at most one task: the most tasks of so many ways and shots without overlap.

    The images of each character are dealt into packs of `shots`. Then, pack by pack, the characters are
    shuffled and dealt into groups of `ways`. What does not fill a pack or a group is left out: of 1461
    characters with 20 images, 5 ways and 10 shots make 584 tasks.

    Parameters
    ----------
    data : Omniglot
        Characters to deal out.
    ways, shots : int
        Characters of a task, and images of each.
    seed : int, default=0
        Of all draws.

    Notes
    -----
    **Privacy.** No image is in two tasks, so a task-level guarantee protects each image. A character is in
    as many tasks as it has packs, and a hand in dozens.
    """
    table = data.table
    _check_sizes(table, ways, shots)
    rng = np.random.default_rng(seed)
    packs, groups = table.shape[1] // shots, len(table) // ways
    shuffled = rng.permuted(table, axis=1)[:, : packs * shots].reshape(len(table), packs, shots)
    dealt = [
        shuffled[rng.permutation(len(table))[: groups * ways], i].reshape(groups, ways, shots)
        for i in range(packs)
    ]
    rows = np.concatenate(dealt)
    return _cut(data, rows, rows[:, :, shots:])


def drawer_episodes(
    data: Omniglot, ways: int = 5, tasks_per_hand: int | None = None, seed: int = 0
) -> Episodes:
    """Cut tasks within a hand: `ways` characters of one alphabet, one image of each, by one drawer.

    A drawer drew each character of an alphabet once, so these tasks are of one shot. A hand's characters are
    shuffled and dealt into groups of `ways`; what does not fill a group is left out.

    Parameters
    ----------
    data : Omniglot
        Characters to cut up.
    ways : int
        Characters of a task.
    tasks_per_hand : int, optional
        Keep no more than so many tasks of each hand; 1 makes a task all that a hand tells.
    seed : int, default=0
        Of all draws.

    Notes
    -----
    **Privacy.** No image is in two tasks. With ``tasks_per_hand=1`` a task-level guarantee protects a hand,
    that is, a person's drawings of one alphabet. Otherwise a hand is a group of several tasks:
    ``overlap(tasks, unit=data.hand[images])`` counts them. Drawers are numbered within an alphabet, so that
    the file does not tell whether one person drew two alphabets; nobody is protected as such.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for hand in np.unique(data.hand):
        own = rng.permutation(np.flatnonzero(data.hand == hand))
        groups = own[: len(own) // ways * ways].reshape(-1, ways)
        rows.append(groups[:tasks_per_hand])
    dealt = np.concatenate(rows)[:, :, None]
    if not len(dealt):
        raise InputError(f"No hand drew {ways} characters of one alphabet. Lower ways.")
    return _cut(data, dealt, dealt[:, :, 1:])


def _check_sizes(table: Integers, ways: int, images: int) -> None:
    characters, each = table.shape
    if not (2 <= ways <= characters and 1 <= images <= each):
        raise InputError(
            f"A task needs 2 to {characters} ways and 1 to {each} images of a character. "
            f"Got {ways} and {images}."
        )


def _distinct(rng: np.random.Generator, total: int, count: int, ways: int) -> Integers:
    """Draw `ways` different numbers below `total`, in random order, `count` times."""
    drawn = rng.integers(total, size=(count, ways))
    while True:
        ordered = np.sort(drawn, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if not again.any():
            return drawn
        drawn[again] = rng.integers(total, size=(int(again.sum()), ways))


def _cut(data: Omniglot, support: Integers, query: Integers) -> Episodes:
    """Make tasks of positions of images, (tasks, ways, shots)."""
    packed = pack(data.images)
    queries = _tasks(packed, query) if query.shape[2] else None
    return Episodes(_tasks(packed, support), queries, support.reshape(-1))


def _tasks(packed: Integers, rows: Integers) -> Tasks:
    count, ways, shots = rows.shape
    y = np.tile(np.repeat(np.arange(ways), shots), count)
    offsets = np.arange(count + 1) * (ways * shots)
    return Tasks(np.arange(count), packed[rows.reshape(-1)], y, np.ones(len(y)), offsets)
