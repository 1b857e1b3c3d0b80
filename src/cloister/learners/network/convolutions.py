"""Convolution with one filter bank a client, by kernels for graphics cards: tiles, and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from cloister.learners.network.kernels import filter_gradient, forward, image_gradient

__all__ = ["Geometry", "client_conv2d"]


@dataclass(frozen=True)
class Tiles:
    """How a kernel is cut up."""

    m: int
    k: int
    warps: int
    stages: int


#: Found by trial on an H200: for 32-bit and 16-bit numbers, and of these for few patch entries, as a first
#: layer has, and for many. A filter gradient's tiles are of places, or of pooling windows.
FORWARD = {
    (4, True): Tiles(256, 32, 4, 2), (4, False): Tiles(128, 32, 4, 4),
    (2, True): Tiles(256, 32, 4, 1), (2, False): Tiles(128, 32, 4, 2),
}  # fmt: skip
FILTERS = {
    (4, True): Tiles(64, 32, 4, 1), (4, False): Tiles(64, 64, 4, 1),
    (2, True): Tiles(128, 32, 4, 1), (2, False): Tiles(64, 128, 4, 3),
}  # fmt: skip
POOLED_FILTERS = {
    (4, True): Tiles(32, 32, 2, 1), (4, False): Tiles(32, 64, 4, 1),
    (2, True): Tiles(32, 32, 2, 1), (2, False): Tiles(32, 128, 4, 2),
}  # fmt: skip
IMAGES = {
    (4, True): Tiles(128, 32, 4, 3), (4, False): Tiles(128, 32, 4, 3),
    (2, True): Tiles(128, 32, 4, 3), (2, False): Tiles(128, 32, 4, 3),
}  # fmt: skip
FEW = 64  # patch entries
PLACES = 1024  # that a program adds up where there are few patch entries: else there were few programs


@dataclass(frozen=True)
class Geometry:
    """Stride, zeros around images (left, right, top, bottom) and the side of pooling windows, 1 for none."""

    stride: int = 1
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pool: int = 1


def client_conv2d(images: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Convolve examples ``(clients * each, channels, h, w)`` with ``(clients, features, channels, kh, kw)``.

    With pooling windows, ReLU comes between. Differentiable in all three.
    """
    clients, features, channels, side, wide = weight.shape
    filters = weight.permute(0, 1, 3, 4, 2).reshape(clients, features, side * wide * channels)
    if torch.is_autocast_enabled("cuda"):
        images, filters = (x.to(torch.get_autocast_dtype("cuda")) for x in (images, filters))
    numbers = [side, wide, geometry.stride, *geometry.padding, geometry.pool]
    shift = None if bias is None else bias.contiguous()
    rows = images.permute(0, 2, 3, 1).contiguous()
    return _convolve(rows, filters.contiguous(), shift, numbers, _tf32())[0].permute(0, 3, 1, 2)


def _tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def _sizes(images: tuple[int, ...], features: int, clients: int, geometry: list[int]) -> dict[str, Any]:
    """Return what all kernels want to know; images are (examples, height, width, channels)."""
    side, wide, stride, left, right, top, bottom, _ = geometry
    examples, height, width, channels = images
    return {
        "EACH": examples // clients, "HEIGHT": height, "WIDTH": width, "CHANNELS": channels,
        "DOWN": (height + top + bottom - side) // stride + 1,
        "ACROSS": (width + left + right - wide) // stride + 1,
        "FEATURES": features, "SIDE": side, "WIDE": wide, "STRIDE": stride, "PAD_Y": top, "PAD_X": left,
    }  # fmt: skip


