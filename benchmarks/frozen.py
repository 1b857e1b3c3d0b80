"""What a frozen, public body saves: the time of a run, and the numbers that a message has.

Clients of 20 images train the last layer of a network of three convolutional blocks, or an adapter before it,
or everything. Each plan is run with the body's features kept and with the body in every step, in turn, twice;
the shorter time counts. How far models with and without kept features are apart is told beside it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FineTuning
from cloister.engines import Batched
from cloister.engines.run import Run
from cloister.learners import Descent, Module, Quadratic
from cloister.mechanisms import Gaussian
from cloister.networks import body_features

NAME = "frozen"
PATHS = (
    "src/cloister/networks/batched.py",
    "src/cloister/networks",
)
WIDTH, FEATURES, CLASSES, ROWS = 16, 64, 10, 20

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]


def block(inputs: int, outputs: int, norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2))


class Adapter(nn.Module):
    """A frozen layer, and a trained one of rank 4 beside it that starts at zero."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(36 * WIDTH, 4, bias=False)
        self.up = nn.Linear(4, FEATURES, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Reader(nn.Module):
    """Three blocks, a layer of features, and a head."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        widths = [1, WIDTH, 2 * WIDTH, 4 * WIDTH]
        blocks = [block(one, two, norm(two)) for one, two in pairwise(widths)]
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.features: nn.Module = nn.Linear(9 * widths[-1], FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.features(self.body(x))))
        return out


def networks() -> dict[str, nn.Module]:
    """Return the network with its head, or an adapter and its head, to train; and with all of it."""
    torch.manual_seed(0)
    head = Reader(nn.BatchNorm2d).requires_grad_(False)
    head.head.requires_grad_(True)
    adapted = copy.deepcopy(head)
    adapted.features = Adapter(adapted.features)
    return {"head": head, "adapter": adapted, "everything": Reader(lambda width: nn.GroupNorm(4, width))}


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Let no features fit."""
    most, body_features.MOST_BYTES = body_features.MOST_BYTES, 0
    try:
        yield
    finally:
        body_features.MOST_BYTES = most


def timed(plan: Plan, tasks: Tasks, device: str) -> tuple[float, Run]:
    begun = time.perf_counter()
    done = run_plan(plan, tasks, random_state=0, engine=Batched(device))
    return time.perf_counter() - begun, done


def run(quick: bool, device: str) -> tuple[Figures, Targets, list[list[str]]]:
    clients, rounds = (20, 3) if quick else (100, 8)
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(clients), ROWS)
    X = rng.random((len(ids), 1, 28, 28), dtype=np.float32)
    tasks = Tasks.from_arrays(X, rng.integers(0, CLASSES, len(ids)), ids)
    figures: Figures = {}
    rows = [["trained", "a message", "kept, s", "not kept, s", "ratio", "models apart"]]
    for name, net in networks().items():
        tuning = FineTuning(Descent(0.1, batch=10, steps=20), Quadratic(0.1))
        algorithm = FedAvg(Module(net), Descent(0.1, batch=10, epochs=1), rounds=rounds, finetune=tuning)
        plan = Plan(algorithm, Gaussian(), n_tasks=clients).calibrate(8.0)
        kept, computed = [], []
        for _ in range(2):
            kept.append(timed(plan, tasks, device))
            with nothing_kept():
                computed += [timed(plan, tasks, device)] if name != "everything" else []
        figures[f"{name}_s"] = min(seconds for seconds, _ in kept)
        figures[f"{name}_numbers"] = plan.rounds[0].channels[0].dim
        shown = ["-"] * 3
        if computed:
            one, two = (found[0][1].private.models["coef"] for found in (kept, computed))
            figures[f"{name}_not_kept_s"] = min(seconds for seconds, _ in computed)
            figures[f"{name}_saves"] = figures[f"{name}_not_kept_s"] / figures[f"{name}_s"]
            figures[f"{name}_apart"] = float(np.abs(one - two).max())
            shown = [f"{figures[f'{name}_{what}']:.2g}" for what in ("not_kept_s", "saves", "apart")]
        rows.append([name, f"{figures[f'{name}_numbers']:g}", f"{figures[f'{name}_s']:.2g}", *shown])
    figures["everything_over_head"] = figures["everything_s"] / figures["head_s"]
    targets: Targets = {
        "head_saves": (">=", 3.0),
        "adapter_saves": (">=", 2.0),
        "head_apart": ("<=", 1e-5),
        "adapter_apart": ("<=", 1e-5),
    }
    return figures, targets, rows
