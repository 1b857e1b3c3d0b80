"""Between encoded units and the user's: coefficients of a codebook, and scaling by one's own data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.cuts import at_least, ordered_steps, usual_cuts
from cloister.tables.codebook import Codebook
from cloister.tables.targets import Ordered

#: How far weights are moved to see what their cuts do.
_STEP = 1e-5


def coefficient_names(codebook: Codebook) -> tuple[str, ...]:
    """Return the names of all coefficients, intercept first; with several classes, those of each but one.

    Examples
    --------
    >>> book = Codebook.from_mapping({"age": (0, 120), "mood": ["bad", "so so", "good"]}, ["age"], "mood")
    >>> coefficient_names(book)
    ('so so: intercept', 'so so: age', 'good: intercept', 'good: age')
    """
    names = ("intercept", *codebook.column_names)
    if isinstance(codebook.target, Ordered):
        first, *others = (f"{level} or more" for level in codebook.target.levels[1:])
        return (first, *names[1:], *others)
    if codebook.classes is None or codebook.classes == 2:
        return names
    levels = codebook.target.levels[1:]  # type: ignore[union-attr]
    return tuple(f"{level}: {name}" for level in levels for name in names)


def in_user_units(
    codebook: Codebook, weights: Floats, covariance: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return coefficients in the order of `coefficient_names`, and their covariance (NaN if there is none).

    Examples
    --------
    >>> book = Codebook.from_mapping({"age": (0, 120), "score": (0, 10)}, ["age"], "score")
    >>> values, covariance = in_user_units(book, np.array([0.0, 2**0.5]), np.diag([0.0, 0.02]))
    >>> values.round(4).tolist(), np.sqrt(np.diag(covariance)).round(4).tolist()
    ([0.0, 0.0833], [0.5, 0.0083])
    """
    values = _flat(codebook, weights)
    if covariance is None:
        return values, np.full((weights.size, weights.size), np.nan)
    if isinstance(codebook.target, Ordered):  # cuts are no linear function of weights: to first order
        steps = _STEP * np.eye(weights.size)
        turn = (_flat(codebook, weights + steps) - _flat(codebook, weights - steps)).T / (2 * _STEP)
    else:
        turn = (_flat(codebook, np.eye(weights.size)) - _flat(codebook, np.zeros_like(weights))).T
    return values, turn @ covariance @ turn.T


def user_coefficients(units: Codebook | OwnScaling, weights: Floats) -> tuple[Floats, Floats]:
    """Return coefficients (..., columns) and intercepts (...) in the user's units, from weights.

    With several classes both have one more axis before the last. Of ordered classes the intercepts,
    (..., classes - 1), are the log-odds of each class but the first, or more.
    """
    if isinstance(units, Codebook) and isinstance(units.target, Ordered):
        coef, intercept = units.to_user_units(weights[..., : units.width])
        start, logs = usual_cuts(len(units.target.levels))
        steps = ordered_steps(weights[..., units.width :], units.width, logs)
        return coef, at_least(start + intercept, steps)
    by_class = weights.reshape(*weights.shape[:-1], weights.shape[-1] // units.width, units.width)
    coef, intercept = units.to_user_units(by_class)
    one = by_class.shape[-2] == 1
    return (coef[..., 0, :], intercept[..., 0]) if one else (coef, intercept)


def _flat(codebook: Codebook, weights: Floats) -> Floats:
    if isinstance(codebook.target, Ordered):
        slopes, cuts = user_coefficients(codebook, weights)
        return np.concatenate([cuts[..., :1], slopes, cuts[..., 1:]], axis=-1)
    by_class = weights.reshape(*weights.shape[:-1], -1, codebook.width)
    coef, intercept = codebook.to_user_units(by_class)
    return np.concatenate([intercept[..., None], coef], axis=-1).reshape(weights.shape)


@dataclass(frozen=True, eq=False)
class OwnScaling:
    """Weighted mean and spread of each column, and of the target."""

    center: Floats
    spread: Floats
    target_center: float = 0.0
    target_scale: float = 1.0

    @classmethod
    def of(cls, X: Floats, y: Floats | None, weight: Floats) -> OwnScaling:
        """Measure a task's own data; rows of weight zero do not count."""
        total = max(float(weight.sum()), 1e-300)
        center = weight @ X / total
        spread = np.sqrt(weight @ (X - center) ** 2 / total)
        spread = np.where(spread > 1e-12 * (1 + np.abs(center)), spread, 1.0)
        if y is None:
            return cls(center, spread)
        middle = float(weight @ y / total)
        scale = 2 * float(np.sqrt(weight @ (y - middle) ** 2 / total))
        return cls(center, spread, middle, scale if scale > 1e-12 * (1 + abs(middle)) else 1.0)

    @classmethod
    def none(cls, features: int) -> OwnScaling:
        """Return the scaling that leaves the user's units as they are."""
        return cls(np.zeros(features), np.ones(features))

    @property
    def width(self) -> int:
        """Number of encoded columns, intercept included."""
        return 1 + len(self.center)

    def encode(self, X: Floats) -> Floats:
        """Return standardised columns behind an intercept, scaled to norm about one."""
        rows = np.column_stack([np.ones(len(X)), (X - self.center) / self.spread])
        return np.asarray(rows / np.sqrt(self.width))

    def encode_target(self, y: Floats) -> Floats:
        return (y - self.target_center) / self.target_scale

    def decode_prediction(self, values: Floats) -> Floats:
        return self.target_center + self.target_scale * values

    def to_user_units(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return coefficients and intercept in the user's units."""
        scaled = weights * (self.target_scale / np.sqrt(self.width))
        coef = scaled[..., 1:] / self.spread
        return coef, self.target_center + scaled[..., 0] - coef @ self.center
