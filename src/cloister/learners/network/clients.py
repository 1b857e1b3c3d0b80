"""Layers whose parameters have a leading client axis, so that one program trains many clients at once.

A network that treats the first axis of its input as examples can be given the examples of all clients, one
client after another. Only layers that own parameters need to know where one client ends: they are swapped for
the ones below, which take parameters of shape ``(clients, ...)``. Everything else runs as it was written.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloister.learners.network.one_by_one import channels_last, conv2d_one_by_one
from cloister.learners.network.recurrent import is_plain, unrolled

__all__ = ["conv2d_by_products", "copied", "guard_layers", "swap_layers"]

#: Rows of a client that a kernel of ours takes at once; with more, the products of libraries are as good.
FEW_ROWS = 64


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(self.weight.shape[0], -1, self.in_features)
        if rows.is_cuda and rows.shape[1] <= FEW_ROWS and _has_triton():
            from cloister.learners.network.products import client_linear
            from cloister.learners.network.trusted import trusts_product

            if trusts_product(rows, self.weight, self.bias):
                out = client_linear(rows, self.weight, self.bias)
                return out.reshape(*input.shape[:-1], self.out_features)
        if rows.is_cuda:  # in this order: the other one is slower there in one of the two gradients
            out = (self.weight @ rows.transpose(1, 2)).transpose(1, 2)
        else:
            out = _Product.apply(rows, self.weight)
        if self.bias is not None:
            out = out + self.bias[:, None]
        return out.reshape(*input.shape[:-1], self.out_features)


class _Product(torch.autograd.Function):
    """Rows times weights, client by client; its gradients are laid out in memory as rows and weights are.

    Left to itself, torch computes one of the two gradients transposed: much more slowly on a processor.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        out = rows @ weight.transpose(1, 2)
        ctx.save_for_backward(rows.to(out.dtype), weight.to(out.dtype))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        rows_back = gradient @ weight if ctx.needs_input_grad[0] else None
        return rows_back, gradient.transpose(1, 2) @ rows if ctx.needs_input_grad[1] else None


