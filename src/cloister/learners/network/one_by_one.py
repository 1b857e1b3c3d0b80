"""Convolution on a processor, client by client: its caches hold one client's images until they are used up.

ReLU and pooling follow at once where a network has them. The largest of a window is the same before ReLU and
after, so that what is pooled away is neither compared with zero nor kept for the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["channels_last", "conv2d_one_by_one"]

_POOL = torch.ops.aten.max_pool2d_with_indices.out
_POOL_BACK = torch.ops.aten.max_pool2d_with_indices_backward.grad_input
_CONV_BACK = torch.ops.aten.convolution_backward.default


def conv2d_one_by_one(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    window: int = 1,
) -> Tensor:
    """Convolve images (clients * each, channels, height, width) with filters (clients, ...) of their own.

    Where there is a window, ReLU and the largest of each such square of places follow.
    """
    found: Tensor = _OneByOne.apply(  # type: ignore[no-untyped-call]
        input, weight, bias, tuple(stride), tuple(dilation), window
    )
    return found


def channels_last(images: Tensor) -> Tensor:
    """Lay images out in memory pixel by pixel, which convolution does not mind and pooling is faster on.

    A single channel is said to be the last one too: what comes out of a convolution follows its input.
    """
    count, channels, height, width = images.shape
    pixels = images.permute(0, 2, 3, 1).flatten()
    return pixels.view(count, height, width, channels).permute(0, 3, 1, 2)


class _OneByOne(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        window: int,
    ) -> Tensor:
        clients = len(weight)
        kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        images, weight = channels_last(input.to(kind)), weight.to(kind)
        shifts = (None,) * clients if bias is None else bias.to(kind).unbind()
        sides = zip(images.shape[2:], weight.shape[3:], stride, dilation, strict=True)
        high, wide = ((size - d * (k - 1) - 1) // s + 1 for size, k, s, d in sides)
        ctx.made = (len(images) // clients, weight.shape[1], high, wide)  # by one client
        ctx.stride, ctx.dilation, ctx.window, ctx.bias = stride, dilation, window, bias is not None
        shape = (len(images), weight.shape[1], high // window, wide // window)
        out = _empty(shape, kind)
        places = _empty(shape if window > 1 else (clients, 1, 1, 1), torch.int64)
        each = (images.chunk(clients), weight.unbind(), shifts, out.chunk(clients), places.chunk(clients))
        for own, filters, shift, home, at in zip(*each, strict=True):
            made = torch.conv2d(own, filters, shift, stride=stride, dilation=dilation)
            if window == 1:
                home.copy_(made)
            else:
                _POOL(made, [window, window], out=home, indices=at)
        if window > 1:
            out.relu_()
        ctx.save_for_backward(images, weight, *((out, places) if window > 1 else ()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, *pooled = ctx.saved_tensors
        clients, window = len(weight), [ctx.window, ctx.window]
        gradient, spread = channels_last(gradient), _empty(ctx.made, gradient.dtype)
        if pooled:
            gradient = torch.ops.aten.threshold_backward(gradient, pooled[0], 0)
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.bias and ctx.needs_input_grad[2]]
        to_images, to_weight = torch.empty_like(images), torch.empty_like(weight)
        to_bias = torch.empty(weight.shape[:2], dtype=weight.dtype)
        homes = (to_images.chunk(clients), to_weight.unbind(), to_bias.unbind())
        places = pooled[1].chunk(clients) if pooled else (None,) * clients
        each = (gradient.chunk(clients), images.chunk(clients), weight.unbind(), places)
        for k, (own, seen, filters, at) in enumerate(zip(*each, strict=True)):
            if at is not None:
                own = _POOL_BACK(own, spread, window, window, [0, 0], [1, 1], False, at, grad_input=spread)
            found = _CONV_BACK(
                own, seen, filters, [len(filters)], ctx.stride, [0, 0], ctx.dilation, False, [0, 0], 1, wanted
            )
            for home, part, asked in zip(homes, found, wanted, strict=True):
                if asked:
                    home[k].copy_(part)
        slopes = zip((to_images, to_weight, to_bias), wanted, strict=True)
        return *(slope if asked else None for slope, asked in slopes), None, None, None


def _empty(shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=kind, memory_format=torch.channels_last)
