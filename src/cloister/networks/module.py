"""Any `torch.nn.Module` as a learner over blocks of tasks: its parameters, flat, one row a task.

What its loss says of outputs and targets also says how it is scored: the share of targets that it finds.
"""

from __future__ import annotations

import copy
import glob
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloister.core.arrays import A, Array, States, as_array, namespace
from cloister.core.errors import InputError, PlanError, PrivateDataError
from cloister.core.metrics import Metric, Share
from cloister.core.named_inputs import inputs_of
from cloister.core.spec import DataSpec, Target, check_kinds
from cloister.learners.descent import Solver, StepSolver, require_solver
from cloister.learners.learner import ClientLearner, Part
from cloister.learners.penalties import Penalty
from cloister.networks.fingerprint import describe_layers, describe_settings, digest_tensor
from cloister.networks.frozen_body import name_in_rest, split
from cloister.networks.layers import guard_layers, swap_layers
from cloister.networks.module_checks import Way, check_loss, features_of, outputs_of, way_to_run
from cloister.networks.network_faults import (
    TOGETHER,
    check_batches,
    check_network,
    failures_named,
    faults_of,
    faults_on_rows,
    refuse,
)
from cloister.networks.network_inputs import NamedInputs, RowKind, aligned, tensor_of
from cloister.networks.network_losses import (
    ClassLoss,
    ValueLoss,
    classes_last,
    cross_entropy,
    describe_loss,
    number_of_classes,
    per_example,
    wrong_targets,
)
from cloister.networks.parameter_layout import (
    Layout,
    NetworkFile,
    digest_of,
    flatten,
    frozen_layers,
    layout_of,
    module_of,
    read_network,
    ready,
    write_network,
)
from cloister.networks.training import LossPerExample, Precision, Trainer, folds, matmul_precision

if TYPE_CHECKING:
    from cloister.core.tasks import Block


def score_of(loss: LossPerExample, outputs: torch.Size, y: Array) -> Share | None:
    """Return the share of targets that are found, as the loss understands outputs; None if it is of numbers.

    Classes are found by the largest score, positions that the loss ignores are left out; of
    `nn.BCEWithLogitsLoss` a target is found if the score is on its side of 0. With a function of one's own,
    targets are classes if they are whole numbers, and have an axis less than outputs. Looks at shapes and
    kinds alone.
    """
    if loss is cross_entropy or isinstance(loss, ClassLoss):
        return Share(partial(_classes_found, loss))
    if isinstance(loss, ValueLoss):
        return Share(_sides_found) if loss.of_shares else None
    classes = outputs[1:-1] == y.shape[1:] and outputs[-1] > 1 and y.dtype.kind in "biu"
    return Share(partial(_classes_found, cross_entropy)) if classes else None


def _classes_found(loss: LossPerExample, y: Array, outputs: Array) -> tuple[Array, Array]:
    """Say at which positions the target's class has the largest score, and which of them have a target."""
    scores = torch.tensor(outputs)
    targets = torch.tensor(y, dtype=torch.int64 if y.dtype.kind in "biu" else torch.float32)
    shares = isinstance(loss, ClassLoss) and loss.takes_shares(scores.shape, targets.shape)
    if shares:
        targets = targets.argmax(-1)
    heard = torch.ones_like(targets, dtype=torch.bool)
    if isinstance(loss, ClassLoss) and not shares:
        heard = targets != loss.loss.ignore_index
    scores = classes_last(scores, targets, always=loss is cross_entropy)
    found = (scores.argmax(-1) == targets) & scores.isfinite().all(-1)
    return found.numpy(), heard.numpy()


def _sides_found(y: Array, outputs: Array) -> tuple[Array, Array]:
    """Say which targets above one half have a score above 0, and which others do not; all of them count."""
    if outputs.size != y.size:
        raise InputError(
            f"Every target needs a score. Got outputs of shape {outputs.shape}, targets of {y.shape}."
        )
    scores = outputs.reshape(y.shape)
    return ((scores > 0) == (y > 0.5)) & np.isfinite(scores), np.ones(y.shape, dtype=bool)


