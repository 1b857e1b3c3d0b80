"""The quadratic penalty on the distance from a public model, for arrays of NumPy and of torch alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.learners.network.penalties import Stacked

__all__ = ["NoPenalty", "Quadratic"]

Array = Any  # of NumPy, or of torch on another device


class NoPenalty:
    """What penalties do where they do nothing."""

    def memory(self, trainer: Any, anchor: Stacked, X: Array, y: Array, weight: Array) -> Stacked:
        return ()

    def term(self, trainer: Any, anchor: Stacked, outputs: Array, x: Array) -> Array | None:
        return None

    def gradient(self, params: Stacked, anchor: Stacked, memory: Stacked) -> Stacked | None:
        return None


@dataclass(frozen=True)
class Quadratic(NoPenalty):
    r"""A penalty on parameters: :math:`\frac\lambda2 |w - \tilde w|^2`.

    Parameters
    ----------
    lam : float
        Strength.
    """

    lam: float

    def gradient(self, params: Stacked, anchor: Stacked, memory: Stacked) -> Stacked | None:
        return tuple(self.lam * (w - a) for w, a in zip(params, anchor, strict=True))
