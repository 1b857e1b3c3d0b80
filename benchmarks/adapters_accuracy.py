"""What adapters on a public body are worth, told, at home or left out: mean test accuracy over writers.

The body has seen Omniglot alone (`python -m benchmarks body`). An adapter of rank 2 stands beside its last
layer, and a head on what comes out. *head* tells the head alone on features that stay as they are, *told*
tells the adapter as well, *at home* trains it and keeps it personal; each ends with fine-tuning at home.
*alone* tells nothing, of either. Everyone visible, relation replace, default delta, exact noise from a seed.
Step size, clip, rounds and an adapter's scale are chosen for each way and budget on another split of the
same writers (seed 100), from the same few for all, and then scored on splits of their own. An image is shown
once, where `frozen-accuracy` averages over nine views. On a processor there is FEMNIST alone. `--body FILE`
takes another body, `--seeds 2 3` other splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import Figures, Table, Targets
from benchmarks.body import BODY, SHARPNESS
from benchmarks.body import load as load_body
from benchmarks.frozen_accuracy import SETTINGS, on, with_rows
from benchmarks.personal import load, task_accuracies
from cloister import Plan, Tasks
from cloister import run as run_plan
from cloister.algorithms import FedAvg, FineTuning, LocalOnly, ServerAverage
from cloister.learners import Descent, Module, Quadratic
from harness.cells import Cells, Json

NAME = "adapters-accuracy"
DATA = ("femnist_pmtl_test.npz", "mnist_by_writer.npz", ".cache/omniglot_body.npz")
SEEDS, CHOOSING = range(5), 100
#: Images that the body takes at once.
AT_ONCE = 512
EPSILONS = (1.0, 2.0, 8.0)
RANK = 2
ADAPTERS = ("*.down.*", "*.up.*")
#: Ways of telling: whether there is an adapter, and what stays at home of it.
WAYS = {"head": (False, ()), "told": (True, ()), "at_home": (True, ADAPTERS)}


@dataclass(frozen=True)
class Choice:
    """What each way and budget chooses on the other split."""

    lr: float
    clip: float
    rounds: int


CHOICES = (Choice(0.1, 0.2, 3), Choice(0.1, 0.6, 3), Choice(0.1, 0.6, 8), Choice(0.03, 1.0, 8))
ALONE = tuple(Descent(lr, batch=20, steps=150) for lr in (0.01, 0.03, 0.1))
#: What adapters are multiplied by: with 1 they hardly move while a head learns.
SCALES = (1.0, 10.0, 100.0)
TUNING = FineTuning(Descent(0.03, batch=20, steps=60), Quadratic(0.5))


class Adapted(nn.Module):
    """A frozen layer, and beside it one of low rank that starts at zero."""

    def __init__(self, base: nn.Linear, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return out


class Scaled(nn.Module):
    """The direction of features, as long as they were when the body was trained."""

    def forward(self, features: Tensor) -> Tensor:
        return SHARPNESS * F.normalize(features, dim=1)


def network(last: nn.Linear, classes: int, scale: float | None) -> nn.Module:
    """Return the last layer of a body, frozen, with an adapter of this scale or none, and a head."""
    last.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the public start
        first = last if scale is None else Adapted(last, scale)
        head = nn.Linear(last.out_features, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(first, Scaled(), head)


@lru_cache(maxsize=2)
def seen(place: int, body: Path, device: str) -> dict[bytes, np.ndarray]:
    """Return what the body's other layers make of every image of a data set."""
    setting, layers = SETTINGS[place], load_body(body)[:-1].to(device)
    rows = np.concatenate([setting.ink(part).X for part in load(setting.name, CHOOSING)])
    found: dict[bytes, np.ndarray] = {}
    for at in range(0, len(rows), AT_ONCE):
        some = rows[at : at + AT_ONCE].astype(np.float32)
        with torch.no_grad():
            made = layers(torch.as_tensor(some.reshape(-1, 1, 28, 28), device=device)).cpu().numpy()
        found |= {image.tobytes(): features for image, features in zip(some, made, strict=True)}
    return found


