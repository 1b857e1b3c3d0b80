"""Weights on encoded columns as coefficients in the user's units, with names and their covariance."""

from __future__ import annotations

import numpy as np

from cloister.arrays import Floats
from cloister.tables.codebook import Codebook

__all__ = ["coefficient_names", "in_user_units"]


def coefficient_names(codebook: Codebook) -> tuple[str, ...]:
    """Return the names of all coefficients, intercept first; with several classes, those of each but one.

    Examples
    --------
    >>> book = Codebook.from_mapping({"age": (0, 120), "mood": ["bad", "so so", "good"]}, ["age"], "mood")
    >>> coefficient_names(book)
    ('so so: intercept', 'so so: age', 'good: intercept', 'good: age')
    """
    names = ("intercept", *codebook.column_names)
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
    turn = (_flat(codebook, np.eye(weights.size)) - _flat(codebook, np.zeros_like(weights))).T
    return values, turn @ covariance @ turn.T


def _flat(codebook: Codebook, weights: Floats) -> Floats:
    by_class = weights.reshape(*weights.shape[:-1], -1, codebook.width)
    coef, intercept = codebook.to_user_units(by_class)
    return np.concatenate([intercept[..., None], coef], axis=-1).reshape(weights.shape)
