"""Theorem 3: how fast mean-regularised learning converges under its noise.

Left: what (61) allows, a' = a - c a'² + γ with c = 0.05, γ = 0.06 and a = 5 at first, against (62), (3/(2c)
+ a) / t + γ; the fixed point is √(γ/c), not γ. Right: DPMTL with E = 1 and η = 1/(L + λ) on tasks of 20
rows and 10 features around a common mean, δ = 1e-5, ε = 1 for 100 to 1600 tasks, and ε from 1/4 to 4 for
400: the mean of f_k(w; w̃) - f_k*, less what is left without noise, at the best of 1, 2, 4, ..., 256 rounds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.core.arrays import Floats
from cloister.engines import Local
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, NoNoise
from cloister.privacy import tradeoff
from papers.dpmtl.theorem_2 import stated_mu
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, digits, judge, mean
from papers.pictures import COLOURS, at, curve, legend

NOT_COVERED = (
    "λ₂, the weight of a plain ridge in (1), which the paper sets to 0; constants of the bound, which the "
    "paper does not print."
)
CURVE, GAMMA, FIRST, STEPS = 0.05, 0.06, 5.0, (1, 10, 100, 1000, 10_000, 100_000)
COUNTS, ROUNDS = (100, 200, 400, 800, 1600), (1, 2, 4, 8, 16, 32, 64, 128, 256)
EPSILONS, FEW = (0.25, 0.5, 1.0, 2.0, 4.0), 400
DIM, LAM, BALL, SMOOTH, DELTA = 10, 0.1, 1.5, 0.3, 1e-5
#: What the excess is drawn against: the key of a cell, and the key and value that are fixed.
AXES = {"tasks": ("epsilon", 1.0), "epsilon": ("tasks", FEW)}
NOISES = {"stated": "σ of Theorem 2", "needed": "σ that ε needs"}


def cells(options: Options) -> list[Cell]:
    step = 2 if options.quick else 1
    points = [*((m, 1.0) for m in COUNTS[::step]), *((FEW, epsilon) for epsilon in EPSILONS[::step])]
    runs = [
        {"part": "run", "seed": seed, "tasks": m, "epsilon": epsilon}
        for seed in options.replications(full=20, quick=2)
        for m, epsilon in dict.fromkeys(points)
    ]
    return [{"part": "recursion"}, *runs]


def recursion() -> dict[str, list[float]]:
    """Return the largest sequence that (61) allows, and the bound (62), at some steps."""
    value, allowed = FIRST, {1: FIRST}
    for t in range(2, STEPS[-1] + 1):
        value = (math.sqrt(1 + 4 * CURVE * (value + GAMMA)) - 1) / (2 * CURVE)
        if t in STEPS:
            allowed[t] = value
    bound = [(3 / (2 * CURVE) + FIRST) / t + GAMMA for t in STEPS]
    return {"allowed": [allowed[t] for t in STEPS], "bound": bound}


def drawn(seed: int, m: int) -> Tasks:
    """Draw tasks whose weights lie around a common mean; with unit rows smoothness is about a quarter."""
    rng = np.random.default_rng([seed, m])
    centre = rng.standard_normal(DIM) / math.sqrt(DIM)
    weights = centre + 0.2 * rng.standard_normal((m, DIM)) / math.sqrt(DIM)
    X = rng.standard_normal((m, 20, DIM))
    X /= np.linalg.norm(X, axis=2, keepdims=True)
    y = np.einsum("mnd,md->mn", X, weights) + 0.1 * rng.standard_normal((m, 20))
    return Tasks.from_list(list(X), list(y))


def losses(weights: Floats, tasks: Tasks) -> Floats:
    """Return every task's mean loss."""
    rows = np.einsum("nd,nd->n", tasks.X, np.repeat(weights, tasks.sizes, axis=0))
    return np.asarray(np.square(tasks.y - rows).reshape(len(tasks), -1).mean(axis=1) / 2)


def gap(tasks: Tasks, mechanism: Any, rounds: int, seed: int) -> float:
    """Return the mean over tasks of f_k(w_k; w̃) - f_k*, where f_k* is the least over both arguments."""
    algorithm = MeanRegularized(
        LeastSquares(DIM), lam=LAM, clip=BALL, rounds=rounds, steps=1, lr=1 / (SMOOTH + LAM)
    )
    plan = Plan(algorithm, mechanism, n_tasks=len(tasks), delta=DELTA)
    done = run(plan, tasks, random_state=seed, engine=Local(1))
    own, common = done.private.models["coef"], done.board.before(rounds)["mean"]
    least = np.stack(
        [np.linalg.lstsq(tasks.X[i : i + 20], tasks.y[i : i + 20])[0] for i in range(0, len(tasks.y), 20)]
    )
    pull = LAM / 2 * np.square(own - common).sum(axis=1)
    return float((losses(own, tasks) + pull - losses(least, tasks)).mean())


