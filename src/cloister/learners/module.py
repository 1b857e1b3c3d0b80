"""Any `torch.nn.Module` as a learner over blocks of tasks: its parameters, flat, one row a task."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from cloister.errors import InputError
from cloister.learners.clients import swap_layers
from cloister.learners.descent import Descent
from cloister.learners.minibatches import folds
from cloister.learners.penalties import Penalty
from cloister.learners.training import LossPerExample, Trainer

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["Module", "cross_entropy"]

Array = Any  # of NumPy, or of torch: what comes in goes out


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one cross-entropy an example: outputs are scores of classes, targets their indexes.

    A target that is no class counts as the nearest one: absurd data spoil their own task and stop nobody.
    """
    classes = outputs.shape[-1]
    index = targets if not targets.is_floating_point() else targets.nan_to_num()
    logs = outputs.T.log_softmax(0).T  # classes first: processors are slow over a short last axis
    return F.nll_loss(logs, index.clamp(0, classes - 1).long(), reduction="none")


@dataclass(frozen=True, eq=False)
class Module:
    """A network and its loss.

    Parameters
    ----------
    net : nn.Module
        Treats the first axis of its input as examples and does not mix them. Its parameters as they are now
        are the public start of all tasks: initialise it at random, or train it on public data. Its buffers
        are public constants, the same for all.
    loss : callable
        ``loss(outputs, targets)`` returns one loss an example; cross-entropy by default.

    Notes
    -----
    Inputs and targets that are whole numbers stay so (for embeddings and classes); all others become 32-bit
    floats. Networks of linear, convolutional, embedding and normalising layers run as one program for a
    whole block of tasks; any other goes through `torch.vmap`. A plan file cannot hold a network: a saved plan
    names it, by its layers and a hash of its numbers, and cannot be read back.

    Examples
    --------
    >>> learner = Module(nn.Linear(2, 3))
    >>> learner.size, learner.start().shape
    (9, (9,))
    >>> Module(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cloister.errors.InputError: Layer '1' is a BatchNorm1d, which averages over examples and remembers them...
    """

    net: nn.Module
    loss: LossPerExample = cross_entropy
    bound: Trainer | None = field(default=None, repr=False)
    #: Shapes of rows that it was seen to take, and whether swapped layers do too.
    tried: dict[object, bool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, layer in self.net.named_modules():
            _check_layer(name, layer)
        _check_parameters(self.net)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Module) and self.to_document() == other.to_document()

    def __hash__(self) -> int:
        return hash(str(self.to_document()))

    @cached_property
    def trainer(self) -> Trainer:
        """What does the work: on the processor, unless bound to another device."""
        return self.bound or Trainer(self.net, self.loss)

    def on(self, trainer: Trainer) -> Module:
        """Return the same learner, bound to a device."""
        return Module(self.net, self.loss, trainer)

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(self.trainer.sizes)

    def start(self) -> NDArray[np.float64]:
        """Return the public start."""
        return self.trainer.start.cpu().numpy()

    def spread(self, mean: Array, block: Block) -> Array:
        """Give every task of a block the same parameters."""
        if isinstance(mean, Tensor):
            return mean.expand(len(block), -1)
        return np.repeat(mean.astype(np.float32)[None, :], len(block), axis=0)

    def descend(
        self,
        weights: Array,
        block: Block,
        solver: Descent,
        round: int,
        anchor: Array | None = None,
        penalty: Penalty | None = None,
    ) -> Array:
        """Train each task on its own rows, from its own weights; see `Descent` for how long."""
        start, towards = (None if x is None else self._tensor(x) for x in (weights, anchor))
        assert start is not None
        ended = self.trainer.descend(
            start, *self._rows(block), self._keys(block), solver, round, towards, penalty
        )
        return ended if isinstance(weights, Tensor) else ended.cpu().numpy()

    def losses(self, weights: Array, block: Block) -> Array:
        """Return each task's mean loss on its own rows."""
        X, y, weight = self._rows(block)
        with torch.no_grad():
            each = self.trainer.losses(self.trainer.stack(self._tensor(weights)), X, y)
            total = torch.where(weight > 0, weight * each, 0.0).sum(1) / weight.sum(1).clamp(min=1e-12)
        return total if isinstance(weights, Tensor) else total.cpu().numpy()

    def folds(self, block: Block, count: int) -> list[tuple[Block, Block]]:
        """Return, for each of `count` parts of each task's rows, the block without it and with it alone."""
        weight: Any = block.weight
        dealt: Any = folds(self._keys(block), self._tensor(weight), count)
        part = dealt if isinstance(weight, Tensor) else dealt.cpu().numpy()
        return [
            (replace(block, weight=weight * (part != i)), replace(block, weight=weight * (part == i)))
            for i in range(count)
        ]

    def predict(self, weights: Array, X: Array) -> Array:
        """Return outputs, (k, n, ...), of each task's own network on its own inputs."""
        rows = self._tensor(X)
        self._try(rows)
        with torch.no_grad():
            out = self.trainer.outputs(self.trainer.stack(self._tensor(weights)), rows).float()
        return out if isinstance(weights, Tensor) else out.cpu().numpy()

    def to_document(self) -> dict[str, object]:
        """Return what a plan file says about a network: enough to tell it from others, not to build it."""
        numbers = [*self.net.parameters(), *self.net.buffers()]
        raw = (number.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for number in numbers)
        digest = hashlib.sha256(b"".join(raw)).hexdigest()
        return {
            "type": "Module",
            "network": str(self.net),
            "parameters": self.size,
            "start": digest,
            "loss": getattr(self.loss, "__qualname__", repr(self.loss)),
        }

    def _rows(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        X, y, weight = (self._tensor(x) for x in (block.X, block.y, block.weight))
        self._try(X)
        return X, y, weight

    def _try(self, X: Tensor) -> None:
        """When inputs of a shape are first seen, check how the network takes such, on rows of nobody."""
        kind = (X.shape[2:], X.dtype)
        if kind not in self.tried:
            _check_behaviour(self.net, *kind)
            self.tried[kind] = _runs_stacked(self.net, *kind)
        if not self.tried[kind]:
            self.trainer.swapped = None

    def _keys(self, block: Block) -> Tensor:
        keys: Any = block.keys
        return keys if isinstance(keys, Tensor) else torch.from_numpy(keys.view(np.int64))

    def _tensor(self, array: Array) -> Tensor:
        if isinstance(array, Tensor):
            return array
        owned = array if array.flags.writeable else array.copy()  # torch has no read-only tensors
        return torch.as_tensor(owned, dtype=kind_of(array), device=self.trainer.device)


def kind_of(array: NDArray[Any]) -> torch.dtype:
    """Return what an array becomes in torch: whole numbers stay so, others are 32-bit floats."""
    return torch.int64 if array.dtype.kind in "biu" else torch.float32


def _check_layer(name: str, layer: nn.Module) -> None:
    """Refuse a layer that mixes examples, keeps statistics or tosses coins, and say what to use instead."""
    what = f"Layer {name!r} is a {type(layer).__name__}"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise InputError(
            f"{what}, which averages over examples and remembers them: one row would reach all others. "
            "Use nn.GroupNorm."
        )
    dropout = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
    if isinstance(dropout, float) and dropout > 0:
        raise InputError(
            f"{what} with dropout, whose coins nobody could replay. Set it to 0 and use weight_decay."
        )
    if getattr(layer, "track_running_stats", False):
        raise InputError(f"{what} that keeps statistics of examples. Set track_running_stats=False.")
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        raise InputError(f"{what} that has no shape yet. Run the network on one input first.")


def _check_parameters(net: nn.Module) -> None:
    kinds = {parameter.dtype for parameter in net.parameters()}
    if kinds != {torch.float32}:
        raise InputError(
            f"A network must have parameters, all of 32-bit floats. Got {sorted(map(str, kinds))}. "
            "Call net.float() first."
        )
    frozen = [name for name, parameter in net.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise InputError(
            f"Parameter {frozen[0]!r} is frozen, but every parameter here is trained and told. Make it a "
            "buffer, or compute its features beforehand and give the part that is trained."
        )


def _check_behaviour(net: nn.Module, shape: torch.Size, kind: torch.dtype) -> None:
    """Refuse a network that mixes examples, draws at random or changes its buffers; uses no task's data."""
    twin, rows = copy.deepcopy(net).cpu().train(), _made_up(2, shape, kind)
    others = [rows.clone(), rows.clone()]
    for i in (0, 1):
        others[i][i] += 1
    drawn, kept = torch.get_rng_state(), [buffer.clone() for buffer in twin.buffers()]
    try:
        with torch.no_grad():
            both, first, second = (twin(x) for x in (rows, *others))
    except Exception as error:
        raise InputError(f"The network cannot take {kind} of shape {tuple(shape)}: {error}.") from error
    if not isinstance(both, Tensor) or both.shape[:1] != (2,):
        raise InputError("A network must return one tensor, with one row an example.")
    if not torch.equal(drawn, torch.get_rng_state()):
        raise InputError("The network draws at random, and nobody could replay that. Set its dropout to 0.")
    if not all(map(torch.equal, kept, twin.buffers())):
        raise InputError("The network changes its buffers as it runs. They must be public constants.")
    if not (_near(both[1], first[1]) and _near(both[0], second[0])):
        raise InputError(
            "The network mixes examples: what it says of one row changed with another. Its first axis must "
            "be examples (batch_first=True for sequences), and nothing may average over them."
        )


def _runs_stacked(net: nn.Module, shape: torch.Size, kind: torch.dtype) -> bool:
    """Say whether swapped layers do what the network does: not if it reaches into a layer's parameters."""
    twin = copy.deepcopy(net).cpu().train()
    rows = _made_up(3, shape, kind)
    copies = [{name: factor * w.detach() for name, w in twin.named_parameters()} for factor in (1.0, 1.5)]
    stacked = {name: torch.stack([own[name] for own in copies]) for name in copies[0]}
    with torch.no_grad():
        apart = torch.cat([functional_call(twin, own, (rows,)) for own in copies])
        try:
            swapped = swap_layers(twin)
            if swapped is not None:
                together = functional_call(swapped, stacked, (torch.cat([rows, rows]),))
                if together.shape == apart.shape and _near(together, apart):
                    return True
        except (RuntimeError, ValueError, IndexError):
            pass  # it reaches in and finds stacked parameters there
        _check_side_by_side(twin, stacked, rows)
    return False


def _check_side_by_side(net: nn.Module, stacked: dict[str, Tensor], rows: Tensor) -> None:
    try:
        vmap(lambda own: functional_call(net, own, (rows,)), randomness="error")(stacked)
    except Exception as error:
        raise InputError(f"Copies of this network cannot run side by side: {error}") from error


def _made_up(count: int, shape: torch.Size, kind: torch.dtype) -> Tensor:
    """Return rows of nobody: zeros where whole numbers are wanted."""
    rows = torch.zeros(count, *shape, dtype=kind)
    return rows.normal_(generator=torch.Generator().manual_seed(0)) if rows.is_floating_point() else rows


def _near(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True)
