"""What a network must be: every reason why it cannot be trained here, told at once.

Layers and parameters are looked at; what can only be seen by running a network is tried on synthetic rows. No
task's data has a say in what is refused.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cloister.core.errors import AlgorithmError, CloisterError, InputError, PlanError
from cloister.core.spelling import counted
from cloister.networks.fingerprint import describe_settings
from cloister.networks.layers import guard_layers
from cloister.networks.network_inputs import RowKind
from cloister.networks.parameter_layout import frozen_layers, listed, ready
from cloister.networks.recurrent_layers import is_plain

#: How far an answer in a batch may be from that to a row alone, of the row's largest number: kernels round.
MIXED = 1e-3
#: How many rows of a batch are looked at.
PLACES = 8
#: Rows that a network is tried on together on a processor.
TOGETHER = 1 << 7
#: What most often fails in an algorithm that was written for NumPy alone.
TENSORS = (
    "Batched gives an algorithm torch tensors, and Local NumPy arrays: use what both have, such as a + b, "
    "a.sum(1) and 0 * a, or what belongs to the array that came."
)
#: Torch has one source of coins for all threads: whoever looks whether a network takes some must be alone.
COINS = threading.RLock()
#: Who can help with some of it.
HELP = "cloister.learners.fix_network(net, X)"


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


def refuse(faults: Sequence[str]) -> None:
    """Refuse a network for all its faults at once, if it has any."""
    if len(faults) == 1:
        raise InputError(faults[0])
    if faults:
        numbered = "\n".join(f"{number}. {fault}" for number, fault in enumerate(faults, start=1))
        raise InputError(f"This network cannot be trained here, for {len(faults)} reasons.\n{numbered}")


def constant_layers(net: nn.Module) -> set[int]:
    """Return the `id` of every layer that is frozen, or within one that is."""
    return {id(layer) for part in frozen_layers(net).values() for layer in part.modules()}


def faults_of(net: nn.Module) -> list[str]:
    """Return what of a network's layers and parameters cannot be; one fault for all layers of a kind."""
    constant, found = constant_layers(net), dict[str, list[str]]()
    for name, layer in net.named_modules():
        fault = _unshaped(layer) or ("" if id(layer) in constant else _fault_of(layer, bool(constant)))
        if fault:
            found.setdefault(fault, []).append(name)
    layers = [
        f"Layer {names[0]!r}{f', like {len(names) - 1} more,' if len(names) > 1 else ''} is a {fault}"
        for fault, names in found.items()
    ]
    return [*layers, *_faults_of_parameters(net)]


def _unshaped(layer: nn.Module) -> str:
    if not isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return ""
    return f"{type(layer).__name__} that has no shape yet. Run the network on one input first."


def _fault_of(layer: nn.Module, has_body: bool) -> str:
    """Say if a trained layer mixes examples, keeps statistics or tosses coins, and what to use instead."""
    what = type(layer).__name__
    inside = " Or put it into one module with layers that are all frozen." if has_body else ""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return (
            f"{what}, which averages over examples and remembers them: one row would reach all others. "
            f"Use nn.GroupNorm, or {HELP}.{inside}"
        )
    dropout = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
    if isinstance(dropout, float) and dropout > 0:
        inner = "" if isinstance(layer, nn.modules.dropout._DropoutNd) else " with dropout"
        return (
            f"{what}{inner}, whose coins nobody could replay. Set it to 0, by hand or by {HELP}, and use "
            f"weight_decay.{inside}"
        )
    if getattr(layer, "track_running_stats", False):
        return f"{what} that keeps statistics of examples. Set track_running_stats=False."
    if isinstance(layer, nn.RNNBase) and not is_plain(layer):
        return (
            f"{what}, which can run for many tasks side by side only as torch has it, with batch_first=True "
            "and proj_size=0. Build it so."
        )
    return ""


def _faults_of_parameters(net: nn.Module) -> Iterator[str]:
    """Yield why nothing can be trained; frozen parameters may be of any kind."""
    parameters = list(net.parameters())
    kinds = {parameter.dtype for parameter in parameters if parameter.requires_grad}
    if parameters and not kinds:
        yield (
            "Every parameter of this network is frozen, and nothing would be trained. Call "
            "requires_grad_(True) on the layers to train, such as a last one."
        )
    elif kinds != {torch.float32}:
        yield (
            "A network must have parameters, and those that are trained must be 32-bit floats. Got "
            f"{sorted(map(str, kinds))}. Call net.float() first."
        )


