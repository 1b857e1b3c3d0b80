r"""The low-rank simulation of MP-MTL's section 5.4, for Figures 3, 4, 5 and 8.

The paper tunes penalties, rounds and allocation by cross-validation that it does not charge for; here they
are the public numbers of a `Setting`, and scores are on fresh rows. Gaussian noise has its exact price
(Gaussian DP, one task replaced by any other). Runs are seeded, which makes them INSECURE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import LowRank, SharedPrior, Subspace
from cloister.core.arrays import Floats
from cloister.datasets import Simulation, low_rank
from cloister.engines import Local
from cloister.engines.run import Run
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import NoNoise
from papers.mpmtl.wishart import paper_delta


@dataclass(frozen=True)
class Setting:
    """Sizes of the low-rank simulation (section 5.4), and the public numbers of a run on it.

    Targets are divided by the simulation's `target_bound`; true weights then have a norm of about 1.2.

    Parameters
    ----------
    tasks, rows, dim, rank : int
        Sizes of the data.
    epsilon : float
        Budget; delta is 1/(m log m), the paper's choice.
    rounds, warmup : int
        Releases, and steps of the single-task fit before them.
    lam : float
        Strength of the trace norm at `tasks` tasks; with fewer it goes with the root of their number, as
        the norm itself does.
    clip, lr : float
        Radius of models and step size.
    convexity : float
        Strong convexity over smoothness, mu/L, where a figure asks for it.
    """

    tasks: int = 320
    rows: int = 30
    dim: int = 30
    rank: int = 4
    epsilon: float = 0.1
    rounds: int = 10
    warmup: int = 60
    lam: float = 0.02
    clip: float = 1.5
    lr: float = 6.5
    convexity: float = 1e-3

    def algorithm(self, n_tasks: int | None = None) -> LowRank:
        """Return Algorithm 2 for this many tasks, without strong convexity."""
        lam = self.lam * math.sqrt((n_tasks or self.tasks) / self.tasks)
        return LowRank(
            LeastSquares(self.dim), lam, self.clip, rounds=self.rounds, lr=self.lr, warmup=self.warmup
        )

    def data(self, seed: int) -> Simulation:
        """Return a draw of the data, targets scaled."""
        drawn = low_rank(seed, self.tasks, self.rows, self.dim, self.rank)
        bound = drawn.target_bound
        return replace(
            drawn, y_train=drawn.y_train / bound, y_test=drawn.y_test / bound, weights=drawn.weights / bound
        )


#: The paper's sizes and budget.
PAPER = Setting()


def noise_to_signal(done: Run, tasks: Tasks) -> Floats:
    """Return log10 of the noise's norm over the clean sum's, for every release of a finished run.

    Privacy
    -------
    None: it subtracts the noise. For simulations, by whoever holds everybody's data.
    """
    algorithm, board = done.plan.algorithm, done.board
    blocks = list(tasks.blocks(seeds=done.private.seeds))
    states = [algorithm.init(block, board.before(0)) for block in blocks]
    norms = []
    for t, release in enumerate(board.releases):
        before = board.before(t)
        heard = [algorithm.send(state, block, before) for state, block in zip(states, blocks, strict=True)]
        states = [state for _, state in heard]
        clean = sum((algorithm.channel(before).total(message) for message, _ in heard), np.zeros(1))
        # A release lists a matrix so that its Euclidean norm is the matrix's Frobenius norm.
        norms.append((np.linalg.norm(release.value - clean), np.linalg.norm(clean)))
    noise, signal = np.array(norms).T
    with np.errstate(divide="ignore"):  # minus infinity for a run without noise
        return np.asarray(np.log10(noise / signal))


def private_plan(algorithm: LowRank, n_tasks: int, epsilon: float) -> Plan:
    """Return a plan with Gaussian noise, whose guarantee is this epsilon."""
    return Plan(algorithm, n_tasks=n_tasks, delta=paper_delta(n_tasks)).calibrate(epsilon)


def prior_plan(setting: Setting, n_tasks: int) -> Plan:
    """Return what we would use instead: a shared prior for tasks in a subspace."""
    algorithm = SharedPrior(Regression(setting.dim, intercept=False), Subspace())
    return Plan(algorithm, n_tasks=n_tasks, delta=paper_delta(n_tasks)).calibrate(setting.epsilon)


def reference_plans(algorithm: LowRank, n_tasks: int) -> list[Plan]:
    """Return single-task learning by the same steps, and multi-task learning without noise."""
    return [Plan(a, NoNoise(), n_tasks=n_tasks) for a in (replace(algorithm, lam=0.0), algorithm)]


def training(data: Simulation) -> Tasks:
    return Tasks.from_list(list(data.X_train), list(data.y_train))


def models(plan: Plan, tasks: Tasks, seed: int) -> Floats:
    """Run a plan and return everybody's weights."""
    found: Floats = run(plan, tasks, random_state=seed, engine=Local(1)).private.models["coef"]
    return found


def nmse(weights: Floats, data: Simulation) -> float:
    """Return the mean squared error on fresh rows of the first tasks over the variance of their targets."""
    y = data.y_test[: len(weights)]
    predicted = np.einsum("tnd,td->tn", data.X_test[: len(weights)], weights)
    return float(np.square(predicted - y).mean() / y.var())
