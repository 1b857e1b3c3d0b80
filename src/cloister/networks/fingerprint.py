"""What stands for a loss, and for a network's settings, in a fingerprint: names, and all that they hold.

Two that train differently must differ here, and one that is built again, in whatever process, must not. So no
address is told, nor the device a tensor is on. A function goes by its name, and its code may be mended; what
it was made with is told beside that: defaults, and variables of the function around it. A lambda has no name,
and its bytecode is hashed, which is of one version of Python. Global variables are not looked at.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import isbuiltin, isfunction, ismethod
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cloister.core.document import type_id
from cloister.core.errors import InputError

#: What every module of torch has, and what calling `nn.Module.compile` leaves there.
_COMMON = frozenset({*vars(nn.Module()), "_compiled_call_impl"})
#: Where a module keeps the hooks that change what it computes.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
#: Classes of networks that torch has traced or compiled: their layers and their code are printed.
_TRACED = ("torch.fx.", "torch.export.", "torch._dynamo.")


class UndescribableError(Exception):
    """A value that cannot be told from others of its kind."""


def describe(value: Any, known: Mapping[int, str] | None = None) -> str:
    """Return a text that another value of this kind has only if it holds the same.

    Objects in `known` go by the name that is given there to their `id`.
    """
    known = known or {}
    if id(value) in known:
        return known[id(value)]
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, Tensor):
        return digest_tensor(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {_digest(value.tobytes())}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(describe(each, known) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(describe(each, known) for each in value))})"
    if isinstance(value, Mapping):
        pairs = (f"{describe(key, known)}: {describe(each, known)}" for key, each in value.items())
        return f"dict({', '.join(pairs)})"
    if isinstance(value, partial):
        options = [*(describe(each, known) for each in value.args), *_named(value.keywords, known)]
        return f"{describe(value.func, known)}({', '.join(options)})"
    if isinstance(value, nn.Module):
        return f"{type_id(type(value))}({', '.join(sorted(_held_by_module(value, known)))})"
    if isinstance(value, CodeType):
        return _digest(repr((value.co_code, value.co_names, describe(value.co_consts))).encode())
    if isfunction(value):
        held = ", ".join(_named(_held_by_function(value), known))
        return _name(value) + (f"({held})" if held else "")
    if ismethod(value):
        return f"{describe(value.__func__, known)} of {describe(value.__self__, known)}"
    if isinstance(value, type):
        return type_id(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isbuiltin(value) and (value.__self__ is None or isinstance(value.__self__, type | ModuleType)):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, torch.device | RemovableHandle):  # a machine's; a count of this process
        return type(value).__name__
    if isinstance(value, weakref.ref):
        return describe(value(), known)
    return _reduced(value, known)


def describe_layers(net: nn.Module) -> str:
    """Return a network's layers as they are printed, without addresses of what they hold."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(net))


def describe_settings(net: nn.Module) -> str:
    """Return a digest of what a network's layers hold beside parameters and buffers.

    That is attributes and hooks, such as a number of heads that is not printed. Layers go by the names of
    their classes; parameters, buffers and layers that an attribute holds, by theirs. Private attributes of
    torch's own layers are left out: they follow from the others, and differ between versions.
    """
    known, lines = _names(net), []
    for path, layer in net.named_modules():
        lines.append(f"{path}={type(layer).__name__}")
        try:
            lines += _attributes(path, layer, known)
        except (UndescribableError, RecursionError) as error:
            what = "itself" if isinstance(error, RecursionError) else f"a {error}"
            raise InputError(
                "A fingerprint stands for a network and all that its layers hold. "
                f"Layer {path!r} ({type(layer).__name__}) holds {what}, which cannot be told from others of "
                "its kind. Delete that attribute, or let it be numbers, text, tensors, or lists of these."
            ) from None
    return _digest("\n".join(sorted(lines)).encode())


def digest_tensor(tensor: Tensor) -> str:
    if tensor.is_sparse:
        found = tensor.detach().coalesce()
        places, values = digest_tensor(found.indices()), digest_tensor(found.values())
        return f"sparse {tuple(tensor.shape)} {places} {values}"
    try:
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError):
        raise UndescribableError(f"tensor of {tensor.layout} on {tensor.device.type}") from None
    return f"{tensor.dtype} {tuple(tensor.shape)} {_digest(raw)}"


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _named(held: Mapping[str, Any], known: Mapping[int, str]) -> Iterator[str]:
    return (f"{name}={describe(value, known)}" for name, value in held.items())


def _name(function: FunctionType) -> str:
    named = function.__name__ != "<lambda>"
    return type_id(function) + ("" if named else f" {describe(function.__code__)}")


def _held_by_function(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    by_place = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    around = {name: cell.cell_contents for name, cell in cells}
    return around | dict(by_place) | (function.__kwdefaults__ or {})


def _names(module: nn.Module, lead: str = "") -> dict[int, str]:
    """Name the parts of a module, by their `id`, so that whatever holds one of them says which."""
    parts = (*module.named_modules(), *module.named_buffers(), *module.named_parameters())
    return {id(part): f"<{lead}{name}>" for name, part in parts}


def _held_by_module(module: nn.Module, known: Mapping[int, str]) -> Iterator[str]:
    inside = {**_names(module, f"{len(known)}:"), **known}
    for path, part in module.named_modules():
        if path:
            yield f"{path}={type_id(type(part))}"
        yield from _attributes(path, part, inside)
    for name, tensor in (*module.named_buffers(), *module.named_parameters()):
        yield f"{name}={digest_tensor(tensor)}"


def _attributes(path: str, layer: nn.Module, known: Mapping[int, str]) -> Iterator[str]:
    lead = f"{path}." if path else ""
    place = type(layer).__module__
    for name, value in vars(layer).items():
        of_torch = place.startswith(_TRACED) or (place.startswith("torch.") and name.startswith("_"))
        skipped = name in _COMMON or (of_torch and not isinstance(value, Tensor))
        if not skipped and (name, value) != ("reduction", "none"):
            yield f"{lead}{name}={describe(value, known)}"
    for kind in _HOOKS:
        for order, (number, hook) in enumerate(getattr(layer, kind).items()):
            flags = [flag for flag in _FLAGS if flag.startswith(kind) and number in getattr(layer, flag)]
            yield f"{lead}{kind} {order}={describe(hook, known)} {' '.join(flags)}"


def _reduced(value: Any, known: Mapping[int, str]) -> str:
    """Describe any other object by what a copy would be made of."""
    try:
        parts = value.__reduce_ex__(4)
    except Exception:  # it says in its own way that it cannot be copied
        raise UndescribableError(type(value).__name__) from None
    if isinstance(parts, str):
        return f"{type_id(type(value))} {parts}"
    maker, made_of, *state = parts
    items = [list(part) if isinstance(part, Iterator) else part for part in state]
    return f"{describe(maker, known)}({describe(made_of, known)}, {describe(items, known)})"
