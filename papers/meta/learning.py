r"""The linear regressions of "Task-level differentially private meta learning", as data ready to be tabled.

`transfer_risk` tells how well fresh tasks do from a few rows, against the number of tasks that took part.
Streams, of the paper's appendix B, are in `papers.meta.streams`.

What is different here: the data are `cloister.datasets.around_centres`, whose constants are our own; every
epsilon is that of the plan that is run, under `replace` and with visible participation, where the paper
counts hidden Poisson samples under add/remove. Runs are seeded, so that tables come out the same again; that
makes them INSECURE.

References
----------
X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022 (linear
regression).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from cloister.algorithms.meta import FTMRL, MetaSGD
from cloister.algorithms.mixture import ClusteredMetaSGD
from cloister.algorithms.server import ServerAverage
from cloister.core.tasks import Tasks
from cloister.datasets.synthetic import Centres, around_centres
from cloister.engines.run import Run, adapt, run
from cloister.learners.descent import ExactSolver
from cloister.learners.linear.convex import Convex
from cloister.learners.linear.losses import LeastSquares
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from cloister.privacy.sampling import Everyone, Sampling

__all__ = [
    "Recovery",
    "Risk",
    "Setting",
    "fresh_error",
    "recovery",
    "trained",
    "transfer_risk",
]

Draw = Callable[[int, int], Centres]
FLOATING = Gaussian(exact=False)  # quicker to draw, and the same law


@dataclass(frozen=True)
class Setting:
    """The public numbers of all runs: the same for every epsilon and every number of tasks.

    Parameters
    ----------
    lam, clip : float
        Penalty on the distance from a meta-model, and largest length of a gradient.
    rounds : int
        Releases of `MetaSGD` and `ClusteredMetaSGD`.
    step : float
        Of the meta-models, in units of models / lam.
    tail : float
        Share of the iterates that are averaged.
    strength : float
        Of the stream's regulariser, in units of lam times the root of the number of tasks.
    per_round : int
        Tasks in a round of the stream.
    """

    lam: float = 0.03
    clip: float = 0.06
    rounds: int = 40
    step: float = 1.0
    tail: float = 0.25
    strength: float = 1.0
    per_round: int = 1

    def meta(self, dim: int, models: int = 1) -> MetaSGD | ClusteredMetaSGD:
        """Return the algorithm of many rounds."""
        learner, server = Convex(LeastSquares(dim)), ServerAverage(self.step * models / self.lam)
        fields: dict[str, Any] = {
            "lam": self.lam,
            "clip": self.clip,
            "rounds": self.rounds,
            "tail": self.tail,
            "server": server,
        }
        if models == 1:
            return MetaSGD(learner, ExactSolver(), **fields)
        return ClusteredMetaSGD(learner, ExactSolver(), models=models, **fields)

    def stream(self, dim: int, tasks: int) -> FTMRL:
        """Return the algorithm of one pass; all its iterates are averaged, as in the paper."""
        return FTMRL(
            Convex(LeastSquares(dim)),
            ExactSolver(),
            lam=self.lam,
            clip=self.clip,
            rounds=max(1, tasks // self.per_round),
            tail=1.0,
            lam_meta=self.strength * self.lam * math.sqrt(tasks),
        )


SETTING = Setting()


def trained(
    algorithm: Algorithm,
    tasks: Tasks,
    epsilon: float,
    seed: int,
    sampling: Sampling | None = None,
    mechanism: Mechanism = FLOATING,
) -> Run:
    """Run an algorithm at an epsilon, by default with everyone in every round; infinity is without noise."""
    who = Everyone() if sampling is None else sampling
    silent = math.isinf(epsilon)
    plan = Plan(algorithm, NoNoise() if silent else mechanism, who, n_tasks=len(tasks))
    return run(plan if silent else plan.calibrate(epsilon), tasks, random_state=seed)


def fresh_error(data: Centres, finished: Run) -> float:
    """Return the mean squared error of fresh tasks on further rows, once they have adapted."""
    coef = adapt(finished.plan, finished.board, data.fresh)["coef"]
    test = data.fresh_test
    found = np.einsum("nd,nd->n", test.X, np.repeat(coef, test.sizes, axis=0))
    return float(np.mean((test.y - found) ** 2))


@dataclass(frozen=True)
class Recovery:
    """How well meta-models tell the centres.

    Attributes
    ----------
    share : float
        Of the tasks that took part and use the model of their own centre, models named as suits best.
    distance : float
        Of the centre that is worst served from the model that serves it best.
    """

    share: float
    distance: float


def recovery(data: Centres, finished: Run) -> Recovery:
    """Compare the released meta-models of a `ClusteredMetaSGD` with the true centres, as many."""
    algorithm: Any = finished.plan.algorithm
    models = algorithm.released(finished.board).reshape(algorithm.models, -1)
    chosen = finished.private.models["cluster"]
    share = max(
        np.mean(np.array(names)[chosen] == data.train_centre) for names in permutations(range(len(models)))
    )
    apart = np.linalg.norm(models[:, None] - data.centres, axis=2)
    return Recovery(float(share), float(apart.min(axis=0).max()))


@dataclass(frozen=True)
class Risk:
    """Transfer risks of one cell of the table, one for each seed."""

    tasks: int
    epsilon: float
    models: int
    errors: tuple[float, ...]
    recoveries: tuple[Recovery, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.errors))

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds."""
        return float(np.std(self.errors, ddof=1)) if len(self.errors) > 1 else math.nan


def transfer_risk(
    tasks: int,
    epsilon: float,
    models: int,
    seeds: Sequence[int] = range(5),
    setting: Setting = SETTING,
    draw: Draw = around_centres,
) -> Risk:
    """Return the error of fresh tasks after adaptation from meta-models that so many tasks have learned.

    Parameters
    ----------
    tasks, epsilon, models
        Number of tasks, budget (infinity for no noise) and number of meta-models.
    seeds : sequence of int
        Of data and noise.
    setting : Setting
        Public numbers.
    draw : callable
        Takes a seed and a number of tasks, returns data.

    Examples
    --------
    >>> found = [transfer_risk(300, math.inf, q, seeds=[0]).mean for q in (1, 3)]
    >>> found[1] < found[0] / 5
    True
    """
    errors, recoveries = [], []
    for seed in seeds:
        drawn = draw(seed, tasks)
        finished = trained(setting.meta(drawn.centres.shape[1], models), drawn.train, epsilon, seed)
        errors.append(fresh_error(drawn, finished))
        if models > 1 and models == len(drawn.centres):
            recoveries.append(recovery(drawn, finished))
    return Risk(tasks, epsilon, models, tuple(errors), tuple(recoveries))
