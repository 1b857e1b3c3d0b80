"""Rounds of steps on a graphics card: compiled once, recorded once, then replayed without the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


class Recorded:
    """A loop over static memory. Calling it copies its inputs there and replays the graphs.

    There are several, each of a few steps: while one runs, the next is handed over. Loops of other shapes may
    use the same `pool` of memory, as one runs at a time, and what it ends with is copied before the next.
    """

    def __init__(self, loop: Any, inputs: tuple[Tensor, ...], compile: bool, pool: Any) -> None:
        self.inputs = tuple(x.detach().to(loop.trainer.device, copy=True) for x in inputs)
        if compile:
            loop.step = compiled(loop.step)
            loop.draw = compiled(loop.draw)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loop(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graphs: list[torch.cuda.CUDAGraph] = []
        stages, result = loop.stages(*self.inputs), None
        while result is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = next(stages)
            self.graphs.append(graph)
        self.result: Tensor = result

    def __call__(self, *inputs: Tensor) -> Tensor:
        for static, given in zip(self.inputs, inputs, strict=True):
            static.copy_(given, non_blocking=True)
        for graph in self.graphs:
            graph.replay()
        return self.result.clone()


def compiled(function: Any) -> Any:
    """Trace a function, its gradients included, at its first call, and compile what was traced as a whole."""
    program: list[Any] = []

    def call(*inputs: Any) -> Any:
        flat, shape = pytree.tree_flatten(inputs)
        if not program:
            out_shape = pytree.tree_structure(function(*inputs))
            flattened = lambda *values: pytree.tree_leaves(function(*pytree.tree_unflatten(values, shape)))  # noqa: E731
            program[:] = [torch.compile(traced(flattened, flat), fullgraph=True, dynamic=False), out_shape]
        run, out_shape = program
        return pytree.tree_unflatten(run(*flat), out_shape)

    return call


def traced(function: Callable[..., Any], inputs: list[Any]) -> Any:
    """Return the program of a function on inputs like these.

    Some networks look at numbers to go a shorter way, and at none where tensors have none: their second
    chance. (transformers does so where a mask hides nothing.)
    """
    try:
        return make_fx(function)(*inputs)
    except RuntimeError:
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
