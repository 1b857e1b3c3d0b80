r"""Meta-learning over a stream of tasks: how fast regret and excess risk fall, and what rounds do better.

`stream_rates` measures what Theorems 12 and 13 bound; `stream_against_rounds` compares a stream with rounds
that everyone is in, at one epsilon, when all may see who takes part. Envelopes of linear tasks are
quadratics, so that all of it is exact but for the data and the noise.

References
----------
X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022, appendix B (Algorithm
4, Theorems 12 to 14; where the paper has n for the length of the stream, it is the number of tasks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.tasks import Tasks
from cloister.datasets.synthetic import around_centres
from cloister.engines.run import Run
from cloister.privacy.mechanisms import Mechanism
from cloister.privacy.sampling import OnePass
from papers.meta.learning import FLOATING, SETTING, Draw, Setting, trained

__all__ = ["Comparison", "Envelopes", "Rate", "StreamRates", "stream_against_rounds", "stream_rates"]

one_centre: Draw = partial(around_centres, centres=1)


@dataclass(frozen=True, eq=False)
class Envelopes:
    r"""The envelopes of least-squares tasks, which are quadratics: :math:`\frac12 h'Ah - b'h + c`.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0]]], [[2.0]])
    >>> envelope = Envelopes.of(tasks, lam=1.0)  # min over w of (w - 2)^2 / 2 + (w - h)^2 / 2
    >>> envelope.values(np.array([0.0])).tolist(), envelope.minimiser().round(6).tolist()
    ([1.0], [2.0])
    """

    A: Floats
    b: Floats
    c: Floats

    @classmethod
    def of(cls, tasks: Tasks, lam: float) -> Envelopes:
        """Return the envelope of each task, in the order of the tasks."""
        dim, count = tasks.X.shape[1], len(tasks)
        A, b, c = np.empty((count, dim, dim)), np.empty((count, dim)), np.empty(count)
        layout = tasks.layout()
        for index, block in zip(layout, tasks.blocks(layout), strict=True):
            share = block.weight / block.weight.sum(axis=1, keepdims=True)
            gram = (block.X * share[..., None]).swapaxes(1, 2) @ block.X
            cross = np.einsum("kn,knd,kn->kd", share, block.X, block.y)
            inverse = np.linalg.inv(gram + lam * np.eye(dim))
            A[index] = lam * (np.eye(dim) - lam * inverse)
            b[index] = lam * np.einsum("kde,ke->kd", inverse, cross)
            fit = np.einsum("kd,kde,ke->k", cross, inverse, cross)
            c[index] = ((share * block.y**2).sum(axis=1) - fit) / 2
        return cls(A, b, c)

    def values(self, h: Floats) -> Floats:
        """Return every task's envelope, at one point or at a point of its own."""
        points = np.broadcast_to(h, self.b.shape)
        bend = np.einsum("kd,kde,ke->k", points, self.A, points) / 2
        return np.asarray(bend - (points * self.b).sum(axis=1) + self.c)

    def minimiser(self) -> Floats:
        """Return the point with the least mean."""
        return np.asarray(np.linalg.solve(self.A.sum(axis=0), self.b.sum(axis=0)))


