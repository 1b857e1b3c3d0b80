"""The figures of the PMTL paper on real writers: loss and price, accuracy over budgets, ways of fine-tuning.

Digits of MNIST by writer, 20 training images each, and PMTL's own part of FEMNIST. One public setting for all
methods and budgets; everyone takes part (Figure 2: Poisson sampling), relation `replace`, default delta,
exact noise. "alone" trains as many steps as a task of the others does. Every seed is another split, start and
noise. Seeds are added until about four minutes are over, unless they are named: `--seeds 3 4`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks import Figures, Table, Targets
from benchmarks.clients import cnn
from benchmarks.personal import load
from cloister import Tasks
from cloister.engines import Batched
from cloister.learners import Descent, Module
from cloister.learners.network.training import Precision, Trainer
from papers.pmtl.runs import Published, Setting, figure_2, figure_3, table_1, tunings

NAME = "pmtl"
SEEDS = range(5)
SECONDS = 200.0  # no further seed is begun if it would end later, so far as the last ones tell
LOCAL = Descent(0.1, batch=20, steps=10)  # at 0.2 networks that keep their own weights may die
TUNING = Descent(0.1, batch=20, steps=30)

Measured = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class Study:
    """A data set: classes, the panel of Figure 2, rounds of the other runs, and their budgets."""

    name: str
    classes: int
    panel: Published
    rounds: int
    clip: float
    epsilons: tuple[float, ...]
    tuned_at: tuple[float, ...]
    writers: int | None = None


STUDIES = (
    Study(
        "mnist20",
        classes=10,
        panel=Published(n_tasks=580, per_round=290, rounds=30, clip=0.4, sigma=0.01),
        rounds=15,
        clip=0.4,
        epsilons=(1.0, 2.0, math.inf),
        tuned_at=(1.0,),
    ),
    Study(
        "femnist",
        classes=62,
        panel=Published(n_tasks=189, per_round=92, rounds=50, clip=0.2, sigma=0.01),
        rounds=20,
        clip=0.4,
        epsilons=(2.0, 8.0, math.inf),
        tuned_at=(8.0,),
    ),
)


def smaller(study: Study) -> Study:
    """Return a study of few writers and rounds, to see that it works."""
    panel = replace(study.panel, n_tasks=24, per_round=12, rounds=4)
    return replace(study, panel=panel, rounds=2, epsilons=study.epsilons[-2:], writers=24)


def work(study: Study) -> tuple[int, float]:
    """Return how many runs and replays a seed makes, and how many images they train on, in millions."""
    n_tasks, step = study.panel.n_tasks, 20e-6
    runs = 3 * len(study.epsilons) + 1 + 2 * len(study.tuned_at)
    trained = runs * study.rounds * LOCAL.count(20) * n_tasks * step
    replays = (
        4 * len(study.tuned_at) * (study.rounds * LOCAL.count(20) + 2 * TUNING.count(20)) * n_tasks * step
    )
    panel = 2 * study.panel.rounds * study.panel.per_round * LOCAL.count(20) * step
    return runs + 8 * len(study.tuned_at) + 2, trained + replays + panel


def measure(study: Study, seed: int, device: str) -> Measured:
    """Yield the numbers of both figures and the table, of one seed."""
    train, test = (
        part if study.writers is None else part.select(range(study.writers))
        for part in load(study.name, seed)
    )
    torch.manual_seed(seed)
    net = cnn(8, 16, study.classes)
    plain = Module(net)
    learner = plain.on(Trainer(net, plain.loss, torch.device(device), Precision(tf32=True), compiled=False))
    engine = Batched(device, tf32=True, compiled=False)
    yield from panel_2(study, learner, train, seed, engine)
    setting = Setting(learner, LOCAL, clip=study.clip, rounds=study.rounds)
    third = figure_3(train, test, setting, epsilons=study.epsilons, seed=seed, engine=engine)
    for method, accuracy in third.accuracy.items():
        for epsilon, found, worst in zip(study.epsilons, accuracy, third.worst_decile[method], strict=True):
            if method != "alone" or math.isinf(epsilon):  # it spends nothing, and is the same at every budget
                at = "" if method == "alone" else f"_eps{epsilon:g}"
                yield f"fig3_{method}{at}", float(found[0])
                yield f"fig3_{method}{at}_worst_decile", float(worst[0])
    ways = tunings(TUNING)
    table = table_1(train, test, setting, ways, epsilons=study.tuned_at, seed=seed, engine=engine)
    for method, cells in (("mtl", table.mtl), ("fedavg", table.fedavg)):
        for way, row in zip(table.tunings, cells, strict=True):
            for epsilon, found in zip(study.tuned_at, row, strict=True):
                yield f"tab1_{method}_{way.replace(' ', '_')}_eps{epsilon:g}", float(found[0])


def panel_2(study: Study, learner: Module, train: Tasks, seed: int, engine: Batched) -> Measured:
    """Yield loss and price at the beginning, in the middle and at the end of the run of Figure 2."""
    plan = replace(study.panel, n_tasks=len(train)).plan(learner, LOCAL)
    found = figure_2(plan, train, points=3, seed=seed, engine=engine)
    for t, loss in zip(found.rounds, found.loss, strict=True):
        yield f"fig2_loss_after_{t}", float(loss)
    for reading, curve in found.epsilon.items():
        yield f"fig2_epsilon_{reading.replace(', ', '_')}", float(curve[-1])


def run(quick: bool, device: str, seeds: Sequence[int] | None = None) -> tuple[Figures, Targets, Table]:
    studies = [smaller(study) for study in STUDIES] if quick else list(STUDIES)
    runs, images = (sum(cost) for cost in zip(*map(work, studies), strict=True))
    say(f"a seed is {runs} runs and replays, which train on {images:.1f} million images")
    found: dict[str, list[float]] = {}
    begun, done = time.perf_counter(), 0
    for seed in seeds or (range(1) if quick else SEEDS):
        for study in studies:
            start = time.perf_counter()
            for name, value in measure(study, seed, device):
                found.setdefault(f"{study.name}_{name}", []).append(value)
                say(f"seed {seed}: {study.name} {name} {value:.4f}")
            say(f"seed {seed}: {study.name} took {time.perf_counter() - start:.0f} s")
        done += 1
        spent = time.perf_counter() - begun
        if seeds is None and spent * (done + 1) / done > SECONDS:
            break
    figures = {name: float(np.mean(values)) for name, values in found.items()}
    figures |= {"seeds": float(done), "seconds": time.perf_counter() - begun}
    rows = [["", "mean", "sd", "seeds"]]
    rows += [[name, f"{np.mean(v):.4f}", f"{np.std(v):.4f}", str(len(v))] for name, v in found.items()]
    return figures, {}, rows


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
