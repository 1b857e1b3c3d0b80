"""Layers whose parameters have a leading client axis, so that one program trains many clients at once.

A network that treats the first axis of its input as examples can be given the examples of all clients, one
client after another. Only layers that own trained parameters need to know where one client ends, and they are
swapped: the usual ones for those below, which take parameters of shape ``(clients, ...)``, recurrent ones for
loops over their steps, and any other, such as an adapter of bare parameters, for itself under `torch.vmap`.
Everything else runs as it was written, and frozen layers are one product for all clients.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional as F

from cloister.networks.each_client import run_for_each_client
from cloister.networks.recurrent_layers import is_plain, unrolled

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

    Where there is a window, ReLU and the largest of each such square of places follow: the largest is the
    same before ReLU and after, so that what is pooled away is neither compared with zero nor kept for the way
    back. A processor takes clients one by one: its caches hold one client's images until they are used up.
    """
    found: Tensor = _OneByOne.apply(input, weight, bias, tuple(stride), tuple(dilation), window)
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


#: The widest rows of a norm that a kernel of ours takes.
WIDEST_NORM = 8192
#: Rows of a client that a kernel of ours takes at once; with more, the products of libraries are as good.
FEW_ROWS = 64


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(self.weight.shape[0], -1, self.in_features)
        if rows.is_cuda and rows.shape[1] <= FEW_ROWS and _has_triton():
            from cloister.networks.kernel_selection import client_linear, trusts_product

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
            from cloister.networks.convolutions import Geometry, client_conv2d
            from cloister.networks.kernel_selection import trusts_convolution

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
    #: Examples of a client in the call that is under way.
    examples = 0

    def forward(self, input: Tensor) -> Tensor:
        clients = self.weight.shape[0]
        if input.ndim > 1 and len(input) == 1:  # what all examples share, such as positions
            input = input.expand(clients * self.examples, *input.shape[1:])
        # A code beyond the table would read the next client's: it counts as the nearest there is.
        rows = input.reshape(clients, -1).clamp(0, self.num_embeddings - 1)
        shift = torch.arange(clients, device=input.device)[:, None] * self.num_embeddings
        out = F.embedding(rows + shift, self.weight.reshape(-1, self.embedding_dim))
        return out.reshape(*input.shape, self.embedding_dim)


class _Guarded(nn.Embedding):
    """One client's embedding in which a code beyond the table is the nearest there is, and stops nobody."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.clamp(0, self.num_embeddings - 1))


class _FrozenLinear(nn.Linear):
    """A frozen layer within one that runs for each client: a single product for the rows of all of them."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = _ForAll.apply(input, self.weight, self.bias)
        return out


class _ForAll(torch.autograd.Function):
    """Under `torch.vmap` torch adds a bias in a pass of its own, and copies what is computed for that."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.kind = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (weight,) = gradients, ctx.saved_tensors
        return (gradient @ weight.to(gradient.dtype)).to(ctx.kind), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return F.linear(inputs[0].movedim(in_dims[0] or 0, 0), *inputs[1:]), 0


class _LayerNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        with _as_given(input):
            out = F.layer_norm(input, self.normalized_shape, None, None, self.eps)
        return _affine(out, self.weight, self.bias)


class _GroupNorm(nn.GroupNorm):
    def forward(self, input: Tensor) -> Tensor:
        with _as_given(input):
            out = F.group_norm(input, self.num_groups, None, None, self.eps)
        return _affine(out.movedim(1, -1), self.weight, self.bias).movedim(-1, 1)


class _OneLayerNorm(nn.LayerNorm):
    """A layer norm of one client, or a frozen one."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = (None if w is None else w.to(input.dtype) for w in (self.weight, self.bias))
        with _as_given(input):
            if self._has_kernel(input):
                from cloister.networks.norm_kernel import frozen_norm, trusts_norm

                if trusts_norm(input.shape[-1], input.dtype, input.device, self.eps):
                    return frozen_norm(input, weight, bias, self.eps)
            return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    def _has_kernel(self, input: Tensor) -> bool:
        """Say whether it is frozen, and recorded as it is: compilers fuse norms with what is beside them."""
        frozen = self.bias is not None and not (self.weight.requires_grad or self.bias.requires_grad)
        short = input.dtype in (torch.bfloat16, torch.float32) and input.shape[-1] <= WIDEST_NORM
        fits = tuple(input.shape[-1:]) == self.normalized_shape and not is_functorch_wrapped_tensor(input)
        return input.is_cuda and frozen and short and fits and get_proxy_mode() is None and _has_triton()


def _as_given(input: Tensor) -> AbstractContextManager[Any]:
    """Let norms return 16 bits for 16, as all that follows takes them; they add in 32 in any case."""
    return torch.autocast(input.device.type, enabled=False)


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
    """Return a copy of a network with layers for stacked parameters, or None where it is one unknown layer.

    Parameter names stay as they are: call it with `torch.func.functional_call` and stacked tensors. Frozen
    layers stay too: they take the examples of all clients as those of one.
    """
    swapped = copied(net)
    if _swap(swapped, set()):
        return swapped
    return None


def call_swapped(net: nn.Module, parameters: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Return outputs (clients, n, ...) of swapped layers, with stacked parameters, on (clients, n, ...)."""
    for layer in net.modules():
        if isinstance(layer, _Embedding):
            layer.examples = rows.shape[1]
    found: Tensor = functional_call(net, parameters, (rows.flatten(0, 1),))
    return found.unflatten(0, rows.shape[:2])


def _swap(layer: nn.Module, seen: set[int]) -> bool:
    """Swap a layer and those inside it; return False, and leave it, where only all of it could be swapped."""
    if id(layer) in seen:  # a layer that is used in two places
        return True
    seen.add(id(layer))
    own = list(layer.parameters(recurse=False))
    if own and not any(parameter.requires_grad for parameter in own):
        _guard(layer)
    elif is_plain(layer):
        layer.__class__ = unrolled(layer)
    elif type(layer) in _SWAPS and _plain(layer):
        layer.__class__ = _SWAPS[type(layer)]
    elif own:
        return False
    for child in layer.children():
        if not _swap(child, seen):
            run_for_each_client(child, guard_layers(child))
    return True


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
    frozen = not any(p.requires_grad for p in layer.parameters(recurse=False))
    if type(layer) is nn.Linear and frozen:
        layer.__class__ = _FrozenLinear
    layer.__class__ = {nn.Embedding: _Guarded, nn.LayerNorm: _OneLayerNorm}.get(type(layer), type(layer))


def shorten_frozen(net: nn.Module) -> None:
    """Keep frozen parameters in bfloat16, as products take them, but those of layers with statistics."""
    for layer in net.modules():
        if not any(buffer.is_floating_point() for buffer in layer.buffers(recurse=False)):
            for parameter in layer.parameters(recurse=False):
                if not parameter.requires_grad and parameter.dtype == torch.float32:
                    parameter.data = parameter.data.bfloat16()


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
    scaled = rows * weight.to(out.dtype).reshape(clients, 1, 1, -1)
    if bias is not None:
        scaled = scaled + bias.to(out.dtype).reshape(clients, 1, 1, -1)
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
