"""The public schema of a table: what may be in it, written down before anyone looks.

It lists the bounds of each number and the levels of each category, and alone decides how a row becomes a
vector of norm at most one. So the encoding cannot leak what is in the data: no mean, no rare level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import ArrayLike, NDArray

from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.tables.codebook_file import (
    as_target,
    by_name,
    check_codebook_format,
    codebook_format,
    date_text,
    from_entry,
    from_spec,
    read_toml,
    target_entry,
    target_from_entry,
    target_from_spec,
    template,
)
from cloister.tables.column_checks import At, ColumnCheck, accepted, check_column
from cloister.tables.column_types import Categorical, Numeric, Target
from cloister.tables.dates import Date
from cloister.tables.feature import Feature, require
from cloister.tables.frames import equal_columns, named_columns, one_column
from cloister.tables.naming import Naming
from cloister.tables.reading import Kind, emptied
from cloister.tables.targets import Count, Ordered, log_middle

FROM_DATA = "feature or target bounds were read from the data, and no noise hides them"
#: What a codebook may leave out, at the top of its file.
_OPTIONAL = ("from_private_data", "empty")
#: A data frame, a mapping of names to columns, or an array.
Columns = Any


@dataclass(frozen=True)
class Codebook:
    r"""Names, bounds and levels of the columns of a table, and how its rows become vectors.

    Parameters
    ----------
    features : tuple of Numeric, Categorical or Date
        In the order of the encoded columns.
    target : Numeric or Classes
        What is to be predicted.
    task : str, optional
        Name of the column that says which task a row belongs to.
    from_private_data : bool, default=False
        True when bounds were read from the data. The guarantee then does not cover them, and says so.
    interactions : tuple of pairs of names
        Features whose effects depend on each other: the products of their columns are columns too.
    empty : tuple of str
        Words that say that a cell is empty, in any column, beside NA and the like.
    naming : Naming
        The public names of all tasks, if they are listed, and what a task and a row are called.

    Notes
    -----
    **Privacy.** All of it is public and fixed in advance. Feature :math:`j` becomes a block :math:`z_j` with
    :math:`\|z_j\|^2 \le b_j`, a public number: 1 for a number between its bounds, whatever its transform, and
    for a category; one for each part of a date; and :math:`1 + \|z\|^2` if a value with the block :math:`z`
    stands for missing ones. An interaction is :math:`z_i \otimes z_j`, of squared norm
    :math:`\|z_i\|^2 \|z_j\|^2 \le b_i b_j`. A row is all of them behind a 1, divided by the root of
    :math:`1 + \sum_j b_j + \sum_{ij} b_i b_j`; hence :math:`\|x\|_2 \le 1` for every row there can be.

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
    interactions: tuple[tuple[str, str], ...] = ()
    empty: tuple[str, ...] = ()
    naming: Naming = field(default_factory=Naming)

    def __post_init__(self) -> None:
        words = self.empty if isinstance(self.empty, list | tuple) else [None]
        require(
            all(isinstance(word, str) and word.strip() for word in words),
            f'empty must be a list of words. Got {self.empty!r}. Write empty = ["?", "unknown"].',
        )
        object.__setattr__(self, "empty", tuple(words))
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "interactions", tuple(tuple(pair) for pair in self.interactions))
        as_target(self.target)
        names = [*self.names, self.target.name, *([] if self.task is None else [self.task])]
        require(
            len(self.features) > 0 and len(set(names)) == len(names),
            "a codebook must have at least one feature, and different names for features, target and task. "
            f"Got {names}. Rename or remove a column.",
        )
        known = {*self.names}
        good = all(len({*pair}) == len(pair) == 2 and known.issuperset(pair) for pair in self.interactions)
        require(
            good and len(set(map(frozenset, self.interactions))) == len(self.interactions),
            f"interactions must be pairs of different features, each once. Got {[*self.interactions]}. Write "
            f'interactions = [["age", "sex"]], with names of {[*self.names]}.',
        )
        if isinstance(self.target, Count):
            self.target.check_exposure(self.exposure, len(self._explaining), self.interactions)
        columns = self.column_names
        require(
            len(set(columns)) == len(columns),
            f"the columns of a codebook must have different names. Got {sorted(columns)}. Rename a feature.",
        )

    @classmethod
    def from_mapping(
        cls,
        bounds: Mapping[Any, Any],
        features: Sequence[str] | int,
        target: str = "target",
        task: str | None = None,
        interactions: Sequence[tuple[str, str]] = (),
    ) -> Codebook:
        """Build a codebook from ``{column: (low, high) or [levels]}``.

        A tuple of two numbers or dates is a range; a list is levels; a dictionary has the keys of a codebook
        file, ``{"bounds": (1, 1e6), "transform": "log", "missing": 30_000}``. The target stands under its
        name, "target" or "y". If ``features`` is a number, columns are called x0, x1, ...; a key may be a
        column's index.

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
        require(not missing, f"bounds must hold every column. Missing: {missing}. Add a range or levels.")
        require(not extra, f"bounds must name columns only. Unknown: {extra}. Remove or respell the entry.")
        parts = tuple(from_spec(name, entries[name]) for name in names)
        end = target_from_spec(target, entries[goal])
        return cls(parts, end, task, interactions=tuple(interactions))

    @classmethod
    def from_data(
        cls, X: Columns, y: ArrayLike, target: str = "target", task: str | None = None, classify: bool = False
    ) -> Codebook:
        """Read bounds and levels from the data themselves; the guarantee does not cover this.

        Extreme values belong to single rows, and no noise hides them: for public data and experiments only.
        """
        parts = tuple(_observed(name, values, False) for name, values in equal_columns(X).items())
        goal = as_target(_observed(target, one_column(target, y), classify))
        return cls(parts, goal, task, from_private_data=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "the codebook") -> Codebook:
        """Rebuild from `to_dict` or from the tables of a TOML file; ``source`` is named in errors."""
        goal, rows = data.get("target", {}), data.get("features")
        check_codebook_format(data.get("format"), source)
        known = set(data) <= {
            "features",
            "target",
            "task",
            "format",
            "interactions",
            *_OPTIONAL,
            *Naming.KEYS,
        }
        pairs = data.get("interactions", [])
        require(
            known
            and isinstance(goal, Mapping)
            and isinstance(goal.get("name"), str)
            and isinstance(rows, Mapping | list)
            and isinstance(data.get("task"), str | None),
            f"{source} must have [features.NAME] tables, a [target] table with a name, and optionally task. "
            f"Got the keys {sorted(data)}. Start from Codebook.template.",
        )
        require(
            isinstance(pairs, list)
            and all(isinstance(pair, list | tuple) for pair in pairs)
            and all(isinstance(name, str) for pair in pairs for name in pair),
            f"interactions in {source} must be a list of pairs. Got {pairs!r}. Write "
            'interactions = [["age", "sex"]].',
        )
        parts = tuple(
            from_entry(name, found, "levels", source) for name, found in by_name(rows or (), source)
        )
        end = target_from_entry(goal["name"], goal, source)
        return cls(
            parts,
            end,
            data.get("task"),
            bool(data.get("from_private_data", False)),
            tuple(tuple(pair) for pair in pairs),
            data.get("empty", ()),
            Naming.from_keys(data),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and scalars, ready for JSON; `from_dict` is the inverse."""
        rows = [{"name": part.name, **date_text(part.entry())} for part in self.features]
        return self._head() | {"features": rows}

    def _head(self) -> dict[str, Any]:
        head = ({} if self.task is None else {"task": self.task}) | self.naming.to_keys()
        head |= {"from_private_data": True} if self.from_private_data else {}
        head |= {"empty": [*self.empty]} if self.empty else {}
        head |= {"interactions": [[*pair] for pair in self.interactions]} if self.interactions else {}
        return head | {"target": {"name": self.target.name, **target_entry(self.target)}}

    @classmethod
    def load(cls, path: str | Path, target: str | None = None) -> Codebook:
        """Read a codebook from a TOML file; a value that the template left open is refused.

        Parameters
        ----------
        path : path
            The file.
        target : str, optional
            Which of several targets is meant.
        """
        books = {book.target.name: book for book in cls.load_all(path)}
        if target is None and len(books) == 1:
            return next(iter(books.values()))
        if target is not None and target in books:
            return books[target]
        got = "several" if target is None else repr(target)
        raise InputError(
            f"One of the targets of the codebook {path} must be meant: {', '.join(books)}. Got {got}. Name "
            "it with --target or target=; `cloister fit` and SeveralOutcomes take all of them."
        )

    @classmethod
    def load_all(cls, path: str | Path) -> tuple[Codebook, ...]:
        """Read a codebook for each target of a TOML file, which may have several [[target]] tables."""
        data = read_toml(path)
        goals = data.get("target", {})
        each = [{"target": goal} for goal in goals] if isinstance(goals, list) and goals else [{}]
        books = tuple(cls.from_dict({**data, **goal}, source=str(path)) for goal in each)
        names = [book.target.name for book in books]
        require(
            len(set(names)) == len(names),
            f"the targets of {path} must have different names. Got {names}. Rename or remove one.",
        )
        return books

    def save(self, path: str | Path) -> None:
        """Write a TOML file that `load` reads back to an equal codebook."""
        tables = {part.name: part.entry() for part in self.features}
        version = codebook_format(
            [*tables.values()], (*self.interactions, *self.empty, *self.naming.to_keys())
        )
        data = {"format": version} | self._head() | {"features": tables}
        Path(path).write_text(tomli_w.dumps(data), encoding="utf-8")

    @staticmethod
    def template(columns: Mapping[str, Kind], task: str | None, *targets: str) -> str:
        """TOML text to fill in: column names and kinds, and no value from the data."""
        return template(columns, task, *targets)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, as the table has them."""
        return tuple(part.name for part in self.features)

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the encoded columns without the intercept, e.g. ``("age", "sex[M]", "age:sex[M]")``."""
        own = [name for part in self._explaining for name in part.block_names()]
        return (*own, *(f"{own[i]}:{own[j]}" for i, j in self.products.T))

    @cached_property
    def bounded_columns(self) -> tuple[int, ...]:
        """Positions of the encoded columns, of which the intercept is 0, that are a number in public bounds.

        Indicators, steps and splines are not among them, nor interactions.
        """
        starts = 1 + np.cumsum([0, *(len(part.block_names()) for part in self._explaining)])
        return tuple(
            int(start) for part, start in zip(self._explaining, starts, strict=False) if part.is_bounded
        )

    def column_affine(self, column: int) -> tuple[float, float]:
        """Return middle and half-width of the bounds of one of `bounded_columns`, in the user's units."""
        center, half = self._affine[:, column - 1]
        return float(center), float(half)

    @cached_property
    def products(self) -> NDArray[np.int64]:
        """Positions of the two columns, of features, whose product is each column of an interaction."""
        ends = np.cumsum([0, *(len(part.block_names()) for part in self._explaining)])
        span = {part.name: range(*ends[i : i + 2]) for i, part in enumerate(self._explaining)}
        found = [(i, j) for one, two in self.interactions for i in span[one] for j in span[two]]
        return np.array(found, dtype=np.int64).reshape(-1, 2).T

    @property
    def exposure(self) -> Numeric | None:
        """The column that says what a count is counted over, which has no coefficient."""
        named = self.target.exposure if isinstance(self.target, Count) else None
        return next((part for part in self.features if part.name == named), None)  # type: ignore[return-value]

    @cached_property
    def _explaining(self) -> tuple[Feature, ...]:
        """The features that have coefficients."""
        return tuple(part for part in self.features if part is not self.exposure)

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
        """Number of encoded columns that have a weight, intercept included."""
        return 1 + len(self.column_names)

    @property
    def size(self) -> int:
        """Number of weights of a task's model."""
        classes = self.classes or 2
        return self.width + classes - 2 if isinstance(self.target, Ordered) else (classes - 1) * self.width

    @property
    def row_width(self) -> int:
        """Number of encoded columns: those that have a weight, and the exposure's."""
        return self.width + (self.exposure is not None)

    @cached_property
    def row_scale(self) -> float:
        """What every encoded row is divided by, so that its norm is at most one."""
        bounds = {part.name: part.block_bound() for part in self._explaining}
        products = sum(bounds[one] * bounds[two] for one, two in self.interactions)
        return math.sqrt(1 + sum(bounds.values()) + products)

    @property
    def target_scale(self) -> float:
        """How many units of the target one encoded unit is; 1 for classes."""
        return self._target_affine[1]

    def user_columns(self, columns: Columns, at: At | None = None) -> NDArray[np.float64]:
        """Columns in the user's units: clipped numbers, their transforms, and 0/1 indicators of levels."""
        table = self._table(columns)
        blocks = (part.block_columns(accepted(part, table[part.name], at)) for part in self._explaining)
        own = np.hstack([*blocks])
        one, two = self.products
        return np.hstack([own, own[:, one] * own[:, two]]) if len(one) else own

    def encode(self, columns: Columns, at: At | None = None) -> NDArray[np.float64]:
        """Rows of norm at most one, from a table with names or a 2-D array in feature order.

        Where the target has an exposure, one more column has its logarithm.

        Rows that do not fit are refused; ``at`` names a row by its position in the sentence that says so.
        """
        units = self.user_columns(columns, at)
        center, half = self._affine
        own = units[:, : len(center)]
        rows = np.ones((len(units), self.width))
        np.divide(np.subtract(own, center, out=own), half, out=own)
        np.clip(own, -1.0, 1.0, out=rows[:, 1 : 1 + len(center)])
        one, two = 1 + self.products
        np.multiply(rows[:, one], rows[:, two], out=rows[:, 1 + len(center) :])
        np.divide(rows, self.row_scale, out=rows)
        return rows if self.exposure is None else np.column_stack([rows, self._offset(columns, at)])

    def _offset(self, columns: Columns, at: At | None) -> NDArray[np.float64]:
        """Return the logarithm of each row's exposure, over the middle of what is possible."""
        part = self.exposure
        assert part is not None
        values = accepted(part, self._table(columns)[part.name], at).values
        return np.log(np.clip(values, part.low, part.high)) - log_middle(part)

    def cells(self, name: str, values: ArrayLike) -> Array:
        """Return a column, with what the codebook calls empty as an empty cell."""
        return emptied(one_column(name, values), self._empty)

    @cached_property
    def _empty(self) -> frozenset[str]:
        return frozenset(word.strip().casefold() for word in self.empty)

    def _table(self, columns: Columns) -> dict[str, Array]:
        return {name: self.cells(name, column) for name, column in equal_columns(columns, self.names).items()}

    def encode_target(self, y: ArrayLike, at: At | None = None) -> Array:
        """Numbers clipped and mapped to [-1, 1], counts clipped, or the index of each class."""
        return self.target.encoded(
            accepted(self.target, self.cells(self.target.name, y), at, goal=True).values
        )

    def decode_target(self, values: ArrayLike) -> Array:
        """Inverse of `encode_target`: numbers in the target's units (not clipped), or class labels."""
        return self.target.decoded(np.asarray(values, dtype=np.float64))

    def decode_prediction(self, values: ArrayLike) -> Array:
        """Return what scores predict, in the target's units and within its public bounds."""
        return self.target.predicted(np.asarray(values, dtype=np.float64))

    def check(self, columns: Columns) -> list[ColumnCheck]:
        """Say how much of each column is clipped, missing or refused. Private: for your own eyes.

        Parameters
        ----------
        columns : table
            With names; it may have the target. A column that it does not have is passed over.

        Examples
        --------
        >>> book = Codebook((Numeric("age", 0, 120), Categorical("sex", ["F", "M"])), Numeric("score", 0, 10))
        >>> for column in book.check({"age": [34, 430, None], "sex": ["F", "M", "m"]}):
        ...     print(column)
        age: 3 rows, 1 clipped (0 below 0, 1 above 120), 1 missing (refused)
        sex: 3 rows, 1 not listed (refused): 'm' (1)
        """
        table, _ = named_columns(columns)
        parts = (*self.features, self.target)
        return [
            check_column(part, self.cells(part.name, table[part.name]))
            for part in parts
            if part.name in table
        ]

    def to_user_units(self, weights: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients and intercept in the user's units, from encoded weights of shape (..., width).

        ``intercept + user_columns(X) @ coef`` is the decoded prediction; for classes it is the log-odds, for
        counts the logarithm of what is expected, for one unit of exposure if they have one.
        """
        w = np.asarray(weights, dtype=np.float64)
        require(
            w.shape[-1:] == (self.width,),
            f"weights must have {self.width} entries in their last axis, intercept first. Got shape "
            f"{w.shape}. Use the weights of a model that was fitted with this codebook.",
        )
        (center, half), (start, scale), (one, two) = self._affine, self._target_affine, self.products
        w = w * (scale / self.row_scale)
        coef = w[..., 1 : 1 + len(center)] / half
        intercept = start + w[..., 0] - coef @ center
        if not len(one):
            return coef, intercept
        # A product of encoded columns, (u - c)(v - d)/(h k), is (u v - d u - c v + c d)/(h k) in user units.
        products = w[..., 1 + len(center) :] / (half[one] * half[two])
        turn = np.zeros((len(one), len(center)))
        np.add.at(turn, (np.arange(len(one)), one), center[two])
        np.add.at(turn, (np.arange(len(one)), two), center[one])
        intercept = intercept + products @ (center[one] * center[two])
        return np.concatenate([coef - products @ turn, products], axis=-1), intercept

    @property
    def _affine(self) -> NDArray[np.float64]:
        return np.array([pair for part in self._explaining for pair in part.block_affine()]).T

    @property
    def _target_affine(self) -> tuple[float, float]:
        if not isinstance(self.target, Numeric):
            return 0.0, 1.0
        start, scale = self.target.affine()[0]
        return start - (0.0 if self.exposure is None else log_middle(self.exposure)), scale


def _observed(name: str, values: Array, as_levels: bool) -> Feature:
    if values.dtype.kind == "O" and all(isinstance(value, Real) for value in values):
        values = values.astype(np.float64)
    if values.dtype.kind == "M":
        low, high = values.min().astype("M8[us]").item(), values.max().astype("M8[us]").item()
        return Date(name, low, high)
    if as_levels or values.dtype.kind not in "biuf":
        return Categorical(name, sorted(set(values.tolist()), key=str if values.dtype.kind == "O" else None))
    low, high = float(values.min()), float(values.max())
    return Numeric(name, low, high) if low != high else Numeric(name, low - 0.5, low + 0.5)
