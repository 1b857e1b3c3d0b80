"""Parameters of a network: which are shared, personal and frozen, and flat rows as a network again.

A file holds the whole state_dict, frozen parameters and buffers included, as safetensors: anybody with torch
reads it, ``net.load_state_dict(safetensors.torch.load_file(path))``. What it says beside that is text: the
network's digest, and the plan and the board that the parameters come from.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloister.core.arrays import Array
from cloister.core.errors import InputError, MissingExtraError
from cloister.networks.fingerprint import describe_layers, describe_settings
from cloister.store.files import write_file

#: Names in a sentence, at most.
NAMED = 8


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trained parameters, in the order of flat vectors: shared ones first."""

    shared: dict[str, torch.Size]
    personal: dict[str, torch.Size]

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        return self.shared | self.personal

    @cached_property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes.values()]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def shared_size(self) -> int:
        return sum(self.sizes[: len(self.shared)])


def layout_of(net: nn.Module, personal: Sequence[str]) -> Layout:
    """Sort the parameters that are trained; refuse patterns that name none, all, or one by half its names."""
    if isinstance(personal, str) or not all(isinstance(pattern, str) for pattern in personal):
        raise InputError(
            f"personal must be a tuple of patterns of parameter names. Got {personal!r}. "
            'Write personal=("head.*",).'
        )
    trained = {name: p.shape for name, p in net.named_parameters() if p.requires_grad}
    every = {name: p for name, p in net.named_parameters(remove_duplicate=False) if p.requires_grad}
    for pattern in personal:
        if not any(fnmatchcase(name, pattern) for name in every):
            inside = any(name.startswith(f"{pattern}.") for name in every)
            how = f"Write {pattern + '.*'!r}" if inside else f"Choose among {listed(trained)}"
            raise InputError(f"personal={pattern!r} names no parameter that is trained. {how}.")
    own = {name for name in every if any(fnmatchcase(name, pattern) for pattern in personal)}
    first = {id(net.get_parameter(name)): name for name in trained}
    for name, parameter in every.items():
        other = first[id(parameter)]
        if (name in own) != (other in own):
            raise InputError(
                f"{name!r} is {other!r}: one parameter, which is personal by one of these names alone. Name "
                f"both in personal=, or neither. Got personal={personal!r}."
            )
    own &= trained.keys()
    if personal and len(own) == len(trained):
        raise InputError(
            f"personal={personal!r} names every parameter that is trained, and nothing would be shared. "
            f"Leave some of these out: {listed(trained)}."
        )
    return Layout(
        {name: shape for name, shape in trained.items() if name not in own},
        {name: shape for name, shape in trained.items() if name in own},
    )


def frozen_layers(net: nn.Module) -> dict[str, nn.Module]:
    """Return the largest parts of a network, by name, that have parameters and none that is trained."""
    found: dict[str, nn.Module] = {}
    for name, layer in net.named_modules():
        parameters = list(layer.parameters())
        inside = any(name.startswith(f"{part}.") for part in found)
        if parameters and not inside and not any(p.requires_grad for p in parameters):
            found[name] = layer
    return found


def frozen_beside_trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """Return the frozen parameters of layers that also have trained ones, such as a weight beside a bias."""
    found: dict[str, nn.Parameter] = {}
    for name, layer in net.named_modules():
        own = dict(layer.named_parameters(prefix=name, recurse=False))
        if any(p.requires_grad for p in own.values()):
            found |= {key: p for key, p in own.items() if not p.requires_grad}
    return found


def ready(net: nn.Module) -> nn.Module:
    """Set a network to training, and its frozen layers to evaluation: they neither draw nor remember."""
    net.train()
    for layer in frozen_layers(net).values():
        layer.eval()
    return net


def listed(names: Collection[str]) -> str:
    """Return names in a sentence: the first few, and how many more there are."""
    shown = ", ".join(map(repr, list(names)[:NAMED]))
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


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
        raise MissingExtraError("safetensors", "networks", "A file of a network") from error
    return safetensors
