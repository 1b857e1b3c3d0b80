"""Kernels are tried before they are used, on the shapes they are for: they must find what torch finds.

What a card computes depends on compilers and assemblers as well, and these err. So a kernel is given small
whole numbers first: their products and sums are exact in every precision, hence a kernel's outputs and
gradients are those of torch in 64 bits, to the bit, or the kernel is wrong for these shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

#: Clients that a kernel is tried with, up to which numbers, and the examples that torch takes at once.
CLIENTS, LARGEST, TOGETHER = 2, 2, 64

Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Trial:
    """What a kernel is tried on.

    Attributes
    ----------
    examples : tuple of int
        Shape of the examples of one client, how many first.
    weight : tuple of int
        Shape of the weights of one client, its features first.
    biased : bool
        Whether there is a bias.
    given, computed : torch.dtype
        In what numbers examples come, and in what numbers the kernel computes; weights come in 32 bits.
    of_examples, of_weight : bool
        Which gradients will be asked for.
    device : torch.device
        Where.
    """

    examples: tuple[int, ...]
    weight: tuple[int, ...]
    biased: bool
    given: torch.dtype
    computed: torch.dtype
    of_examples: bool
    of_weight: bool
    device: torch.device


def agrees(kernel: Layer, plain: Layer, trial: Trial) -> bool:
    """Say whether a kernel for many clients finds what a layer of torch's finds for each.

    Parameters
    ----------
    kernel : callable
        Takes the examples of all clients, one client after another, and weights and bias of each.
    plain : callable
        Takes those of one client.
    trial : Trial
        The shapes.

    Examples
    --------
    >>> trial = Trial((3, 4), (2, 4), True, *[torch.float32] * 2, True, True, torch.device("cpu"))
    >>> plain = torch.nn.functional.linear
    >>> right = lambda x, w, b: (x.unflatten(0, (2, 3)) @ w.mT + b[:, None]).flatten(0, 1)
    >>> agrees(right, plain, trial), agrees(lambda x, w, b: right(x, w.flip(0), b), plain, trial)
    (True, False)
    """
    whole = _drawn(trial)
    kinds, learns = (trial.given, torch.float32, torch.float32), (trial.of_examples, *[trial.of_weight] * 2)
    inputs = [
        None if w is None else w.to(k).requires_grad_(g) for w, k, g in zip(whole, kinds, learns, strict=True)
    ]
    asked = [at for at, tensor in enumerate(inputs) if tensor is not None and tensor.requires_grad]
    with torch.set_grad_enabled(bool(asked)):
        found = kernel(*inputs)  # type: ignore[arg-type]
    slope = _whole(tuple(found.shape), trial.device, seed=0)
    gradients = _gradients(found, [inputs[at] for at in asked], slope)
    right = [torch.zeros_like(gradient, dtype=torch.float64) for gradient in gradients]
    for client, rows in _parts(trial.examples[0]):
        place: tuple[slice | int, ...] = (rows, client, client)
        own = [
            None if w is None else w[at].double().requires_grad_(g)
            for w, at, g in zip(whole, place, learns, strict=True)
        ]
        with torch.set_grad_enabled(bool(asked)), torch.autocast(trial.device.type, enabled=False):
            expected = plain(*own)  # type: ignore[arg-type]
        if not torch.equal(found[rows], expected.to(trial.computed).to(found.dtype)):
            return False
        parts = _gradients(expected, [own[at] for at in asked], slope[rows])
        for total, at, part in zip(right, asked, parts, strict=True):
            total[place[at]] += part
    rounded = (trial.computed, trial.computed, torch.float32)  # biases are added up in 32 bits
    return all(
        torch.equal(one, two.to(rounded[at]).to(one.dtype))
        for one, two, at in zip(gradients, right, asked, strict=True)
    )


def _drawn(trial: Trial) -> tuple[Tensor, Tensor, Tensor | None]:
    each, *example = trial.examples
    x = _whole((CLIENTS * each, *example), trial.device, seed=1)
    w = _whole((CLIENTS, *trial.weight), trial.device, seed=2)
    b = _whole((CLIENTS, trial.weight[0]), trial.device, seed=3) if trial.biased else None
    return x, w, b


def _whole(shape: tuple[int, ...], device: torch.device, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-LARGEST, LARGEST + 1, shape, generator=draw, dtype=torch.int8).to(device)


def _gradients(out: Tensor, inputs: Sequence[Tensor | None], slope: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, inputs, slope.to(out.dtype)) if inputs else ()  # type: ignore[arg-type]


def _parts(each: int) -> Iterator[tuple[int, slice]]:
    """Cut all clients' examples into pieces of one client each."""
    for client, start in product(range(CLIENTS), range(0, each, TOGETHER)):
        yield client, slice(client * each + start, client * each + min(each, start + TOGETHER))