class _Conv2d(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return self.pooled(input)

    def pooled(self, input: Tensor, window: int = 1) -> Tensor:
        """Convolve; where there is a window, ReLU and the largest of each such square of places follow."""
        sides = _both_sides(self.padding, self.kernel_size, self.dilation)
        if input.is_cuda and self.stride[0] == self.stride[1] and self.dilation == (1, 1) and _has_triton():
            from cloister.learners.network.convolutions import Geometry, client_conv2d
            from cloister.learners.network.trusted import trusts_convolution

            geometry = Geometry(self.stride[0], sides, window)
            if trusts_convolution(input, self.weight, self.bias, geometry):
                return client_conv2d(input, self.weight, self.bias, geometry)
        padded = F.pad(input, sides) if any(sides) else input
        if not padded.is_cuda:
            return conv2d_one_by_one(padded, self.weight, self.bias, self.stride, self.dilation, window)
        plain = conv2d_by_products(padded, self.weight, self.bias, self.stride, self.dilation)
        return plain if window == 1 else F.max_pool2d(F.relu(plain), window)


class _Sequential(nn.Sequential):
    """Convolution, ReLU and pooling that follow one another are one program."""

    def forward(self, input: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            first, window = layers[0], _window(layers[:3])
            if window > 1 and isinstance(first, _Conv2d):
                input, layers = first.pooled(input, window), layers[3:]
            else:
                input, layers = first(input), layers[1:]
        return input


def _window(layers: list[nn.Module]) -> int:
    """Return the side of the windows that a convolution, ReLU and pooling end with; 1 if it is not these."""
    if [type(layer) for layer in layers] != [_Conv2d, nn.ReLU, _MaxPool2d]:
        return 1
    high, wide = _pair(layers[2].kernel_size)  # type: ignore[arg-type]
    watched = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    usual = not (layers[2].ceil_mode or layers[2].return_indices or watched)
    return high if high == wide and high in (2, 4) and usual else 1


class _Embedding(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        clients = self.weight.shape[0]
        # A code beyond the table would read the next client's: it counts as the nearest there is.
        rows = input.reshape(clients, -1).clamp(0, self.num_embeddings - 1)
        shift = torch.arange(clients, device=input.device)[:, None] * self.num_embeddings
        out = F.embedding(rows + shift, self.weight.reshape(-1, self.embedding_dim))
        return out.reshape(*input.shape, self.embedding_dim)


class _Guarded(nn.Embedding):
    """One client's embedding in which a code beyond the table is the nearest there is, and stops nobody."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.clamp(0, self.num_embeddings - 1))


class _LayerNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return _affine(
            F.layer_norm(input, self.normalized_shape, None, None, self.eps), self.weight, self.bias
        )


class _GroupNorm(nn.GroupNorm):
    def forward(self, input: Tensor) -> Tensor:
        out = F.group_norm(input, self.num_groups, None, None, self.eps)
        return _affine(out.movedim(1, -1), self.weight, self.bias).movedim(-1, 1)


class _MaxPool2d(nn.MaxPool2d):
    """On a graphics card, windows that tile the image are a maximum that compilers fuse with others."""

    def forward(self, input: Tensor) -> Tensor:
        high, wide = _pair(self.kernel_size)
        count, channels, height, width = input.shape
        if not input.is_cuda or height % high or width % wide:
            return super().forward(channels_last(input))
        tiles = input.reshape(count, channels, height // high, high, width // wide, wide)
        return tiles.amax(dim=(3, 5))


_SWAPS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.Embedding: _Embedding,
    nn.LayerNorm: _LayerNorm,
    nn.GroupNorm: _GroupNorm,
    nn.MaxPool2d: _MaxPool2d,
    nn.Sequential: _Sequential,
}


def swap_layers(net: nn.Module) -> nn.Module | None:
    """Return a copy of a network with layers for stacked parameters, or None where it has others.

    Parameter names stay as they are: call it with `torch.func.functional_call` and stacked tensors. Frozen
    layers stay too: they take the examples of all clients as those of one.
    """
    swapped = copied(net)
    for layer in swapped.modules():
        own = list(layer.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            _guard(layer)
        elif is_plain(layer):
            layer.__class__ = unrolled(layer)
        elif type(layer) in _SWAPS and _plain(layer):
            layer.__class__ = _SWAPS[type(layer)]
        elif own:
            return None
    return swapped


def guard_layers(net: nn.Module) -> nn.Module:
    """Return a copy of a network for one client, to run under `torch.vmap`, that no whole number can stop.

    Recurrent layers are written out, because torch's own cannot run so. Parameters stay as they are.
    """
    guarded = copied(net)
    for layer in guarded.modules():
        if is_plain(layer):
            layer.__class__ = unrolled(layer)
        else:
            _guard(layer)
    return guarded


def _guard(layer: nn.Module) -> None:
    if type(layer) is nn.Embedding:
        layer.__class__ = _Guarded


def copied(net: nn.Module) -> nn.Module:
    """Return a copy of a network that has the same frozen parameters in memory: bodies are large."""
    return copy.deepcopy(net, {id(p): p for p in net.parameters() if not p.requires_grad})


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and layer.padding_idx is None and not layer.scale_grad_by_freq
    if isinstance(layer, nn.MaxPool2d):
        tiling = _pair(layer.kernel_size) == _pair(layer.stride or layer.kernel_size)
        return tiling and _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    return True


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _both_sides(
    padding: str | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, int, int, int]:
    """Return what `F.pad` takes: left, right, top, bottom."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2
    assert not isinstance(padding, str)
    return padding[1], padding[1], padding[0], padding[0]


def _affine(out: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift each client's normalised examples by its own parameters, on the last axes."""
    if weight is None:
        return out
    clients = weight.shape[0]
    rows = out.reshape(clients, out.shape[0] // clients, -1, math.prod(weight.shape[1:]))
    scaled = rows * weight.reshape(clients, 1, 1, -1)
    if bias is not None:
        scaled = scaled + bias.reshape(clients, 1, 1, -1)
    return scaled.reshape(out.shape)


def conv2d_by_products(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """Convolve as matrix products of image patches, a batch entry a client: what graphics cards do best."""
    clients, out = weight.shape[:2]
    kernel = weight.shape[3:]
    patches = F.unfold(input, kernel, dilation=dilation, stride=stride)  # (examples, patch entries, places)
    size = [(input.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    rows = patches.transpose(1, 2).reshape(clients, -1, patches.shape[1])
    done = rows @ weight.flatten(2).transpose(1, 2)
    if bias is not None:
        done = done + bias[:, None]
    return done.reshape(input.shape[0], size[0], size[1], out).permute(0, 3, 1, 2)
