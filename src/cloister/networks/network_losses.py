"""Losses as people write them, each turned into one number an example.

Rows of many tasks lie one after another when a loss is computed: a mean over them would be over all tasks.
So torch's own losses are told to reduce nothing, and what they say of the positions of one example is
averaged within that example. Targets that torch would stop at are moved to the nearest that it takes: absurd
data spoil their own task and stop nobody.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.networks.fingerprint import UndescribableError, describe
from cloister.networks.training import LossPerExample

#: What to type instead of a loss that is refused; once, whatever is wrong with it first.
REMEDY = (
    "For classes leave loss= out: Module(net) has a cross-entropy of its own. Or hand over one of torch's, "
    "such as nn.CrossEntropyLoss(), nn.MSELoss() or nn.BCEWithLogitsLoss(), which is then taken example by "
    "example; or lambda outputs, targets: (outputs[:, 0] - targets).square()."
)
#: Losses of one number and another, place by place.
_BY_PLACE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
)
#: Functions of torch, and the modules that have the same options.
_MODULES = (
    (F.cross_entropy, nn.CrossEntropyLoss),
    (F.nll_loss, nn.NLLLoss),
    (F.mse_loss, nn.MSELoss),
    (F.l1_loss, nn.L1Loss),
    (F.smooth_l1_loss, nn.SmoothL1Loss),
    (F.huber_loss, nn.HuberLoss),
    (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    (F.binary_cross_entropy, nn.BCELoss),
    (F.poisson_nll_loss, nn.PoissonNLLLoss),
)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one cross-entropy an example: outputs are scores of classes, targets their indexes.

    Scores of a sequence are ``(examples, positions, classes)``; its loss is the mean over positions. A target
    that is no class counts as the nearest one.
    """
    scores = classes_last(outputs, targets, always=True)
    logs = scores.log_softmax(-1)  # over the first axis bits would depend on an example's place
    each = F.nll_loss(logs.flatten(0, -2), _nearest(targets, scores.shape[-1]).flatten(), reduction="none")
    return each if targets.ndim == 1 else each.reshape(targets.shape).flatten(1).mean(1)


class ClassLoss(nn.Module):
    """`nn.CrossEntropyLoss` or `nn.NLLLoss`, example by example.

    The loss of a sequence is the mean over its positions whose target is not `ignore_index`. Class weights
    multiply, and nothing is divided by their sum: that would be over the rows of all tasks.
    """

    def __init__(self, loss: nn.CrossEntropyLoss | nn.NLLLoss) -> None:
        super().__init__()
        self.loss = _unreduced(loss)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.takes_shares(outputs.shape, targets.shape):
            return cast(Tensor, self.loss(outputs, targets.to(outputs.dtype)))
        scores = classes_last(outputs, targets)
        ignored = targets == self.loss.ignore_index
        index = _nearest(targets, scores.shape[-1]).masked_fill(ignored, self.loss.ignore_index)
        each: Tensor = self.loss(scores.flatten(0, -2), index.flatten()).reshape(targets.shape)
        if targets.ndim == 1:
            return each
        heard: Tensor = (~ignored).flatten(1).sum(1)
        return each.flatten(1).sum(1) / heard.clamp(min=1)

    def takes_shares(self, outputs: torch.Size, targets: torch.Size) -> bool:
        """Say whether a target is a share of each class instead of an index; of one position alone."""
        return isinstance(self.loss, nn.CrossEntropyLoss) and len(outputs) == 2 and outputs == targets


class ValueLoss(nn.Module):
    """Any other loss of torch that knows ``reduction="none"``: each example's mean over its places.

    Where outputs and targets of `nn.MSELoss` and its like differ by axes of length 1 alone, as ``(n, 1)`` and
    ``(n,)`` do, they are taken place by place; torch would compare every row with every other.
    """

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = _unreduced(loss)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.loss, _BY_PLACE):
            if _long(outputs) != _long(targets):
                raise InputError(
                    f"{type(self.loss).__name__} compares outputs and targets place by place. An example "
                    f"has outputs of shape {tuple(outputs.shape[1:])} and a target of shape "
                    f"{tuple(targets.shape[1:])}. Give one an axis that the other has."
                )
            targets = targets.reshape(outputs.shape).to(outputs.dtype)
        each: Tensor = self.loss(outputs, targets)
        return each if each.ndim < 2 else each.flatten(1).mean(1)

    @property
    def of_shares(self) -> bool:
        """Whether targets must be 0, 1 or between."""
        return isinstance(self.loss, nn.BCEWithLogitsLoss)