@dataclass(frozen=True, eq=False)
class Module(ClientLearner):
    """A network and its loss.

    Parameters
    ----------
    net : nn.Module
        Treats the first axis of its input as examples and does not mix them. Its parameters as they are now
        are the public start of all tasks: initialise it at random, or train it on public data. Its buffers,
        and parameters with ``requires_grad=False``, are public constants, the same for all.
    loss : callable
        ``loss(outputs, targets)`` returns one loss an example; cross-entropy by default. One of torch's,
        such as ``nn.MSELoss()`` or ``nn.CrossEntropyLoss(label_smoothing=0.1)``, is taken example by example.
    personal : tuple of str
        Patterns of the names of parameters that every task trains for itself and keeps at home, such as
        ``("head.*", "*.norm.weight")``; by default all that are trained are shared. One that layers share has
        several names: all of them, or none.

    Privacy
    -------
    Messages have a coordinate for each shared parameter and for no other. What a task says of those depends
    on its personal ones, which it has learned from its own rows: the clip bounds that as it bounds all the
    task says. Frozen parameters and buffers are public, and so must be what they were trained on; so is
    whatever else layers hold, which is part of the plan's fingerprint.

    Notes
    -----
    Inputs and targets that are whole numbers stay so (for embeddings and classes); all others become 32-bit
    floats. Networks of linear, convolutional, recurrent, embedding and normalising layers run as one program
    for a whole block of tasks; any other goes through `torch.vmap`. A plan file cannot hold a network: it
    names it, by its layers and hashes of what they hold and of all numbers, and is read by whoever hands over
    the same `Module` (``Plan.load(path, types=[module])``). Layers without a trained parameter, that have
    frozen ones, run in evaluation mode: batch normalisation and dropout are fine there. All others run in
    training mode.

    Examples
    --------
    >>> learner = Module(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), personal=("1.*",))
    >>> learner.size, learner.shared_size
    (13, 9)
    >>> Module(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cloister.errors.InputError: Layer '1' is a BatchNorm1d, which averages over examples and remembers them...
    """

    net: nn.Module
    loss: LossPerExample = cross_entropy
    personal: tuple[str, ...] = ()
    bound: Trainer | None = field(default=None, repr=False)
    #: The fields of its rows, if it is made for those of one kind that have several (`for_rows`).
    record: np.dtype[Any] | None = field(default=None, repr=False)
    #: Names and shapes of the parameters that are trained, in the order of flat vectors.
    layout: Layout = field(init=False, repr=False)
    #: Kinds of rows (and targets) that it was seen to take, and how it runs for many tasks at once.
    tried: dict[object, Way | None] = field(default_factory=dict, init=False, repr=False)
    #: What its frozen prefix makes of synthetic rows of a kind.
    made: dict[tuple[RowKind, str], Tensor | None] = field(default_factory=dict, init=False, repr=False)
    #: Kinds of rows, and devices, on which its frozen layers were seen to keep examples apart.
    apart: set[tuple[RowKind, str]] = field(default_factory=set, init=False, repr=False)
    #: What trains on rows with these fields.
    by_fields: dict[np.dtype[Any], Module] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_network(self.net)
        object.__setattr__(self, "loss", per_example(self.loss))
        refuse(faults_of(self.net))
        object.__setattr__(self, "layout", layout_of(self.net, self.personal))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Module) and self.file_description() == other.file_description()

    def __hash__(self) -> int:
        return hash(str(self.file_description()))

    @cached_property
    def trainer(self) -> Trainer:
        """What does the work: on the processor, unless bound to another device."""
        return self.bound or Trainer(self.net, self.loss, personal=self.personal)

    @cached_property
    def split(self) -> tuple[nn.Module, Module] | None:
        """Its frozen prefix, and the rest as a network on what that makes of rows; None without one."""
        found = split(self.net)
        if found is None:
            return None
        return found.body, Module(found.rest, self.loss, self._personal_in(found.rest))

    def _personal_in(self, other: nn.Module) -> tuple[str, ...]:
        """Return the names of personal parameters in a module of which the network is the part ``net``."""
        every = dict(other.named_parameters(remove_duplicate=False))
        own = {id(every[name_in_rest(name)]) for name in self.layout.personal}
        return tuple(glob.escape(name) for name, p in every.items() if id(p) in own)

    def for_rows(self, X: Array) -> Module:
        """Return what trains on such rows: itself, or for several inputs a network that takes them as one."""
        if namespace(X) is torch or X.dtype.names is None:
            return self
        record = aligned(X.dtype)
        if record not in self.by_fields:
            net = NamedInputs(self.net, record)
            self.by_fields[record] = Module(net, self.loss, self._personal_in(net), record=record)
        return self.by_fields[record]

    def on_device(self, trainer: Trainer) -> Module:
        """Return the same, bound to what trains it on a device."""
        bound = replace(self, bound=trainer)
        bound.tried.update(self.tried)
        bound.apart.update(self.apart)
        return bound

    def settle(self, X: Array) -> None:
        """Find out, on synthetic rows, how its trainer can run for many tasks at once."""
        kind = RowKind.of(X)
        self._try(kind)
        self.trainer.settle(kind.synthetic(2).to(self.trainer.device))

    def features_like(self, X: Array, device: torch.device, most: int) -> Tensor | None:
        """Return what the frozen prefix makes of synthetic rows; None if nothing is to be kept of it.

        It must be 32-bit floats, and with it the rest must do what the network does. A prefix that mixes
        examples is refused: it is tried on the device, on batches as large as it will see, of `most` rows.
        """
        if self.split is None:
            return None
        kind, body = RowKind.of(X), self.split[0]
        seen = kind, device.type
        if seen not in self.made:
            found = features_of(self.net, body, self.split[1].net, kind)
            there = swap_layers(body if device.type == "cpu" else copy.deepcopy(body).to(device))
            assert there is not None
            with matmul_precision(Precision()):
                check_batches(there, kind, most)
            self.made[seen] = found if found is not None and found.dtype == torch.float32 else None
        return self.made[seen]

    def keep_apart(self, X: Array, device: torch.device) -> None:
        """Refuse frozen layers that mix examples: in every step they see rows of many tasks at once.

        They are tried in 32 bits on the device that will compute them, or on the processor if it is full.
        """
        self._keep_apart(RowKind.of(X), device)

    def _keep_apart(self, kind: RowKind, device: torch.device) -> None:
        if (kind, device.type) in self.apart or not frozen_layers(self.net):
            return
        net = guard_layers(ready(copy.deepcopy(self.net)))
        for parameter in net.parameters():  # not frozen: norms are torch's, as our kernel has its own trial
            parameter.requires_grad_(parameter.is_floating_point())
        with matmul_precision(Precision()), torch.autocast(device.type, enabled=False):
            try:
                check_batches(net.to(device), kind, TOGETHER)
            except torch.OutOfMemoryError:
                check_batches(net.cpu(), kind, TOGETHER)
        self.apart.add((kind, device.type))

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def shared_size(self) -> int:
        return self.layout.shared_size

    @property
    def rows(self) -> NetworkRows:
        """Whatever network and loss take when they are tried on synthetic rows."""
        classes = self.loss is cross_entropy or isinstance(self.loss, ClassLoss)
        return NetworkRows(target=Target.CLASS if classes else Target.ANY, learner=self)

    @property
    def network(self) -> Module:
        return self

    def start(self) -> NDArray[np.float64]:
        return self.trainer.start.cpu().numpy()

    def spread(self, mean: A, block: Block, states: States | None = None) -> A:
        public = self._tensor(mean).expand(len(block), -1)
        if not self.layout.personal:
            return _as_given(public, mean)
        own = self._tensor(states["personal"]) if states else self.trainer.start[None, self.shared_size :]
        return _as_given(torch.cat([public, own.expand(len(block), -1)], dim=1), mean)

    def descend(
        self,
        weights: A,
        block: Block,
        solver: Solver,
        round: int,
        anchor: A | None = None,
        penalty: Penalty | None = None,
        part: Part = Part.ALL,
        linear: A | None = None,
    ) -> A:
        own, start = self.for_rows(block.X), self._tensor(weights)
        towards = None if anchor is None else self._tensor(anchor)
        rows, keys, steps = own._rows(block), _signed(block.keys), _stepwise(solver)
        with failures_named(len(block)):
            extra = None if linear is None else self._tensor(linear)
            ended = own.trainer.descend(start, *rows, keys, steps, round, towards, penalty, part, extra)
        return _as_given(ended, weights)

    def gradient(self, weights: A, block: Block) -> A:
        own = self.for_rows(block.X)
        with failures_named(len(block)):
            found = own.trainer.mean_gradients(self._tensor(weights), *own._rows(block))
        return _as_given(found, weights)

    def check_solver(self, solver: Solver, penalty: Penalty | None) -> None:
        _stepwise(solver)

    def losses(self, weights: A, block: Block) -> A:
        own = self.for_rows(block.X)
        X, y, weight = own._rows(block)
        with torch.no_grad(), failures_named(len(block)):
            each = own.trainer.losses(own.trainer.stack(self._tensor(weights)), X, y)
            total = torch.where(weight > 0, weight * each, 0.0).sum(1) / weight.sum(1).clamp(min=1e-12)
        return _as_given(total, weights)

    def folds(self, block: Block, count: int) -> list[tuple[Block, Block]]:
        weight = block.weight
        part = _as_given(folds(_signed(block.keys), self._tensor(weight), count), weight)
        return [
            (replace(block, weight=weight * (part != i)), replace(block, weight=weight * (part == i)))
            for i in range(count)
        ]

    def predict(self, weights: A, X: A) -> A:
        own = self.for_rows(as_array(X) if isinstance(X, Tensor) else X)
        rows = own._tensor(X)
        own._try(own._kind(rows), rows.device)
        with torch.no_grad(), failures_named(len(rows)):
            out = own.trainer.outputs(own.trainer.stack(self._tensor(weights)), rows).float()
        return _as_given(out, weights)

    def default_score(self, X: Array, y: Array) -> Metric | None:
        return score_of(self.loss, self.outputs_like(X).shape, y)

    def outputs_like(self, X: Array) -> Tensor:
        """Return what the network says of two synthetic rows of this kind."""
        return outputs_of(self.for_rows(X).net, RowKind.of(X))

    def try_rows(self, X: Array, y: Array) -> None:
        """Refuse rows that the network or its loss cannot take; looks at their shape and kind alone."""
        own, kind = self.for_rows(X), RowKind.of(X)
        own._try(kind)
        check_loss(own.net, self.loss, kind, RowKind.of(y))

    def module(self, coef: Array) -> nn.Module:
        """Return the network with these flat parameters: a copy, frozen layers in evaluation mode.

        As private as the parameters are: a task's own is for that task alone.
        """
        return module_of(self.net, self.layout, coef)

    def state_dict(self, coef: Array) -> dict[str, Tensor]:
        """Return flat parameters as torch's ``net.load_state_dict`` takes them: with frozen ones and buffers.

        Examples
        --------
        >>> learner = Module(nn.Linear(2, 3))
        >>> state = learner.state_dict(np.arange(9))
        >>> list(state), nn.Linear(2, 3).load_state_dict(state), learner.flatten(state).tolist()[:3]
        (['weight', 'bias'], <All keys matched successfully>, [0.0, 1.0, 2.0])
        """
        return self.module(coef).state_dict()

    def flatten(self, state: Mapping[str, Tensor]) -> NDArray[np.float32]:
        """Return the trained parameters of a state_dict, flat, in the order of a run's models.

        Refused is one of another network, or with other frozen parameters or buffers.
        """
        return flatten(self.net, self.layout, state)

    def save(self, path: Path, coef: Array, facts: Mapping[str, str], *, private: bool) -> Path:
        """Write the network with these parameters as safetensors; see `cloister.engines.Run.export`."""
        known = {**facts, "network": digest_of(self.net, self.layout)}
        return write_network(path, self.module(coef), known, private=private)

    def load(self, path: str | os.PathLike[str]) -> NetworkFile:
        """Read a network that `cloister.engines.Run` has written; refuse one of another network.

        What the network starts from does not matter, but its layers, what they hold, frozen parameters and
        buffers do.
        """
        return read_network(Path(path), self.net, self.layout)

    def file_description(self) -> dict[str, object]:
        """Return what a plan file says about a network: enough to tell it from others, not to build it."""
        digest = hashlib.sha256()
        for name, number in (*self.net.named_parameters(), *self.net.named_buffers()):
            digest.update(f"{name} {digest_tensor(number)}\n".encode())
        frozen = sum(p.numel() for p in self.net.parameters() if not p.requires_grad)
        parts: dict[str, object] = {}
        if frozen or self.personal:
            digest.update(repr((list(self.layout.shared), list(self.layout.personal))).encode())
            parts = {"frozen": frozen, "personal": list(self.personal)}
        return {
            "network": describe_layers(self.net),
            "settings": describe_settings(self.net),
            "parameters": self.size,
            "start": digest.hexdigest(),
            "loss": describe_loss(self.loss),
        } | parts

    def _rows(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        X, y, weight = (self._tensor(x) for x in (block.X, block.y, block.weight))
        kinds = self._kind(X), RowKind(y.shape[2:], y.dtype)
        self._try(kinds[0], X.device)
        if kinds not in self.tried:
            check_loss(self.net, self.loss, *kinds)
            self.tried[kinds] = None
        return X, y, weight

    def _kind(self, X: Tensor) -> RowKind:
        return RowKind(X.shape[2:], X.dtype, self.record)

    def _try(self, kind: RowKind, device: torch.device | None = None) -> None:
        """When inputs of a kind are first seen, check how the network takes such, on synthetic rows."""
        if kind not in self.tried:
            refuse(faults_on_rows(self.net, kind))
            self.tried[kind] = way_to_run(self.net, kind)
        if device is not None and self.split is None:
            self._keep_apart(kind, device)
        if self.tried[kind] != Way.TOGETHER:
            self.trainer.swapped = None
        if self.tried[kind] == Way.ONE_BY_ONE:
            self.trainer.one_by_one = True

    def _tensor(self, array: Array | Tensor) -> Tensor:
        return array if isinstance(array, Tensor) else tensor_of(array, self.trainer.device)


@dataclass(frozen=True)
class NetworkRows(DataSpec):
    """What a network takes: known by trying it on synthetic rows of the data's shape and kind."""

    learner: Module = field(kw_only=True)

    def check(self, X: Array, y: Array) -> None:
        """Refuse rows that the network or its loss cannot take; looks at their shape and kind alone."""
        check_kinds(**inputs_of(X), Targets=y)
        self.learner.try_rows(X, y)

    def check_labels(self, X: Array, y: Array) -> None:
        """Refuse targets that the loss is not for. Looks at values: for whoever holds all rows."""
        loss, classes = self.learner.loss, None
        if self.target == Target.CLASS:
            classes = number_of_classes(loss, self.learner.outputs_like(X), y.shape[1:])
        wrong = wrong_targets(loss, classes, y)
        if wrong:
            padded = " Where -100 pads sequences, write Module(net, nn.CrossEntropyLoss())."
            also = padded if loss is cross_entropy and y.ndim > 1 else ""
            more = "" if classes is None else ", or give the network more outputs"
            raise PrivateDataError(f"Targets must be {wrong}. Some are not. Recode them{more}.{also}")


def _stepwise(solver: Solver) -> StepSolver:
    require_solver(solver)
    if solver.to_the_end:
        raise PlanError(
            "ExactSolver solves the problems of Convex losses. Give a network a Descent or an Adam."
        )
    return solver


@overload
def _as_given(found: Tensor, given: Tensor) -> Tensor: ...
@overload
def _as_given(found: Tensor, given: Array) -> Array: ...
def _as_given(found: Tensor, given: Array | Tensor) -> Array | Tensor:
    """Return a result to whoever gave this array: as a tensor, or as NumPy's."""
    return found if isinstance(given, Tensor) else np.ascontiguousarray(found.cpu().numpy())


def _signed(keys: Array | Tensor) -> Tensor:
    return keys if isinstance(keys, Tensor) else torch.from_numpy(keys.view(np.int64))