def features(place: int, body: Path, device: str, seed: int) -> tuple[Tasks, Tasks]:
    """Return training and test rows of a split."""
    setting, known = SETTINGS[place], seen(place, body, device)
    parts = (setting.ink(part) for part in load(setting.name, seed))
    train, test = (
        with_rows(part, np.stack([known[x.astype(np.float32).tobytes()] for x in part.X])) for part in parts
    )
    return train, test


def scores(plan: Plan, parts: tuple[Tasks, Tasks], seed: int, device: str) -> np.ndarray:
    """Run a plan; return the accuracy of each task's model."""
    coef = run_plan(plan, parts[0], random_state=seed, engine=on(device)).private.models["coef"]
    return task_accuracies(plan.algorithm.learner, parts[1], device, coef)


def shared(learner: Module, choice: Choice, n_tasks: int, epsilon: float) -> Plan:
    local = Descent(choice.lr, batch=20, steps=10)
    algorithm = FedAvg(learner, local, choice.clip, choice.rounds, ServerAverage(2.0), TUNING)
    return Plan(algorithm, n_tasks=n_tasks).calibrate(epsilon)


@dataclass(frozen=True)
class Given:
    """Rows of each split, the body's last layer for them, and what is tried on the other split."""

    split: Callable[[int], tuple[Tasks, Tasks]]
    last: nn.Linear
    classes: int
    alone: Sequence[Descent] = ALONE
    choices: Sequence[Choice] = CHOICES
    scales: Sequence[float] = SCALES


def chosen(
    given: Given, way: str, epsilon: str, seeds: Sequence[int], device: str, quick: bool
) -> list[np.ndarray]:
    """Return each task's accuracy on each split, with the settings that do best on the other one."""
    (adapted, personal), first = WAYS[way.removeprefix("alone_")], slice(1 if quick else None)
    scales = given.scales[first] if adapted else (None,)
    nets = [network(given.last, given.classes, scale) for scale in scales]
    learners = [Module(net, personal=tuple(personal)) for net in nets]
    other = given.split(CHOOSING)
    count = len(other[0])
    if way.startswith("alone_"):
        solvers = given.alone[first]
        plans = [Plan(LocalOnly(own, solver), n_tasks=count) for own in learners for solver in solvers]
    else:
        tried = [(own, choice) for own in learners for choice in given.choices[first]]
        plans = [shared(own, choice, count, float(epsilon)) for own, choice in tried]
    best = max(plans, key=lambda plan: scores(plan, other, CHOOSING, device).mean())
    return [scores(best, given.split(seed), seed, device) for seed in seeds]


def measure(cell: Json) -> list[float]:
    """Return mean accuracies over writers on each split."""
    place, way, epsilon, seeds, body, device, quick = cell
    file = Path(body) if body else BODY
    last = load_body(file)[-1]
    assert isinstance(last, nn.Linear)
    given = Given(partial(features, place, file, device), last, SETTINGS[place].classes)
    return [float(each.mean()) for each in chosen(given, way, epsilon, seeds, device, quick)]


def run(
    quick: bool, device: str, cells: Cells, seeds: Sequence[int] | None = None, body: Path | None = None
) -> tuple[Figures, Targets, Table]:
    """Measure both data sets, or one on a processor; quickly, one split, without a choice."""
    splits = list(seeds or (range(1) if quick else SEEDS))
    ways = [("alone_head", ""), ("alone_told", "")]
    ways += [(way, f"{epsilon:g}") for way in WAYS for epsilon in EPSILONS[: 1 if quick else None]]
    count = len(SETTINGS) if device.startswith("cuda") and not quick else 1
    names = [(place, *way) for place in range(count) for way in ways]
    found = cells.measured(measure, [(*one, splits, str(body or ""), device, quick) for one in names])
    figures: Figures = {}
    rows = [["data", "way", "epsilon", "accuracy", "standard error"]]
    for (place, way, epsilon), values in zip(names, found, strict=True):
        name = SETTINGS[place].name
        figures["_".join(filter(None, (name, way, epsilon)))] = mean = float(np.mean(values))
        error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        rows.append([name, way.replace("_", " "), epsilon or "-", f"{mean:.4f}", f"{error:.4f}"])
    return figures, {}, rows