def faults_on_rows(net: nn.Module, kind: RowKind) -> list[str]:
    """Return what is wrong with how a network takes synthetic rows of a kind."""
    twin, rows = guard_layers(ready(copy.deepcopy(net).cpu())), kind.synthetic(2)
    outside, kept = describe_settings(net), [buffer.clone() for buffer in twin.buffers()]
    try:
        (both, drew), first, second = (
            _run(twin, rows),
            *(_run(twin, kind.moved(rows, which))[0] for which in (0, 1)),
        )
    except Exception as error:
        return [
            f"The network cannot take {kind}: {reason(error)}. Reshape the rows, or change its first "
            f"layer{_cast(net, kind.dtype)}."
        ]
    found = [*_faults_of_outputs(both)]
    if drew:
        found.append(
            "The network draws at random, and nobody could replay that. Take the drawing out of forward, or "
            f"set its dropout to 0, by hand or by {HELP}."
        )
    if not all(map(torch.equal, kept, twin.buffers())):
        found.append("The network changes its buffers as it runs. They must be public constants.")
    if outside != describe_settings(net):  # of the network itself, of which only a copy has run
        found.append(
            "A hook or a function that the network holds keeps what is computed, and rows of all tasks would "
            "meet there. Remove it, or let it keep nothing."
        )
    both, first, second = (output_of(outputs) for outputs in (both, first, second))
    if both is None or first is None or second is None:
        return found
    failing, beside = _beside_absurd_rows(twin, kind, rows)
    mixed = not (near(both[1], first[1]) and near(both[0], second[0]))
    if mixed or not all(near(both[1], other) for other in beside):
        found.append(
            "The network mixes examples: what it says of one row changed with another. Its first axis must "
            "be examples (batch_first=True for sequences), and nothing may average over them."
        )
    lost = unreached(twin, rows)
    if lost:
        found.append(
            f"No output of the network follows from its parameters {listed(lost)}, so nothing would train "
            f"them. Freeze them with requires_grad_(False), or by {HELP}, or let no .detach() or NumPy stand "
            "in between."
        )
    return found + failing


def _run(net: nn.Module, rows: Tensor) -> tuple[object, bool]:
    """Return what a network says of rows, with the same coins whenever it is asked, and if it takes any."""
    with COINS, torch.no_grad(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        outputs = net(rows)
        return outputs, not torch.equal(before, torch.get_rng_state())


def output_of(outputs: object) -> Tensor | None:
    """Return the output that rows are told apart by: of several the one called `logits`, else the first."""
    logits = logits_of(outputs)
    leaves = [
        leaf
        for leaf in pytree.tree_leaves(outputs if logits is None else logits)
        if isinstance(leaf, Tensor) and leaf.ndim
    ]
    return leaves[0] if leaves and len(leaves[0]) == 2 else None


def logits_of(outputs: object) -> Tensor | None:
    """Return the output called `logits`, if there is one."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    return found if isinstance(found, Tensor) else None


def _faults_of_outputs(outputs: object) -> Iterator[str]:
    if isinstance(outputs, Tensor):
        if outputs.shape[:1] == (2,):
            return
        got = f"shape {tuple(outputs.shape)} for 2"
    else:
        got = f"a {type(outputs).__name__}"
    yield (
        f"A network must return one tensor, with one row an example. Got {got}. Of several outputs, wrap it "
        f"in a module whose forward returns one, such as self.net(x).logits; {HELP} does that."
    )


def unreached(net: nn.Module, rows: Tensor) -> list[str]:
    """Return the names of trained parameters that no output follows from."""
    trained = {name: w for name, w in net.named_parameters() if w.requires_grad}
    with COINS, torch.enable_grad(), torch.random.fork_rng(devices=()):
        outputs = output_of(net(rows))
        slopes: tuple[Tensor | None, ...] = (None,) * len(trained)
        if outputs is not None and outputs.requires_grad:
            slopes = torch.autograd.grad(outputs.sum(), tuple(trained.values()), allow_unused=True)
    return [name for name, slope in zip(trained, slopes, strict=True) if slope is None]


def check_batches(net: nn.Module, kind: RowKind, most: int) -> None:
    """Refuse a network that says something else of a row among many than of the row alone.

    Tried are batches of up to `most` rows: of others, and of copies of one, which crowd whatever has room for
    some of a batch only, as experts of limited capacity have.
    """
    draws = torch.Generator().manual_seed(0)
    at = next(chain(net.parameters(), net.buffers()), torch.empty(0)).device
    for size in sorted({most, max(2, most // 4), max(2, most // 16)}):
        for alike in (0.0, 0.5, 1.0):
            rows = kind.drawn(size, draws)
            rows[torch.rand(size, generator=draws) < alike] = rows[0].clone()
            if not _each_by_itself(net, rows.to(at)):
                raise InputError(
                    f"The network mixes examples: among {counted(size, 'row')}, it said something else of "
                    "one than of that row alone. Each row must be computed by itself: give experts room for "
                    "all rows of a batch (no capacity), and let nothing average over rows."
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
    except torch.OutOfMemoryError:  # says nothing of the network
        raise
    except Exception as error:
        raise InputError(
            f"The network cannot take {size} rows at once, and then one: {reason(error)}. Frozen layers see "
            "as many: let it take any number."
        ) from error


def _alike(one: Tensor, two: Tensor) -> bool:
    """Compare by the row's largest number, as batches of several sizes are added up in several orders."""
    largest = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one, two, rtol=0.0, atol=MIXED * (largest + 1e-6), equal_nan=True)


