"""Networks of common shapes: a round of 100 clients beside plain PyTorch and torch.vmap, in one run.

Convolutions of 3 by 3 with padding and stride, with GroupNorm and pooling, a transformer's block and an LSTM:
one epoch of 60 examples in batches of 10, in TF32. Ours is from release to release, clipping and exact noise
included; plain PyTorch is clients one after another, and ``torch.vmap`` of their gradients all at once, both
without either. On a processor (``--device cpu``) there are 10 clients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.clients import Figures, Targets, images, round_seconds
from benchmarks.peers import by_vmap, one_after_another
from cloister.networks.batched import Batched

NAME = "shapes"
PATHS = (
    "src/cloister/networks/batched.py",
    "src/cloister/networks/placement.py",
    "src/cloister/networks/card_noise.py",
    "src/cloister/networks",
)
LR, BATCH, ROWS, CLASSES = 0.05, 10, 60, 62
TOKENS, WIDTH = 16, 32


class Transformer(nn.Module):
    """One block on sequences of vectors, and a linear layer on the mean of what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(WIDTH, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.lift(x)).mean(1))


class Recurrent(nn.Module):
    """An LSTM, and a linear layer on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 64, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 49, CLASSES),
    )  # fmt: skip


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, CLASSES),
    )  # fmt: skip


NETWORKS = {
    "strided": (strided, (1, 28, 28)),
    "group_norm": (normalised, (1, 28, 28)),
    "transformer": (Transformer, (TOKENS, WIDTH)),
    "lstm": (Recurrent, (TOKENS, WIDTH)),
}


def run(quick: bool, device: str) -> tuple[Figures, Targets, list[list[str]]]:
    figures: Figures = {}
    targets: Targets = {}
    card = device.startswith("cuda")
    rows = [["network", "cloister, ms", "one after another, ms", "torch.vmap, ms"]]
    for name, (build, shape) in NETWORKS.items():
        torch.manual_seed(0)
        net, (X, y) = build(), images(100 if card else 10, ROWS, shape, CLASSES)
        engine = Batched(device, tf32=card)
        ours = round_seconds(net, X, y, BATCH, 8 if quick else 15, engine, exact=True)
        alone = one_after_another(net, X, y, BATCH, LR, device, 3 if quick else 5)
        beside = by_vmap(net, X, y, BATCH, LR, device, 2 if quick else 3)
        figures[f"{name}_ms"] = 1e3 * ours
        figures[f"sequential_over_{name}"] = alone / ours
        targets[f"sequential_over_{name}"] = (">=", 10.0 if card else 1.0)
        if beside is not None:
            figures[f"vmap_over_{name}"] = beside / ours
            targets[f"vmap_over_{name}"] = (">=", 1.0)
        shown = "it cannot" if beside is None else f"{1e3 * beside:.1f}"
        rows.append([name, f"{1e3 * ours:.1f}", f"{1e3 * alone:.1f}", shown])
        print(*(f"{key} {value}" for key, value in zip(rows[0], rows[-1], strict=True)), sep="; ", flush=True)
    return figures, targets, rows
