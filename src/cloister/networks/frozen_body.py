"""Cutting a network after its frozen prefix: into a body, and the rest that is trained.

A network is traced as a graph of operations. What follows from its input and from constants alone is the same
in every step of every round. Where one value of it is all that the rest gets to see, there it is cut.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, fx, nn

from cloister.networks.parameter_layout import frozen_layers, ready

T = TypeVar("T")

#: One network at a time is traced.
_TRACING = threading.Lock()


@dataclass(frozen=True)
class Split:
    """A frozen body, and what is trained of a network, on the body's features."""

    body: nn.Module
    rest: nn.Module


def name_in_rest(name: str) -> str:
    """Return what a parameter of the network is called in the rest."""
    return f"net.{name}"


class _Root(nn.Module):
    """Calls a network as it is always called here: with one tensor, whatever else it could take."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.net(rows)
        return out


class _Tracer(fx.Tracer):
    """Traces through all but torch's own layers, frozen ones and those that own trained parameters.

    These last are swapped as a whole when many clients run at once (`cloister.networks.layers`). Meanwhile
    torch hands it the calls of all networks: those that other threads make are none of its own.
    """

    def __init__(self, frozen: set[str]) -> None:
        super().__init__()
        self.frozen, self.thread = frozen, threading.get_ident()

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = any(parameter.requires_grad for parameter in m.parameters(recurse=False))
        whole = module_qualified_name in self.frozen or (own and module_qualified_name != "net")
        return whole or super().is_leaf_module(m, module_qualified_name)


def split(net: nn.Module) -> Split | None:
    """Cut a network after its frozen prefix; None if it has none, or cannot be traced.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3))
    >>> found = split(net)
    >>> found.body(torch.zeros(2, 4)).shape, [name for name, _ in found.rest.named_parameters()]
    (torch.Size([2, 5]), ['net.2.weight', 'net.2.bias'])
    """
    frozen = {name_in_rest(name) for name in frozen_layers(net)}
    if not frozen:
        return None
    root = _Root(ready(copy.deepcopy(net)))
    try:
        with _TRACING:
            graph = _Tracer(frozen).trace(root)
    except Exception:  # it branches on its input, or calls what cannot be traced: its body runs in every step
        return None
    parts = _parts(root, graph, frozen)
    if parts is None:
        return None
    rest = fx.GraphModule(root, _after(graph, parts))
    _put_in_order(rest, root)
    trained = [name for name, p in rest.named_parameters() if p.requires_grad]
    if trained != [name_in_rest(name) for name, p in net.named_parameters() if p.requires_grad]:
        return None
    return Split(fx.GraphModule(root, _up_to(graph, parts)), rest)


@dataclass(frozen=True)
class _Parts:
    """The values of a network: of constants alone, of its body, and all others, which see the cut alone."""

    constants: set[fx.Node]
    body: set[fx.Node]
    cut: fx.Node


def _parts(root: nn.Module, graph: fx.Graph, frozen: set[str]) -> _Parts | None:
    """Cut as late as can be: after frozen layers, where the rest sees no other value of the body's."""
    constants: set[fx.Node] = set()
    public: dict[fx.Node, None] = {}  # what follows from the input, and from no trained parameter
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "output" or _is_trained(root, node) or not {*constants, *public}.issuperset(inputs):
            continue
        if node.op == "placeholder" or not public.keys().isdisjoint(inputs):
            public[node] = None
        else:
            constants.add(node)
    for cut in reversed(public):
        body = _upstream(cut) & public.keys()
        gains = any(node.op == "call_module" and node.target in frozen for node in body)
        if gains and all(body.issuperset(node.users) for node in body - {cut}):
            return _Parts(constants, body, cut)
    return None


def _is_trained(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return any(p.requires_grad for p in root.get_submodule(str(node.target)).parameters())
    return node.op == "get_attr" and getattr(_attribute(root, str(node.target)), "requires_grad", False)


def _attribute(root: nn.Module, target: str) -> object:
    owner, _, name = target.rpartition(".")
    return getattr(root.get_submodule(owner), name)


def _upstream(node: fx.Node) -> set[fx.Node]:
    found, ahead = {node}, [node]
    while ahead:
        new = set(ahead.pop().all_input_nodes) - found
        found |= new
        ahead += new
    return found


def _up_to(graph: fx.Graph, parts: _Parts) -> fx.Graph:
    """Return the body's operations, with the constants that they use."""
    found, upstream = fx.Graph(), _upstream(parts.cut)
    copied: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in upstream:
            copied[node] = found.node_copy(node, copied.__getitem__)
    found.output(copied[parts.cut])
    return found


def _after(graph: fx.Graph, parts: _Parts) -> fx.Graph:
    """Return all other operations, with the constants that they use; they start from the body's features."""
    found, used = fx.Graph(), set()
    for node in reversed(graph.nodes):
        if node in used or node not in parts.constants | parts.body:
            used |= {node, *node.all_input_nodes} - parts.body
    copied = {parts.cut: found.placeholder("features")}
    for node in graph.nodes:
        if node in used:
            copied[node] = found.node_copy(node, copied.__getitem__)
    return found


def _put_in_order(part: nn.Module, whole: nn.Module) -> None:
    """Let the layers and parameters of a part stand in the order in which the whole has them."""
    _sort(part._modules, whole._modules)
    _sort(part._parameters, whole._parameters)
    for name, layer in part.named_children():
        if layer is not whole.get_submodule(name):
            _put_in_order(layer, whole.get_submodule(name))


def _sort(held: dict[str, T], order: Iterable[str]) -> None:
    inside = {name: held[name] for name in order if name in held}
    held.clear()
    held.update(inside)
