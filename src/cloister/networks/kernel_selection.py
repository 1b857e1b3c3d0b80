r"""Linear layers on a graphics card with one matrix a client, and which kernels may be used at all.

For few rows each, :math:`Y_k = X_k W_k^\top` spends its time reading the matrices. Each kernel reads them
once, as they are, in 32 bits, and makes them shorter on the way; the two gradients are one pass. A kernel may
be used if it agrees with torch on the shapes at hand; each is tried once.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.nn import functional as F

from cloister.networks.convolutions import Geometry, client_conv2d, hidden_zero
from cloister.networks.kernel_checks import Trial, agrees
from cloister.networks.layers import conv2d_by_products

#: Found by trial on an H200: features of a tile and inputs of a step forward, inputs of a tile backward.
FEATURES, STEP, INPUTS = 32, 128, 64


@triton.jit
def _forward(
    rows, weight, bias, out, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
    BIAS: tl.constexpr, TF32: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute all rows by N features of one client."""
    client, column = tl.program_id(0).to(tl.int64), tl.program_id(1)
    zero = hidden_zero(tl.program_id(0))
    m, n = zero + tl.arange(0, M), column * N + zero + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, INNER, K):
        k = start + zero + tl.arange(0, K)
        x = tl.load(
            rows + (client * ROWS + m)[:, None] * INNER + k[None, :],
            mask=(m < ROWS)[:, None] & (k < INNER)[None, :],
            other=0.0,
        )
        w = tl.load(
            weight + (client * OUTER + n)[None, :] * INNER + k[:, None],
            mask=(n < OUTER)[None, :] & (k < INNER)[:, None],
            other=0.0,
        )
        total = tl.dot(x, w.to(x.dtype), total, input_precision="tf32" if TF32 else "ieee")
    if BIAS:
        total += tl.load(bias + client * OUTER + n, mask=n < OUTER, other=0.0)[None, :]
    tl.store(
        out + (client * ROWS + m)[:, None] * OUTER + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m < ROWS)[:, None] & (n < OUTER)[None, :],
    )


