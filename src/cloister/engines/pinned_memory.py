"""Between a graphics card and the processor: through memory that both have at hand, without waiting."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class Fetched:
    """A tensor on its way: it becomes an array when it is needed, and the processor goes on meanwhile."""

    def __init__(self, tensor: Tensor) -> None:
        self.size = tensor.numel()
        self.there, self.arrives = tensor, None
        if tensor.is_cuda:
            self.there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.there.copy_(tensor, non_blocking=True)
            self.arrives = torch.cuda.current_stream(tensor.device).record_event()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.arrives is not None:
            self.arrives.synchronize()
        found = self.there.numpy()
        return found.astype(found.dtype if dtype is None else dtype, copy=bool(copy))


def fetched(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, once it is there."""
    return Fetched(tensor).__array__()


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor of 32-bit floats on a device, to which it may still be on its way."""
    here = torch.empty(array.shape, dtype=torch.float32, pin_memory=device.type == "cuda")
    here.numpy()[...] = array
    return here.to(device, non_blocking=True)