def measure(cell: Cell, options: Options) -> dict[str, list[float]]:
    if cell["part"] == "recursion":
        return recursion()
    tasks = drawn(cell["seed"], cell["tasks"])
    noises = {
        "stated": Gaussian(stated_mu(cell["epsilon"], DELTA)),
        "needed": Gaussian(tradeoff.mu(cell["epsilon"], DELTA)),
        "none": NoNoise(),
    }
    return {name: [gap(tasks, noise, t, cell["seed"]) for t in ROUNDS] for name, noise in noises.items()}


def summarise(found: Found) -> Data:
    """Return for each axis and noise the excess at each point, its best rounds, and the power."""
    data: Data = {"steps": list(STEPS)}
    data |= {name: [digits(v) for v in values] for name, values in found[0][1].items()}
    for axis, (fixed, value) in AXES.items():
        groups = by([(cell, one) for cell, one in found[1:] if cell[fixed] == value], axis)
        data[axis] = [point for (point,) in groups]
        for name in NOISES:
            excess, best = [], []
            for values in groups.values():
                place = int(np.mean([value[name] for value in values], axis=0).argmin())
                best.append(ROUNDS[place])
                excess.append(mean([value[name][place] - value["none"][-1] for value in values]))
            power = np.polyfit(np.log(data[axis]), np.log([value for value, _ in excess]), 1)[0]
            data[f"{name}, {axis}"], data[f"{name}, {axis}, rounds"] = excess, best
            data[f"{name}, {axis}, power"] = digits(float(power), 3)
    most = [value["none"][-1] for cell, value in found[1:] if cell["tasks"] == max(data["tasks"])]
    return data | {"floor": digits(float(np.mean(most)))}


def table(data: Data) -> list[Row]:
    rows: list[Row] = [
        (f"what (61) allows after {t:,} steps", f"≤ {bound:.3g}", f"{allowed:.3g}", "", "")
        for t, bound, allowed in zip(data["steps"], data["bound"], data["allowed"], strict=True)
    ]
    for axis, symbol in (("tasks", "m"), ("epsilon", "ε")):
        for point, place in sorted((point, place) for place, point in enumerate(data[axis])):
            stated, needed = (
                "{:.2g} ± {:.1g} (T = {})".format(
                    *data[f"{name}, {axis}"][place], data[f"{name}, {axis}, rounds"][place]
                )
                for name in NOISES
            )
            rows.append((f"excess at {symbol} = {point:g}", "", stated, needed, ""))
        stated, needed = (f"{data[f'{name}, {axis}, power']:.2f}" for name in NOISES)
        rows.append((f"power of {symbol}", "≤ -1", stated, needed, ""))
    return [*rows, ("what stays without noise, most tasks", "order λB²", f"{data['floor']:.2g}", "", "")]


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(9.0, 3.2)
    left, *others = figure.subplots(1, 3)
    left.plot(data["steps"], data["allowed"], "-o", color=COLOURS["alone"], label="what (61) allows")
    left.plot(data["steps"], data["bound"], "--s", color=COLOURS["other"], label="what (62) says")
    left.set(xscale="log", yscale="log", xlabel="t", ylabel="distance from the optimum")
    for axes, axis in zip(others, AXES, strict=True):
        for (name, label), whose in zip(NOISES.items(), ("paper", "repaired"), strict=True):
            points = sorted(zip(data[axis], data[f"{name}, {axis}"], strict=True))
            curve(axes, [x for x, _ in points], [y for _, y in points], label, whose)
        axes.set(yscale="log", xlabel="tasks, ε = 1" if axis == "tasks" else f"ε, {FEW} tasks")
        at(axes, data[axis])
    others[0].set(ylabel="excess due to noise, best T")
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    def rate(how: str) -> Outcome:
        tasks, epsilon = (data[f"{how}, {axis}, power"] for axis in AXES)
        return judge([tasks <= -0.9, epsilon <= -0.9], f"m to the {tasks:.2f}, ε to the {epsilon:.2f}")

    allowed, bound = data["allowed"][-1], data["bound"][-1]
    return [
        Claim(
            "Theorem 3: at the best number of rounds the part that goes with noise is of order 1/(εm)",
            "power -1",
            rate("stated"),
            rate("needed"),
        ),
        Claim(
            "Theorem 3, its proof: (62) follows from (61)",
            f"{bound:.3f} after {data['steps'][-1]:,} steps",
            judge([allowed <= bound], f"(61) allows {allowed:.3f}"),
        ),
    ]


def finding(data: Data) -> str:
    tasks, epsilon = (data[f"stated, {axis}, power"] for axis in AXES)
    return (
        f"On these tasks the excess goes like m to the {tasks:.2f} and ε to the {epsilon:.2f}. The proof "
        f"does not hold: (61) allows a sequence that stays at {data['allowed'][-1]:.3f} where (62) says "
        f"{data['bound'][-1]:.3f}."
    )
