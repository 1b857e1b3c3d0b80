r"""What holds a model near a public one while it trains at home.

Each is added to the local loss with the public model :math:`\tilde w` fixed: free, as it happens at home.

References
----------
Paper "Private multi-task learning: formulation and applications to federated learning" (PMTL), section 5.4
and Table 1 (fine-tuning). Kirkpatrick et al., *Overcoming catastrophic forgetting in neural networks*, 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cloister.learners.penalties import NoPenalty

if TYPE_CHECKING:
    from cloister.learners.penalties import Stacked
    from cloister.networks.training import Trainer


@dataclass(frozen=True)
class Free(NoPenalty):
    """No penalty: plain training."""


@dataclass(frozen=True)
class SymmetrizedKL(NoPenalty):
    r"""A penalty between class probabilities: :math:`\frac\beta2` (KL(p||q) + KL(q||p)).

    p and q are what the task's own model and the public one say of each of the task's own examples.

    Parameters
    ----------
    beta : float
        Strength.
    """

    beta: float

    def term(self, trainer: Trainer, anchor: Stacked, outputs: Tensor, x: Tensor) -> Tensor | None:
        """Return beta / 2 times the sum over classes of (p - q)(log p - log q), the mean over positions."""
        ours = outputs.log_softmax(-1)
        with torch.no_grad():
            theirs = trainer.outputs(trainer.spread(anchor, len(x)), x).log_softmax(-1)
        each = self.beta / 2 * ((ours.exp() - theirs.exp()) * (ours - theirs)).sum(-1)
        return each if each.ndim == 2 else each.flatten(2).mean(2)


@dataclass(frozen=True)
class EWC(NoPenalty):
    r"""Elastic weight consolidation: :math:`\frac\lambda2 \sum_i F_i (w_i - \tilde w_i)^2`.

    F is the diagonal of the empirical Fisher information, the mean over the task's own rows of the squared
    gradient at the public model.

    Parameters
    ----------
    lam : float
        Strength.
    """

    lam: float

    def memory(self, trainer: Trainer, anchor: Stacked, X: Tensor, y: Tensor, weight: Tensor) -> Stacked:
        """Return the diagonal of the Fisher information."""
        return trainer.squared_gradients(anchor, X, y, weight)

    def gradient(self, params: Stacked, anchor: Stacked, memory: Stacked) -> Stacked | None:
        """Return lambda F (w - anchor)."""
        return tuple(self.lam * f * (w - a) for w, a, f in zip(params, anchor, memory, strict=True))
