"""Adapters on a frozen body: a round of many clients beside plain PyTorch and torch.vmap, in one run.

The body has the shape of ViT-small (12 blocks of width 384, 65 tokens), its parameters frozen; told are
low-rank adapters of bare matrices on queries and values, and a head: 151,306 numbers. With ``--device cuda``
100 clients of 64 rows each train for one epoch of batches of 16, in bfloat16 and in TF32, from release to
release, clipping and exact noise included. The memory that was said beforehand is beside what was taken, and
a thousand clients go through the card in blocks. Plain PyTorch is clients one after another, and
``torch.vmap`` of their gradients all at once, both without clipping and noise. On a processor there are 8
clients of a body of two narrow blocks, in 32 bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.clients import LR, Figures, Targets, images
from benchmarks.peers import by_vmap, one_after_another
from cloister import Plan, Tasks
from cloister.algorithms.federated import FedAvg
from cloister.engines.run import run as run_plan
from cloister.learners.descent import Descent
from cloister.mechanisms import Gaussian
from cloister.networks.batched import Batched
from cloister.networks.module import Module

NAME = "adapters"
PATHS = ("src/cloister/networks",)
RANK, CLASSES = 8, 10
#: What the card can do in bfloat16, in operations a second: of dense products, as its maker says.
PEAK = 989e12


@dataclass(frozen=True)
class Shape:
    """A body, and how much its clients have."""

    width: int
    heads: int
    blocks: int
    tokens: int
    clients: int
    rows: int
    batch: int


CARD = Shape(width=384, heads=6, blocks=12, tokens=65, clients=100, rows=64, batch=16)
PROCESSOR = Shape(width=64, heads=4, blocks=2, tokens=17, clients=8, rows=32, batch=16)


class LowRank(nn.Module):
    """A frozen linear layer, and beside it a product of two thin matrices that starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.Parameter(0.02 * torch.randn(RANK, width))
        self.up = nn.Parameter(torch.zeros(width, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class Block(nn.Module):
    """Attention and two layers, each after a layer norm and beside a way past it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.value = LowRank(width), LowRank(width)
        self.key, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.before(x)
        parts = (layer(seen).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        found = F.scaled_dot_product_attention(*(part.transpose(-2, -3) for part in parts))
        x = x + self.out(found.transpose(-2, -3).flatten(-2))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class Body(nn.Module):
    """Blocks on sequences of vectors, and a head on what they make of the first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(shape.width, shape.heads) for _ in range(shape.blocks)))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, CLASSES)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith("head") or name.endswith((".down", ".up")))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x))[:, 0])


def operations(net: nn.Module, shape: Shape) -> float:
    """Return what products of frozen weights take in a round: forward, and backward to what is before."""
    frozen = sum(p.numel() for p in net.parameters() if p.ndim == 2 and not p.requires_grad)
    return 4.0 * frozen * shape.clients * shape.rows * shape.tokens


def begun(net: nn.Module, X: np.ndarray, y: np.ndarray, batch: int, rounds: int) -> tuple[Plan, Tasks]:
    """Return what is run."""
    clients, rows = y.shape
    tasks = Tasks.from_arrays(X.reshape(-1, *X.shape[2:]), y.reshape(-1), np.repeat(np.arange(clients), rows))
    algorithm = FedAvg(Module(net), Descent(LR, batch=batch, epochs=1), clip=1.0, rounds=rounds)
    return Plan(algorithm, Gaussian(), n_tasks=clients).calibrate(8.0), tasks


def seconds(plan: Plan, tasks: Tasks, engine: Batched) -> tuple[float, float]:
    """Return a run's seconds until its first release, and the median from release to release."""
    stamps = [time.perf_counter()]
    run_plan(plan, tasks, engine=engine, progress=lambda posted: stamps.append(time.perf_counter()))
    apart = np.diff(stamps)
    return float(apart[0]), float(np.median(apart[2:]))


def of_card(net: nn.Module, X: np.ndarray, y: np.ndarray, shape: Shape, rounds: int, device: str) -> Figures:
    """Return what is measured on a card alone: two precisions, memory, and many clients."""
    figures: Figures = {}
    ways = {"bf16": Batched(device, bf16=True), "tf32": Batched(device, tf32=True)}
    given = begun(net, X, y, shape.batch, rounds)
    for name, engine in ways.items():
        torch.cuda.reset_peak_memory_stats()
        figures[f"{name}_first_s"], figures[f"{name}_s"] = seconds(*given, engine)
        figures[f"{name}_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        figures[f"{name}_said_gb"] = engine.footprint(*given).peak_bytes / 1e9
    figures["bf16_first_again_s"], _ = seconds(*given, ways["bf16"])
    many = begun(net, np.concatenate([X] * 10), np.concatenate([y] * 10), shape.batch, 4)
    _, figures["bf16_1000_clients_s"] = seconds(*many, ways["bf16"])
    figures["bf16_share_of_peak"] = operations(net, shape) / figures["bf16_s"] / PEAK
    return figures


def run(quick: bool, device: str) -> tuple[Figures, Targets, list[list[str]]]:
    card = device.startswith("cuda")
    shape, rounds = CARD if card else PROCESSOR, 5 if quick else 8
    torch.manual_seed(0)
    net, (X, y) = Body(shape), images(shape.clients, shape.rows, (shape.tokens, shape.width), CLASSES)
    first, targets = "bf16" if card else "float", TARGETS if card else {"sequential_over_float": (">=", 1.0)}
    if card:
        figures = of_card(net, X, y, shape, rounds, device)
    else:
        begins, lasts = seconds(*begun(net, X, y, shape.batch, rounds), Batched(device))
        figures = {"float_first_s": begins, "float_s": lasts}
    alone = one_after_another(net, X, y, shape.batch, LR, device, 3 if quick else 7, bf16=card)
    beside = by_vmap(net, X, y, shape.batch, LR, device, 2 if quick else 3, bf16=card)
    figures |= {"sequential_s": alone, f"sequential_over_{first}": alone / figures[f"{first}_s"]}
    if beside is not None:
        figures |= {"vmap_s": beside, f"vmap_over_{first}": beside / figures[f"{first}_s"]}
    rows = [["figure", "value"], *([name, f"{value:.4g}"] for name, value in figures.items())]
    return figures, targets, rows


TARGETS: Targets = {"bf16_s": ("<=", 0.2), "tf32_s": ("<=", 0.5), "bf16_first_s": ("<=", 15.0)}