@triton.jit
def _backward(
    gradient, rows, weight, rows_out, weight_out, ROWS: tl.constexpr, INNER: tl.constexpr,
    OUTER: tl.constexpr, TF32: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute K inputs of both gradients of one client."""
    client, column = tl.program_id(0).to(tl.int64), tl.program_id(1)
    zero = hidden_zero(tl.program_id(0))
    m, k = zero + tl.arange(0, M), column * K + zero + tl.arange(0, K)
    at = (client * ROWS + m)[:, None] * INNER + k[None, :]
    here = (m < ROWS)[:, None] & (k < INNER)[None, :]
    x = tl.load(rows + at, mask=here, other=0.0)
    total = tl.zeros((M, K), dtype=tl.float32)
    for start in range(0, OUTER, N):
        n = start + zero + tl.arange(0, N)
        g = tl.load(
            gradient + (client * ROWS + m)[:, None] * OUTER + n[None, :],
            mask=(m < ROWS)[:, None] & (n < OUTER)[None, :],
            other=0.0,
        )
        place = (client * OUTER + n)[:, None] * INNER + k[None, :]
        inside = (n < OUTER)[:, None] & (k < INNER)[None, :]
        w = tl.load(weight + place, mask=inside, other=0.0)
        total = tl.dot(g, w.to(g.dtype), total, input_precision="tf32" if TF32 else "ieee")
        own = tl.dot(tl.trans(g), x, input_precision="tf32" if TF32 else "ieee")
        tl.store(weight_out + place, own.to(weight_out.dtype.element_ty), mask=inside)
    tl.store(rows_out + at, total.to(rows_out.dtype.element_ty), mask=here)


def client_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows ``(clients, each, inputs)`` times ``(clients, features, inputs)`` transposed, and bias."""
    if torch.is_autocast_enabled("cuda"):
        rows = rows.to(torch.get_autocast_dtype("cuda"))
    tf32 = torch.get_float32_matmul_precision() != "highest"
    shift = None if bias is None else bias.contiguous()
    return _product(rows.contiguous(), weight.contiguous(), shift, tf32)


@triton_op("cloister::product", mutates_args={})
def _product(rows: Tensor, weight: Tensor, bias: Tensor | None, tf32: bool) -> Tensor:
    clients, each, inner = rows.shape
    outer = weight.shape[1]
    out = rows.new_empty((clients, each, outer))
    wrap_triton(_forward)[(clients, triton.cdiv(outer, FEATURES))](
        rows, weight, weight if bias is None else bias, out, ROWS=each, INNER=inner, OUTER=outer,
        BIAS=bias is not None, TF32=tf32, M=_tile(each), N=FEATURES, K=min(STEP, _tile(inner)), num_warps=4,
        num_stages=3,
    )  # fmt: skip
    return out


@triton_op("cloister::product_gradients", mutates_args={})
def _product_gradients(gradient: Tensor, rows: Tensor, weight: Tensor, tf32: bool) -> tuple[Tensor, Tensor]:
    clients, each, inner = rows.shape
    outer = weight.shape[1]
    rows_back, weight_back = torch.empty_like(rows), torch.empty_like(weight, dtype=rows.dtype)
    wrap_triton(_backward)[(clients, triton.cdiv(inner, INPUTS))](
        gradient, rows, weight, rows_back, weight_back, ROWS=each, INNER=inner, OUTER=outer, TF32=tf32,
        M=_tile(each), N=min(64, _tile(outer)), K=INPUTS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return rows_back, weight_back


def _tile(count: int) -> int:
    return max(16, int(triton.next_power_of_2(count)))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, weight, bias, ctx.tf32 = inputs
    ctx.save_for_backward(rows, weight)
    ctx.biased = bias is not None


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    rows, weight = ctx.saved_tensors
    gradient = gradient.contiguous()
    rows_back, weight_back = _product_gradients(gradient, rows, weight, ctx.tf32)
    return rows_back, weight_back.to(weight.dtype), gradient.float().sum(1) if ctx.biased else None, None


_product.register_autograd(_back, setup_context=_keep)


def trusts_convolution(images: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> bool:
    """Say whether `client_conv2d` is right for such images and filters; a warning says where it is not.

    It counts pixels, of all clients, and numbers, of one client, in 32 bits.
    """
    left, right, top, bottom = geometry.padding
    pixels = len(images) * (images.shape[2] + top + bottom) * (images.shape[3] + left + right)
    numbers = pixels // len(weight) * max(weight.shape[1:3])
    return max(pixels, numbers) < 2**31 and _convolution(
        _trial(images, weight, bias), geometry, torch.get_float32_matmul_precision()
    )


def trusts_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Say whether `client_linear` is right for such rows and matrices; a warning says where it is not."""
    return _try_product(_trial(rows.flatten(0, 1), weight, bias), torch.get_float32_matmul_precision())


@lru_cache(maxsize=1024)
def _convolution(trial: Trial, geometry: Geometry, precision: str) -> bool:
    stride, pool = (geometry.stride, geometry.stride), geometry.pool

    def kernel(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return client_conv2d(images, weight, bias, geometry)

    def plain(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shift = None if bias is None else bias[None]
        out = conv2d_by_products(F.pad(images, geometry.padding), weight[None], shift, stride, (1, 1))
        return out if pool == 1 else F.max_pool2d(F.relu(out), pool)

    return agrees(kernel, plain, trial) or _warned(f"a convolution with filters of {trial.weight[1:]}")


@lru_cache(maxsize=1024)
def _try_product(trial: Trial, precision: str) -> bool:
    def kernel(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return client_linear(rows.reshape(len(weight), -1, rows.shape[1]), weight, bias).flatten(0, 1)

    return agrees(kernel, F.linear, trial) or _warned(f"a linear layer with weights of {trial.weight}")


def _trial(examples: Tensor, weight: Tensor, bias: Tensor | None) -> Trial:
    computed = examples.dtype
    if torch.is_autocast_enabled("cuda"):
        computed = torch.get_autocast_dtype("cuda")
    learns = torch.is_grad_enabled()
    return Trial(
        examples=(examples.shape[0] // weight.shape[0], *examples.shape[1:]),
        weight=tuple(weight.shape[1:]),
        biased=bias is not None,
        given=examples.dtype,
        computed=computed,
        of_examples=learns and examples.requires_grad,
        of_weight=learns and weight.requires_grad,
        device=examples.device,
    )


def _warned(what: str) -> bool:
    """Say that torch's own products are used, more slowly; return that the kernel's are not."""
    warnings.warn(f"The card's kernel for {what} is not right here: torch's products are used.", stacklevel=4)
    return False
