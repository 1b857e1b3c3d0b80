"""Flat parameters as a network again: a module of torch's, its state_dict, and a file without pickle.

A file holds the whole state_dict, frozen parameters and buffers included, as safetensors: anybody with torch
reads it, ``net.load_state_dict(safetensors.torch.load_file(path))``. What it says beside that is text: the
network's digest, and the plan and the board that the parameters come from.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloister.arrays import Array
from cloister.errors import InputError, MissingExtraError
from cloister.learners.network.descriptions import describe_layers, describe_settings
from cloister.learners.network.parameters import Layout, ready
from cloister.store.files import write_file

__all__ = ["NetworkFile", "digest_of", "flatten", "module_of", "read_network", "write_network"]

_FORMAT = "cloister network 1"


@dataclass(frozen=True, eq=False, repr=False)
class NetworkFile:
    """What a file of a network holds; made by ``Module.load``.

    Attributes
    ----------
    coef : float32 array of shape (parameters,)
        The trained parameters, flat, as in a run's models.
    network : nn.Module
        The network with these parameters, ready to be used.
    plan, head : str
        Fingerprint of the plan, and head of the board, that they come from.
    task : str, optional
        Whose own network it is; None for the public one. That of a task is for this task alone.
    """

    coef: NDArray[np.float32]
    network: nn.Module
    plan: str
    head: str
    task: str | None

    def __repr__(self) -> str:
        whose = "public" if self.task is None else f"of task {self.task!r}, private"
        return f"NetworkFile({len(self.coef)} parameters, {whose})"


def module_of(net: nn.Module, layout: Layout, coef: Array) -> nn.Module:
    """Return a copy of the network with these flat parameters; layers in the modes they are trained in."""
    flat = torch.as_tensor(np.array(coef, dtype=np.float32))
    if flat.shape != (layout.size,):
        raise InputError(
            f"coef must be one network's flat parameters, of shape {(layout.size,)}. Got shape "
            f"{tuple(flat.shape)}. Pass run.model(task)['coef']."
        )
    made = ready(copy.deepcopy(net).cpu())
    with torch.no_grad():
        for (name, shape), part in zip(layout.shapes.items(), torch.split(flat, layout.sizes), strict=True):
            made.get_parameter(name).copy_(part.reshape(shape))
    return made


def flatten(net: nn.Module, layout: Layout, state: Mapping[str, Tensor]) -> NDArray[np.float32]:
    """Return the trained parameters of a state_dict, flat; refuse one of another network, or another body."""
    expected = net.state_dict()
    missing, strange = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or strange:
        what = f"It has no {missing[0]!r}" if missing else f"It has {strange[0]!r}, which this one has not"
        raise InputError(
            f"This state_dict is of another network. {what}. Pass that of a copy of learner.net."
        )
    trained = set(layout.shapes) | _other_names(net, layout)
    for name, own in expected.items():
        given = state[name]
        if given.shape != own.shape or given.dtype != own.dtype:
            raise InputError(
                f"This state_dict is of another network: {name!r} must be {own.dtype} of shape "
                f"{tuple(own.shape)}. Got {given.dtype} of shape {tuple(given.shape)}."
            )
        if name not in trained and not torch.equal(given.cpu(), own.cpu()):
            raise InputError(
                f"{name!r} is frozen or a buffer, and has other numbers than in this network. Make a Module "
                "of the network that it belongs to."
            )
    parts = [state[name].detach().cpu().reshape(-1) for name in layout.shapes]
    return np.ascontiguousarray(torch.cat(parts).numpy())


def _other_names(net: nn.Module, layout: Layout) -> set[str]:
    """Return the further names of trained parameters that a network uses in several places."""
    trained = {id(net.get_parameter(name)) for name in layout.shapes}
    return {name for name, p in net.named_parameters(remove_duplicate=False) if id(p) in trained}


def digest_of(net: nn.Module, layout: Layout) -> str:
    """Return a digest of what parameters must fit: layers and settings, shapes, frozen ones and buffers."""
    layers = describe_layers(net), describe_settings(net)
    digest = hashlib.sha256(
        repr((*layers, list(layout.shared.items()), list(layout.personal.items()))).encode()
    )
    trained = set(layout.shapes) | _other_names(net, layout)
    for name, constant in sorted({**net.state_dict(), **dict(net.named_buffers())}.items()):
        if name not in trained:
            digest.update(repr((name, str(constant.dtype), tuple(constant.shape))).encode())
            digest.update(
                constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    return digest.hexdigest()


def write_network(path: Path, made: nn.Module, facts: Mapping[str, str], *, private: bool) -> Path:
    """Write a network's state_dict, and what is said of it, as safetensors; atomically."""
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in made.state_dict().items()}
    said = json.dumps({"format": _FORMAT, **facts}, sort_keys=True)  # one text: several come in any order
    data = _safetensors().torch.save(tensors, {"cloister": said})
    return write_file(path, data, 0o600 if private else 0o666)


def read_network(path: Path, net: nn.Module, layout: Layout) -> NetworkFile:
    """Read what `write_network` wrote; refuse a file of another network."""
    library = _safetensors()
    try:
        with library.safe_open(path, framework="pt") as file:
            facts = _facts(file.metadata())
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except (library.SafetensorError, OSError) as error:
        raise InputError(f"{path} is no safetensors file, or is damaged. Restore it.") from error
    if facts.get("format") != _FORMAT:
        raise InputError(
            f"{path} was not written by cloister. Read it with safetensors, and pass its state_dict to "
            "learner.flatten."
        )
    if facts.get("network") != digest_of(net, layout):
        raise InputError(
            f"{path} is of another network: other layers, another body, or other parameters that are shared. "
            "Load it with the Module that was trained."
        )
    coef = flatten(net, layout, state)
    made = module_of(net, layout, coef)
    return NetworkFile(coef, made, facts.get("plan", ""), facts.get("head", ""), facts.get("task"))


def _facts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a file says of its network; nothing if it was not written here."""
    try:
        found = json.loads((metadata or {}).get("cloister", "{}"))
    except (ValueError, RecursionError):
        return {}
    whole = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if whole else {}


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "torch", "A file of a network") from error
    return safetensors