def per_example(loss: Any) -> LossPerExample:
    """Return a loss that says one number an example: torch's own are told to, any other must do so."""
    function, options = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    for known, kind in _MODULES:
        if function is known and not getattr(loss, "args", ()):
            loss = kind(**options)
    if isinstance(loss, nn.BCELoss):
        raise InputError(
            "nn.BCELoss stops at an output outside [0, 1], and one task's would stop all others. Let the "
            "network put out scores, without a sigmoid, and write nn.BCEWithLogitsLoss()."
        )
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise InputError("A loss has nothing to train here. Make its parameters buffers, or the network's.")
    if isinstance(loss, ClassLoss | ValueLoss):
        return loss
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return ClassLoss(loss)
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        return ValueLoss(loss)
    if isinstance(loss, type) or not callable(loss):
        given = (
            f"the class {loss.__name__}: call it, {loss.__name__}()" if isinstance(loss, type) else repr(loss)
        )
        raise InputError(f"loss must be a function of outputs and targets. Got {given}. {REMEDY}")
    return cast(LossPerExample, loss)


def number_of_classes(loss: LossPerExample, outputs: Tensor, targets: tuple[int, ...]) -> int | None:
    """Return how many classes targets of this shape may have, of a loss that takes indexes; else None."""
    example = torch.zeros(1).expand(len(outputs), *targets)
    if loss is cross_entropy:
        return classes_last(outputs, example, always=True).shape[-1]
    if not isinstance(loss, ClassLoss) or loss.takes_shares(outputs.shape, example.shape):
        return None
    return classes_last(outputs, example).shape[-1]


def wrong_targets(loss: LossPerExample, classes: int | None, y: Array) -> str | None:
    """Say what targets must be if some are not. Looks at values: for the eyes of whoever holds all rows."""
    if isinstance(loss, ValueLoss):
        right = not loss.of_shares or ((y >= 0) & (y <= 1)).all()
        return None if right else "0, 1 or a share between them"
    if classes is None:
        return None
    ignored = loss.loss.ignore_index if isinstance(loss, ClassLoss) else None
    index = (y == np.floor(y)) & (y >= 0) & (y < classes)
    if (index if ignored is None else index | (y == ignored)).all():
        return None
    also = "" if ignored is None else f", or {ignored} where there is none"
    return f"class indexes from 0 to {classes - 1}{also}"


def describe_loss(loss: LossPerExample) -> str:
    """Return what stands for a loss in a plan file: its name, and all that it holds."""
    if isinstance(loss, ClassLoss | ValueLoss):
        loss = loss.loss
    try:
        return describe(loss)
    except RecursionError:
        raise InputError(
            "A loss must not hold itself. Write a function outside of any other, or a module."
        ) from None
    except UndescribableError as what:
        raise InputError(
            "A plan's fingerprint stands for a loss and all that it holds. "
            f"A {what} cannot be told from others of its kind. Let the loss hold numbers, "
            "text, tensors, or lists of these, by functools.partial or as a module's attributes."
        ) from None


def _unreduced(loss: Any) -> Any:
    if loss.reduction not in ("mean", "none"):
        raise InputError(
            f"A loss is a mean over a task's own rows here. Got reduction={loss.reduction!r}. Leave it out."
        )
    own = copy.deepcopy(loss)
    own.reduction = "none"
    return own


def _nearest(targets: Tensor, classes: int) -> Tensor:
    """Return class indexes: what is none is the nearest."""
    whole = targets.nan_to_num() if targets.is_floating_point() else targets
    return whole.clamp(0, classes - 1).long()


def classes_last(outputs: Tensor, targets: Tensor, always: bool = False) -> Tensor:
    """Return scores with the classes on the last axis, where they may be on the second as torch has them."""
    last = outputs.shape[:-1] == targets.shape
    second = outputs.shape[:1] + outputs.shape[2:] == targets.shape
    if last and (always or not second or outputs.ndim == 2):
        return outputs
    if second and not last and not always:
        return outputs.movedim(1, -1)
    shapes = f"outputs of shape {tuple(outputs.shape[1:])} and a target of shape {tuple(targets.shape[1:])}"
    if last:
        raise InputError(
            f"An example has {shapes}, whose classes may be on either axis. Leave loss= out, which takes the "
            "last, or pad sequences to another length."
        )
    alike = outputs.shape == targets.shape
    shares = ", or write Module(net, nn.CrossEntropyLoss()) for shares of classes" if alike else ""
    raise InputError(
        f"An example has {shapes}. Scores of classes need one axis more than the target, the last: let the "
        f"network put out as many numbers a target as there are classes{shares}."
    )


def _long(tensor: Tensor) -> list[int]:
    """Return the lengths of an example's axes, without those of length 1."""
    return [length for length in tensor.shape[1:] if length != 1]
