"""Federated data in the JSON files of LEAF, from a copy of your own: one task a user.

A file is ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``. A path
may be one file or a folder of them, such as LEAF's ``data/train``; read ``data/test`` by a second call. Users
without rows are left out. Vocabularies and alphabets are public and come from you, never from the files.

References
----------
.. [1] S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks

#: Turns the list of a user's rows into an array; raises `InputError` with the rule that was broken.
Encoder = Callable[[list[Any]], Array]

LEAF_KEYS = ("users", "num_samples", "user_data")
#: The 80 characters of LEAF's Shakespeare, in the order of their codes.
SHAKESPEARE_ALPHABET = (
    "\n !\"&'(),-.0123456789:;>?" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "[]" + "abcdefghijklmnopqrstuvwxyz" + "}"
)


def leaf_femnist(path: str | Path) -> Tasks:
    """Read FEMNIST: black handwriting on white, 62 classes, one task a writer.

    Parameters
    ----------
    path : path
        A file or a folder of files; a row of x has 784 numbers in [0, 1].

    Returns
    -------
    Tasks
        X is float32 of shape (rows, 1, 28, 28), y is int64 in 0..61.
    """
    return _tasks(path, _glyphs, partial(_labels, classes=62))


def leaf_celeba(path: str | Path, images: str | Path | None = None, white: float = 255.0) -> Tasks:
    """Read CelebA: whether somebody smiles, one task a celebrity.

    LEAF's files name pictures (``000001.jpg``). cloister reads no picture formats: save each picture, resized
    as you like (LEAF takes 84 x 84), as an array of shape (height, width, 3) in ``000001.npy``, and say in
    `images` where they are. Or put these arrays into x, in place of the names.

    Parameters
    ----------
    path : path
        A file or a folder of files.
    images : path, optional
        The folder of ``.npy`` files; not needed if x holds the pixels.
    white : float, default=255
        The largest value of a pixel, by which all are divided.

    Returns
    -------
    Tasks
        X is float32 in [0, 1] of shape (rows, 3, height, width), y is 0 or 1.
    """
    if not 0 < white < np.inf:
        raise InputError(f"white must be a finite number > 0. Got {white}.")
    folder = None if images is None else Path(images)
    return _tasks(path, partial(_pictures, folder=folder, white=white), partial(_labels, classes=2))


def leaf_stackoverflow(path: str | Path, words: Sequence[str], tags: Sequence[str]) -> Tasks:
    """Read StackOverflow questions and their tags: several labels a row, one task a user.

    A row of x is the text (words separated by blanks), the list of its words, or a count for each of `words`;
    one of y the tags (separated by ``|``), their list, or a 0 or 1 for each of `tags`. Words and tags that
    are not listed are dropped. As in TensorFlow Federated, counts are divided by the number of known words.

    Parameters
    ----------
    path : path
        A file or a folder of files.
    words, tags : sequence of str
        The public vocabularies, usually the 10,000 commonest words and 500 commonest tags.

    Returns
    -------
    Tasks
        X is float32 of shape (rows, words), each row adding up to 1 (or 0 if it has no known word);
        y is int64 of shape (rows, tags), 1 where a row has a tag. Both are dense: 40 kB a row for 10,000
        words.
    """
    word_at, tag_at = _places("words", words), _places("tags", tags)
    return _tasks(path, partial(_word_shares, places=word_at), partial(_tag_flags, places=tag_at))


def leaf_shakespeare(path: str | Path, alphabet: str = SHAKESPEARE_ALPHABET, length: int = 80) -> Tasks:
    """Read Shakespeare: the next character of a line, one task a role in a play.

    Parameters
    ----------
    path : path
        A file or a folder of files; a row of x is a string, one of y the character after it.
    alphabet : str
        The public characters; a code is a position in it.
    length : int, default=80
        Characters of each string.

    Returns
    -------
    Tasks
        X is int32 of shape (rows, length), y is int64; both hold positions in `alphabet`.
    """
    _places("alphabet", alphabet)

    def line(rows: list[Any]) -> Array:
        return _codes(rows, "x", length, alphabet).astype(np.int32)

    def next_character(rows: list[Any]) -> Array:
        return _codes(rows, "y", 1, alphabet)[:, 0].astype(np.int64)

    return _tasks(path, line, next_character)


# --- files and users ----------------------------------------------------------------------------------


def _tasks(path: str | Path, encode_x: Encoder, encode_y: Encoder) -> Tasks:
    """Encode each user's rows; an error names the file and the user."""
    names: list[str] = []
    X: list[Array] = []
    y: list[Array] = []
    for file, user, rows, targets in _users(Path(path)):
        try:
            encoded, labels = encode_x(rows), encode_y(targets)
            if X and encoded.shape[1:] != X[0].shape[1:]:
                raise InputError(
                    f"x must have one shape for all users. Got {encoded.shape[1:]} after {X[0].shape[1:]}."
                )
        except InputError as error:
            raise InputError(f"{file}, user {user!r}: {error}") from error
        names.append(user)
        X.append(encoded)
        y.append(labels)
    if not names:
        raise InputError(f"{path} has no user with rows.")
    return Tasks.from_list(X, y, names)


