"""Remark after Theorem 2, and objective (1): a fixed public relation between tasks other than the mean.

With Ω = (I - A)'(I - A) and a public A, task k is held near the sum of A_kl w_l over l; the mean is
A = 11'/m, clusters are blocks. Rows of A W are broadcast by a factorisation A = C B
with noise on B W. Sixty tasks lie on a ring; relations are the mean, six arcs, and the seven slowest waves.
Everyone is in each of 5 rounds and says its model, clipped to 1.5; any data in a task's place, δ = 1/m.
"Its method" has the noise of the mean whatever the relation, as the remark says; of clusters it also
applies the theorem within each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.errors import InputError
from cloister.privacy import tradeoff
from papers.figure import Cell, Claim, Data, Found, Options, Row, budget, by, digits, judge, mean, say
from papers.pictures import COLOURS, legend

NOT_COVERED = (
    "relations that are learned, which are no sum of messages; networks, and tasks that sit rounds out."
)
TASKS, ROWS, DIM, LAM, CLIP, ROUNDS, ARCS, WAVES = 60, 8, 10, 0.3, 1.5, 5, 6, 3
EPSILONS: tuple[float | None, ...] = (1.0, 4.0, 16.0, None)
DELTA = 1 / TASKS


@dataclass(frozen=True)
class FixedRelation:
    """A public m x m matrix A, as C B: who says what into which broadcast number, and who reads it how.

    Privacy
    -------
    The broadcast is B W with noise of one deviation s on every number. A task is one column of B: with
    models of length `clip` at most, other data move the broadcast by ``2 clip max|B_k|`` at most, which
    opposite models attain; a silent task by half of that. T rounds are Gaussian DP with mu = sqrt(T) times
    that over s.
    """

    send: Floats
    read: Floats

    @classmethod
    def of(cls, matrix: Floats) -> FixedRelation:
        """Split a matrix by its singular vectors, each half with the roots of the values."""
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError(f"A relation must be a square matrix. Got {matrix.shape}.")
        left, values, right = np.linalg.svd(matrix)
        kept = values > 1e-10 * values[0]
        roots = np.sqrt(values[kept])
        return cls(roots[:, None] * right[kept], left[:, kept] * roots)

    @property
    def loudest(self) -> float:
        """The longest column of B: how far a model of length 1 moves the broadcast."""
        return float(np.linalg.norm(self.send, axis=0).max())

    def deviation(self, epsilon: float, delta: float, rounds: int, clip: float) -> float:
        """Return the least noise on a broadcast number, if any data may stand in a task's place."""
        return math.sqrt(rounds) * 2 * clip * self.loudest / tradeoff.mu(epsilon, delta)

    def epsilon(self, deviation: float, delta: float, rounds: int, clip: float) -> float:
        """Return the price of so much noise."""
        return tradeoff.epsilon(math.sqrt(rounds) * 2 * clip * self.loudest / deviation, delta)

    def centres(self, models: Floats, clip: float, deviation: float, rng: np.random.Generator) -> Floats:
        """Clip models, broadcast them with noise, and return what each task makes of it."""
        lengths = np.linalg.norm(models, axis=1, keepdims=True)
        said = self.send @ (models / np.maximum(1.0, lengths / clip))
        return np.asarray(self.read @ (said + deviation * rng.standard_normal(said.shape)))


def relations() -> dict[str, FixedRelation]:
    """Return the mean, six arcs, and the ring without its fast waves."""
    arc = np.arange(TASKS) * ARCS // TASKS
    angle = 2 * np.pi * np.arange(TASKS) / TASKS
    waves = [np.ones(TASKS) / math.sqrt(2)]
    waves += [wave(k * angle) for k in range(1, WAVES + 1) for wave in (np.cos, np.sin)]
    basis = np.stack(waves) * math.sqrt(2 / TASKS)
    return {
        "mean": FixedRelation.of(np.full((TASKS, TASKS), 1 / TASKS)),
        "arcs": FixedRelation.of((arc[:, None] == arc) * (ARCS / TASKS)),
        "ring": FixedRelation.of(basis.T @ basis),
    }


def drawn(seed: int) -> tuple[Floats, Floats, Floats]:
    """Draw rows and targets of tasks on a ring, and their true weights."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(TASKS) / TASKS
    parts = rng.standard_normal((3, DIM)) / math.sqrt(3 * DIM)
    weights = (
        np.stack([np.ones(TASKS), math.sqrt(2) * np.cos(angle), math.sqrt(2) * np.sin(angle)], 1) @ parts
    )
    weights += 0.1 * rng.standard_normal(weights.shape) / math.sqrt(DIM)
    X = rng.standard_normal((TASKS, ROWS, DIM))
    return X, np.einsum("knd,kd->kn", X, weights) + 0.5 * rng.standard_normal((TASKS, ROWS)), weights


def sums(X: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return X'X/n and X'y/n of every task."""
    return X.swapaxes(1, 2) @ X / ROWS, np.einsum("knd,kn->kd", X, y) / ROWS


