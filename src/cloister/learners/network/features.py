"""The frozen prefix of a network: what it makes of rows is computed once, without a client axis, and kept.

A network is traced as a graph of operations. What follows from its input and from constants alone is the same
in every step of every round; where one value of it is all that the trained rest gets to see, the network is a
*body* up to there, and a *rest* that starts from there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

from cloister.arrays import Array, Integers
from cloister.learners.network.clients import swap_layers
from cloister.learners.network.module import Module, kind_of
from cloister.learners.network.parameters import frozen_layers, layout_of, ready
from cloister.learners.network.training import Precision, matmul_precision
from cloister.learners.network.trials import features_of
from cloister.tasks import Tasks, padded_size

if TYPE_CHECKING:
    from cloister.algorithm import Network

__all__ = ["keep_features", "split"]

T = TypeVar("T")

CPU = torch.device("cpu")
#: Bytes that features of all rows may take.
MOST_BYTES = 1 << 33
#: Rows that a body takes at once.
AT_ONCE = 1 << 10


@dataclass(frozen=True)
class Split:
    """A frozen body, and what is trained of a network, on the body's features."""

    body: nn.Module
    rest: nn.Module


class _Root(nn.Module):
    """Calls a network as it is always called here: with one tensor, whatever else it could take."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.net(rows)
        return out


class _Tracer(fx.Tracer):
    """Traces through all but torch's own layers and frozen ones."""

    def __init__(self, frozen: set[str]) -> None:
        super().__init__()
        self.frozen = frozen

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.frozen or super().is_leaf_module(m, module_qualified_name)


def split(net: nn.Module) -> Split | None:
    """Cut a network after its frozen prefix; None if it has none, or cannot be traced.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3))
    >>> found = split(net)
    >>> found.body(torch.zeros(2, 4)).shape, [name for name, _ in found.rest.named_parameters()]
    (torch.Size([2, 5]), ['net.2.weight', 'net.2.bias'])
    """
    frozen = {f"net.{name}" for name in frozen_layers(net)}
    if not frozen:
        return None
    root = _Root(ready(copy.deepcopy(net)))
    try:
        graph = _Tracer(frozen).trace(root)
    except Exception:  # it branches on its input, or calls what cannot be traced: its body runs in every step
        return None
    parts = _parts(root, graph, frozen)
    if parts is None:
        return None
    rest = fx.GraphModule(root, _after(graph, parts))
    _put_in_order(rest, root)
    trained = [name for name, p in rest.named_parameters() if p.requires_grad]
    if trained != [f"net.{name}" for name, p in net.named_parameters() if p.requires_grad]:
        return None
    return Split(fx.GraphModule(root, _up_to(graph, parts)), rest)


def keep_features(
    network: Network,
    tasks: Tasks,
    device: torch.device = CPU,
    precision: Precision = Precision(),  # noqa: B008
    together: int | None = None,
) -> tuple[Network, Tasks]:
    """Return what is left to train, and tasks with features in place of rows; both as given without a body.

    At most so many tasks run `together`, of one padded size: with 1, what a task's features are to the last
    bit follows from its own rows alone.
    """
    found = split(network.net)
    if found is None:
        return network, tasks
    some = features_of(network.net, found.body, found.rest, tasks.X.shape[1:], kind_of(tasks.X))
    if some is None or some.dtype != torch.float32 or len(tasks.X) * some[0].nbytes > MOST_BYTES:
        return network, tasks
    body = swap_layers(found.body.to(device))  # frozen layers stay, and look up no absurd codes
    assert body is not None
    features = np.zeros((len(tasks.X), *some.shape[1:]), dtype=np.float32)
    for part, at in _computed(body, tasks, device, precision, together):
        features[at] = part
    personal = tuple(f"net.{name}" for name in layout_of(network.net, network.personal).personal)
    return Module(found.rest, network.loss, personal), replace(tasks, X=features)


def _computed(
    body: nn.Module, tasks: Tasks, device: torch.device, precision: Precision, together: int | None
) -> Iterator[tuple[Array, Array]]:
    """Yield features, and the places of the rows that they are of."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision.bf16)
    with torch.no_grad(), matmul_precision(precision), autocast:
        for at, real in _chunks(tasks, together):
            rows = torch.as_tensor(tasks.X[at], dtype=kind_of(tasks.X), device=device)
            yield body(rows).float().cpu().numpy()[real], at[real]


def _chunks(tasks: Tasks, together: int | None) -> Iterator[tuple[Integers, Array]]:
    """Yield places of rows, and which are real: a task is filled up to its padded size with its first row."""
    sizes, padded = tasks.sizes, padded_size(tasks.sizes)
    for width in np.unique(padded[padded > 0]).tolist():
        members = np.flatnonzero(padded == width)
        count = max(1, min(AT_ONCE // width, together or AT_ONCE))
        for start in range(0, len(members), count):
            some = members[start : start + count, None]
            real = np.arange(width) < sizes[some]
            at = tasks.offsets[some] + np.where(real, np.arange(width), 0)
            for piece in range(0, at.size, AT_ONCE):  # several of a task that is longer
                yield at.ravel()[piece : piece + AT_ONCE], real.ravel()[piece : piece + AT_ONCE]


# --- the graph --------------------------------------------------------------------------------------------


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
