"""Predictions of encoded rows by their tasks' models: numbers, deviations, and probabilities of classes.

Models are arrays with one row a model; `at` says of each encoded row which of these is its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from cloister.app.count_predictions import CountPredictions
from cloister.core.arrays import Array, Floats, States
from cloister.core.cuts import at_least, class_shares, ordered_steps, usual_cuts
from cloister.core.errors import InputError
from cloister.learners.linear.newton import probabilities
from cloister.store.files import write_private
from cloister.tables.binary_files import parquet_bytes
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical
from cloister.tables.csv_files import Dialect, read_as_written
from cloister.tables.table_files import csv_text, is_csv, is_workbook
from cloister.tables.targets import Count, Ordered, Positive

Index = NDArray[np.intp]
#: Variances of logarithms are not told apart beyond this.
_LARGEST = 100.0
#: How many digits of a prediction are written; JSON and Parquet have all.
_DIGITS = 6
_TEXT, _PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
#: Columns with the ends of an interval.
ENDS = ("low", "high")


class TargetUnits(Protocol):
    """How the target was encoded: a codebook, or a task's own scaling."""

    @property
    def target_scale(self) -> float:
        """How many units of the target one encoded unit is."""

    def decode_prediction(self, values: Any) -> Array:
        """Return encoded predictions in the target's units, within its bounds if it has public ones."""


def numbers(units: TargetUnits, rows: Floats, models: States, at: Index) -> Array:
    """Return the predicted mean of each row, in the target's units."""
    scores = _scores(rows, models, at)
    if isinstance(units, Codebook) and isinstance(units.target, Positive) and has_deviations(models):
        scale = units.target_scale
        variance = np.square(scale * _with_noise(_variances(rows, models, at), models, at))
        scores = scores + np.minimum(variance, 1.0) / (2 * scale)
    return units.decode_prediction(scores)


def _scores(rows: Floats, models: States, at: Index) -> Floats:
    """Return each row's score; a column beyond those with weights is an offset."""
    size = models["coef"].shape[1]
    found = np.asarray(np.einsum("nd,nd->n", rows[:, :size], models["coef"][at]))
    return found if rows.shape[1] == size else found + rows[:, size]


def deviations(units: TargetUnits, rows: Floats, models: States, at: Index) -> Floats:
    """Return the standard deviation of each row's prediction, noise included, in the target's units."""
    variance = _variances(rows, models, at)
    if "spread" in models:
        return _counted(units, rows, models, at, variance).deviations
    deviation = _with_noise(variance, models, at) * units.target_scale
    if isinstance(units, Codebook) and isinstance(units.target, Positive):  # of a log-normal law
        most = (units.target.high - units.target.low) / 2
        relative = np.sqrt(np.expm1(np.minimum(np.square(deviation), _LARGEST)))
        return np.asarray(np.minimum(numbers(units, rows, models, at) * relative, most))
    return deviation


def has_deviations(models: States) -> bool:
    """Say whether models know how sure they are."""
    return "covariance" in models and ("noise" in models or "spread" in models)


def _variances(rows: Floats, models: States, at: Index) -> Floats:
    """Return the variance of each row's score."""
    if not has_deviations(models):
        raise InputError(
            "These models have no posterior, hence no standard deviation of their predictions. Use a "
            "SharedPrior estimator."
        )
    variance, size = np.empty(len(rows)), models["coef"].shape[1]
    order = np.argsort(at, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(at[order])) + 1) if len(at) else []
    for own in groups:  # a covariance for each row would take rows x columns^2 numbers
        X, model = rows[own, :size], at[own[0]]
        variance[own] = np.einsum("nd,de,ne->n", X, models["covariance"][model], X)
    return np.maximum(variance, 0.0)


def _with_noise(variance: Floats, models: States, at: Index) -> Floats:
    return np.sqrt(np.maximum(variance + models["noise"][at], 0.0))


def intervals(
    units: TargetUnits, rows: Floats, models: States, at: Index, coverage: float
) -> tuple[Floats, Floats]:
    """Return both ends of the interval that holds each row's number with this probability.

    Predictions of numbers are Student's t, with as many degrees of freedom as the task's rows leave its noise
    variance. Those of counts are negative binomial around a mean whose logarithm is normal, and both ends
    are whole numbers. Nothing is said beyond public bounds; within them anything, of a task without rows if
    the board has heard nothing.
    """
    check_coverage(coverage)
    variance = _variances(rows, models, at)
    if "freedom" not in models and "spread" not in models:
        raise InputError("These models are of an earlier version, which knew no intervals. Fit again.")
    unknown = (models["rows"] == 0) & (models["shared_weight"] == 0)
    if "spread" in models:
        return _counted(units, rows, models, at, variance).interval(unknown[at], coverage)
    reach = stdtrit(models["freedom"], (1 + coverage) / 2)
    reach = np.where(unknown, np.inf, reach)[at] * _with_noise(variance, models, at)
    middle = _scores(rows, models, at)
    return units.decode_prediction(middle - reach), units.decode_prediction(middle + reach)


