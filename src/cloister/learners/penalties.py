"""Penalties on the distance from a public model, and the quadratic one, for NumPy and torch alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from cloister.core.arrays import Tensor
    from cloister.networks.training import Trainer


Stacked: TypeAlias = "tuple[Tensor, ...]"


class Penalty(Protocol):
    """A penalty on the distance from a public model: a gradient, a term of the loss, or both."""

    def memory(self, trainer: Trainer, anchor: Stacked, X: Tensor, y: Tensor, weight: Tensor) -> Stacked:
        """Return what is computed once, before the first step."""

    def term(self, trainer: Trainer, anchor: Stacked, outputs: Tensor, x: Tensor) -> Tensor | None:
        """Return each example's term of the loss, (k, batch), or None."""

    def gradient(self, params: Stacked, anchor: Stacked, memory: Stacked) -> Stacked | None:
        """Return what is added to the gradient, or None."""


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