def _users(path: Path) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """Go through the files of a folder, in order, and the users listed in each that have rows."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} must be a LEAF file or a folder of them. It holds no .json file.")
    seen: set[str] = set()
    for file in files:
        for user, count, data in _listed(file):
            if user in seen:
                raise InputError(f"{file}, user {user!r}: no user may be listed twice. Merge the rows.")
            seen.add(user)
            x, y = (data.get(key) if isinstance(data, dict) else None for key in ("x", "y"))
            if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
                raise InputError(
                    f"{file}, user {user!r}: x and y must be lists of as many rows as num_samples says, "
                    f"{count}."
                )
            if x:
                yield file, user, x, y


def _listed(file: Path) -> list[tuple[str, Any, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} must be a JSON file in LEAF's format. Got: {error}.") from error
    fields = [content.get(key) if isinstance(content, dict) else None for key in LEAF_KEYS]
    users, counts, data = fields
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise InputError(
            f"{file} must hold the lists users and num_samples and the mapping user_data, as LEAF's do."
        )
    names = [str(user) for user in users]
    absent = [name for name in names if name not in data]
    if len(counts) != len(names) or absent:
        found = f"no data for {absent[0]!r}" if absent else f"{len(names)} users and {len(counts)} counts"
        raise InputError(f"{file} must have a number of samples and data for each of its users. Got {found}.")
    return [(name, count, data[name]) for name, count in zip(names, counts, strict=True)]


# --- rows -----------------------------------------------------------------------------------------------


def _numbers(rows: list[Any], rule: str, most: float = np.inf) -> Array:
    """Return rows as an array of numbers from 0 to `most`, or raise with the rule."""
    try:
        values = np.asarray(rows, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(rule) from error
    if not (np.isfinite(values) & (values >= 0) & (values <= most)).all():
        raise InputError(rule)
    return values


def _labels(rows: list[Any], classes: int) -> Array:
    rule = f"y must hold whole numbers from 0 to {classes - 1}."
    values = _numbers(rows, rule, most=classes - 1)
    if values.ndim != 1 or (values != np.floor(values)).any():
        raise InputError(rule)
    return values.astype(np.int64)


def _glyphs(rows: list[Any]) -> Array:
    rule = "a row of x must have 784 numbers in [0, 1], the pixels of an image."
    values = _numbers(rows, rule, most=1.0)
    if values.shape[1:] != (784,):
        raise InputError(rule)
    return values.astype(np.float32).reshape(-1, 1, 28, 28)


def _pictures(rows: list[Any], folder: Path | None, white: float) -> Array:
    arrays = [_picture(row, folder) if isinstance(row, str) else row for row in rows]
    rule = f"a picture must have shape (height, width, 3), the same for all, and values from 0 to {white:g}."
    values = _numbers(arrays, rule, most=white)
    if values.ndim != 4 or values.shape[3] != 3:
        raise InputError(rule)
    return np.moveaxis(values / white, 3, 1).astype(np.float32)


def _picture(name: str, folder: Path | None) -> Array:
    if folder is None:
        raise InputError(
            f"x names pictures ({name!r}), and cloister reads no picture formats. Save each as an .npy array "
            "and pass images=folder, or put the pixels into x."
        )
    file = folder / f"{Path(name).stem}.npy"
    try:
        with file.open("rb") as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} must be an .npy array of numbers. Got: {error}.") from error


def _places(what: str, entries: Sequence[str]) -> dict[str, int]:
    places = {entry: i for i, entry in enumerate(entries)}
    if not places or len(places) != len(entries):
        raise InputError(f"{what} must list at least one entry, and none twice. Got {len(entries)} entries.")
    return places


def _word_shares(rows: list[Any], places: dict[str, int]) -> Array:
    counts = _counts(
        rows, places, None, f"a row of x must be a text, a list of words or {len(places)} counts."
    )
    shares: Array = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    return shares.astype(np.float32)


def _tag_flags(rows: list[Any], places: dict[str, int]) -> Array:
    rule = f"a row of y must be tags separated by |, a list of tags or {len(places)} numbers 0 or 1."
    counts = _counts(rows, places, "|", rule, most=1.0)
    if (counts != np.floor(counts)).any():
        raise InputError(rule)
    return np.minimum(counts, 1).astype(np.int64)


def _counts(
    rows: list[Any], places: dict[str, int], separator: str | None, rule: str, most: float = np.inf
) -> Array:
    """Count the entries of each row; rows of numbers are counts already."""
    counts = np.zeros((len(rows), len(places)))
    for i, row in enumerate(rows):
        entries = row.split(separator) if isinstance(row, str) else row
        if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
            known = [places[entry] for entry in entries if entry in places]
            counts[i] = np.bincount(known, minlength=len(places)) if known else 0
            continue
        values = _numbers(entries, rule, most)
        if values.shape != (len(places),):
            raise InputError(rule)
        counts[i] = values
    return counts


def _codes(rows: list[Any], what: str, length: int, alphabet: str) -> Array:
    """Return the position in the alphabet of each character of strings of one length."""
    if not all(isinstance(row, str) and len(row) == length for row in rows):
        raise InputError(f"a row of {what} must be a string of length {length}.")
    points = np.frombuffer("".join(rows).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    known = np.array([ord(character) for character in alphabet])
    order = np.argsort(known)
    found: Array = order[np.searchsorted(known[order], points).clip(max=len(known) - 1)]
    strange = known[found] != points
    if strange.any():
        raise InputError(
            f"{what} has {chr(points[strange][0])!r}, which is not in the alphabet. Pass alphabet=..."
        )
    return found.reshape(len(rows), length)
