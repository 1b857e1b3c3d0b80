"""Images as whole numbers: eight bytes in each, taken apart by a network's first layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["Unpack"]

#: Bytes in a whole number.
WORD = 8
WHITE = 255.0


class Unpack(nn.Module):
    """Turn packed images (see `cloister.datasets.pack`) into pixels in [0, 1]; it has nothing to learn.

    Many tasks with images take eight times less memory so than as whole numbers, four times less than as
    32-bit floats. What is packed is still a task's own data and stays in its own rows.

    Parameters
    ----------
    shape : tuple of int
        Of one image: channels, height, width.

    Examples
    --------
    >>> Unpack(1, 2, 4)(torch.tensor([[255 + (51 << 8)]])).tolist()
    [[[[1.0, 0.20000000298023224, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]]
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, words: Tensor) -> Tensor:
        """Return pixels, (examples, channels, height, width)."""
        shifts = 8 * torch.arange(WORD, device=words.device)
        pixels = ((words[..., None] >> shifts) & 255).flatten(1)[:, : math.prod(self.shape)]
        return pixels.to(torch.float32).div(WHITE).reshape(-1, *self.shape)

    def extra_repr(self) -> str:
        """Say the shape of an image."""
        return ", ".join(map(str, self.shape))
