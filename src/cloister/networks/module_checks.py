"""What a loss must be, and how a network can run for many tasks at once, tried on synthetic rows.

No task's data has a say in what is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from enum import Enum

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from cloister.core.errors import InputError
from cloister.networks.layers import call_swapped, guard_layers, swap_layers
from cloister.networks.network_faults import near, reason
from cloister.networks.network_inputs import RowKind
from cloister.networks.network_losses import REMEDY, number_of_classes
from cloister.networks.parameter_layout import frozen_beside_trained, ready
from cloister.networks.training import LossPerExample


def outputs_of(net: nn.Module, kind: RowKind) -> Tensor:
    with torch.no_grad():
        outputs: Tensor = guard_layers(_twin(net))(kind.synthetic(2))
    return outputs


def check_loss(net: nn.Module, loss: LossPerExample, inputs: RowKind, targets: RowKind) -> None:
    """Refuse a loss that mixes examples, or fails on absurd outputs or targets."""
    outputs = outputs_of(net, inputs)
    with torch.no_grad():
        none = torch.zeros(2, *targets.shape, dtype=targets.dtype)
        try:
            each, classes = loss(outputs, none), number_of_classes(loss, outputs, targets.shape)
        except Exception as error:
            raise InputError(
                f"The loss cannot take targets of {targets.dtype} and shape {tuple(targets.shape)}, tried on "
                f"the processor with synthetic ones: {reason(error)}. Recode the targets, or give Module "
                "another loss."
            ) from error
        _check_one_each(each)
        if classes == 1:
            raise InputError(
                "The network puts out one score, and among one class there is nothing to learn. Let it put "
                "out a score a class, or write loss=nn.BCEWithLogitsLoss() for targets 0 and 1, "
                "nn.MSELoss() for numbers."
            )
        for other in _others(RowKind(outputs.shape[1:], outputs.dtype), outputs):
            clamped = "outputs.nan_to_num().clamp(low, high)"
            _check_apart(loss, "an output", clamped, other, each[1], lambda spoilt: (spoilt, none))
        for other in _others(targets, none):
            clamped = "targets.clamp(0, outputs.shape[1] - 1)"
            if none.is_floating_point():
                clamped = "targets.nan_to_num().clamp(low, high)"
            _check_apart(loss, "a target", clamped, other, each[1], lambda spoilt: (outputs, spoilt))


def _check_one_each(each: object) -> None:
    shape = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
    if shape == (2,):
        return
    how = "Write reduction='none', not a mean over rows, which are those of all tasks. "
    if isinstance(shape, tuple) and shape[:1] == (2,):
        how = "Average the rest of an example: .flatten(1).mean(1). "
    raise InputError(f"A loss must return one number an example. Got shape {shape} for 2. {how}{REMEDY}")


def _others(kind: RowKind, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield two rows the first of which has changed: to another of its kind, and to absurd ones."""
    moved = rows.clone()
    moved[0] += torch.arange(1, moved[0].numel() + 1, dtype=moved.dtype).reshape(moved[0].shape)
    yield f"{moved[0].flatten()[0].item()}", moved
    yield from kind.spoilt(rows)


def _check_apart(
    loss: LossPerExample,
    what: str,
    clamped: str,
    other: tuple[str, Tensor],
    second: Tensor,
    given: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    """Refuse a loss of the second row that changes with the first, or fails."""
    value, rows = other
    try:
        found = loss(*given(rows))[1]
    except Exception as error:
        raise InputError(
            f"The loss fails on {what} of {value}: {reason(error)}. A task with such a row would stop all "
            f"others, so clamp it first: write {clamped} in it. {REMEDY}"
        ) from error
    if not near(found, second):
        raise InputError(
            "The loss mixes examples: one row's changed with another. Nothing may average, or add up "
            f"weights, over rows, which are those of all tasks. {REMEDY}"
        )


class Way(Enum):
    """How a network runs for many tasks at once."""

    TOGETHER = "layers with an axis for tasks"
    VMAP = "torch.vmap"
    ONE_BY_ONE = "one task after another"


def way_to_run(net: nn.Module, kind: RowKind) -> Way:
    """Return the fastest way that does what the network does, with slopes.

    Swapped layers do not where it reaches into a layer's parameters, and nothing but one after another where
    it branches on what it sees.
    """
    twin, rows = _twin(net), kind.synthetic(3)
    alone = guard_layers(twin)
    trained = {name: w.detach() for name, w in twin.named_parameters() if w.requires_grad}
    stacked = {name: torch.stack([w, 1.5 * w]) for name, w in trained.items()}
    both = torch.stack([rows, rows])
    one: Callable[..., Tensor] = lambda own, x: functional_call(alone, own, (x,))  # noqa: E731
    with torch.no_grad():
        apart = torch.stack([one({name: w[k] for name, w in stacked.items()}, rows) for k in (0, 1)])
    swapped = swap_layers(twin)
    beside = {name: w.expand(2, *w.shape) for name, w in frozen_beside_trained(twin).items()}

    def together(own: dict[str, Tensor]) -> Tensor:
        assert swapped is not None
        return call_swapped(swapped, own | beside, both)

    def side_by_side(own: dict[str, Tensor]) -> Tensor:
        found: Tensor = vmap(one, randomness="error")(own, both)
        return found

    if swapped is not None and _does(together, stacked, apart):
        return Way.TOGETHER
    return Way.VMAP if _does(side_by_side, stacked, apart) else Way.ONE_BY_ONE


def _does(way: Callable[[dict[str, Tensor]], Tensor], stacked: dict[str, Tensor], expected: Tensor) -> bool:
    """Say whether a way to run two copies at once says what each says, and can be derived."""
    own = {name: w.detach().requires_grad_() for name, w in stacked.items()}
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            found = way(own)
            slopes = torch.autograd.grad(found.sum(), list(own.values()), allow_unused=True)
    except Exception:  # it reaches into a layer, and finds stacked parameters there, or looks at numbers
        return False
    size = expected.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1.0)  # of which rounding is a share
    return found.shape == expected.shape and near(found / size, expected / size) and None not in slopes


def features_of(net: nn.Module, body: nn.Module, rest: nn.Module, kind: RowKind) -> Tensor | None:
    """Return what a body makes of synthetic rows; None if body and rest do not do what the network does."""
    rows = kind.synthetic(2)
    with torch.no_grad():
        features = body.cpu()(rows)
        if not isinstance(features, Tensor) or features.shape[:1] != (2,):
            return None
        again, outputs = rest.cpu()(features.clone()), _twin(net)(rows)
    return features if near(again, outputs) else None


def _twin(net: nn.Module) -> nn.Module:
    return ready(copy.deepcopy(net).cpu())
