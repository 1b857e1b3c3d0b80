"""Training many copies of one network at once, each on its own rows: parameters are ``(clients, p)``.

Minibatches follow from counter-based randomness. On a graphics card a round's steps are CUDA graphs: compiled
once, recorded once, then replayed without the processor.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cloister.core.tasks import local_uniforms, padded_size
from cloister.learners.descent import FOLDS, MOST_EPOCHS, StepSolver
from cloister.learners.learner import Part
from cloister.learners.penalties import Penalty, Stacked
from cloister.networks.layers import call_swapped, copied, guard_layers, shorten_frozen, swap_layers
from cloister.networks.network_penalties import Free
from cloister.networks.parameter_layout import frozen_beside_trained, layout_of, ready
from cloister.networks.recorded import Recorded


def minibatches(keys: Tensor, weight: Tensor, solver: StepSolver, round: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of every step, (steps, k, batch), and their weights, 0 where there is no row.

    Each task shuffles its own rows once a pass. A task with fewer rows than the widest of its block has
    fewer steps to a pass; where it has no steps left all its weights are 0. A place without a row is filled
    with one of the task's own: a network may have no finite gradient at padding, whose gradient times 0
    would be the task's. Tasks of one `padded_size` share a block, so that the number of places does not
    depend on others.
    """
    clients, rows = weight.shape
    steps, width = solver.count(rows), int(padded_size(rows))
    if solver.batch is None:
        wide = F.pad(weight, (0, width - rows))
        first = (wide > 0).to(torch.int64).argmax(dim=1, keepdim=True)
        every = torch.where(wide > 0, torch.arange(width, device=keys.device), first)
        return every.expand(steps, clients, width), wide.expand(steps, clients, width)
    batch = min(solver.batch, width)
    epochs = (solver.epochs or 1) if solver.steps is None else steps  # of the smallest task, at most
    counters = round.to(torch.int64) * MOST_EPOCHS + torch.arange(epochs, device=keys.device)
    draws = local_uniforms(keys, counters, rows).masked_fill(weight[None] <= 0, 2.0)
    shuffled = draws.argsort(dim=2).transpose(0, 1).reshape(clients, epochs * rows)  # real rows first
    real = (weight > 0).sum(dim=1)
    per_epoch = ((real + batch - 1) // batch).clamp(min=1)
    step = torch.arange(steps, device=keys.device)
    epoch, within = step // per_epoch[:, None], step % per_epoch[:, None]  # (k, steps)
    place = within[..., None] * batch + torch.arange(batch, device=keys.device)
    live = (place < real[:, None, None]) & (epoch < epochs)[..., None]
    last = (real[:, None, None] - 1).clamp(min=0)
    at = epoch.clamp(max=epochs - 1)[..., None] * rows + torch.minimum(place, last)
    index = shuffled.gather(1, at.flatten(1))
    chosen = weight.gather(1, index).reshape(at.shape)
    weights = torch.where(live, chosen, 0.0).transpose(0, 1)
    return index.reshape(at.shape).transpose(0, 1).contiguous(), weights.contiguous()


def folds(keys: Tensor, weight: Tensor, count: int) -> Tensor:
    """Deal each task's own rows into `count` parts of equal size, by its key: the part of each, (k, rows)."""
    draws = local_uniforms(keys, FOLDS, weight.shape[1]).masked_fill(weight <= 0, 2.0)
    return draws.argsort(dim=1).argsort(dim=1) % count


#: Steps that are recorded together on a graphics card: few start soon, many leave the processor alone.
STAGE = 4

LossPerExample = Callable[[Tensor, Tensor], Tensor]
#: What a solver keeps of each parameter from step to step.
Kept = tuple[Stacked, ...]


@dataclass(frozen=True)
class Precision:
    """How products of 32-bit numbers are computed on a graphics card.

    With `bf16`, rows, frozen parameters and what layers put out have 16 bits; parameters that are trained,
    their steps, outputs and losses have 32.
    """

    tf32: bool = False
    bf16: bool = False


@dataclass(eq=False)
class Trainer:
    """One network on one device.

    Parameters
    ----------
    net : nn.Module
        The network; its parameters are the public start and are never changed.
    loss : callable
        Takes outputs and targets, returns one loss an example.
    device : torch.device
        Where everything happens.
    precision : Precision
        Full 32-bit products unless told otherwise.
    compiled : bool
        Compile the steps on a graphics card.
    personal : tuple of str
        Patterns of the names of parameters that stay at home.
    """

    net: nn.Module
    loss: LossPerExample
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = field(default_factory=Precision)
    compiled: bool = True
    personal: tuple[str, ...] = ()
    #: Clients one after another, where nothing else runs: a network that branches on what it sees, say.
    one_by_one: bool = field(default=False, init=False)
    _programs: dict[Any, Any] = field(default_factory=dict, repr=False)
    #: Memory that what is recorded shares.
    _pool: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.layout = layout_of(self.net, self.personal)
        net = ready(copy.deepcopy(self.net).to(self.device))
        if self.precision.bf16:
            shorten_frozen(net)
        self.net, self.swapped = guard_layers(net), swap_layers(net)
        if isinstance(self.loss, nn.Module):
            self.loss = copy.deepcopy(self.loss).to(self.device)
        self.beside = frozen_beside_trained(self.net)
        # `functional_call` puts parameters into the network itself for a while, and a loss may keep on itself
        # what it computes: one block at a time may do so, or blocks that threads compute side by side would
        # run with each other's parameters and outputs.
        self._borrowed = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_borrowed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _borrowed=threading.RLock())

    def twin(self) -> Trainer:
        """Return another that may run at the same time; what is frozen is the same in memory."""
        other = copy.copy(self)
        other.net = copied(self.net)
        other.swapped = None if self.swapped is None else copied(self.swapped)
        other.loss, other._programs = copy.deepcopy(self.loss), {}
        return other

    @property
    def start(self) -> Tensor:
        """The network's own trained parameters, flat."""
        return torch.cat([self.net.get_parameter(n).detach().reshape(-1) for n in self.layout.shapes])

    def stack(self, flat: Tensor) -> Stacked:
        """Cut flat parameters (k, p) into one tensor (k, ...) for each trained parameter of the network."""
        return _cut(flat.to(self.device, torch.float32), list(self.layout.shapes.values()))

    def stack_anchor(self, shared: Tensor, params: Stacked) -> Stacked:
        """Return the public model as a client sees it: shared parameters (1, ...), and its personal ones."""
        public = self.stack_shared(shared[None])
        return public + params[len(public) :]

    def stack_shared(self, shared: Tensor) -> Stacked:
        """Cut flat numbers (k, shared), one for each shared parameter, as `stack` cuts parameters."""
        return _cut(shared.to(self.device, torch.float32), list(self.layout.shared.values()))

    def flatten(self, params: Stacked) -> Tensor:
        return torch.cat([w.reshape(len(w), -1) for w in params], dim=1)

    def spread(self, params: Stacked, clients: int) -> Stacked:
        return tuple(w.expand(clients, *w.shape[1:]) for w in params)

    def outputs(self, params: Stacked, x: Tensor) -> Tensor:
        """Return outputs (k, n, ...) of k copies on inputs (k, n, ...)."""
        named = dict(zip(self.layout.shapes, params, strict=True))
        one = lambda own, rows: functional_call(self.net, own, (rows,))  # noqa: E731
        x = x.bfloat16() if self.precision.bf16 and x.is_floating_point() else x
        with self._borrowed, self._autocast():
            if self.one_by_one:
                each = ({name: w[k] for name, w in named.items()} for k in range(len(x)))
                return torch.stack([one(own, rows) for own, rows in zip(each, x, strict=True)])
            if self.swapped is None:
                with sdpa_kernel(SDPBackend.MATH):  # the others have no rule, or fail, for many at once
                    return vmap(one, randomness="error")(named, x)
            named |= {name: w.expand(len(x), *w.shape) for name, w in self.beside.items()}
            return call_swapped(self.swapped, named, x)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision.bf16)

    def losses(self, params: Stacked, x: Tensor, y: Tensor) -> Tensor:
        """Return every example's loss, (k, n)."""
        return self.losses_of(self.outputs(params, x).float(), y)

    def losses_of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return every example's loss, (k, n), from its outputs (k, n, ...)."""
        with self._borrowed:
            return self.loss(outputs.flatten(0, 1), y.flatten(0, 1)).unflatten(0, y.shape[:2])

    def settle(self, examples: Tensor) -> None:
        """Run clients one by one if nothing else works on this device, in this precision, there and back."""
        if self.one_by_one:
            return
        leaves = tuple(w.detach().requires_grad_() for w in self.stack(self.start.expand(2, -1)))
        try:
            with matmul_precision(self.precision), torch.enable_grad():
                torch.autograd.grad(self.outputs(leaves, torch.stack([examples] * 2)).float().sum(), leaves)
        except (RuntimeError, ValueError) as error:
            self.one_by_one = True
            warnings.warn(f"Tasks are trained one after another on {self.device}: {error}", stacklevel=2)

    def activations(self, example: Tensor) -> int:
        """Return how many numbers the network's layers put out for one example."""
        counts: list[int] = []
        leaves = [layer for layer in self.net.modules() if not any(layer.children())]

        def note(layer: nn.Module, inputs: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple) else out  # recurrent layers return their last state too
            counts.append(first.numel() if isinstance(first, Tensor) else 0)

        hooks = [layer.register_forward_hook(note) for layer in leaves]
        try:
            with torch.no_grad(), self._autocast():
                self.net(example)
        finally:
            for hook in hooks:
                hook.remove()
        return max(1, sum(counts))

    def bytes_kept(self, example: Tensor) -> int:
        """Return how many bytes are kept of one example on the way to its gradient."""
        few, more = (self._bytes_kept(example.expand(1, count, *example.shape[1:])) for count in (3, 4))
        return max(1, more - few)

    def _bytes_kept(self, examples: Tensor) -> int:
        sizes: dict[int, int] = {}

        def note(saved: Tensor) -> Tensor:
            storage = saved.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return saved

        leaves = tuple(w.detach().requires_grad_() for w in self.stack(self.start[None]))
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            held = self.outputs(leaves, examples.contiguous())  # while it lives, no memory is used twice
        del held
        return sum(sizes.values())

    def squared_gradients(self, anchor: Stacked, X: Tensor, y: Tensor, weight: Tensor) -> Stacked:
        """Return each client's mean squared gradient at the anchor, one example at a time."""
        clients, rows = y.shape[:2]
        shares = weight / weight.sum(1, keepdim=True).clamp(min=1e-12)
        total = tuple(torch.zeros(clients, *w.shape[1:], device=self.device) for w in anchor)
        for row in range(rows):
            x = X[:, row : row + 1].clone()  # where others' rows lie must not tell in the last bits
            gradients = self._gradients(self.spread(anchor, clients), x, y[:, row : row + 1])
            each = [shares[:, row].reshape(-1, *[1] * (s.ndim - 1)) for s in gradients]
            total = tuple(  # a row without weight must not spoil a sum by being not finite
                t + torch.where(share > 0, share * s**2, 0.0)
                for t, share, s in zip(total, each, gradients, strict=True)
            )
        return total

    def mean_gradients(self, start: Tensor, X: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of every client's mean loss on all its rows, at its own parameters, (k, p)."""
        shares = weight / weight.sum(1, keepdim=True).clamp(min=1e-12)
        with matmul_precision(self.precision):
            return self.flatten(self._gradients(self.stack(start), X, y, shares))

    def _gradients(self, params: Stacked, x: Tensor, y: Tensor, shares: Tensor | None = None) -> Stacked:
        leaves = tuple(w.detach().requires_grad_() for w in params)
        with torch.enable_grad():
            each = self.losses(leaves, x, y)
            # A row without weight must not spoil a sum by being not finite.
            total = each if shares is None else torch.where(shares > 0, shares * each, 0.0)
            return torch.autograd.grad(total.sum(), leaves)

    def descend(
        self,
        start: Tensor,
        X: Tensor,
        y: Tensor,
        weight: Tensor,
        keys: Tensor,
        solver: StepSolver,
        round: int,
        anchor: Tensor | None = None,
        penalty: Penalty | None = None,
        part: Part = Part.ALL,
        linear: Tensor | None = None,
    ) -> Tensor:
        """Train every client from its own start, (k, p), on its own rows; return where that ends.

        To the gradient of what is shared a `linear` term of each client's own, (k, shared), is added.
        """
        loop = Loop(self, solver, Free() if penalty is None else penalty, part)
        number = torch.tensor(round, dtype=torch.int64)
        timetable = torch.as_tensor(solver.timetable(round, solver.count(X.shape[1])), dtype=torch.float32)
        towards = start[0, : self.layout.shared_size] if anchor is None else anchor
        more = () if linear is None else (linear.to(torch.float32),)
        inputs = (start, towards, X, y, weight, keys, number, timetable, *more)
        with matmul_precision(self.precision):
            return self._program(loop, inputs)(*inputs)

    def _program(self, loop: Loop, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        if self.device.type != "cuda" or self.one_by_one:  # what branches cannot be recorded
            return loop

        rule = replace(loop.solver, lr=1.0, over_rounds=None, over_steps=None)  # sizes of steps are inputs
        key = (rule, loop.penalty, loop.part, *((x.shape, x.dtype) for x in inputs))
        if key not in self._programs:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._programs[key] = Recorded(loop, inputs, self.compiled, self._pool)
        return self._programs[key]


@dataclass
class Loop:
    """The steps of one round, for all clients of a block."""

    trainer: Trainer
    solver: StepSolver
    penalty: Penalty
    part: Part = Part.ALL

    def __post_init__(self) -> None:
        """Find the parameters that are trained, and how many of these a penalty holds: shared ones alone."""
        shared, every = len(self.trainer.layout.shared), len(self.trainer.layout.shapes)
        self.trained = slice(
            shared if self.part is Part.PERSONAL else 0, shared if self.part is Part.SHARED else every
        )
        self.held = max(0, shared - self.trained.start)

    def __call__(
        self,
        start: Tensor,
        anchor: Tensor,
        X: Tensor,
        y: Tensor,
        weight: Tensor,
        keys: Tensor,
        round: Tensor,
        timetable: Tensor,
        linear: Tensor | None = None,
    ) -> Tensor:
        """Take all steps of a round and return the flat parameters, (k, p)."""
        *_, end = self.stages(start, anchor, X, y, weight, keys, round, timetable, linear)
        assert end is not None
        return end

    def stages(
        self,
        start: Tensor,
        anchor: Tensor,
        X: Tensor,
        y: Tensor,
        weight: Tensor,
        keys: Tensor,
        round: Tensor,
        timetable: Tensor,
        linear: Tensor | None = None,
    ) -> Iterator[Tensor | None]:
        """Take the same steps with a pause after every few; what comes last is where they end."""
        params = self.trainer.stack(start)
        towards = self.trainer.stack_anchor(anchor, params)
        added = () if linear is None else self.trainer.stack_shared(linear)[self.trained.start :]
        memory = self.penalty.memory(self.trainer, towards, X, y, weight)
        kept: Kept = tuple(
            tuple(torch.zeros_like(w) for _ in range(self.solver.slots)) for w in params[self.trained]
        )
        rows, targets = X.flatten(0, 1), y.flatten(0, 1)
        for number, chosen in enumerate(zip(*self.draw(weight, keys, round), timetable, strict=True)):
            if number % STAGE == 1:  # after the first one: the device begins as soon as it has that
                yield None
            params, kept = self.step(params, kept, towards, memory, added, rows, targets, *chosen)
        yield self.trainer.flatten(params)

    def draw(self, weight: Tensor, keys: Tensor, round: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return every step's rows, among all clients' rows, their shares, and whose steps have any.

        Clients without rows in a step stay where they are.
        """
        at, weights = minibatches(keys, weight, self.solver, round)
        places = at + torch.arange(len(weight), device=at.device)[:, None] * weight.shape[1]
        sums = weights.sum(2, keepdim=True)
        return places, weights / sums.clamp(min=1e-12), sums[..., 0] > 0

    def step(
        self,
        params: Stacked,
        kept: Kept,
        anchor: Stacked,
        memory: Stacked,
        added: Stacked,
        X: Tensor,
        y: Tensor,
        at: Tensor,
        shares: Tensor,
        live: Tensor,
        numbers: Tensor,
    ) -> tuple[Stacked, Kept]:
        """Take one step on the rows `at`, (k, batch), of all clients' rows."""
        x, targets = (rows.index_select(0, at.flatten()).unflatten(0, at.shape) for rows in (X, y))
        first, last = self.trained.start, self.trained.stop
        leaves = tuple(w.detach().requires_grad_() for w in params[first:last])
        with torch.enable_grad():
            total = self.objective(params[:first] + leaves + params[last:], anchor, x, targets, shares)
        gradients = torch.autograd.grad(total, leaves)
        own = params[first:last]
        extra = self.penalty.gradient(
            *(part[: self.held] for part in (own, anchor[first:last], memory[first:last]))
        )
        for more in (extra, added):  # of what is shared: it is held near the anchor, or has a linear term
            if more:
                gradients = tuple(map(torch.add, gradients, more)) + gradients[self.held :]
        new, kept = self.update(own, kept, gradients, live, numbers)
        return params[:first] + new + params[last:], kept

    def objective(self, params: Stacked, anchor: Stacked, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        """Return the sum over clients of the mean loss of a minibatch."""
        outputs = self.trainer.outputs(params, x).float()
        each = self.trainer.losses_of(outputs, y)
        extra = self.penalty.term(self.trainer, anchor, outputs, x)
        # A row without weight must not spoil a sum by being not finite.
        return torch.where(shares > 0, shares * (each if extra is None else each + extra), 0.0).sum()

    def update(
        self, params: Stacked, kept: Kept, gradients: Stacked, live: Tensor, numbers: Tensor
    ) -> tuple[Stacked, Kept]:
        """Take one step as the solver's rule says, of the size that is the first of the step's numbers."""
        rate, *corrections = numbers.unbind()
        new, later = [], []
        still = None if live.is_cuda else (~live).nonzero()[:, 0]
        for w, gradient, own in zip(params, self.solver.shortened(gradients), kept, strict=True):
            direction, own = self.solver.direction(w, gradient, own, corrections)
            moved = torch.addcmul(w, direction, rate, value=-1)
            if still is None:
                moves = live.reshape(-1, *[1] * (w.ndim - 1))
                moved = torch.where(moves, moved, w)  # 0 * inf is not 0
            else:  # nearly always nobody: far less work for a processor
                moved[still] = w[still]
            new.append(moved)
            later.append(own)
        return tuple(new), tuple(later)


class matmul_precision:
    """Set how 32-bit products are computed, and set it back."""

    def __init__(self, precision: Precision) -> None:
        self.wanted = "high" if precision.tf32 or precision.bf16 else "highest"

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.wanted)

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self.before)


def _cut(flat: Tensor, shapes: list[torch.Size]) -> Stacked:
    parts = flat.split([shape.numel() for shape in shapes], dim=-1)
    return tuple(
        _in_memory(part.reshape(*flat.shape[:-1], *shape)) for part, shape in zip(parts, shapes, strict=True)
    )


def _in_memory(stacked: Tensor) -> Tensor:
    """Lay parameters out in memory as kernels read them: filters with their channels last."""
    if stacked.ndim == 5:  # clients, features, channels, height, width
        return stacked.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    return stacked.contiguous()
