"""Which parameters of a network are shared, which are personal, and which are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import nn

from cloister.errors import InputError

__all__ = ["Layout", "frozen_beside_trained", "frozen_layers", "layout_of", "ready"]

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
            how = f"Write {pattern + '.*'!r}" if inside else f"Choose among {_listed(trained)}"
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
            f"Leave some of these out: {_listed(trained)}."
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


def _listed(names: dict[str, torch.Size]) -> str:
    shown = ", ".join(map(repr, list(names)[:NAMED]))
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
