r"""What the figures of "Private multi-task learning" (PMTL) are made of: settings, prices, losses, tuning.

What is different here: every task counts the same; a price is that of the plan which is run, under a relation
and a knowledge of coins that are written beside it. Runs are seeded, so that figures come out the same again;
that makes them INSECURE. Losses are private diagnostics, and must not leave if somebody owns the data;
`cloister.evaluation.evaluate` with an epsilon is how to tell one.

References
----------
S. Hu, Z. S. Wu and V. Smith, "Private multi-task learning: formulation and applications to federated
learning", arXiv:2108.12978, section 5 (Figures 2 and 3, Table 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.federated import Increment, Offset, Personalized
from cloister.algorithms.finetuning import FineTuning
from cloister.channel import Relation
from cloister.core.arrays import Floats
from cloister.core.tasks import Tasks
from cloister.engines.local import Local
from cloister.engines.run import Run, run
from cloister.engines.workers import Engine
from cloister.errors import InputError
from cloister.evaluation import over_rounds
from cloister.learners.descent import Descent
from cloister.learners.penalties import Quadratic
from cloister.networks.module import Module
from cloister.networks.network_penalties import EWC, SymmetrizedKL
from cloister.plan.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.sampling import Poisson
from cloister.store.checkpoints import SavedState

__all__ = [
    "CELEBA",
    "FEMNIST",
    "STACK_OVERFLOW",
    "Figure2",
    "Published",
    "epsilon_over_rounds",
    "figure_2",
    "loss_over_rounds",
    "tuned_run",
    "tunings",
]

Tunings = Mapping[str, FineTuning | None]
LOCAL, OFFSET = Local(), Offset()


@dataclass(frozen=True)
class Published:
    """The public numbers of one panel of the paper's Figure 2.

    Parameters
    ----------
    n_tasks, per_round, rounds : int
        Tasks, tasks in a round, and rounds.
    clip : float
        Largest length of an update (gamma).
    sigma : float
        Deviation of the noise on the *mean* of a round's updates.
    """

    n_tasks: int
    per_round: int
    rounds: int
    clip: float
    sigma: float

    @property
    def multiplier(self) -> float:
        """Noise on the sum over the clip; relative to silence, whatever the relation."""
        return self.sigma * self.per_round / self.clip

    def plan(
        self, learner: Module, solver: Descent, lam: float = 0.1, message: Increment | Offset = OFFSET
    ) -> Plan:
        """Return private MTL with this panel's noise and rounds, at the paper's delta of 1/m."""
        algorithm = Personalized(
            learner, solver, clip=self.clip, rounds=self.rounds, lam=lam, message=message
        )
        return Plan(
            algorithm,
            Gaussian(math.sqrt(self.rounds) / self.multiplier),
            Poisson(self.per_round / self.n_tasks),
            n_tasks=self.n_tasks,
            relation=Relation.ZERO_OUT,
            delta=1 / self.n_tasks,
        )


#: Panels (b), (a) and (c); numbers of tasks of the last two are not in the paper's text, and taken as these.
FEMNIST = Published(n_tasks=205, per_round=100, rounds=1000, clip=0.2, sigma=0.01)
STACK_OVERFLOW = Published(n_tasks=400, per_round=100, rounds=600, clip=0.5, sigma=0.01)
CELEBA = Published(n_tasks=515, per_round=100, rounds=1000, clip=1.0, sigma=0.02)


@dataclass(frozen=True, eq=False)
class Figure2:
    """Loss and price against rounds; made by `figure_2`.

    Attributes
    ----------
    rounds : array of shape (points,)
        Numbers of rounds, the first of them 0.
    epsilon : dict of arrays of shape (points,)
        Price of so many rounds at `delta`, for each reading of the guarantee: see `epsilon_over_rounds`.
    delta : float
        The plan's.
    loss : array of shape (points,)
        Mean over tasks of each one's mean loss on its own training rows. NOT PRIVATE.
    """

    rounds: NDArray[np.int64]
    epsilon: dict[str, Floats]
    delta: float
    loss: Floats = field(repr=False)


def epsilon_over_rounds(plan: Plan, rounds: Sequence[int]) -> dict[str, Floats]:
    """Return the price of a plan's first rounds, under each reading of its guarantee.

    Readings are named ``"zero_out, hidden"`` and so on: who counts as a neighbour, and whether a task's coins
    are hidden from all but the curator, which no library can check. Noise is the plan's own in all of them.

    Examples
    --------
    >>> from torch import nn
    >>> plan = FEMNIST.plan(Module(nn.Linear(2, 2)), Descent(lr=0.1))
    >>> {name: float(curve[-1].round(1)) for name, curve in epsilon_over_rounds(plan, [1000]).items()}
    {'zero_out, hidden': 12.1, 'zero_out, visible': 20.5, 'replace, hidden': 34.0, 'replace, visible': 61.3}
    """
    assert plan.delta is not None
    rate = plan.sampling.probability(plan.n_tasks, len(plan.rounds))
    curves = {}
    for relation in (Relation.ZERO_OUT, Relation.REPLACE):
        whole = plan.cost_under(relation)
        for name, sampling in (("hidden", Poisson(rate, hidden=True)), ("visible", Poisson(rate))):
            costs = [replace(whole, events=whole.events[:t], sampling=sampling) for t in rounds]
            curve = [accounting.price(cost, plan.delta).epsilon for cost in costs]
            curves[f"{relation.value}, {name}"] = np.array(curve)
    return curves


def loss_over_rounds(done: Run, tasks: Tasks, rounds: Sequence[int], engine: Engine = LOCAL) -> Floats:
    """Return the mean over tasks of the training loss of their models after so many rounds, in order.

    Models come from the board and the tasks' own rows, by replay. What they say of losses is NOT PRIVATE.
    """
    curves = over_rounds(done, tasks, tasks, {}, rounds=rounds, engine=engine)
    return curves.personal["loss"].mean


def figure_2(plan: Plan, tasks: Tasks, *, points: int = 11, seed: int = 0, engine: Engine = LOCAL) -> Figure2:
    """Loss and price against rounds, of one run.

    *The paper shows* one curve of epsilon for each data set. *Here* there are four. On FEMNIST they end at
    12.1 if tasks' coins are hidden and a neighbour is silent; at 61.3 by the paper's own definition, which is
    any data in place of a task's, and all others colluding.

    Parameters
    ----------
    plan : Plan
        Of a network, such as ``FEMNIST.plan(learner, solver)``.
    tasks : Tasks
        Training rows.
    points : int
        Rounds that are shown, evenly spaced, the first and the last included.
    seed : int
        Of the run.
    engine : Local or Batched
        Where tasks are computed on.
    """
    assert plan.delta is not None
    shown = np.unique(np.linspace(0, len(plan.rounds), points).round().astype(np.int64))
    done = run(plan, tasks, random_state=seed, engine=engine)
    losses = loss_over_rounds(done, tasks, shown.tolist(), engine)
    return Figure2(shown, epsilon_over_rounds(plan, shown.tolist()), plan.delta, losses)


def tunings(solver: Descent, lam: float = 0.1, beta: float = 1.0, ewc: float = 1.0) -> Tunings:
    """Return the ways of fine-tuning of Table 1, and none at all."""
    return {
        "none": None,
        "vanilla": FineTuning(solver),
        "mean-regularised": FineTuning(solver, Quadratic(lam)),
        "symmetrised KL": FineTuning(solver, SymmetrizedKL(beta)),
        "EWC": FineTuning(solver, EWC(ewc)),
    }


def tuned_run(done: Run, tasks: Tasks, way: FineTuning, engine: Engine) -> Run:
    """Return a finished run with models tuned at home: from its board and the tasks' own rows, hence free."""
    if done.plan.algorithm.finetune is not None:  # type: ignore[attr-defined]
        raise InputError("These models were tuned already. Run the algorithm with finetune=None.")
    algorithm: Any = replace(done.plan.algorithm, finetune=way)  # type: ignore[type-var]
    with engine.workers(replace(done.plan, algorithm=algorithm), tasks, done.private.seeds) as workers:
        workers.start(done.board.before(0))
        if workers.save_state().states:  # a model that was not tuned is what its task kept
            workers.restore_state(SavedState({"weights": done.private.models["coef"]}, 0))
        return replace(done, private=replace(done.private, models=workers.finish(done.board)))