def _beside_absurd_rows(net: nn.Module, kind: RowKind, rows: Tensor) -> tuple[list[str], list[Tensor]]:
    """Return faults, if absurd rows stop a network, and else what it says of the second row beside them."""
    found = []
    for value, spoilt in kind.spoilt(rows):
        try:
            beside = output_of(_run(net, spoilt)[0])
        except Exception as error:
            return [
                f"The network fails on a row of {value}: {reason(error)}. A task with such a row would stop "
                "all others, so clamp or mask what it looks up."
            ], []
        found += [] if beside is None else [beside[1]]
    return [], found


@contextmanager
def failures_named(tasks: int, algorithm: object = None) -> Iterator[None]:
    """Say of what fails how many tasks it was, and of which layer, or which function of the algorithm."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        fewer = f"block={max(1, tasks // 2)}"
        raise PlanError(
            f"{counted(tasks, 'task')} at once do not fit in memory. Give the engine {fewer}."
        ) from error
    except CloisterError:
        raise
    except Exception as error:
        layer, function, trace = None, "", error.__traceback__
        while trace is not None:  # the innermost layer that is there
            own = trace.tb_frame.f_locals.get("self")
            if algorithm is not None and own is algorithm and not function:
                function = f"{type(algorithm).__name__}.{trace.tb_frame.f_code.co_name}"
            layer, trace = own if isinstance(own, nn.Module) else layer, trace.tb_next
        which = function or "The network" if layer is None else f"A layer {type(layer).__name__.lstrip('_')}"
        numpy = f" {TENSORS}" if function and layer is None else ""
        raise AlgorithmError(f"{which} failed on {counted(tasks, 'task')} at once: {error}{numpy}") from error


def require_tensors(algorithm: object, function: str, arrays: Iterable[object]) -> None:
    """Refuse what an algorithm returns if it is not torch's, as all that it was given is."""
    other = next((array for array in arrays if not isinstance(array, Tensor)), None)
    if other is not None:
        name = f"{type(algorithm).__name__}.{function}"
        raise AlgorithmError(f"{name} must return torch tensors. Got {type(other).__name__}. {TENSORS}")


def reason(error: Exception) -> str:
    """Return what an error says, to stand within a sentence."""
    return str(error).rstrip(". \n")


def near(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True)


def _cast(net: nn.Module, dtype: torch.dtype) -> str:
    """Say what to type where rows are of other floats than a part of the network."""
    floats = (w.dtype for w in net.parameters() if w.is_floating_point())
    other = next((kind for kind in floats if dtype.is_floating_point and kind != dtype), None)
    return "" if other is None else f", or cast in forward: x.to({other})"
