"""Minibatches from counter-based randomness, in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cloister.learners.descent import FOLDS, MOST_EPOCHS, StepSolver
from cloister.tasks import local_uniforms, padded_size

__all__ = ["folds", "minibatches"]


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
