"""What a network and its loss must be, and how they behave on synthetic rows.

No task's data has a say in what is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cloister.core.errors import InputError
from cloister.networks.fingerprint import describe_settings
from cloister.networks.layers import guard_layers, is_plain, swap_layers
from cloister.networks.network_losses import REMEDY, number_of_classes
from cloister.networks.parameter_layout import frozen_beside_trained, frozen_layers, listed, ready
from cloister.networks.training import LossPerExample


def check_network(net: object) -> None:
    """Refuse what is no network: a class of one, or its numbers alone; and one whose code cannot be told."""
    if isinstance(net, nn.Module):
        for name, layer in net.named_modules():
            if type(layer).__module__.startswith("torch.jit."):
                raise InputError(
                    f"Layer {name!r} is a program of TorchScript, and a fingerprint could not tell it from "
                    "one with other constants. Pass the nn.Module that it was made of."
                )
        return
    if isinstance(net, type):
        got, how = f"the class {net.__name__}", f"Call it: {net.__name__}(...)."
    elif isinstance(net, Mapping):
        got, how = f"a {type(net).__name__}", "Load a state_dict into a network: net.load_state_dict(state)."
    else:
        got, how = f"a {type(net).__name__}", "Wrap a function in a module whose forward calls it."
    raise InputError(f"net must be a torch.nn.Module. Got {got}. {how}")


def check_layers(net: nn.Module) -> None:
    """Refuse layers that have no shape yet and, of those that are trained, what `_check_trained` says."""
    frozen = frozen_layers(net)
    constant = {id(layer) for part in frozen.values() for layer in part.modules()}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
            what = f"Layer {name!r} is a {type(layer).__name__}"
            raise InputError(f"{what} that has no shape yet. Run the network on one input first.")
        if id(layer) not in constant:
            _check_trained(name, layer, bool(frozen))


def _check_trained(name: str, layer: nn.Module, has_body: bool) -> None:
    """Refuse a layer that mixes examples, keeps statistics or tosses coins, and say what to use instead."""
    what = f"Layer {name!r} is a {type(layer).__name__}"
    inside = " Or put it into one module with layers that are all frozen." if has_body else ""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise InputError(
            f"{what}, which averages over examples and remembers them: one row would reach all others. "
            f"Use nn.GroupNorm.{inside}"
        )
    dropout = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
    if isinstance(dropout, float) and dropout > 0:
        inner = "" if isinstance(layer, nn.modules.dropout._DropoutNd) else " with dropout"
        raise InputError(
            f"{what}{inner}, whose coins nobody could replay. Set it to 0 and use weight_decay.{inside}"
        )
    if getattr(layer, "track_running_stats", False):
        raise InputError(f"{what} that keeps statistics of examples. Set track_running_stats=False.")
    if isinstance(layer, nn.RNNBase) and not is_plain(layer):
        raise InputError(
            f"{what}, which can run for many tasks side by side only as torch has it, with batch_first=True "
            "and proj_size=0. Build it so."
        )


def check_parameters(net: nn.Module) -> None:
    """Refuse a network that has nothing to train; frozen parameters may be of any kind."""
    parameters = list(net.parameters())
    kinds = {parameter.dtype for parameter in parameters if parameter.requires_grad}
    if parameters and not kinds:
        raise InputError(
            "Every parameter of this network is frozen, and nothing would be trained. Call "
            "requires_grad_(True) on the layers to train, such as a last one."
        )
    if kinds != {torch.float32}:
        raise InputError(
            "A network must have parameters, and those that are trained must be 32-bit floats. Got "
            f"{sorted(map(str, kinds))}. Call net.float() first."
        )


Kind = tuple[torch.Size, torch.dtype]
#: What a row may hold if nobody looked: it must stop no other task.
ABSURD_FLOATS = (torch.nan, torch.inf, -torch.inf, 1e30)
ABSURD_CODES = (-(2**62), -1, 2**62)
#: How far an answer in a batch may be from that to a row alone, of the row's largest number: kernels round.
MIXED = 1e-3
#: How many rows of a batch are looked at.
PLACES = 8
#: Rows that a network is tried on together on a processor.
TOGETHER = 1 << 7


def check_behaviour(net: nn.Module, shape: torch.Size, dtype: torch.dtype) -> None:
    """Refuse a network that mixes examples, draws at random, changes its buffers or fails on absurd rows."""
    twin, rows = guard_layers(_twin(net)), _synthetic(2, shape, dtype)
    others = [rows.clone(), rows.clone()]
    for i in (0, 1):
        others[i][i] += 1
    outside = describe_settings(net)
    drawn, kept = torch.get_rng_state(), [buffer.clone() for buffer in twin.buffers()]
    try:
        with torch.no_grad():
            both, first, second = (twin(x) for x in (rows, *others))
    except Exception as error:
        raise InputError(
            f"The network cannot take {dtype} of shape {tuple(shape)}: {_reason(error)}. Reshape the rows, "
            f"or change its first layer{_cast(net, dtype)}."
        ) from error
    if not isinstance(both, Tensor) or both.shape[:1] != (2,):
        got = f"shape {tuple(both.shape)} for 2" if isinstance(both, Tensor) else f"a {type(both).__name__}"
        raise InputError(
            f"A network must return one tensor, with one row an example. Got {got}. Of several outputs, wrap "
            "it in a module whose forward returns one, such as self.net(x).logits."
        )
    if not torch.equal(drawn, torch.get_rng_state()):
        raise InputError(
            "The network draws at random, and nobody could replay that. Take the drawing out of forward, or "
            "set its dropout to 0."
        )
    if not all(map(torch.equal, kept, twin.buffers())):
        raise InputError("The network changes its buffers as it runs. They must be public constants.")
    if outside != describe_settings(net):  # of the network itself, of which only a copy has run
        raise InputError(
            "A hook or a function that the network holds keeps what is computed, and rows of all tasks would "
            "meet there. Remove it, or let it keep nothing."
        )
    beside = _beside_absurd_rows(twin, rows)
    if not (
        _near(both[1], first[1]) and _near(both[0], second[0]) and all(_near(both[1], x) for x in beside)
    ):
        raise InputError(
            "The network mixes examples: what it says of one row changed with another. Its first axis must "
            "be examples (batch_first=True for sequences), and nothing may average over them."
        )
    _check_reached(twin, rows)


def _check_reached(net: nn.Module, rows: Tensor) -> None:
    """Refuse trained parameters that no output follows from."""
    trained = {name: w for name, w in net.named_parameters() if w.requires_grad}
    with torch.enable_grad():
        outputs = net(rows)
        slopes: tuple[Tensor | None, ...] = (None,) * len(trained)
        if outputs.requires_grad:
            slopes = torch.autograd.grad(outputs.sum(), tuple(trained.values()), allow_unused=True)
    lost = [name for name, slope in zip(trained, slopes, strict=True) if slope is None]
    if lost:
        raise InputError(
            f"No output of the network follows from its parameters {listed(lost)}, so nothing would train "
            "them. Freeze them with requires_grad_(False), or let no .detach() or NumPy stand in between."
        )


def check_batches(net: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, most: int) -> None:
    """Refuse a network that says something else of a row among many than of the row alone.

    Tried are batches of up to `most` rows: of others, and of copies of one, which crowd whatever has room for
    some of a batch only, as experts of limited capacity have.
    """
    draws = torch.Generator().manual_seed(0)
    at = next(chain(net.parameters(), net.buffers()), torch.empty(0)).device
    for size in sorted({most, max(2, most // 4), max(2, most // 16)}):
        for alike in (0.0, 0.5, 1.0):
            rows = _drawn(size, shape, dtype, draws)
            rows[torch.rand(size, generator=draws) < alike] = rows[0].clone()
            if not _each_by_itself(net, rows.to(at)):
                raise InputError(
                    f"The network mixes examples: among {size} rows, it said something else of one than of "
                    "that row alone. Each row must be computed by itself: give experts room for all rows of "
                    "a batch (no capacity), and let nothing average over rows."
                )


def _each_by_itself(net: nn.Module, rows: Tensor) -> bool:
    """Say whether a few of many rows, first and last included, are computed as each is alone."""
    size = len(rows)
    try:
        with torch.no_grad():
            together = net(rows.clone()).clone()  # a copy: a body may write over what it returned
            return all(
                _alike(net(rows[i : i + 1].clone())[0], together[i])
                for i in {round(k * (size - 1) / (PLACES - 1)) for k in range(PLACES)}
            )
    except Exception as error:
        raise InputError(
            f"The network cannot take {size} rows at once, and then one: {_reason(error)}. Frozen layers see "
            "as many: let it take any number."
        ) from error


def _drawn(size: int, shape: tuple[int, ...], dtype: torch.dtype, draws: torch.Generator) -> Tensor:
    """Return rows that differ: normal numbers, or codes of which half are small."""
    if dtype.is_floating_point:
        return torch.randn(size, *shape, dtype=dtype, generator=draws)
    codes = torch.randint(0, 1 << 62, (size, *shape), generator=draws)
    return torch.where(torch.rand(codes.shape, generator=draws) < 0.5, codes & 15, codes).to(dtype)


def _alike(one: Tensor, two: Tensor) -> bool:
    """Compare by the row's largest number, as batches of several sizes are added up in several orders."""
    largest = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one, two, rtol=0.0, atol=MIXED * (largest + 1e-6), equal_nan=True)


