"""Labelled data frames, in the library that the user's own table is of."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.errors import InputError

__all__ = ["data_frame", "library_of"]

LIBRARIES = ("pandas", "polars", "pyarrow")


def library_of(X: Any) -> str | None:
    """Return the name of the library that a table is of; None if it is a mapping or an array.

    Examples
    --------
    >>> import pandas as pd
    >>> library_of(pd.DataFrame({"age": [7]})), library_of({"age": [7]})
    ('pandas', None)
    """
    import narwhals as nw

    frame = nw.from_native(X, pass_through=True)
    if not isinstance(frame, nw.DataFrame | nw.LazyFrame):
        return None
    name = str(frame.implementation.value)
    return name if name in LIBRARIES else None


def data_frame(columns: Mapping[str, ArrayLike], library: str | None = None) -> Any:
    """Return a data frame of these columns: of this library, or of the first that is installed.

    Examples
    --------
    >>> type(data_frame({"age": [7, 8]}, "polars")).__module__.partition(".")[0]
    'polars'
    """
    if library is not None and library not in LIBRARIES:
        raise InputError(f"A data frame is of one of {', '.join(LIBRARIES)}. Got {library!r}.")
    found = library or next((name for name in LIBRARIES if find_spec(name) is not None), None)
    if found is None:
        raise InputError("A data frame needs pandas, polars or pyarrow. Install one, or use to_dict().")
    import narwhals as nw

    plain = {name: np.asarray(column).tolist() for name, column in columns.items()}
    return nw.from_dict(plain, backend=found).to_native()  # type: ignore[arg-type]
