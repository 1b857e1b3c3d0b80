"""What stands for a loss in a plan's fingerprint: names, and all that they hold, in one line of text.

Two that train differently must differ here. A function goes by its name, and its code may be mended; what it
was made with is told beside that: defaults, and variables of the function around it. A lambda has no name,
and its bytecode is hashed, which is of one version of Python. Global variables are not looked at.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import isbuiltin, isfunction
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloister.document import type_id
from cloister.errors import InputError

__all__ = ["describe", "digest_tensor"]

#: What every module of torch has, and what is the same for all losses.
_COMMON = frozenset(vars(nn.Module()))


def describe(value: Any) -> str:
    """Return a text that another value of this kind has only if it holds the same."""
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, Tensor):
        return digest_tensor(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {_digest(value.tobytes())}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(map(describe, value)))})"
    if isinstance(value, Mapping):
        return f"dict({', '.join(f'{describe(key)}: {describe(each)}' for key, each in value.items())})"
    if isinstance(value, partial):
        options = [*map(describe, value.args), *_named(value.keywords)]
        return f"{describe(value.func)}({', '.join(options)})"
    if isinstance(value, nn.Module):
        return f"{type_id(type(value))}({', '.join(sorted(_held_by_module(value)))})"
    if isinstance(value, CodeType):
        return _digest(repr((value.co_code, value.co_names, describe(value.co_consts))).encode())
    if isfunction(value):
        held = ", ".join(_named(_held_by_function(value)))
        return _name(value) + (f"({held})" if held else "")
    if isinstance(value, type):
        return type_id(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isbuiltin(value) and (value.__self__ is None or isinstance(value.__self__, type | ModuleType)):
        return f"{value.__module__}:{value.__qualname__}"
    return _reduced(value)


def digest_tensor(tensor: Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {_digest(raw)}"


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _named(held: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name}={describe(value)}" for name, value in held.items())


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


def _held_by_module(module: nn.Module) -> Iterator[str]:
    for path, part in module.named_modules():
        lead = f"{path}." if path else ""
        if path:
            yield f"{path}={type_id(type(part))}"
        for name, value in vars(part).items():
            if name not in _COMMON and (name, value) != ("reduction", "none"):
                yield f"{lead}{name}={describe(value)}"
    for name, tensor in (*module.named_buffers(), *module.named_parameters()):
        yield f"{name}={digest_tensor(tensor)}"


def _reduced(value: Any) -> str:
    """Describe any other object by what a copy would be made of."""
    try:
        parts = value.__reduce_ex__(4)
    except (TypeError, pickle.PicklingError):
        raise InputError(
            "A plan's fingerprint stands for a loss and all that it holds. "
            f"A {type(value).__name__} cannot be told from others of its kind. Let the loss hold numbers, "
            "text, tensors, or lists of these, by functools.partial or as a module's attributes."
        ) from None
    if isinstance(parts, str):
        return f"{type_id(type(value))} {parts}"
    maker, made_of, *state = parts
    items = [list(part) if isinstance(part, Iterator) else part for part in state]
    return f"{describe(maker)}({describe(made_of)}, {describe(items)})"
