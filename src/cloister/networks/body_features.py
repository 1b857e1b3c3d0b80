"""What the frozen prefix of a network makes of rows: computed once, without a client axis, and kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cloister.core.arrays import Array, Integers
from cloister.core.tasks import Tasks, padded_size
from cloister.networks.layers import copied, swap_layers
from cloister.networks.network_faults import TOGETHER
from cloister.networks.network_inputs import tensor_of
from cloister.networks.training import Precision, matmul_precision

if TYPE_CHECKING:
    from cloister.plan.algorithm import Network


CPU = torch.device("cpu")
#: Bytes that features of all rows may take.
MOST_BYTES = 1 << 33
#: Rows that there are taken to be where no task may learn how many others have.
ROWS = 1 << 20
#: Rows that a body takes at once on a processor: what its layers make of them should stay in the caches.
AT_ONCE = TOGETHER
#: And on a graphics card.
AT_ONCE_ON_CARD = 1 << 10


def keep_features(
    network: Network,
    tasks: Tasks,
    device: torch.device = CPU,
    precision: Precision = Precision(),  # noqa: B008
    together: int | None = None,
    each: Callable[..., Iterator[Any]] = map,
) -> tuple[Network, Tasks]:
    """Return what is left to train, and tasks with features in place of rows; both as given without a body.

    Whatever frozen layers are left must keep rows apart on the device, and are refused before rows are seen.

    At most so many tasks run `together`, of one padded size: with 1, what a task's features are to the last
    bit follows from its own rows alone, and whether they are kept from the shape of a row. `each` is `map`,
    or computes several parts at once: then every part has a copy of the body to itself, which may remember.
    """
    known, most = network.for_rows(tasks.X), AT_ONCE if device.type == "cpu" else AT_ONCE_ON_CARD
    parts, like = known.split, known.features_like(tasks.X, device, most)
    rows = ROWS if together == 1 else len(tasks.X)
    if parts is None or like is None or rows * like[0].nbytes > MOST_BYTES:
        known.keep_apart(tasks.X, device)
        return network, tasks
    frozen, rest = parts
    own = frozen if device.type == "cpu" else copy.deepcopy(frozen).to(device)
    body = swap_layers(own)  # frozen layers stay, and look up no absurd codes
    assert body is not None
    features = np.zeros((len(tasks.X), *like.shape[1:]), dtype=np.float32)
    rest.keep_apart(features, device)
    spare, another = [body], copied(body)

    def computed(part: tuple[Integers, Array]) -> tuple[Array, Array]:
        at, real = part
        try:
            taken = spare.pop()
        except IndexError:
            taken = copied(another)
        rows = tensor_of(tasks.X[at], device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision.bf16):
            found = taken(rows).float().cpu().numpy()[real]  # a copy: a body may write over what it returned
        spare.append(taken)
        return at[real], found

    with matmul_precision(precision):
        for at, found in each(computed, _chunks(tasks, together, most)):
            features[at] = found
    return rest, replace(tasks, X=features)


def _chunks(tasks: Tasks, together: int | None, most: int) -> Iterator[tuple[Integers, Array]]:
    """Yield places of rows, at most so many, and which are real.

    A task is filled up to its padded size with its first row.
    """
    sizes, padded = tasks.sizes, padded_size(tasks.sizes)
    for width in np.unique(padded[padded > 0]).tolist():
        members = np.flatnonzero(padded == width)
        count = max(1, min(most // width, together or most))
        for start in range(0, len(members), count):
            some = members[start : start + count, None]
            real = np.arange(width) < sizes[some]
            at = tasks.offsets[some] + np.where(real, np.arange(width), 0)
            for piece in range(0, at.size, most):  # several of a task that is longer
                yield at.ravel()[piece : piece + most], real.ravel()[piece : piece + most]
