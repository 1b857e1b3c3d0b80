"""The public schema of a table: what may be in it, written down before anyone looks.

It lists the bounds of each number and the levels of each category, and alone decides how a row becomes a
vector of norm at most one. So the encoding cannot leak what is in the data: no mean, no rare level.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
from numpy.typing import ArrayLike, NDArray

from cloister.arrays import Array
from cloister.document import check_format
from cloister.errors import InputError, PrivateDataError

__all__ = ["Categorical", "Classes", "Codebook", "Feature", "Numeric", "Target"]

FORMAT = "cloister codebook 1"
FROM_DATA = "feature or target bounds were read from the data, and no noise hides them"
_TEMPLATE_HEAD = """\
# What is publicly known about each column. Write what is *possible*, from the questionnaire, the law or
# common sense (age: [0, 120]), not what is in the file: a minimum, a maximum or a rare level read from
# private data leaks. Numbers beyond their bounds are clipped; a level that is not listed is refused.
"""
_TEMPLATE_HINTS = {
    "numeric": "bounds = []  # numeric: [lowest possible, highest possible]; if codes: {levels} = [1, 2, 3]",
    "text": '{levels} = []  # text: every possible level, ["a", "b"]; the first is the reference',
}
Columns = Mapping[str, ArrayLike] | ArrayLike


@dataclass(frozen=True)
class Numeric:
    """A number between public bounds; what lies beyond is clipped to them."""

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _require(
            _real(self.low) and _real(self.high) and 0 < (self.high - self.low) / 2 < math.inf,
            f"bounds of {self.name!r} must be two finite numbers, low < high. Got ({self.low!r}, "
            f"{self.high!r}). Write the lowest and the highest value that are publicly possible.",
        )
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))

    def _names(self) -> tuple[str, ...]:
        return (self.name,)

    def _affine(self) -> tuple[float, float]:
        half = (self.high - self.low) / 2
        return self.low + half, half

    def _read(self, values: ArrayLike) -> NDArray[np.float64]:
        column = _column(self.name, values)
        try:
            numbers = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            raise PrivateDataError(
                f"column {self.name!r} must hold numbers. Got {column.dtype} with text or missing values. "
                "Give it levels in the codebook, or drop the rows that miss it by a public rule."
            ) from None
        bad = numbers.size - int(np.count_nonzero(np.isfinite(numbers)))
        _fits(
            bad == 0,
            f"column {self.name!r} must have a finite number in every row. Got {bad} rows that are missing "
            "or infinite. Drop or fill them by a public rule.",
        )
        return np.clip(numbers, self.low, self.high)

    def _columns(self, values: ArrayLike) -> NDArray[np.float64]:
        return self._read(values)[:, None]


@dataclass(frozen=True)
class Categorical:
    """One of a public list of levels; the first is the reference and has no column of its own."""

    name: str
    levels: Sequence[Any]

    def __post_init__(self) -> None:
        given = self.levels if isinstance(self.levels, list | tuple) else ()
        alike = all(isinstance(v, str) for v in given) or all(isinstance(v, Real) for v in given)
        _require(
            alike and len(given) == len(set(given)) > 1,
            f"levels of {self.name!r} must be a list of two or more different values, all text or all "
            f"numbers. Got {self.levels!r}. List every level that is publicly possible.",
        )
        object.__setattr__(self, "levels", tuple(v.item() if isinstance(v, np.generic) else v for v in given))

    def _names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}[{level}]" for level in self.levels[1:])

    def _affine(self) -> tuple[float, float]:
        return 0.0, 1.0

    def _read(self, values: ArrayLike) -> NDArray[np.int64]:
        column = _column(self.name, values)
        position = {level: i for i, level in enumerate(self.levels)}
        index = np.fromiter(map(position.get, column.tolist(), repeat(-1)), np.int64, count=len(column))
        bad = int(np.count_nonzero(index < 0))
        _fits(
            bad == 0,
            f"column {self.name!r} must hold listed levels only, of the listed type. Got {bad} rows that do "
            f"not ({column.dtype}). Add a level if it is publicly possible; write a range as a tuple.",
        )
        return index

    def _columns(self, values: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(self._read(values)[:, None] == np.arange(1, len(self.levels)), dtype=np.float64)


Classes = Categorical  # the same promise, made about a target
Feature = Numeric | Categorical
Target = Numeric | Classes


@dataclass(frozen=True)
class Codebook:
    r"""Names, bounds and levels of the columns of a table, and how its rows become vectors.

    Parameters
    ----------
    features : tuple of Numeric or Categorical
        In the order of the encoded columns.
    target : Numeric or Classes
        What is to be predicted.
    task : str, optional
        Name of the column that says which task a row belongs to.
    from_private_data : bool, default=False
        True when bounds were read from the data. The guarantee then does not cover them, and says so.

    Notes
    -----
    **Privacy.** All of it is public and fixed in advance. With :math:`k` features a row becomes
    :math:`x = (1, z_1, z_2, \dots) / \sqrt{1 + k}`, where a number gives one :math:`z \in [-1, 1]` and a
    category at most one indicator that is 1; hence :math:`\|x\|_2 \le 1` for every row there can be.

    Examples
    --------
    >>> bounds = {"age": (0, 120), "sex": ["F", "M"], "score": (0, 10)}
    >>> book = Codebook.from_mapping(bounds, ["age", "sex"], target="score")
    >>> book.encode({"age": [60, 120], "sex": ["F", "M"]}).round(3)
    array([[0.577, 0.   , 0.   ],
           [0.577, 0.577, 0.577]])
    """

    features: tuple[Feature, ...]
    target: Target
    task: str | None = None
    from_private_data: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        names = [*self.names, self.target.name, *([] if self.task is None else [self.task])]
        _require(
            len(self.features) > 0 and len(set(names)) == len(names),
            "a codebook must have at least one feature, and different names for features, target and task. "
            f"Got {names}. Rename or remove a column.",
        )

    @classmethod
    def from_mapping(
        cls,
        bounds: Mapping[Any, Any],
        features: Sequence[str] | int,
        target: str = "target",
        task: str | None = None,
    ) -> Codebook:
        """Build a codebook from ``{column: (low, high) or [levels]}``.

        A tuple of two numbers is a range; a list is levels. The target stands under its name, "target" or
        "y". If ``features`` is a number, columns are called x0, x1, ...; a key may be a column's index.

        Examples
        --------
        >>> Codebook.from_mapping({0: (-1, 1), 1: ["a", "b", "c"], "y": [0, 1]}, 2).column_names
        ('x0', 'x1[b]', 'x1[c]')
        """
        names = [f"x{i}" for i in range(features)] if isinstance(features, int) else list(features)
        entries = {names[k] if k in range(len(names)) else k: v for k, v in bounds.items()}
        goal = next((k for k in (target, "target", "y") if k in entries and k not in names), None)
        missing = [name for name in names if name not in entries] + [target] * (goal is None)
        extra = [key for key in entries if key not in names and key != goal]
        _require(not missing, f"bounds must hold every column. Missing: {missing}. Add a range or levels.")
        _require(not extra, f"bounds must name columns only. Unknown: {extra}. Remove or respell the entry.")
        parts = tuple(_from_spec(name, entries[name]) for name in names)
        return cls(parts, _from_spec(target, entries[goal]), task)

    @classmethod
    def from_data(
        cls, X: Columns, y: ArrayLike, target: str = "target", task: str | None = None, classify: bool = False
    ) -> Codebook:
        """Read bounds and levels from the data themselves; the guarantee does not cover this.

        Extreme values belong to single rows, and no noise hides them: for public data and experiments only.
        """
        parts = tuple(_observed(name, values, False) for name, values in _table(X).items())
        return cls(parts, _observed(target, _column(target, y), classify), task, from_private_data=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "the codebook") -> Codebook:
        """Rebuild from `to_dict` or from the tables of a TOML file; ``source`` is named in errors."""
        goal, rows = data.get("target", {}), data.get("features")
        check_format(data.get("format"), FORMAT, source)
        known = set(data) <= {"features", "target", "task", "from_private_data", "format"}
        _require(
            known and isinstance(goal, Mapping) and "name" in goal and isinstance(rows, Mapping | list),
            f"{source} must have [features.NAME] tables, a [target] table with a name, and optionally task. "
            f"Got the keys {sorted(data)}. Start from Codebook.template.",
        )
        named = rows if isinstance(rows, Mapping) else {row["name"]: row for row in rows or ()}
        parts = tuple(_from_entry(name, entry, "levels", source) for name, entry in named.items())
        end = _from_entry(goal["name"], goal, "classes", source)
        return cls(parts, end, data.get("task"), bool(data.get("from_private_data", False)))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and scalars, ready for JSON; `from_dict` is the inverse."""
        head: dict[str, Any] = {} if self.task is None else {"task": self.task}
        head |= {"from_private_data": True} if self.from_private_data else {}
        goal = {"name": self.target.name, **_entry(self.target, "classes")}
        return head | {"target": goal, "features": [{"name": f.name, **_entry(f)} for f in self.features]}

    @classmethod
    def load(cls, path: str | Path) -> Codebook:
        """Read a codebook from a TOML file; a value that the template left open is refused."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"codebook {path} must be readable TOML. Got: {error}. Start a new one."
            ) from error
        return cls.from_dict(data, source=str(path))

    def save(self, path: str | Path) -> None:
        """Write a TOML file that `load` reads back to an equal codebook."""
        data = (
            {"format": FORMAT}
            | self.to_dict()
            | {"features": {part.name: _entry(part) for part in self.features}}
        )
        Path(path).write_text(tomli_w.dumps(data), encoding="utf-8")

    @staticmethod
    def template(columns: Mapping[str, Literal["numeric", "text"]], task: str | None, target: str) -> str:
        """TOML text to fill in: column names and kinds, and no value from the data."""
        _require(target in columns, f"target must be a column. Got {target!r}. Choose one of {[*columns]}.")
        lines = [_TEMPLATE_HEAD] + ([] if task is None else [tomli_w.dumps({"task": task})])
        lines += ["[target]", tomli_w.dumps({"name": target}).rstrip()]
        lines += [_TEMPLATE_HINTS[columns[target]].format(levels="classes")]
        for name in (name for name in columns if name not in (task, target)):
            key = tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
            lines += ["", f"[features.{key}]", _TEMPLATE_HINTS[columns[name]].format(levels="levels")]
        return "\n".join(lines) + "\n"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, as the table has them."""
        return tuple(part.name for part in self.features)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the encoded columns without the intercept, e.g. ``("age", "sex[M]")``."""
        return tuple(name for part in self.features for name in part._names())

    @property
    def classes(self) -> int | None:
        """Number of the target's classes; None if it is a number."""
        return None if isinstance(self.target, Numeric) else len(self.target.levels)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why a guarantee does not hold for data that are encoded so."""
        return (FROM_DATA,) if self.from_private_data else ()

    @property
    def width(self) -> int:
        """Number of encoded columns, intercept included."""
        return 1 + len(self.column_names)

    @property
    def row_scale(self) -> float:
        """What every encoded row is divided by, so that its norm is at most one."""
        return math.sqrt(1 + len(self.features))

    @property
    def target_scale(self) -> float:
        """How many units of the target one encoded unit is; 1 for classes."""
        return self.target._affine()[1]

    def user_columns(self, columns: Columns) -> NDArray[np.float64]:
        """Columns in the user's units: clipped numbers, and a 0/1 indicator per level but the first."""
        table = _table(columns, self.names)
        return np.hstack([part._columns(table[part.name]) for part in self.features])

    def encode(self, columns: Columns) -> NDArray[np.float64]:
        """Rows of norm at most one, from a mapping of names to columns or a 2-D array in feature order."""
        units = self.user_columns(columns)
        center, half = self._affine()
        rows = np.ones((len(units), self.width))
        np.divide(np.subtract(units, center, out=units), half, out=units)
        np.clip(units, -1.0, 1.0, out=rows[:, 1:])
        return np.divide(rows, self.row_scale, out=rows)

    def encode_target(self, y: ArrayLike) -> Array:
        """Numbers clipped and mapped to [-1, 1], or the index of each class."""
        values = self.target._read(y)
        center, half = self.target._affine()
        return np.clip((values - center) / half, -1.0, 1.0) if isinstance(self.target, Numeric) else values

    def decode_target(self, values: ArrayLike) -> Array:
        """Inverse of `encode_target`: numbers in the target's units (not clipped), or class labels."""
        if not isinstance(self.target, Numeric):
            return np.asarray(self.target.levels)[np.asarray(values, dtype=np.int64)]
        center, half = self.target._affine()
        return center + half * np.asarray(values, dtype=np.float64)

    def to_user_units(self, weights: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients and intercept in the user's units, from encoded weights of shape (..., width).

        ``intercept + user_columns(X) @ coef`` is the decoded prediction; for classes it is the log-odds.
        """
        w = np.asarray(weights, dtype=np.float64)
        _require(
            w.shape[-1:] == (self.width,),
            f"weights must have {self.width} entries in their last axis, intercept first. Got shape "
            f"{w.shape}. Use the weights of a model that was fitted with this codebook.",
        )
        (center, half), (start, scale) = self._affine(), self.target._affine()
        w = w * (scale / self.row_scale)
        coef = w[..., 1:] / half
        return coef, start + w[..., 0] - coef @ center

    def _affine(self) -> NDArray[np.float64]:
        return np.array([part._affine() for part in self.features for _ in part._names()]).T


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(sentence)


def _fits(holds: bool, sentence: str) -> None:
    if not holds:
        raise PrivateDataError(sentence)


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _from_spec(name: str, spec: Any) -> Feature:
    if isinstance(spec, tuple) and len(spec) == 2 and all(map(_real, spec)):
        return Numeric(name, *spec)
    return Categorical(name, spec)


def _entry(part: Feature, levels: str = "levels") -> dict[str, Any]:
    return {"bounds": [part.low, part.high]} if isinstance(part, Numeric) else {levels: [*part.levels]}


def _from_entry(name: str, entry: Any, levels: str, source: str) -> Feature:
    given = {key: entry[key] for key in entry if key != "name"} if isinstance(entry, Mapping) else {}
    key = next(iter(given), "")
    value: Any = given.get(key)
    fits = isinstance(value, list) and (key == levels or (key == "bounds" and len(value) in (0, 2)))
    _require(
        fits and len(given) == 1,
        f"{name!r} in {source} must have either bounds = [low, high] or {levels} = [...]. Got {given}. "
        "Write exactly one of the two.",
    )
    _require(
        bool(value),
        f"{key} of {name!r} in {source} must be filled in. Got an empty list. "
        "Write what is publicly possible, not what is in the data.",
    )
    return Numeric(name, *value) if key == "bounds" else Categorical(name, value)


def _observed(name: str, values: Array, as_levels: bool) -> Feature:
    if values.dtype.kind == "O" and all(isinstance(value, Real) for value in values):
        values = values.astype(np.float64)
    if as_levels or values.dtype.kind not in "biuf":
        return Categorical(name, sorted(set(values.tolist()), key=str if values.dtype.kind == "O" else None))
    low, high = float(values.min()), float(values.max())
    return Numeric(name, low, high) if low != high else Numeric(name, low - 0.5, low + 0.5)


def _column(name: str, values: ArrayLike) -> Array:
    column = np.asarray(values)
    _require(column.ndim == 1, f"column {name!r} must be a 1-D array. Got shape {column.shape}. Flatten it.")
    return column


def _table(columns: Columns, names: Sequence[str] = ()) -> dict[str, Array]:
    if not isinstance(columns, Mapping):
        # A data frame would lose its names here and be read in the wrong order without a word.
        matrix = np.asarray(columns) if isinstance(columns, np.ndarray | list | tuple) else np.empty(0)
        _require(
            matrix.ndim == 2 and len(names) in (0, matrix.shape[-1]),
            f"columns must be a mapping of names to arrays, or a 2-D array, {len(names) or 'some'} columns. "
            f"Got {type(columns).__name__} of shape {np.shape(columns)}. Pass a data frame as a mapping.",
        )
        columns = dict(zip(names or [f"x{i}" for i in range(matrix.shape[1])], matrix.T, strict=True))
    missing = [name for name in names if name not in columns]
    _require(not missing, f"columns must hold every feature. Missing: {missing}. Add or rename the column.")
    table = {name: _column(name, columns[name]) for name in names or columns}
    lengths = {name: len(column) for name, column in table.items()}
    _require(len(set(lengths.values())) == 1, f"columns must have one length. Got {lengths}. Take one table.")
    return table