@triton_op("cloister::convolve", mutates_args={})
def _convolve(
    images: Tensor, filters: Tensor, bias: Tensor | None, geometry: list[int], tf32: bool
) -> tuple[Tensor, Tensor]:
    clients, features, inner = filters.shape
    pool, sizes = geometry[-1], _sizes(tuple(images.shape), features, clients, geometry)
    down, across = sizes["DOWN"] // pool, sizes["ACROSS"] // pool
    out = images.new_empty((images.shape[0], down, across, features))
    chosen = torch.empty(out.shape if pool > 1 else (0,), dtype=torch.int8, device=images.device)
    tiles, column = FORWARD[images.itemsize, inner <= FEW], _power(features)
    rows = sizes["EACH"] * down * across * pool * pool
    grid = (clients, triton.cdiv(rows, tiles.m), triton.cdiv(features, column))
    wrap_triton(forward)[grid](
        images, filters, filters if bias is None else bias, out, chosen, **sizes,
        EDGE=any(geometry[3:7]), POOL=pool, BIAS=bias is not None, TF32=tf32,
        M=tiles.m, N=column, K=tiles.k, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out, chosen


@triton_op("cloister::convolve_filter_gradient", mutates_args={})
def _convolve_filter_gradient(
    images: Tensor,
    gradient: Tensor,
    chosen: Tensor,
    clients: int,
    geometry: list[int],
    biased: bool,
    tf32: bool,
) -> tuple[Tensor, Tensor]:
    features, pool = gradient.shape[3], geometry[-1]
    sizes = _sizes(tuple(images.shape), features, clients, geometry)
    inner = sizes["SIDE"] * sizes["WIDE"] * sizes["CHANNELS"]
    rows = sizes["EACH"] * gradient.shape[1] * gradient.shape[2] * pool * pool
    tiles = (FILTERS if pool == 1 else POOLED_FILTERS)[images.itemsize, inner <= FEW]
    splits = max(1, rows // PLACES) if inner <= FEW else 1
    tile = min(tiles.k, max(16, triton.next_power_of_2(inner)))
    kind = torch.float32 if splits > 1 else images.dtype
    parts = images.new_empty((splits, clients, features, inner), dtype=kind)
    shift = images.new_empty((splits, clients, features if biased else 0), dtype=torch.float32)
    column = _power(features)
    grid = (clients, triton.cdiv(inner, tile) * triton.cdiv(features, column), splits)
    wrap_triton(filter_gradient)[grid](
        images, gradient, chosen, parts, shift, **sizes, EDGE=any(geometry[3:7]), POOL=pool, BIAS=biased,
        TF32=tf32, SPLITS=splits, M=tiles.m, N=column, K=tile,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return parts.sum(0).to(images.dtype), shift.sum(0)


@triton_op("cloister::convolve_image_gradient", mutates_args={})
def _convolve_image_gradient(
    gradient: Tensor, filters: Tensor, height: int, width: int, geometry: list[int], tf32: bool
) -> Tensor:
    clients, features, inner = filters.shape
    side, wide = geometry[:2]
    out = gradient.new_empty((gradient.shape[0], height, width, inner // (side * wide)))
    sizes = _sizes(tuple(out.shape), features, clients, geometry)
    tiles, column = IMAGES[gradient.itemsize, inner <= FEW], _power(out.shape[3])
    rows = triton.cdiv(sizes["EACH"] * width, tiles.m) * height
    turned = gradient.itemsize == 4  # tensor cores want the other order of 32-bit numbers
    wrap_triton(image_gradient)[(clients, rows, triton.cdiv(out.shape[3], column))](
        gradient, filters.transpose(1, 2).contiguous() if turned else filters, out, **sizes, TURNED=turned,
        TF32=tf32, M=tiles.m, N=column, K=min(tiles.k, _power(features)), num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip
    return out


def _power(count: int) -> int:
    """Return a tile that holds so many columns: a power of two from 16 to 64."""
    return min(64, max(16, triton.next_power_of_2(count)))


def _spread(gradient: Tensor, chosen: Tensor, down: int, across: int, pool: int) -> Tensor:
    """Return the gradient before pooling and ReLU: each number at the place that was chosen."""
    corner = torch.arange(pool * pool, device=chosen.device, dtype=torch.int8).view(pool, 1, pool, 1)
    each = gradient[:, :, None, :, None]
    dense = torch.where(chosen[:, :, None, :, None] == corner, each, torch.zeros_like(each))
    dense = dense.flatten(3, 4).flatten(1, 2)
    return torch.nn.functional.pad(dense, (0, 0, 0, across - dense.shape[2], 0, down - dense.shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    images, filters, bias, ctx.geometry, ctx.tf32 = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(images, filters, output[1])
    ctx.biased = bias is not None


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    (images, filters, chosen), geometry = ctx.saved_tensors, ctx.geometry
    clients, pool = filters.shape[0], geometry[-1]
    back = filter_back = bias_back = None
    gradient = gradient.contiguous()
    if ctx.needs_input_grad[0]:
        sizes, dense, plain = (
            _sizes(tuple(images.shape), filters.shape[1], clients, geometry),
            gradient,
            geometry,
        )
        if pool > 1:  # written out, as it is gone through many times
            dense = _spread(gradient, chosen, sizes["DOWN"], sizes["ACROSS"], pool)
            plain = [*geometry[:-1], 1]
        back = _convolve_image_gradient(dense, filters, *images.shape[1:3], plain, ctx.tf32)
        if images.itemsize == 2:  # tensor cores take 16-bit numbers as they lie in memory
            gradient, geometry = dense, plain
    if any(ctx.needs_input_grad[1:3]):
        filter_back, shift = _convolve_filter_gradient(
            images, gradient, chosen, clients, geometry, ctx.biased, ctx.tf32
        )
        bias_back = shift if ctx.biased else None
    return back, filter_back, bias_back, None, None


_convolve.register_autograd(_backward, setup_context=_keep)