def trained(X: Floats, y: Floats, relation: FixedRelation, deviation: float, seed: int) -> Floats:
    """Return all models after the last round: each solves its own rows with a pull to its centre."""
    rng, (gram, cross) = np.random.default_rng([seed, 1]), sums(X, y)
    centres = np.zeros((TASKS, DIM))
    for _ in range(ROUNDS):
        models = np.linalg.solve(gram + LAM * np.eye(DIM), (cross + LAM * centres)[..., None])[..., 0]
        centres = relation.centres(models, CLIP, deviation, rng)
    return np.asarray(np.linalg.solve(gram + LAM * np.eye(DIM), (cross + LAM * centres)[..., None])[..., 0])


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=100, quick=5)
    return [{"epsilon": epsilon, "seed": seed} for seed in seeds for epsilon in EPSILONS]


def measure(cell: Cell, options: Options) -> dict[str, float]:
    """Return squared distances from the true weights, over those of learning alone with no pull at all."""
    X, y, weights = drawn(cell["seed"])
    error = lambda models: float(np.square(models - weights).sum(axis=1).mean())  # noqa: E731
    gram, cross = sums(X, y)
    found = {
        "alone": min(
            error(np.linalg.solve(gram + lam * np.eye(DIM), cross[..., None])[..., 0]) for lam in RIDGES
        )
    }
    for name, relation in relations().items():
        noise = 0.0 if cell["epsilon"] is None else relation.deviation(cell["epsilon"], DELTA, ROUNDS, CLIP)
        found[name] = error(trained(X, y, relation, noise, cell["seed"]))
    return found


#: Of learning alone; the best in hindsight.
RIDGES = (0.03, 0.1, 0.3, 1.0)


def summarise(found: Found) -> Data:
    data: Data = {}
    for (epsilon,), values in by(found, "epsilon").items():
        for name in values[0]:
            data[f"{budget(epsilon)}, {name}"] = mean([value[name] for value in values])
    there = relations()
    kept = there["mean"].deviation(1.0, DELTA, ROUNDS, CLIP) * float(np.abs(there["mean"].read).max())
    data["price"] = {}
    for name, relation in there.items():  # noise as it is on the mean, on every centre, each broadcast once
        centres = np.unique((relation.read @ relation.send).round(9), axis=0)
        moves = float(np.linalg.norm(centres, axis=0).max())
        mu = math.sqrt(ROUNDS) * 2 * CLIP * moves / kept
        data["price"][name] = digits(tradeoff.epsilon(mu, DELTA), 4)
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = [
        (
            f"squared error, {budget(epsilon)}, {name}",
            "",
            "",
            say(data[f"{budget(epsilon)}, {name}"], ".3f"),
            "",
        )
        for epsilon in EPSILONS
        for name in ("alone", "mean", "arcs", "ring")
    ]
    for name, price in data["price"].items():
        rows.append((f"{name}, with the mean's noise on every centre", "", "ε = 1", f"ε = {price:.3g}", ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    axes = figure.subplots()
    whose = {"alone": "alone", "mean": "paper", "arcs": "other", "ring": "ours"}
    labels = {
        "alone": "alone",
        "mean": "the mean of all",
        "arcs": "six arcs",
        "ring": "the ring's slow waves",
    }
    for place, (name, colour) in enumerate(whose.items()):
        points = [data[f"{budget(epsilon)}, {name}"] for epsilon in EPSILONS]
        x = np.arange(len(EPSILONS)) + 0.2 * (place - 1.5)
        heights, errors = zip(*points, strict=True)
        axes.bar(x, heights, 0.2, yerr=errors, color=COLOURS[colour], label=labels[name])
    axes.set_xticks(range(len(EPSILONS)), [budget(epsilon) for epsilon in EPSILONS])
    axes.set(ylabel="squared distance from true weights")
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    prices = data["price"]
    told = ", ".join(f"{name} {price:.3g}" for name, price in prices.items())
    best = [min(("mean", "arcs", "ring"), key=lambda name: data[f"{budget(e)}, {name}"][0]) for e in EPSILONS]
    return [
        Claim(
            "Remark: with any fixed relation, and the noise kept, the guarantee stays (ε = 1)",
            "ε = 1",
            None,
            judge([price <= 1.0001 for price in prices.values()], told),
        ),
        Claim(
            "is a relation that fits the tasks worth more than the mean?",
            "",
            None,
            judge(
                [name != "mean" for name in best],
                ", ".join(f"{n} at {budget(e)}" for n, e in zip(best, EPSILONS, strict=True)),
            ),
            asked=True,
        ),
    ]


def finding(data: Data) -> str:
    quiet = {name: data[f"no noise, {name}"][0] for name in ("alone", "mean", "ring")}
    return (
        f"Without noise the ring's own relation has {quiet['ring']:.3f}, the mean {quiet['mean']:.3f} and "
        f"learning alone {quiet['alone']:.3f}. Its price depends on the relation: the noise that gives the "
        f"mean ε = 1 gives the ring {data['price']['ring']:.2g}."
    )
