r"""Convolution on a graphics card with one filter bank a client; image patches are never written to memory.

For client k the output is :math:`Y_k = P(X_k) W_k`, where :math:`P` lays the patches of an image in rows. The
three products that training needs, :math:`P(X)W`, :math:`P(X)^\top G` and :math:`P^\top(G W^\top)`, are
computed tile by tile from the images themselves, which are ``(clients * each, height, width, channels)``.

Where ReLU and pooling follow, the places of a pooling window are rows next to each other: a tile keeps the
largest of each window and which one that was, and what was not chosen is neither written nor read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton


@triton.jit
def hidden_zero(client):
    """Return 0, as there are fewer clients than 2^30, in a way that no compiler sees.

    Added to indices it keeps them in 32 bits: small ones are packed in pairs otherwise, and ``ptxas`` of CUDA
    12.8 and 12.9 loses the constant that is added to a pair (``add.s16x2``) of which one number is not used.
    """
    return (client >> 30) << 20


@triton.jit
def _places(window, corner, DOWN: tl.constexpr, ACROSS: tl.constexpr, POOL: tl.constexpr):
    """Return of which example a corner of a pooling window is, and where in its output."""
    wide: tl.constexpr = ACROSS // POOL
    size: tl.constexpr = (DOWN // POOL) * wide
    example, place = window // size, window % size
    return example, place // wide * POOL + corner // POOL, place % wide * POOL + corner % POOL


@triton.jit
def _patches(
    images, client, window, corner, k, EACH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, SIDE: tl.constexpr, WIDE: tl.constexpr,
    STRIDE: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, EDGE: tl.constexpr, POOL: tl.constexpr,
    RAGGED: tl.constexpr, THIN: tl.constexpr,
):  # fmt: skip
    """Load a tile of patches: some corners of windows of one client, and of each the entries k.

    With a rest, tiles go beyond what there is; with an edge, patches go beyond their images. Where there are
    few channels, neighbours in memory are patches next to each other rather than entries of one: then
    the tile is loaded column by column.
    """
    example, top, left = _places(window, corner, DOWN, ACROSS, POOL)
    top, left = top * STRIDE - PAD_Y, left * STRIDE - PAD_X
    spot, channel = k // CHANNELS, k % CHANNELS
    base = ((example * HEIGHT + top) * WIDTH + left) * CHANNELS
    offset = (spot // WIDE * WIDTH + spot % WIDE) * CHANNELS + channel
    own = images + client.to(tl.int64) * (EACH * HEIGHT * WIDTH * CHANNELS)
    if THIN:
        at = own + (base[None, :] + offset[:, None])
        inside = (example < EACH)[None, :] & (k < SIDE * WIDE * CHANNELS)[:, None]
        if EDGE:
            row, line = top[None, :] + (spot // WIDE)[:, None], left[None, :] + (spot % WIDE)[:, None]
            inside &= (row >= 0) & (row < HEIGHT) & (line >= 0) & (line < WIDTH)
        return tl.trans(tl.load(at, mask=inside, other=0.0))
    at = own + (base[:, None] + offset[None, :])
    if not (EDGE or RAGGED):
        return tl.load(at)
    inside = (example < EACH)[:, None] & (k < SIDE * WIDE * CHANNELS)[None, :]
    if EDGE:
        row, line = top[:, None] + (spot // WIDE)[None, :], left[:, None] + (spot % WIDE)[None, :]
        inside &= (row >= 0) & (row < HEIGHT) & (line >= 0) & (line < WIDTH)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _larger(one, first, other, second):
    """Choose the larger of two numbers, the first one of equals, and what is no number before all."""
    keep = (one != one) | ((other == other) & ((one > other) | ((one == other) & (first < second))))
    return tl.where(keep, one, other), tl.where(keep, first, second)


@triton.jit
def forward(
    images, filters, bias, out, chosen, EACH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, FEATURES: tl.constexpr,
    SIDE: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    EDGE: tl.constexpr, POOL: tl.constexpr, BIAS: tl.constexpr, TF32: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of M places by N features of one client."""
    client, tile, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inner: tl.constexpr = SIDE * WIDE * CHANNELS
    corners: tl.constexpr = POOL * POOL
    rows: tl.constexpr = EACH * (DOWN // POOL) * (ACROSS // POOL)
    ragged: tl.constexpr = (rows * corners) % M != 0 or inner % K != 0
    zero = hidden_zero(client)
    m = zero + tl.arange(0, M)
    if POOL == 2:  # in the order in which a thread has a window's four corners, where tensor cores add up
        corner = m // 64 % 2 * 2 + m // 8 % 2
        window = tile * (M // corners) + m // 128 * 32 + m // 16 % 4 * 8 + m % 8
    else:
        corner, window = m % corners, tile * (M // corners) + m // corners
    n = column * N + zero + tl.arange(0, N)
    own = filters + client.to(tl.int64) * (FEATURES * inner)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, inner, K):
        k = start + zero + tl.arange(0, K)
        a = _patches(
            images, client, window, corner, k, EACH, HEIGHT, WIDTH, CHANNELS, DOWN, ACROSS, SIDE, WIDE,
            STRIDE, PAD_Y, PAD_X, EDGE, POOL, ragged, CHANNELS < 8,
        )  # fmt: skip
        at = own + n[None, :] * inner + k[:, None]
        if inner % K == 0 and FEATURES % N == 0:
            b = tl.load(at)
        else:
            b = tl.load(at, mask=(k[:, None] < inner) & (n[None, :] < FEATURES), other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32" if TF32 else "ieee")
    if BIAS:
        total += tl.load(bias + client * FEATURES + n, mask=n < FEATURES, other=0.0).to(tl.float32)[None, :]
    if POOL > 1:
        number = tl.broadcast_to(corner[:, None], (M, N))
        if POOL == 2:
            split: tl.constexpr = (M // 128, 2, 4, 2, 8, N)
            most, which = tl.reduce((tl.reshape(total, split), tl.reshape(number, split)), 1, _larger)
            most, which = tl.reduce((most, which), 2, _larger)
            most, which = tl.reshape(most, (M // 4, N)), tl.reshape(which, (M // 4, N))
        else:
            shape: tl.constexpr = (M // corners, corners, N)
            most, which = tl.reduce((tl.reshape(total, shape), tl.reshape(number, shape)), 1, _larger)
        r = tile * (M // corners) + zero + tl.arange(0, M // corners)
        at = (client * rows + r[:, None]).to(tl.int64) * FEATURES + n[None, :]
        here = (r[:, None] < rows) & (n[None, :] < FEATURES)
        tl.store(out + at, tl.where(most <= 0, 0.0, most).to(out.dtype.element_ty), mask=here)
        tl.store(chosen + at, tl.where(most <= 0, corners, which).to(tl.int8), mask=here)
    else:
        tl.store(
            out + (client * rows + window[:, None]).to(tl.int64) * FEATURES + n[None, :],
            total.to(out.dtype.element_ty),
            mask=(window[:, None] < rows) & (n[None, :] < FEATURES),
        )


@triton.jit
def filter_gradient(
    images, gradient, chosen, out, shift, EACH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, FEATURES: tl.constexpr,
    SIDE: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    EDGE: tl.constexpr, POOL: tl.constexpr, BIAS: tl.constexpr, TF32: tl.constexpr, SPLITS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of N features by K patch entries of one client's filter gradient, over some places.

    A bias is the weight of an entry that is always 1.
    """
    client, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inner: tl.constexpr = SIDE * WIDE * CHANNELS
    parts: tl.constexpr = (inner + K - 1) // K
    part, column = tile % parts, tile // parts
    corners: tl.constexpr = POOL * POOL
    windows: tl.constexpr = EACH * (DOWN // POOL) * (ACROSS // POOL)
    ragged: tl.constexpr = windows % M != 0 or inner % K != 0
    share: tl.constexpr = ((windows + SPLITS - 1) // SPLITS + M - 1) // M * M
    zero = hidden_zero(client)
    k = part * K + zero + tl.arange(0, K)
    n = column * N + zero + tl.arange(0, N)
    total = tl.zeros((N, K), dtype=tl.float32)
    slope = tl.zeros((N, 16), dtype=tl.float32)
    for start in range(split * share, min(windows, (split + 1) * share), M):
        window = start + zero + tl.arange(0, M)
        at = (client * windows + window[:, None]).to(tl.int64) * FEATURES + n[None, :]
        here = (window[:, None] < windows) & (n[None, :] < FEATURES)
        if windows % M == 0 and FEATURES % N == 0:
            g = tl.load(gradient + at)
        else:
            g = tl.load(gradient + at, mask=here, other=0.0)
        if POOL > 1:
            which = tl.load(chosen + at, mask=here, other=corners).to(tl.int32)
        for corner in tl.static_range(corners):
            a = _patches(
                images, client, window, corner, k, EACH, HEIGHT, WIDTH, CHANNELS, DOWN, ACROSS, SIDE, WIDE,
                STRIDE, PAD_Y, PAD_X, EDGE, POOL, ragged, False,
            )  # fmt: skip
            own = tl.where(which == corner, g, 0.0) if POOL > 1 else g
            total = tl.dot(tl.trans(own), a, total, input_precision="tf32" if TF32 else "ieee")
        if BIAS:
            alive = tl.where(which < corners, g, 0.0) if POOL > 1 else g
            ones = tl.full((M, 16), 1.0, alive.dtype)
            slope = tl.dot(tl.trans(alive), ones, slope, input_precision="tf32" if TF32 else "ieee")
    bank = (split * tl.num_programs(0) + client).to(tl.int64) * FEATURES
    tl.store(
        out + (bank + n[:, None]) * inner + k[None, :],
        total.to(out.dtype.element_ty),
        mask=(k[None, :] < inner) & (n[:, None] < FEATURES),
    )
    if BIAS:
        first = tl.arange(0, 16)[None, :] == 0
        own = tl.broadcast_to(shift + bank + n[:, None], (N, 16))
        tl.store(own, slope, mask=first & (n[:, None] < FEATURES) & (part == 0))


@triton.jit
def image_gradient(
    gradient, filters, out, EACH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, FEATURES: tl.constexpr,
    SIDE: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    TURNED: tl.constexpr, TF32: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of M pixels by N channels of one client's image gradient, all in one row of its images.

    So only rows of filters that reach the output are gone through.
    """
    client, tile, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inner: tl.constexpr = SIDE * WIDE * CHANNELS
    parts: tl.constexpr = (FEATURES + K - 1) // K
    row = tile % HEIGHT
    zero = hidden_zero(client)
    m = tile // HEIGHT * M + zero + tl.arange(0, M)
    n = column * N + zero + tl.arange(0, N)
    example, line = m // WIDTH, m % WIDTH
    reach = row + PAD_Y  # filter row f meets output row (reach - f) / STRIDE
    low = reach % STRIDE
    low += tl.maximum(0, (reach - (DOWN - 1) * STRIDE - low + STRIDE - 1) // STRIDE) * STRIDE
    count = tl.maximum(0, tl.minimum(SIDE - 1, reach) - low + STRIDE) // STRIDE
    weights = filters + client.to(tl.int64) * (FEATURES * inner)
    slopes = gradient + client.to(tl.int64) * (EACH * DOWN * ACROSS * FEATURES)
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(count * WIDE * parts):
        k = step % parts * K + zero + tl.arange(0, K)
        high, wide = low + step // parts // WIDE * STRIDE, step // parts % WIDE
        top, shifted = (reach - high) // STRIDE, line + PAD_X - wide
        left = shifted // STRIDE
        inside = (example < EACH) & (shifted >= 0) & (left < ACROSS)
        if STRIDE > 1:
            inside &= shifted % STRIDE == 0
        g = tl.load(
            slopes + (((example * DOWN + top) * ACROSS + left) * FEATURES)[:, None] + k[None, :],
            mask=inside[:, None] & (k[None, :] < FEATURES),
            other=0.0,
        )
        entry = (high * WIDE + wide) * CHANNELS + n
        if TURNED:
            at = entry[None, :] * FEATURES + k[:, None]
        else:
            at = k[:, None] * inner + entry[None, :]
        w = tl.load(
            weights + at,
            mask=(k[:, None] < FEATURES) & (n[None, :] < CHANNELS),
            other=0.0,
        )
        total = tl.dot(g, w, total, input_precision="tf32" if TF32 else "ieee")
    pixel = ((client * EACH + example) * HEIGHT + row) * WIDTH + line
    tl.store(
        out + pixel[:, None].to(tl.int64) * CHANNELS + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(example < EACH)[:, None] & (n[None, :] < CHANNELS),
    )


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