@dataclass(frozen=True, eq=False)
class Rate:
    """What falls with the number of tasks: one row a seed, one column a number of tasks.

    The slope of its logarithm against that of the number of tasks is fitted seed by seed; the interval is
    that of their mean, at 95 %, by Student's t.
    """

    tasks: tuple[int, ...]
    values: Floats

    @property
    def means(self) -> Floats:
        """Means over seeds."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def slopes(self) -> Floats:
        """One slope a seed; values below zero count as tiny."""
        x = np.log(self.tasks) - np.mean(np.log(self.tasks))
        return np.asarray(np.log(np.maximum(self.values, 1e-12)) @ x / (x @ x))

    @property
    def slope(self) -> float:
        """Mean slope."""
        return float(self.slopes.mean())

    @property
    def half_width(self) -> float:
        """Half the width of its interval."""
        from scipy.stats import t

        count = len(self.slopes)
        return float(t.ppf(0.975, count - 1) * self.slopes.std(ddof=1) / math.sqrt(count))


@dataclass(frozen=True, eq=False)
class StreamRates:
    """Regret and excess risk of a stream."""

    regret: Rate
    excess: Rate


def stream_rates(
    counts: Sequence[int],
    epsilon: float,
    seeds: Sequence[int] = range(5),
    mechanism: Mechanism = FLOATING,
    setting: Setting = SETTING,
    draw: Draw = one_centre,
) -> StreamRates:
    r"""Return how regret and excess risk of `FTMRL` fall with the number of tasks in the stream.

    Regret is the mean over tasks of :math:`L_t(h_t) - L_t(h^*)`, with the best :math:`h^*` in hindsight
    (Theorem 12); excess risk that of the mean iterate over the best meta-model, on the envelopes of fresh
    tasks (Theorem 13). Without noise both bounds fall as :math:`1/\sqrt K`. Without a ball the iterates are
    those of gradient descent with a step of one over the regulariser, which grows as :math:`\sqrt K`: tasks
    that come later pull back what noise did before, and noise drawn anew for every round has a part of the
    regret that falls as the step does. What it is, two calls tell, with an epsilon and without.

    Parameters
    ----------
    counts : sequence of int
        Numbers of tasks.
    epsilon : float
        Budget; infinity for no noise.
    seeds, setting, draw
        As for `transfer_risk`; there is one centre by default.
    mechanism : Mechanism
        Not calibrated; one whose noise cancels in running totals is best.
    """
    regrets, excess = np.empty((len(seeds), len(counts))), np.empty((len(seeds), len(counts)))
    for i, seed in enumerate(seeds):
        for j, count in enumerate(counts):
            drawn = draw(seed, count)
            stream = setting.stream(drawn.centres.shape[1], count)
            finished = trained(stream, drawn.train, epsilon, seed, OnePass(), mechanism)
            regrets[i, j] = regret(finished, Envelopes.of(drawn.train, setting.lam))
            excess[i, j] = excess_risk(finished.board["average"], Envelopes.of(drawn.fresh, setting.lam))
    return StreamRates(Rate(tuple(counts), regrets), Rate(tuple(counts), excess))


def regret(finished: Run, envelopes: Envelopes) -> float:
    """Return the mean loss of the tasks as they came over that of the best point for all of them."""
    order = np.argmax(finished.private.coins, axis=0)  # the round of each task
    asked = np.array([finished.board.before(t)["mean"] for t in range(len(finished.plan.rounds))])
    best = envelopes.values(envelopes.minimiser())
    return float(np.mean(envelopes.values(asked[order]) - best))


def excess_risk(h: Floats, envelopes: Envelopes) -> float:
    return float(np.mean(envelopes.values(h) - envelopes.values(envelopes.minimiser())))


@dataclass(frozen=True)
class Comparison:
    """Excess risks at one epsilon, one for each seed: of a stream, and of rounds that everyone is in."""

    stream: tuple[float, ...]
    rounds: tuple[float, ...]


def stream_against_rounds(
    tasks: int,
    epsilon: float,
    seeds: Sequence[int] = range(5),
    mechanism: Mechanism = FLOATING,
    setting: Setting = SETTING,
    draw: Draw = one_centre,
) -> Comparison:
    """Return the excess risk of `FTMRL` with a mechanism, and of `MetaSGD` with independent noise.

    Both at the same epsilon, with participation that all may see: a stream has each task speak once, rounds
    have everyone speak in each.

    Parameters
    ----------
    tasks, epsilon, seeds, mechanism, setting, draw
        As for `stream_rates`.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for seed in seeds:
        drawn = draw(seed, tasks)
        dim, envelopes = drawn.centres.shape[1], Envelopes.of(drawn.fresh, setting.lam)
        stream = trained(setting.stream(dim, tasks), drawn.train, epsilon, seed, OnePass(), mechanism)
        rounds = trained(setting.meta(dim), drawn.train, epsilon, seed)
        for values, finished in zip(found, (stream, rounds), strict=True):
            values.append(excess_risk(finished.board["average"], envelopes))
    return Comparison(tuple(found[0]), tuple(found[1]))
