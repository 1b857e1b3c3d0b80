"""How fast a round of many neural clients is: from a plain nn.Module, clipping and noise included.

With ``--device cuda``: 100 clients of 200 images each train the CNN of the PMTL paper (115,646 parameters)
for one epoch of batches of 10, in TF32 and in bfloat16, with exact noise and with floats, beside plain
PyTorch, one client after another, and pfl-research where it is importable; then 10,000 clients. On a
processor: a smaller round of the same network, and 200 clients of a linear model on 784 features, with exact
noise and with floats. A round's time is the median over rounds, from release to release. All are measured in
turns, again and again: a time is the median over turns, and a ratio the median of the ratios within a turn.
"""

from __future__ import annotations

import math
import time
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.peers import Times, in_turns, one_after_another, pfl_research
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms.federated import FedAvg
from cloister.learners.descent import Descent
from cloister.mechanisms import Gaussian
from cloister.networks.batched import Batched
from cloister.networks.module import Module

NAME = "clients"
PATHS = (
    "src/cloister/networks/batched.py",
    "src/cloister/networks/placement.py",
    "src/cloister/networks/card_noise.py",
    "src/cloister/networks",
)
LR = 0.05

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]


def cnn(first: int = 32, second: int = 64, classes: int = 62) -> nn.Module:
    """Return the network of the PMTL paper's FEMNIST experiments."""
    return nn.Sequential(
        nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * second, classes),
    )  # fmt: skip


def images(clients: int, rows: int, shape: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.random((clients, rows, *shape), dtype=np.float32)
    return X, rng.integers(0, classes, (clients, rows))


def round_seconds(
    net: nn.Module,
    X: np.ndarray,
    y: np.ndarray,
    batch: int,
    rounds: int,
    engine: Batched,
    exact: bool = False,
) -> float:
    """Return the median time from release to release, the first few left out."""
    clients, rows = y.shape
    tasks = Tasks.from_arrays(X.reshape(-1, *X.shape[2:]), y.reshape(-1), np.repeat(np.arange(clients), rows))
    algorithm = FedAvg(Module(net), Descent(LR, batch=batch, epochs=1), clip=1.0, rounds=rounds)
    plan = Plan(algorithm, Gaussian(exact=exact), n_tasks=clients).calibrate(8.0)
    stamps: list[float] = []
    run_plan(plan, tasks, engine=engine, progress=lambda posted: stamps.append(time.perf_counter()))
    return float(np.median(np.diff(stamps)[1:]))


def ratio(times: Times, one: str, other: str) -> float:
    return float(np.median(times[one] / times[other]))


def run_cuda(quick: bool) -> tuple[Figures, Targets, list[list[str]]]:
    torch.manual_seed(0)
    net = cnn()
    X, y = images(100, 200, (1, 28, 28), 62)
    engines = {"tf32": Batched("cuda", tf32=True), "bf16": Batched("cuda", bf16=True)}
    ours = partial(round_seconds, net, X, y, 10, 10 if quick else 20)
    times = in_turns(
        {
            "tf32": partial(ours, engines["tf32"], True),
            "tf32_float": partial(ours, engines["tf32"], False),
            "bf16": partial(ours, engines["bf16"], True),
            "bf16_float": partial(ours, engines["bf16"], False),
            "sequential": partial(one_after_another, net, X, y, 10, LR, "cuda", 3 if quick else 10),
            "pfl": partial(pfl_research, net, X, y, 10, LR, 3),
        },
        turns=2 if quick else 3,
    )
    figures: Figures = {}
    for name in engines:
        figures[f"{name}_ms"] = 1e3 * float(np.median(times[name]))
        figures[f"{name}_float_ms"] = 1e3 * float(np.median(times[f"{name}_float"]))
        extra = float(np.median(times[name] - times[f"{name}_float"]))
        figures[f"exact_extra_{name}_ms"] = 1e3 * extra
    figures["sequential_over_bf16"] = ratio(times, "sequential", "bf16")
    if "pfl" in times:
        figures["pfl_ms"] = 1e3 * float(np.median(times["pfl"]))
        figures["pfl_over_bf16"] = ratio(times, "pfl", "bf16")
        figures["pfl_over_bf16_least"] = float(np.min(times["pfl"] / times["bf16"]))
        figures["pfl_over_bf16_most"] = float(np.max(times["pfl"] / times["bf16"]))
        figures["pfl_over_tf32"] = ratio(times, "pfl", "tf32")
    if not quick:
        many = images(10_000, 200, (1, 28, 28), 62)
        figures["bf16_ms_10000"] = 1e3 * round_seconds(net, *many, 10, 4, engines["bf16"], exact=True)
        figures["slope"] = math.log10(figures["bf16_ms_10000"] / figures["bf16_ms"]) / 2
    targets: Targets = {
        "tf32_ms": ("<=", 15.0),
        "bf16_ms": ("<=", 10.0),
        "bf16_float_ms": ("<=", 8.0),
        "exact_extra_tf32_ms": ("<=", 2.0),
        "exact_extra_bf16_ms": ("<=", 2.0),
        "pfl_over_bf16": (">=", 400.0),
        "slope": ("<=", 1.0),
    }
    rows = [["figure", "value"], *([name, f"{value:.4g}"] for name, value in figures.items())]
    return figures, targets, rows


def run_cpu(quick: bool) -> tuple[Figures, Targets, list[list[str]]]:
    torch.manual_seed(0)
    figures: Figures = {}
    rows = [["network", "clients", "cloister, ms", "with floats, ms", "pfl-research, ms", "one by one, ms"]]
    jobs = {
        "cnn": (cnn(), images(10 if quick else 40, 60, (1, 28, 28), 62), 5),
        "linear": (nn.Linear(784, 10), images(200, 60, (784,), 10), 12),
    }
    for name, (net, (X, y), rounds) in jobs.items():
        ours = partial(round_seconds, net, X, y, 10, rounds, Batched("cpu"))
        times = in_turns(
            {
                "exact": partial(ours, True),
                "floats": partial(ours, False),
                "sequential": partial(one_after_another, net, X, y, 10, LR, "cpu", min(len(X) - 1, 20)),
                "pfl": partial(pfl_research, net, X, y, 10, LR, 3),
            },
            turns=2 if quick else 5,
        )
        figures[f"{name}_ms"] = 1e3 * float(np.median(times["exact"]))
        figures[f"exact_over_float_{name}"] = ratio(times, "exact", "floats")
        figures[f"sequential_over_{name}"] = ratio(times, "sequential", "exact")
        shown = {one: f"{1e3 * float(np.median(found)):.0f}" for one, found in times.items()}
        if "pfl" in times:
            figures[f"pfl_over_{name}"] = ratio(times, "pfl", "exact")
        cells = (shown.get(one, "not installed") for one in ("exact", "floats", "pfl", "sequential"))
        rows.append([name, str(len(X)), *cells])
    targets: Targets = {
        "pfl_over_cnn": (">=", 1.3),
        "pfl_over_linear": (">=", 10.0),
        "exact_over_float_cnn": ("<=", 1.05),
        "exact_over_float_linear": ("<=", 1.05),
    }
    return figures, targets, rows


def run(quick: bool, device: str) -> tuple[Figures, Targets, list[list[str]]]:
    return run_cuda(quick) if device.startswith("cuda") else run_cpu(quick)
