"""What share of its targets a network finds: its loss says what outputs and targets mean."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from cloister.arrays import Array
from cloister.errors import InputError
from cloister.learners.network.losses import ClassLoss, ValueLoss, classes_last, cross_entropy
from cloister.learners.network.training import LossPerExample
from cloister.metrics import Share

__all__ = ["score_of"]


def score_of(loss: LossPerExample, outputs: torch.Size, y: Array) -> Share | None:
    """Return the share of targets that are found, as the loss understands outputs; None if it is of numbers.

    Classes are found by the largest score, positions that the loss ignores are left out; of
    `nn.BCEWithLogitsLoss` a target is found if the score is on its side of 0. With a function of one's own,
    targets are classes if they are whole numbers, and have an axis less than outputs. Looks at shapes and
    kinds alone.
    """
    if loss is cross_entropy or isinstance(loss, ClassLoss):
        return Share(partial(_classes_found, loss))
    if isinstance(loss, ValueLoss):
        return Share(_sides_found) if loss.of_shares else None
    classes = outputs[1:-1] == y.shape[1:] and outputs[-1] > 1 and y.dtype.kind in "biu"
    return Share(partial(_classes_found, cross_entropy)) if classes else None


def _classes_found(loss: LossPerExample, y: Array, outputs: Array) -> tuple[Array, Array]:
    """Say at which positions the target's class has the largest score, and which of them have a target."""
    scores = torch.tensor(outputs)
    targets = torch.tensor(y, dtype=torch.int64 if y.dtype.kind in "biu" else torch.float32)
    shares = isinstance(loss, ClassLoss) and loss.takes_shares(scores.shape, targets.shape)
    if shares:
        targets = targets.argmax(-1)
    heard = torch.ones_like(targets, dtype=torch.bool)
    if isinstance(loss, ClassLoss) and not shares:
        heard = targets != loss.loss.ignore_index
    scores = classes_last(scores, targets, always=loss is cross_entropy)
    found = (scores.argmax(-1) == targets) & scores.isfinite().all(-1)
    return found.numpy(), heard.numpy()


def _sides_found(y: Array, outputs: Array) -> tuple[Array, Array]:
    """Say which targets above one half have a score above 0, and which others do not; all of them count."""
    if outputs.size != y.size:
        raise InputError(
            f"Every target needs a score. Got outputs of shape {outputs.shape}, targets of {y.shape}."
        )
    scores = outputs.reshape(y.shape)
    return ((scores > 0) == (y > 0.5)) & np.isfinite(scores), np.ones(y.shape, dtype=bool)
