r"""Convolution on a graphics card with one filter bank a client; image patches are never written to memory.

For client k the output is :math:`Y_k = P(X_k) W_k`, where :math:`P` lays the patches of an image in rows. The
three products that training needs, :math:`P(X)W`, :math:`P(X)^\top G` and :math:`P^\top(G W^\top)`, are
computed tile by tile from the images themselves, which are ``(clients * each, height, width, channels)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

__all__ = ["client_conv2d"]


@triton.jit
def _forward(
    images, filters, out, rows, height, width, inner, channels, features, side,
    WIDE: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of M places by N features of one client."""
    client, tile, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    down = height - side + 1
    across = width - WIDE + 1
    m = tile * M + tl.arange(0, M)
    n = column * N + tl.arange(0, N)
    example, place = m // (down * across), m % (down * across)
    top, left = place // across, place % across
    base = ((client * (rows // (down * across)) + example) * height + top) * width + left
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, inner, K):
        k = start + tl.arange(0, K)
        spot, channel = k // channels, k % channels
        offset = (spot // WIDE) * width + spot % WIDE
        a = tl.load(
            images + (base[:, None] + offset[None, :]).to(tl.int64) * channels + channel[None, :],
            mask=(m[:, None] < rows) & (k[None, :] < inner),
            other=0.0,
        )
        b = tl.load(
            filters + (client * features + n[None, :]).to(tl.int64) * inner + k[:, None],
            mask=(k[:, None] < inner) & (n[None, :] < features),
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision="tf32" if TF32 else "ieee")
    tl.store(
        out + (client * rows + m[:, None]).to(tl.int64) * features + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m[:, None] < rows) & (n[None, :] < features),
    )


@triton.jit
def _filter_gradient(
    images, gradient, out, rows, height, width, inner, channels, features, side,
    WIDE: tl.constexpr, TF32: tl.constexpr, SPLITS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of K patch entries by N features of one client's filter gradient, over some places."""
    client, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    down = height - side + 1
    across = width - WIDE + 1
    k = part * K + tl.arange(0, K)
    n = tl.arange(0, N)
    spot, channel = k // channels, k % channels
    offset = (spot // WIDE) * width + spot % WIDE
    total = tl.zeros((N, K), dtype=tl.float32)
    share = tl.cdiv(tl.cdiv(rows, SPLITS), M) * M
    for start in range(split * share, min(rows, (split + 1) * share), M):
        m = start + tl.arange(0, M)
        example, place = m // (down * across), m % (down * across)
        base = (
            (client * (rows // (down * across)) + example) * height + place // across
        ) * width + place % across
        a = tl.load(
            images + (base[:, None] + offset[None, :]).to(tl.int64) * channels + channel[None, :],
            mask=(m[:, None] < rows) & (k[None, :] < inner),
            other=0.0,
        )
        g = tl.load(
            gradient + (client * rows + m[:, None]).to(tl.int64) * features + n[None, :],
            mask=(m[:, None] < rows) & (n[None, :] < features),
            other=0.0,
        )
        total = tl.dot(tl.trans(g), a, total, input_precision="tf32" if TF32 else "ieee")
    tl.store(
        out
        + ((split * tl.num_programs(0) + client) * features + n[:, None]).to(tl.int64) * inner
        + k[None, :],
        total,
        mask=(k[None, :] < inner) & (n[:, None] < features),
    )


@triton.jit
def _image_gradient(
    gradient, filters, out, pixels, height, width, inner, channels, features, side,
    WIDE: tl.constexpr, TF32: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of M pixels by N channels of one client's image gradient."""
    client, tile, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    down = height - side + 1
    across = width - WIDE + 1
    m = tile * M + tl.arange(0, M)
    n = column * N + tl.arange(0, N)
    example, pixel = m // (height * width), m % (height * width)
    row, line = pixel // width, pixel % width
    first = client * (pixels // (height * width)) + example
    total = tl.zeros((M, N), dtype=tl.float32)
    for spot in range(side * WIDE):
        top, left = row - spot // WIDE, line - spot % WIDE
        inside = (m < pixels) & (top >= 0) & (top < down) & (left >= 0) & (left < across)
        base = (first * down + top) * across + left
        for start in range(0, features, K):
            k = start + tl.arange(0, K)
            g = tl.load(
                gradient + base[:, None].to(tl.int64) * features + k[None, :],
                mask=inside[:, None] & (k[None, :] < features),
                other=0.0,
            )
            w = tl.load(
                filters
                + (client * inner + spot * channels + n[None, :]).to(tl.int64) * features
                + k[:, None],
                mask=(k[:, None] < features) & (n[None, :] < channels),
                other=0.0,
            )
            total = tl.dot(g, w, total, input_precision="tf32" if TF32 else "ieee")
    tl.store(
        out + (client * pixels + m[:, None]).to(tl.int64) * channels + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m[:, None] < pixels) & (n[None, :] < channels),
    )


def client_conv2d(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve examples ``(clients * each, channels, h, w)`` with ``(clients, features, channels, kh, kw)``.

    Stride 1, no padding. Differentiable in all three.
    """
    clients, features, channels, side, wide = weight.shape
    filters = weight.permute(0, 1, 3, 4, 2).reshape(clients, features, side * wide * channels)
    if torch.is_autocast_enabled("cuda"):
        images, filters = (x.to(torch.get_autocast_dtype("cuda")) for x in (images, filters))
    out = _convolve(images.permute(0, 2, 3, 1).contiguous(), filters.contiguous(), side, wide, _tf32())
    if bias is not None:
        out = (out.unflatten(0, (clients, -1)) + bias[:, None, None, None].to(out.dtype)).flatten(0, 1)
    return out.permute(0, 3, 1, 2)


def _tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


@dataclass(frozen=True)
class Tiles:
    """How a kernel is cut up."""

    m: int
    k: int
    warps: int
    stages: int


#: Found by trial on an H200, for 32-bit and 16-bit numbers: forward, gradient of filters, gradient of images.
FORWARD = {4: Tiles(128, 32, 4, 2), 2: Tiles(128, 32, 4, 3)}
FILTERS = {4: Tiles(64, 64, 4, 1), 2: Tiles(64, 32, 4, 3)}
IMAGES = {4: Tiles(64, 32, 4, 1), 2: Tiles(64, 32, 4, 1)}
FEW = 64  # patch entries of a first layer: too few programs unless places are split


@triton_op("cloister::convolve", mutates_args={})
def _convolve(images: Tensor, filters: Tensor, side: int, wide: int, tf32: bool) -> Tensor:
    clients, features, inner = filters.shape
    height, width, channels = images.shape[1:]
    down, across = height - side + 1, width - wide + 1
    rows = images.shape[0] // clients * down * across
    out = images.new_empty((images.shape[0], down, across, features))
    tiles, column = FORWARD[images.itemsize], _power(features)
    grid = (clients, triton.cdiv(rows, tiles.m), triton.cdiv(features, column))
    wrap_triton(_forward)[grid](
        images, filters, out, rows, height, width, inner, channels, features, side, WIDE=wide, TF32=tf32,
        M=tiles.m, N=column, K=tiles.k, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton_op("cloister::convolve_filter_gradient", mutates_args={})
def _convolve_filter_gradient(
    images: Tensor, gradient: Tensor, clients: int, side: int, wide: int, tf32: bool
) -> Tensor:
    height, width, channels = images.shape[1:]
    features, inner = gradient.shape[3], side * wide * channels
    rows = gradient.shape[0] // clients * gradient.shape[1] * gradient.shape[2]
    tiles = FILTERS[images.itemsize]
    splits = max(1, rows // 512) if inner <= FEW else 1
    tile = min(tiles.k, max(16, triton.next_power_of_2(inner)))
    parts = images.new_empty((splits, clients, features, inner), dtype=torch.float32)
    grid = (clients, triton.cdiv(inner, tile), splits)
    wrap_triton(_filter_gradient)[grid](
        images, gradient, parts, rows, height, width, inner, channels, features, side, WIDE=wide, TF32=tf32,
        SPLITS=splits, M=tiles.m, N=max(16, triton.next_power_of_2(features)), K=tile,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return parts.sum(0).to(images.dtype)


@triton_op("cloister::convolve_image_gradient", mutates_args={})
def _convolve_image_gradient(gradient: Tensor, filters: Tensor, side: int, wide: int, tf32: bool) -> Tensor:
    clients, inner, features = filters.shape
    count, down, across, _ = gradient.shape
    height, width, channels = down + side - 1, across + wide - 1, inner // (side * wide)
    pixels = count // clients * height * width
    out = gradient.new_empty((count, height, width, channels))
    tiles, column = IMAGES[gradient.itemsize], _power(channels)
    grid = (clients, triton.cdiv(pixels, tiles.m), triton.cdiv(channels, column))
    wrap_triton(_image_gradient)[grid](
        gradient, filters, out, pixels, height, width, inner, channels, features, side, WIDE=wide, TF32=tf32,
        M=tiles.m, N=column, K=min(tiles.k, _power(features)), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def _power(count: int) -> int:
    """Return a tile that holds so many columns: a power of two from 16 to 64."""
    return min(64, max(16, triton.next_power_of_2(count)))


def _keep(ctx, inputs, output):
    images, filters, ctx.side, ctx.wide, ctx.tf32 = inputs
    ctx.save_for_backward(images, filters)


def _backward(ctx, gradient):
    images, filters = ctx.saved_tensors
    gradient = gradient.contiguous()
    back = filter_back = None
    if ctx.needs_input_grad[0]:
        back = _convolve_image_gradient(
            gradient, filters.transpose(1, 2).contiguous(), ctx.side, ctx.wide, ctx.tf32
        )
    if ctx.needs_input_grad[1]:
        filter_back = _convolve_filter_gradient(
            images, gradient, filters.shape[0], ctx.side, ctx.wide, ctx.tf32
        )
    return back, filter_back, None, None, None


_convolve.register_autograd(_backward, setup_context=_keep)
