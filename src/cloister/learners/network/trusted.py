"""Which kernels may be used: those that agree with torch on the shapes at hand; each is tried once."""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from cloister.learners.network.agreement import Trial, agrees
from cloister.learners.network.clients import conv2d_by_products
from cloister.learners.network.convolutions import Geometry, client_conv2d
from cloister.learners.network.products import client_linear

__all__ = ["trusts_convolution", "trusts_product"]


def trusts_convolution(images: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> bool:
    """Say whether `client_conv2d` is right for such images and filters; a warning says where it is not.

    It counts pixels, of all clients, in 32 bits.
    """
    left, right, top, bottom = geometry.padding
    height, width = images.shape[2] + top + bottom, images.shape[3] + left + right
    return len(images) * height * width < 2**31 and _convolution(
        _trial(images, weight, bias), geometry, torch.get_float32_matmul_precision()
    )


def trusts_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Say whether `client_linear` is right for such rows and matrices; a warning says where it is not."""
    return _product(_trial(rows.flatten(0, 1), weight, bias), torch.get_float32_matmul_precision())


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
def _product(trial: Trial, precision: str) -> bool:
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
