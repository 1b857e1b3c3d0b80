"""Small images for networks: eight bytes in a whole number, and a network that takes them apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["Unpack", "glyph_net"]

#: Bytes in a whole number.
WORD = 8
WHITE = 255.0


class Unpack(nn.Module):
    """Turn packed images (see `cloister.datasets.pack`) into pixels in [0, 1]; it has nothing to learn.

    Whole numbers take eight bytes each on a device. Packed, an image takes a byte a pixel there: a quarter of
    what 32-bit floats take. What is packed is still a task's own data and stays in its own rows.

    Parameters
    ----------
    shape : int
        Channels, height and width of one image.

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
        return ", ".join(map(str, self.shape))


def glyph_net(
    ways: int = 5,
    width: int = 32,
    shape: tuple[int, int, int] = (1, 28, 28),
    packed: bool = True,
    seed: int = 0,
) -> nn.Module:
    """Build a convolutional network for small images, with few parameters: noise grows with their number.

    Pixels are first folded two by two into channels. Then come convolutions of 3 by 3, each with GroupNorm
    and pooling, until the image is about one pixel large, and a linear layer that starts at zero. With the
    defaults it has 20,037 parameters.

    Parameters
    ----------
    ways : int
        Classes.
    width : int
        Features of each convolution, a multiple of 4.
    shape : tuple of int
        Channels, height and width of an image; the last two even.
    packed : bool
        Whether images come packed (see `cloister.datasets.pack`).
    seed : int
        Of the random start, which is public.

    Examples
    --------
    >>> net = glyph_net()
    >>> sum(parameter.numel() for parameter in net.parameters())
    20037
    """
    channels, high, wide = 4 * shape[0], shape[1] // 2, shape[2] // 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [Unpack(*shape)] if packed else []
        layers.append(nn.PixelUnshuffle(2))
        while min(high, wide) >= 2:
            layers += [
                nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            ]  # fmt: skip
            channels, high, wide = width, high // 2, wide // 2
        head = nn.Linear(channels * high * wide, ways)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, nn.Flatten(), head)