def _beside_absurd_rows(net: nn.Module, rows: Tensor) -> list[Tensor]:
    """Return what a network says of the second row while the first is absurd; refuse one that fails."""
    found = []
    for value in _absurd(rows.dtype):
        spoilt = rows.clone()
        spoilt[0] = value
        try:
            with torch.no_grad():
                found.append(net(spoilt)[1])
        except Exception as error:
            raise InputError(
                f"The network fails on a row of {value}: {_reason(error)}. A task with such a row would stop "
                "all others, so clamp or mask what it looks up."
            ) from error
    return found


def outputs_of(net: nn.Module, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    with torch.no_grad():
        outputs: Tensor = guard_layers(_twin(net))(_synthetic(2, shape, dtype))
    return outputs


def check_loss(net: nn.Module, loss: LossPerExample, inputs: Kind, targets: Kind) -> None:
    """Refuse a loss that mixes examples, or fails on absurd outputs or targets."""
    outputs = outputs_of(net, *inputs)
    with torch.no_grad():
        none = torch.zeros(2, *targets[0], dtype=targets[1])
        try:
            each, classes = loss(outputs, none), number_of_classes(loss, outputs, targets[0])
        except Exception as error:
            raise InputError(
                f"The loss cannot take targets of {targets[1]} and shape {tuple(targets[0])}, tried on the "
                f"processor with synthetic ones: {_reason(error)}. Recode the targets, or give Module "
                "another loss."
            ) from error
        _check_one_each(each)
        if classes == 1:
            raise InputError(
                "The network puts out one score, and among one class there is nothing to learn. Let it put "
                "out a score a class, or write loss=nn.BCEWithLogitsLoss() for targets 0 and 1, "
                "nn.MSELoss() for numbers."
            )
        for other in _others(outputs):
            clamped = "outputs.nan_to_num().clamp(low, high)"
            _check_apart(loss, "an output", clamped, other, each[1], lambda spoilt: (spoilt, none))
        for other in _others(none):
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


def _others(rows: Tensor) -> Iterator[tuple[float, Tensor]]:
    """Yield two rows the first of which has changed: to another of its kind, and to absurd ones."""
    moved = rows.clone()
    moved[0] += torch.arange(1, moved[0].numel() + 1, dtype=moved.dtype).reshape(moved[0].shape)
    yield moved[0].flatten()[0].item(), moved
    for value in _absurd(rows.dtype):
        spoilt = rows.clone()
        spoilt[0] = value
        yield value, spoilt


def _check_apart(
    loss: LossPerExample,
    what: str,
    clamped: str,
    other: tuple[float, Tensor],
    second: Tensor,
    given: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    """Refuse a loss of the second row that changes with the first, or fails."""
    value, rows = other
    try:
        found = loss(*given(rows))[1]
    except Exception as error:
        raise InputError(
            f"The loss fails on {what} of {value}: {_reason(error)}. A task with such a row would stop all "
            f"others, so clamp it first: write {clamped} in it. {REMEDY}"
        ) from error
    if not _near(found, second):
        raise InputError(
            "The loss mixes examples: one row's changed with another. Nothing may average, or add up "
            f"weights, over rows, which are those of all tasks. {REMEDY}"
        )


def _reason(error: Exception) -> str:
    """Return what an error says, to stand within a sentence."""
    return str(error).rstrip(". \n")


def _cast(net: nn.Module, dtype: torch.dtype) -> str:
    """Say what to type where rows are of other floats than a part of the network."""
    floats = (w.dtype for w in net.parameters() if w.is_floating_point())
    other = next((kind for kind in floats if dtype.is_floating_point and kind != dtype), None)
    return "" if other is None else f", or cast in forward: x.to({other})"


def runs_stacked(net: nn.Module, shape: torch.Size, dtype: torch.dtype) -> bool:
    """Say whether swapped layers do what the network does: not if it reaches into a layer's parameters."""
    twin = _twin(net)
    rows = _synthetic(3, shape, dtype)
    trained = {name: w.detach() for name, w in twin.named_parameters() if w.requires_grad}
    copies = [{name: factor * w for name, w in trained.items()} for factor in (1.0, 1.5)]
    stacked = {name: torch.stack([own[name] for own in copies]) for name in trained}
    beside = {name: w.expand(2, *w.shape) for name, w in frozen_beside_trained(twin).items()}
    with torch.no_grad():
        apart = torch.cat([functional_call(twin, own, (rows,)) for own in copies])
        try:
            swapped = swap_layers(twin)
            if swapped is not None:
                together = functional_call(swapped, stacked | beside, (torch.cat([rows, rows]),))
                if together.shape == apart.shape and _near(together, apart):
                    return True
        except Exception:  # it reaches into a layer, and finds stacked parameters there
            pass
        _check_side_by_side(guard_layers(twin), stacked, rows)
    return False


def features_of(
    net: nn.Module, body: nn.Module, rest: nn.Module, shape: torch.Size | tuple[int, ...], dtype: torch.dtype
) -> Tensor | None:
    """Return what a body makes of synthetic rows; None if body and rest do not do what the network does."""
    rows = _synthetic(2, shape, dtype)
    with torch.no_grad():
        features = body.cpu()(rows)
        if not isinstance(features, Tensor) or features.shape[:1] != (2,):
            return None
        again, outputs = rest.cpu()(features.clone()), _twin(net)(rows)
    return features if _near(again, outputs) else None


def _check_side_by_side(net: nn.Module, stacked: dict[str, Tensor], rows: Tensor) -> None:
    try:
        vmap(lambda own: functional_call(net, own, (rows,)), randomness="error")(stacked)
    except Exception as error:
        raise InputError(f"Copies of this network cannot run side by side: {error}") from error


def _twin(net: nn.Module) -> nn.Module:
    return ready(copy.deepcopy(net).cpu())


def _synthetic(count: int, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return synthetic rows: zeros where whole numbers are wanted."""
    rows = torch.zeros(count, *shape, dtype=dtype)
    return rows.normal_(generator=torch.Generator().manual_seed(0)) if rows.is_floating_point() else rows


def _absurd(dtype: torch.dtype) -> tuple[float, ...]:
    return ABSURD_FLOATS if dtype.is_floating_point else ABSURD_CODES


def _near(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True)
