"""Mending a network so that it can be trained here, and saying what was changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from cloister.core.named_inputs import row_array
from cloister.networks.layers import guard_layers
from cloister.networks.network_faults import (
    check_network,
    constant_layers,
    faults_of,
    faults_on_rows,
    logits_of,
    output_of,
    refuse,
    unreached,
)
from cloister.networks.network_inputs import NamedInputs, RowKind, aligned
from cloister.networks.parameter_layout import listed, ready

#: Batch normalisation that something stands in for; what others add to it, an activation say, would be lost.
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
#: Channels that a group of a GroupNorm has at least: each alone would be nothing but its sign.
GROUP = 8


@dataclass(frozen=True)
class FixedNetwork:
    """A network that can be trained here, and what was changed in it.

    Attributes
    ----------
    net : nn.Module
        A copy; parameters that nothing was done about are those of the network given.
    changes : tuple of str
        One sentence each. None, if nothing had to be.
    """

    net: nn.Module
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.changes) or "Nothing had to be changed."


class Logits(nn.Module):
    """A network of several outputs that returns those called ``logits``.

    Parameters
    ----------
    net : nn.Module
        Its parameters are called as before, with ``net.`` in front.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *rows: Tensor, **named: Tensor) -> Tensor:
        logits = logits_of(self.net(*rows, **named))
        if logits is None:
            raise ValueError(f"{type(self.net).__name__} returns no logits.")
        return logits


def fix_network(net: nn.Module, X: ArrayLike | Mapping[str, ArrayLike] | None = None) -> FixedNetwork:
    """Return a copy of a network in which what can be mended is, and what was done.

    * Batch normalisation that is trained becomes group normalisation, if it has seen no examples yet. If it
      has, it is frozen with the statistics it learned: a body from elsewhere says what it said.
    * Dropout, and layers that are skipped at random, are set to 0.
    * Statistics of instances are not kept; parameters that are trained become 32-bit floats.
    * With `X`, of several outputs the ``logits`` are returned, and what no output follows from is frozen.

    Parameters
    ----------
    net : nn.Module
        Stays as it is.
    X : array or arrays by name, optional
        Rows such as tasks will have. Their shapes and types count and no value does: synthetic ones are run.

    Raises
    ------
    InputError
        If something is left that cannot be mended; it lists all of it.

    Privacy
    -------
    Nothing of `X` but its shape is looked at, and that is public. A norm that is frozen is a constant of the
    plan, so the rows that its statistics are of must be public.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))
    >>> fixed = fix_network(net)
    >>> print(fixed)
    Layer '1' was batch normalisation that has seen no examples. It is group normalisation now.
    Layer '2' dropped numbers at random. It drops none now.
    >>> type(fixed.net[1]).__name__, fixed.net[1].num_groups
    ('GroupNorm', 2)
    """
    check_network(net)
    fixed = copy.deepcopy(net).cpu()
    changes = [*_mend_norms(fixed), *_mend_coins(fixed), *_mend_numbers(fixed)]
    refuse(faults_of(fixed))
    if X is None:
        return FixedNetwork(fixed, tuple(changes))
    rows = row_array(X)
    kind = RowKind.of(rows)
    fixed, more = _mend_outputs(fixed, rows.dtype, kind)
    taking = fixed if kind.record is None else NamedInputs(fixed, aligned(rows.dtype))
    refuse([*faults_of(fixed), *faults_on_rows(taking, kind)])
    return FixedNetwork(fixed, (*changes, *more))


def _mend_norms(net: nn.Module) -> Iterator[str]:
    """Replace or freeze batch normalisation outside of frozen layers; keep no statistics of instances."""
    constant = constant_layers(net)
    new, frozen, kept = list[str](), list[str](), list[str]()
    for name, layer in list(net.named_modules()):
        if id(layer) in constant:
            continue
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if type(layer) in NORMS and name and not _has_learned(layer):
                net.set_submodule(name, _group_norm(layer))
                new.append(name)
            elif layer.track_running_stats:
                _freeze(layer)
                frozen.append(name)
        elif getattr(layer, "track_running_stats", False):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            kept.append(name)
    yield from _said(new, "was batch normalisation that has seen no examples. It is group normalisation now.")
    yield from _said(frozen, "is batch normalisation. It is frozen now, with the statistics that it has.")
    yield from _said(kept, "kept statistics of examples. It keeps none now.")


def _has_learned(norm: Any) -> bool:
    """Say whether a norm's statistics are other than those that it begins with."""
    return bool(
        norm.track_running_stats and ((norm.running_mean != 0).any() or (norm.running_var != 1).any())
    )


def _group_norm(norm: Any) -> nn.GroupNorm:
    channels = norm.num_features
    sizes = [size for size in range(GROUP, channels + 1) if channels % size == 0]
    group = nn.GroupNorm(channels // sizes[0] if sizes else 1, channels, norm.eps, norm.affine)
    if norm.affine:
        group.weight, group.bias = norm.weight, norm.bias
    return group


def _freeze(norm: Any) -> None:
    """Make a norm a constant: its parameters are frozen, and it has some, so that it is run in evaluation."""
    if not norm.affine:
        norm.affine, channels = True, norm.num_features
        norm.weight, norm.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
    norm.requires_grad_(False)


def _mend_coins(net: nn.Module) -> Iterator[str]:
    """Set to 0 what layers outside of frozen ones hold under a name with "drop", and what dropouts have."""
    constant, mended = constant_layers(net), []
    for name, layer in net.named_modules():
        kind = type(layer).__name__.lower()
        chance = {"p"} if "drop" in kind or "stochasticdepth" in kind else set()
        held = [
            key
            for key, value in vars(layer).items()
            if isinstance(value, float) and value > 0 and ("drop" in key or key in chance)
        ]
        if held and id(layer) not in constant:
            vars(layer).update(dict.fromkeys(held, 0.0))
            mended.append(name)
    yield from _said(mended, "dropped numbers at random. It drops none now.")


def _mend_numbers(net: nn.Module) -> Iterator[str]:
    names = []
    for name, parameter in net.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point() and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
            names.append(name)
    if names:
        yield f"Trained parameters {listed(names)} are 32-bit floats now."


def _mend_outputs(net: nn.Module, kind: Any, rows: RowKind) -> tuple[nn.Module, list[str]]:
    """Return a network of one output, in which all that is trained is reached from it, and what was done."""
    changes: list[str] = []
    taking = net if rows.record is None else NamedInputs(net, aligned(kind))
    twin = guard_layers(ready(copy.deepcopy(taking)))
    try:
        with torch.no_grad():
            outputs = twin(rows.synthetic(2))
        lost = [] if output_of(outputs) is None else unreached(twin, rows.synthetic(2))
    except Exception:  # said by `faults_on_rows`
        return net, changes
    prefix = "net." if rows.record is not None else ""
    lost = [name.removeprefix(prefix) for name in lost]
    for name in lost:
        net.get_parameter(name).requires_grad_(False)
    if lost:
        changes.append(f"No output follows from parameters {listed(lost)}. They are frozen now.")
    if logits_of(outputs) is not None:
        net = Logits(net)
        changes.append(
            f"The network returned a {type(outputs).__name__}. It returns its logits now, and its parameters "
            "are called as before with 'net.' in front."
        )
    return net, changes


def _said(names: list[str], what: str) -> Iterator[str]:
    if names:
        yield f"Layer {names[0]!r}{f', like {len(names) - 1} more,' if len(names) > 1 else ''} {what}"
