"""What the frozen prefix of a network makes of rows: computed once, without a client axis, and kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from cloister.arrays import Array, Integers
from cloister.learners.network.clients import swap_layers
from cloister.learners.network.module import kind_of
from cloister.learners.network.training import Precision, matmul_precision
from cloister.tasks import Tasks, padded_size

if TYPE_CHECKING:
    from cloister.algorithm import Network

__all__ = ["keep_features"]

CPU = torch.device("cpu")
#: Bytes that features of all rows may take.
MOST_BYTES = 1 << 33
#: Rows that there are taken to be where no task may learn how many others have.
ROWS = 1 << 20
#: Rows that a body takes at once.
AT_ONCE = 1 << 10


def keep_features(
    network: Network,
    tasks: Tasks,
    device: torch.device = CPU,
    precision: Precision = Precision(),  # noqa: B008
    together: int | None = None,
) -> tuple[Network, Tasks]:
    """Return what is left to train, and tasks with features in place of rows; both as given without a body.

    At most so many tasks run `together`, of one padded size: with 1, what a task's features are to the last
    bit follows from its own rows alone, and whether they are kept from the shape of a row.
    """
    parts, like = network.split, network.features_like(tasks.X.shape[1:], kind_of(tasks.X))
    rows = ROWS if together == 1 else len(tasks.X)
    if parts is None or like is None or rows * like[0].nbytes > MOST_BYTES:
        return network, tasks
    frozen, rest = parts
    own = frozen if device.type == "cpu" else copy.deepcopy(frozen).to(device)
    body = swap_layers(own)  # frozen layers stay, and look up no absurd codes
    assert body is not None
    features = np.zeros((len(tasks.X), *like.shape[1:]), dtype=np.float32)
    for part, at in _computed(body, tasks, device, precision, together):
        features[at] = part
    return rest, replace(tasks, X=features)


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
