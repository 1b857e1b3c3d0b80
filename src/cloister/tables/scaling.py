"""Scaling by one's own data, for a model of one's own: nothing leaves, so nothing need be public."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.arrays import Floats

__all__ = ["OwnScaling"]


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
