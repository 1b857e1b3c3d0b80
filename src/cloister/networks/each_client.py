"""Layers of any kind with parameters of many clients: `torch.vmap` runs each for itself, within a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree


class _EachClient(nn.Module):
    """A layer of any kind, run by `torch.vmap` for each client with its own parameters."""

    #: The layer of one client, in a tuple: it is no part of this one, whose parameters have a client axis.
    alone: tuple[nn.Module]
    trained: tuple[str, ...]
    #: Whether it runs under autocast, there and back; found out when it first has to.
    in_16_bits: bool | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        weights = {name: _attribute(self, name) for name in self.trained}
        leaves, shape = pytree.tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if len({leaves[i].shape[:1] for i in places}) != 1:
            raise ValueError(f"{type(self).__name__} takes tensors whose first axis is examples here.")
        device = leaves[places[0]].device.type
        if not torch.is_autocast_enabled(device):
            return self._each(weights, leaves, places, shape)
        if self.in_16_bits is None:
            self.in_16_bits = self._can_be_short(weights, leaves, places, shape)
        if self.in_16_bits:
            return self._each(weights, leaves, places, shape)
        frozen = {n: p.float() for n, p in self.alone[0].named_parameters() if n not in weights}
        with torch.autocast(device, enabled=False):
            return self._each(weights, [_in_32_bits(leaf) for leaf in leaves], places, shape, frozen)

    def _can_be_short(
        self, weights: dict[str, Tensor], leaves: list[Any], places: list[int], shape: Any
    ) -> bool:
        """Try it on one example of each client: some operations have no rule for both vmap and autocast."""
        own = {name: w.detach().requires_grad_() for name, w in weights.items()}
        clients, first = len(next(iter(own.values()))), list(leaves)
        for i in places:
            first[i] = leaves[i].detach().unflatten(0, (clients, -1))[:, 0]
        try:
            with torch.enable_grad():
                found = pytree.tree_leaves(self._each(own, first, places, shape))
                total = torch.stack([out.float().sum() for out in found if isinstance(out, Tensor)]).sum()
                torch.autograd.grad(total, list(own.values()), allow_unused=True)
        except RuntimeError:
            return False
        return True

    def _each(
        self,
        weights: dict[str, Tensor],
        leaves: list[Any],
        places: list[int],
        shape: Any,
        frozen: dict[str, Tensor] = {},  # noqa: B006
    ) -> Any:
        clients, made = len(next(iter(weights.values()))), list[Any]()

        def one(own: dict[str, Tensor], given: list[Tensor]) -> list[Tensor]:
            values = list(leaves)
            for i, rows in zip(places, given, strict=True):
                values[i] = rows
            inputs, named = pytree.tree_unflatten(values, shape)
            outputs, made_of = pytree.tree_flatten(
                functional_call(self.alone[0], own | frozen, inputs, named)
            )
            made[:] = [outputs, made_of]
            return [out for out in outputs if isinstance(out, Tensor)]

        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule, or fail, for many at once
            rows = [leaves[i].unflatten(0, (clients, -1)) for i in places]
            found = iter(vmap(one, randomness="error")(weights, rows))
        outputs, made_of = made
        flat = [next(found).flatten(0, 1) if isinstance(out, Tensor) else out for out in outputs]
        return pytree.tree_unflatten(flat, made_of)


def run_for_each_client(layer: nn.Module, alone: nn.Module) -> None:
    """Make a layer one that takes stacked parameters, and runs `alone`, a copy of it, with each client's."""
    trained = tuple(name for name, parameter in layer.named_parameters() if parameter.requires_grad)
    layer.__class__ = type(type(layer).__name__, (_EachClient, type(layer)), {})
    vars(layer).update(alone=(alone,), trained=trained, in_16_bits=None)


def _in_32_bits(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _attribute(layer: nn.Module, name: str) -> Tensor:
    """Return what stands for a parameter now: `functional_call` puts stacked ones there."""
    *path, last = name.split(".")
    found: Tensor = getattr(layer.get_submodule(".".join(path)), last)
    return found
