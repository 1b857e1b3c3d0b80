"""What a network must be, as far as it can be seen without running it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cloister.errors import InputError
from cloister.learners.network.parameters import frozen_layers
from cloister.learners.network.recurrent import is_plain

__all__ = ["check_layers", "check_network", "check_parameters"]


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
