"""The quadratic penalty on the distance from a public model, for arrays of NumPy and of torch alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloister.arrays import Tensor
    from cloister.learners.network.penalties import Stacked
    from cloister.learners.network.training import Trainer

__all__ = ["NoPenalty", "Quadratic"]


class NoPenalty:
    """What penalties do where they do nothing."""

    def memory(self, trainer: Trainer, anchor: Stacked, X: Tensor, y: Tensor, weight: Tensor) -> Stacked:
        return ()

    def term(self, trainer: Trainer, anchor: Stacked, outputs: Tensor, x: Tensor) -> Tensor | None:
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
