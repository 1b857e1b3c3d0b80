"""Rows with several inputs, such as the codes of a text, which of them are padding, and an image.

They are one array of NumPy records, a field for each input: whatever cuts, keeps and sends rows treats them
as it treats any other array. Networks alone take them (`cloister.learners.Module`), each as the argument of
``forward`` that has its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, is_whole
from cloister.core.errors import InputError


def row_array(X: ArrayLike | Mapping[str, ArrayLike]) -> Array:
    """Return features as one array, of records if they are given by name.

    Whole numbers and truth values become 64-bit integers, all others 32-bit floats, as networks take them.

    Examples
    --------
    >>> rows = row_array({"ids": [[3, 1], [2, 0]], "mask": [[True, True], [True, False]]})
    >>> rows.shape, rows["mask"].tolist()
    ((2,), [[1, 1], [1, 0]])
    """
    if not isinstance(X, Mapping):
        return np.asarray(X)
    parts = {name: np.asarray(part) for name, part in X.items()}
    wrong = [name for name in parts if not (isinstance(name, str) and name.isidentifier())]
    if wrong or not parts:
        raise InputError(
            f"Inputs must have the names of forward's arguments. Got {wrong or 'none'}. Write "
            'X={"input_ids": ids, "attention_mask": mask}.'
        )
    numbers = {name: part for name, part in parts.items() if part.dtype.kind in "biuf" and part.ndim}
    if len(numbers) < len(parts) or len({len(part) for part in parts.values()}) > 1:
        found = ", ".join(f"{name} has {part.dtype} of shape {part.shape}" for name, part in parts.items())
        raise InputError(
            f"Each input must be numbers, with one entry a row: {found}. Encode them, and pad sequences with "
            "cloister.learners.pad_sequences."
        )
    kinds = [
        (name, np.float32 if part.dtype.kind == "f" else np.int64, part.shape[1:])
        for name, part in parts.items()
    ]
    rows = np.empty(len(next(iter(parts.values()))), dtype=kinds)
    for name, part in parts.items():
        rows[name] = part
    return rows


def inputs_of(X: Array) -> dict[str, Array]:
    """Return each input of rows by its name; the only one of plain rows is called ''."""
    return {"": X} if X.dtype.names is None else {name: X[name] for name in X.dtype.names}


def row_size(X: Array) -> int:
    """Return how many numbers a row has; records count as so many 32-bit ones."""
    per_row = int(np.prod(X.shape[1:]))
    return max(1, per_row if X.dtype.names is None else per_row * X.dtype.itemsize // 4)


def pad_sequences(
    sequences: Iterable[Sequence[object] | Array], length: int, fill: float = 0
) -> tuple[Array, Array]:
    """Return sequences as one array of `length` steps, and a mask of the same: 1 where there was a step.

    Parameters
    ----------
    sequences : iterable of sequences
        Each is codes, (steps,), or measurements, (steps, channels). Steps beyond `length` are cut off.
    length : int
        Steps of every row, the same for all tasks. Take it from what is known of the data beforehand.
    fill : float
        Stands for what is missing: the code of the tokenizer's padding.

    Privacy
    -------
    `length` is public: a part of the shape of rows. The longest sequence that somebody has is not, which is
    why it is never taken from the data.

    Examples
    --------
    >>> ids, mask = pad_sequences([[5, 7], [9], [1, 2, 3, 4]], length=3)
    >>> ids.tolist(), mask.tolist()
    ([[5, 7, 0], [9, 0, 0], [1, 2, 3]], [[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    """
    if not (is_whole(length) and length >= 1):
        raise InputError(f"length must be a whole number of steps, at least 1. Got {length!r}.")
    parts = [np.asarray(sequence)[:length] for sequence in sequences]
    steps = next((part for part in parts if len(part)), np.zeros(1, dtype=np.int64))
    wrong = [part for part in parts if len(part) and part.shape[1:] != steps.shape[1:]]
    if wrong or steps.dtype.kind not in "biuf":
        raise InputError(
            "Steps must be numbers, of one shape in all sequences. Got "
            f"{(wrong or [steps])[0].dtype} of shape {(wrong or [steps])[0].shape[1:]}. Encode them first."
        )
    kind = np.float32 if any(part.dtype.kind == "f" for part in parts if len(part)) else np.int64
    padded = np.full((len(parts), length, *steps.shape[1:]), fill, dtype=kind)
    mask = np.zeros((len(parts), length), dtype=np.int64)
    for row, part in enumerate(parts):
        if len(part):
            padded[row, : len(part)], mask[row, : len(part)] = part, 1
    return padded, mask
