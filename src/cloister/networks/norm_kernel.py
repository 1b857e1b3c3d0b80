"""Frozen layer norms on a graphics card: each row is read once, and once more on the way back."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

#: Numbers of a tile, and those of each warp: found by trial on an H200.
TILE, OF_A_WARP = 2048, 1024
#: How far the kernel may be from torch, as a share of the largest number; both add in 32 bits.
APART = {torch.bfloat16: 0.02, torch.float32: 1e-5}


@triton.jit
def _normalised(rows, count, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """Return where a tile's numbers are, which of them there are, and they normalised, and by what."""
    row, column = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    given = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    apart = tl.where(inside, given - (tl.sum(given, 1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 1) / WIDTH + eps)[:, None]
    return at, inside, apart * scale, scale


@triton.jit
def _of_columns(weight, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    column = tl.arange(0, WIDE)
    return tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["count"])  # one program for any count: the one that was tried
def _forward(
    rows, weight, bias, out, count, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    at, inside, found, _ = _normalised(rows, count, eps, WIDTH, ROWS, WIDE)
    found = found * _of_columns(weight, WIDTH, WIDE) + _of_columns(bias, WIDTH, WIDE)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _backward(
    gradient, rows, weight, back, count, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    at, inside, found, scale = _normalised(rows, count, eps, WIDTH, ROWS, WIDE)
    slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) * _of_columns(weight, WIDTH, WIDE)
    along = tl.sum(slope * found, 1)[:, None] / WIDTH
    own = scale * (slope - tl.sum(slope, 1)[:, None] / WIDTH - found * along)
    tl.store(back + at, own.to(back.dtype.element_ty), mask=inside)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.eps = eps
        return _launched(_forward, rows, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        return _launched(_backward, _laid_out(gradients[0]), rows, weight, eps=ctx.eps), None, None, None


def _launched(kernel: Any, *given: Tensor, eps: float) -> Tensor:
    out, width = torch.empty_like(given[0]), given[0].shape[-1]
    wide = triton.next_power_of_2(width)
    count, rows = given[0].numel() // width, max(1, TILE // wide)
    kernel[(triton.cdiv(count, rows),)](
        *given, out, count, eps, WIDTH=width, ROWS=rows, WIDE=wide, num_warps=max(1, rows * wide // OF_A_WARP)
    )
    return out


def _laid_out(tensor: Tensor) -> Tensor:
    """Return a tensor whose numbers follow one another from where the trial's begin: at a whole 16 bytes."""
    found = tensor.contiguous()
    return found if found.data_ptr() % 16 == 0 else found.clone()


def frozen_norm(rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return rows normalised over their last axis, scaled and shifted; weight and bias have no gradient."""
    found: Tensor = _Norm.apply(*map(_laid_out, (rows, weight, bias)), eps)
    return found


@lru_cache(maxsize=256)
def trusts_norm(width: int, kind: torch.dtype, device: torch.device, eps: float) -> bool:
    """Say whether `frozen_norm` finds what torch finds, there and back; a warning says where it does not."""
    draws = torch.Generator().manual_seed(0)
    rows, slope, weight, bias = (
        torch.randn(shape, generator=draws).to(device, kind)
        for shape in ((9, width), (9, width), width, width)
    )
    with torch.enable_grad():
        rows.requires_grad_()
        outs = frozen_norm(rows, weight, bias, eps), F.layer_norm(rows, (width,), weight, bias, eps)
        pairs = outs, tuple(torch.autograd.grad(out, rows, slope)[0] for out in outs)
    if all((one - two).abs().max() <= APART[kind] * two.abs().max() for one, two in pairs):
        return True
    warnings.warn(f"The card's kernel for norms of {width} is not right here: torch's is used.", stacklevel=3)
    return False
