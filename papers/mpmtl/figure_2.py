"""Figure 2: what one anomalous task leaks to all others.

Ten tasks with five features and uniform weights, the last task's times 100; one step of Algorithm 2 with η
= 1, λ = 50, K = 100√5. Shown are cosines of the other models with the anomaly's. At such noise M is nearly
a multiple of the identity, so the "shared features" that the paper reads off are those of the initial
weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import LowRank
from cloister.core.arrays import Floats
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, NoNoise
from papers.figure import Cell, Claim, Data, Found, Options, Row, digits, judge, mean, say
from papers.mpmtl.wishart import PublishedWishart
from papers.pictures import COLOURS, legend

NOT_COVERED = (
    "whether useful features stay shared is in pictures of single draws only; here it is in how far "
    "models move."
)
DIM, TASKS, EPSILON = 5, 10, 0.1
ENDS = ("start", "leaked", "published", "repaired")


def cells(options: Options) -> list[Cell]:
    return [{"seed": seed} for seed in options.replications(full=100, quick=10)]


def weights(seed: int) -> Floats:
    """Return the models before anything is shared, a row a task."""
    drawn = np.random.default_rng(seed).uniform(size=(TASKS, DIM))
    drawn[-1] *= 100
    return drawn


def end(start: Floats, mechanism: Any, seed: int) -> Floats:
    """Return the models after one step of Algorithm 2."""
    algorithm = LowRank(LeastSquares(DIM), lam=50.0, clip=100 * math.sqrt(DIM), rounds=1, lr=1.0, warmup=1)
    plan = Plan(algorithm, mechanism, n_tasks=TASKS)
    plan = plan.calibrate(EPSILON) if isinstance(mechanism, Gaussian) else plan
    # Data on which one gradient step from zero finds exactly these weights.
    data = Tasks.from_list([math.sqrt(DIM) * np.eye(DIM)] * TASKS, list(math.sqrt(DIM) * start))
    found: Floats = run(plan, data, random_state=seed).private.models["coef"]
    return found


def measure(cell: Cell, options: Options) -> dict[str, list[float]]:
    start = weights(cell["seed"])
    noises = (NoNoise(), PublishedWishart((EPSILON,), DIM), Gaussian())
    ends = [start, *(end(start, noise, cell["seed"]) for noise in noises)]
    unit = [models / np.linalg.norm(models, axis=1, keepdims=True) for models in ends]
    return {name: (models[:-1] @ unit[0][-1]).tolist() for name, models in zip(ENDS, unit, strict=True)}


def summarise(found: Found) -> Data:
    data: Data = {name: mean([float(np.mean(value[name])) for _, value in found]) for name in ENDS}
    moved = [np.abs(np.subtract(value["repaired"], value["start"])).max() for _, value in found]
    data["largest change, repaired"] = digits(max(moved))
    data["first draw"] = {name: [digits(v, 3) for v in found[0][1][name]] for name in ENDS}
    return data


def table(data: Data) -> list[Row]:
    return [
        (
            "cosine with the anomaly, at the start",
            "",
            say(data["start"], ".3f"),
            say(data["start"], ".3f"),
            "",
        ),
        (
            "after one step without noise",
            "similar",
            say(data["leaked"], ".3f"),
            say(data["leaked"], ".3f"),
            "",
        ),
        ("at ε = 0.1", "not similar", say(data["published"], ".3f"), say(data["repaired"], ".3f"), ""),
    ]


def draw(data: Data, figure: Any) -> None:
    axes = figure.subplots()
    colours = ("alone", "no noise", "paper", "repaired")
    labels = ("at the start", "no noise", "published noise, ε = 0.1", "Gaussian noise, ε = 0.1")
    for place, (name, colour, label) in enumerate(zip(ENDS, colours, labels, strict=True)):
        x = np.arange(TASKS - 1) + 0.2 * (place - 1.5)
        axes.bar(x, data["first draw"][name], 0.2, color=COLOURS[colour], label=label)
    axes.set(xlabel="task (first draw)", ylabel="cosine with the anomaly", ylim=(0, 1.25))
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    start, leaked = data["start"][0], data["leaked"][0]
    near = {how: abs(data[how][0] - start) < 0.02 for how in ("published", "repaired")}
    moved = data["largest change, repaired"]
    told = {how: f"cosine {data[how][0]:.3f}, {start:.3f} at the start" for how in near}
    return [
        Claim(
            "Fig. 2 (b): without noise one task's weights change all others'",
            "",
            judge([leaked > 0.99], f"cosine with the anomaly {leaked:.3f}, {start:.3f} at the start"),
        ),
        Claim(
            "Fig. 2 (c): at ε = 0.1 its influence is not significant",
            "",
            judge([near["published"]], told["published"]),
            judge([near["repaired"]], told["repaired"]),
        ),
        Claim(
            "Fig. 2 (c): features that most tasks use are shared all the same",
            "",
            None,
            judge([moved > 0.02], f"no cosine moves by more than {moved:.3f}: nothing is shared"),
        ),
    ]


def finding(data: Data) -> str:
    return (
        "Without noise all models take on the anomaly's direction; with noise they stay what they were (no "
        f"cosine moves by more than {data['largest change, repaired']:.3f}). Nothing leaks because nothing "
        "is shared."
    )
