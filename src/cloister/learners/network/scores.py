"""What share of its targets a network finds: its loss says what outputs and targets mean."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from cloister.arrays import Array
from cloister.errors import InputError
from cloister.learners.network.losses import ClassLoss, ValueLoss, classes_last, cross_entropy
from cloister.learners.network.training import LossPerExample
from cloister.metrics import Metric

__all__ = ["score_of"]


def score_of(loss: LossPerExample, outputs: torch.Size, y: Array) -> Metric | None:
    """Return the share of targets that are found, as the loss understands outputs; None if it is of numbers.

    Classes are found by the largest score, positions that the loss ignores are left out; of
    `nn.BCEWithLogitsLoss` a target is found if the score is on its side of 0. With a function of one's own,
    targets are classes if they are whole numbers, and have an axis less than outputs. Looks at shapes and
    kinds alone.
    """
    if loss is cross_entropy or isinstance(loss, ClassLoss):
        return partial(_classes_found, loss)
    if isinstance(loss, ValueLoss):
        return _sides_found if loss.of_shares else None
    classes = outputs[1:-1] == y.shape[1:] and outputs[-1] > 1 and y.dtype.kind in "biu"
    return partial(_classes_found, cross_entropy) if classes else None


def _classes_found(loss: LossPerExample, y: Array, outputs: Array) -> float:
    """Return the share of positions with a target whose class has the largest score; NaN if none has one."""
    scores, targets = torch.tensor(outputs), _targets(y)
    shares = isinstance(loss, ClassLoss) and loss.takes_shares(scores.shape, targets.shape)
    if shares:
        targets = targets.argmax(-1)
    heard = torch.ones_like(targets, dtype=torch.bool)
    if isinstance(loss, ClassLoss) and not shares:
        heard = targets != loss.loss.ignore_index
    scores = classes_last(scores, targets, always=loss is cross_entropy)
    found = (scores.argmax(-1) == targets) & scores.isfinite().all(-1)
    return float(found[heard].double().mean())


def _sides_found(y: Array, outputs: Array) -> float:
    """Return the share of targets above one half whose score is above 0, and of others where it is not."""
    if outputs.size != y.size:
        raise InputError(
            f"Every target needs a score. Got outputs of shape {outputs.shape}, targets of {y.shape}."
        )
    scores = outputs.reshape(y.shape)
    return float((((scores > 0) == (y > 0.5)) & np.isfinite(scores)).mean())


def _targets(y: Array) -> Tensor:
    return torch.tensor(y, dtype=torch.int64 if y.dtype.kind in "biu" else torch.float32)