def _counted(
    units: TargetUnits, rows: Floats, models: States, at: Index, variance: Floats
) -> CountPredictions:
    if not isinstance(units, Codebook) or not isinstance(units.target, Count):
        raise InputError("These models are of counts, and the codebook's target is none. Take the run's own.")
    score = _scores(rows, models, at) + units.target.affine()[0][0]
    return CountPredictions(units.target, score, variance, models["spread"][at])


def check_coverage(coverage: object) -> None:
    if not isinstance(coverage, Real) or not 0 < float(coverage) < 1:
        raise InputError(f"coverage must be a number between 0 and 1. Got {coverage!r}. Write 0.9 for 90 %.")


def class_probabilities(units: TargetUnits, rows: Floats, models: States, at: Index) -> Floats:
    """Return each row's probabilities of the classes."""
    if isinstance(units, Codebook) and isinstance(units.target, Ordered):
        weights, width = models["coef"][at], rows.shape[1]
        start, logs = usual_cuts(len(units.target.levels))
        scores = start + np.einsum("nd,nd->n", rows, weights[:, :width])
        return class_shares(at_least(scores, ordered_steps(weights[:, width:], width, logs)))
    weights = models["coef"].reshape(len(models["coef"]), -1, rows.shape[1])[at]
    return probabilities(np.einsum("nd,nqd->nq", rows, weights))


def predicted_columns(
    codebook: Codebook, rows: Floats, models: States, at: Index, coverage: float | None = None
) -> dict[str, Array]:
    """Return predictions as columns to add to a table: with deviations (NaN if unknown), or probabilities.

    With a coverage both ends of the interval that holds a number so often are added.
    """
    if not isinstance(codebook.target, Categorical):
        known = has_deviations(models)
        std = deviations(codebook, rows, models, at) if known else np.full(len(rows), np.nan)
        found = {"prediction": numbers(codebook, rows, models, at), "std": std}
        if coverage is None:
            return found
        return found | dict(zip(ENDS, intervals(codebook, rows, models, at, coverage), strict=True))
    if coverage is not None:
        raise InputError(
            f"Intervals are for numbers, and {codebook.target.name!r} has classes. Leave --interval out: the "
            "probabilities of the classes say how sure a prediction is."
        )
    chances = class_probabilities(codebook, rows, models, at)
    columns = {f"p[{level}]": chances[:, i] for i, level in enumerate(codebook.target.levels)}
    return {"prediction": codebook.decode_target(chances.argmax(axis=1)), **columns}


def write_csv(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> Path:
    """Write columns to a CSV file for its owner alone; whole numbers without ``.0``, NaN as an empty cell."""
    return write_private(Path(path), csv_text(columns).encode())


def write_parquet(path: Path, columns: Mapping[str, Array]) -> Path:
    """Write columns to a Parquet file for its owner alone."""
    return write_private(path, parquet_bytes(path, columns))


@dataclass(frozen=True)
class PredictedTable:
    """A table and the columns that predictions add to it, written as its file is, for its owner alone."""

    file: Path
    columns: Mapping[str, Array]
    added: Mapping[str, Array]

    def text(self) -> str:
        """Return both as CSV: cells as they are written in the file, and six digits of what is added."""
        return self._written[0]

    @cached_property
    def _written(self) -> tuple[str, Dialect]:
        plain = Dialect(
            encoding="utf-8-sig" if is_workbook(self.file) else "utf-8"
        )  # Excel looks for the mark
        cells, dialect = read_as_written(self.file) if is_csv(self.file) else (self.columns, plain)
        added = {name: _rounded(column) for name, column in self.added.items()}
        return csv_text({**cells, **added}, dialect), dialect

    def write(self, path: Path) -> None:
        """Write it as the end of the name says: Parquet, or CSV in the encoding of the file."""
        check_format_of(path)
        if path.name.endswith(_PARQUET):
            write_parquet(path, {**self.columns, **self.added})
        else:
            text, dialect = self._written
            write_private(path, dialect.encode(text, path.name))


def _rounded(column: Array) -> Array:
    return (
        column if column.dtype.kind != "f" else np.array([float(f"{x:.{_DIGITS}g}") for x in column.tolist()])
    )


def check_format_of(path: Path) -> None:
    """Refuse a name that ends like a file of another kind than is written."""
    if path.suffix and not path.name.endswith((*_TEXT, *_PARQUET)):
        raise InputError(
            f"Predictions are written as {', '.join(_TEXT)} or {_PARQUET[0]}. Got {path.name}. Name it "
            f"{path.stem}.csv, which spreadsheets open."
        )
