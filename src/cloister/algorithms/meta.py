r"""Private meta-learning: learn a public start from many tasks, so that a new one learns from few rows.

With a meta-model h, task k solves

.. math:: L_k(h) = \min_w R_k(w) + \tfrac\lambda2 |w - h|^2, \qquad \nabla L_k(h) = -\lambda\,(w_k(h) - h),

at home and says that gradient, clipped. The curator looks for the h with the least mean of :math:`L_k`.

============ ========================================== =================================
algorithm    how often a task speaks                    the public model follows
============ ========================================== =================================
`MetaSGD`    in many rounds, all tasks or a sample      noisy mean gradients, step by step
`FTMRL`      once, in a stream (`OnePass`)              the running total of all gradients
============ ========================================== =================================

`ClusteredMetaSGD`, with several meta-models, is in `cloister.algorithms.mixture`.

References
----------
X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022: meta-NSGD (analysed
in appendix A, Algorithm 3 and Lemmas 7 to 9) and Algorithm 4 (DP-FTMRL, Theorems 10 to 14).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.bases import ClientAlgorithm
from cloister.algorithms.federated import quadratic
from cloister.algorithms.finetuning import CrossValidatedTuning, FineTuning, variants_of
from cloister.algorithms.server import Server, ServerAverage, require_server
from cloister.core.arrays import Array, Public, States, is_real, is_whole
from cloister.core.channel import Channel, Round, equal_rounds
from cloister.core.errors import PlanError
from cloister.core.lifts import Plain
from cloister.learners.descent import Solver, require_rates
from cloister.learners.learner import ClientLearner, require_learner
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class Meta(ClientAlgorithm):
    """What all share: the local problem, the iterates that are averaged, and the last solve at home."""

    learner: ClientLearner
    solver: Solver
    lam: float = 1.0
    clip: float = 1.0
    rounds: int = 100
    radius: float | None = None
    tail: float = 0.5
    finetune: FineTuning | CrossValidatedTuning | None = None

    def __post_init__(self) -> None:
        require_learner(self.learner)
        check_count("rounds", self.rounds)
        if not (is_real(self.lam) and 0 < self.lam < math.inf):
            raise PlanError(
                f"lam must be a number > 0 and finite: a gradient is lam * (h - w). Got {self.lam!r}."
            )
        if self.radius is not None and not self.radius > 0:
            raise PlanError(f"radius must be > 0, or None for no limit. Got {self.radius}.")
        if not 0 <= self.tail <= 1:
            raise PlanError(f"tail must be a share of the rounds, in [0, 1]. Got {self.tail}.")
        self.learner.check_solver(self.solver, quadratic(self.lam))
        require_rates(self.solver, self.rounds)
        last = FineTuning(self.solver, quadratic(self.lam)) if self.finetune is None else self.finetune
        for tuning in variants_of(last, self.rounds):
            self.learner.check_solver(tuning.solver, tuning.penalty)

    def init(self, block: Block, board: BoardView) -> States:
        return self.learner.first(self.learner.shared(board["mean"]), block)

    @property
    def shared_start(self) -> Array:
        """The public start of what is shared."""
        return self.learner.shared(self.learner.start())

    def solve(self, model: Array, states: States, block: Block, board: BoardView) -> tuple[Array, Array]:
        """Solve each task's problem from a public model; return its solution, and how far from there it is.

        The offset is that of shared parameters. Personal ones are free in the task's problem.
        """
        start = self.learner.spread(model, block, states)
        penalty = quadratic(self.lam)
        ended = self.learner.descend(start, block, self.solver, board.rounds, model, penalty)
        return ended, self.learner.shared(ended - start)

    def tune(self, solved: Array, model: Array, states: States, block: Block, board: BoardView) -> Array:
        """Return what a task ends with: its solution, or what its own fine-tuning makes of the model."""
        if self.finetune is None:
            return solved
        start = self.learner.spread(model, block, states)
        return self.finetune.tune(self.learner, start, block, board.rounds, model)

    def released(self, board: BoardView) -> Array:
        """Return the model that tasks start from in the end: the mean of the last iterates, or the last."""
        return board["average" if self.tail else "mean"]

    def opened(self, start: Array, kept: Public) -> Public:
        """Return the first iterate, the mean if one is kept, and what else is, all of one kind."""
        iterates = {"mean": start} | ({"average": start} if self.tail else {})
        return iterates | {name: array.astype(start.dtype) for name, array in kept.items()}

    def averaged(self, board: BoardView, mean: Array) -> Public:
        """Return the mean of the iterates so far, of those in the tail; before it begins, the iterate."""
        if not self.tail:
            return {}
        count = board.rounds + 1 - self.rounds + max(1, round(self.tail * self.rounds))
        old = mean if count <= 1 else board["average"]
        return {"average": old + (mean - old) / max(1, count)}

    def projected(self, mean: Array) -> Array:
        """Return the nearest point in the ball around the public start."""
        if self.radius is None:
            return mean
        start = self.shared_start
        away = mean.reshape(-1, self.learner.shared_size) - start
        length = np.linalg.norm(away, axis=1, keepdims=True)
        return np.asarray(start + away * np.minimum(1.0, self.radius / np.maximum(length, 1e-300))).ravel()


def check_count(name: str, count: int) -> None:
    """Refuse what is not a whole number of things."""
    if not (is_whole(count) and count >= 1):
        raise PlanError(f"{name} must be a whole number, at least 1. Got {count!r}.")


@dataclass(frozen=True)
class _OneModel(Meta):
    """What those share that learn one meta-model."""

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return equal_rounds(self.rounds, (self._channel,))

    @property
    def _channel(self) -> Channel:
        return Channel(self.learner.shared_size, self.clip, Plain())

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        """Solve from the public model; say the gradient of the task's envelope there."""
        solved, offset = self.solve(board["mean"], states, block, board)
        return -self.lam * offset, self.learner.keep(solved)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        model = self.released(board)
        solved, _ = self.solve(model, states, block, board)
        return {"coef": self.tune(solved, model, states, block, board)}

    def model_without_data(self, board: BoardView) -> States:
        return {"coef": self.learner.model_without_data(self.released(board))}


@dataclass(frozen=True)
class MetaSGD(_OneModel):
    r"""Follow noisy mean gradients of the tasks' envelopes to one meta-model (meta-NSGD).

    .. math::
        h_{t+1} = \mathrm{Proj}_{|h - h_1| \le M}\left( h_t - \frac{\eta}{pm} \left(
            \sum_k a_k\,\mathrm{Clip}_C(\nabla L_k(h_t)) + \text{noise} \right) \right)

    Parameters
    ----------
    learner : Convex or Module
        A convex loss, or a network.
    solver : ExactSolver, or Descent, Adam and their like
        How a task solves its problem in a round; `ExactSolver` for `Convex` alone.
    lam : float
        Penalty on a task's distance from the meta-model; more than 0. Few rows want a strong one.
    clip : float
        Largest length of a gradient; public.
    rounds : int
        Releases.
    radius : float, optional
        Of the ball around the public start that the meta-model stays in; no limit by default.
    tail : float
        Tasks end with the mean of this last share of the iterates; 0 is the last iterate. Averaging takes
        noise out. (The paper's mean of all iterates also counts the start, and not the last.)
    finetune : FineTuning or CrossValidatedTuning, optional
        Training at home after the last release, from the meta-model; by default one more solve.
    server : ServerAverage, ServerMomentum, ServerAdam or ServerAdamW
        What the meta-model does with a noisy gradient; its `lr` is :math:`\eta`. With `ServerAverage` a
        step of 1/lam is as large as makes sense.

    Privacy
    -------
    A message is one gradient, clipped: sensitivity `clip` (zero-out) or twice that (replace) of the sum,
    however roughly the problem was solved. The denominator is public. All iterates are on the board; which
    of them is used, every last solve and every task that comes later are free.

    References
    ----------
    Zhou and Bassily, "Task-level differentially private meta learning", appendix A (meta-NSGD; its listing,
    not printed there, is rebuilt from Algorithm 3 and Lemmas 7 to 9).

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.learners import Convex, ExactSolver, LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]])
    >>> algorithm = MetaSGD(Convex(LeastSquares(1)), ExactSolver(), clip=9.0, rounds=20, tail=0.0)
    >>> done = run(Plan(algorithm, NoNoise(), n_tasks=2), tasks)
    >>> done.board["mean"].round(3).tolist(), done.private.models["coef"].round(3).tolist()
    ([3.0], [[2.5], [3.5]])
    """

    server: Server = field(default_factory=ServerAverage)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_server(self.server)

    def start(self) -> Public:
        return self.opened(self.shared_start, self.server.start(self.learner.shared_size))

    def update(self, release: Release, board: BoardView) -> Public:
        moved = self.server.step(board, -self.clip * release.value / release.denominator)
        moved["mean"] = self.projected(moved["mean"])
        return as_on(board, moved | self.averaged(board, moved["mean"]))


@dataclass(frozen=True)
class FTMRL(_OneModel):
    r"""Follow the regularised leader over a stream of tasks: one pass, every task speaks once (DP-FTMRL).

    .. math::
        h_{t+1} = \mathrm{Proj}_{|h - h_1| \le M}\left( h_1 - \frac{s_t}{\lambda_m} \right), \qquad
        s_t = \sum_{i \le t} \mathrm{Clip}_C(\nabla L_i(h_i)) + \text{noise}

    Pair it with `OnePass`, and with a mechanism whose noise cancels in running totals; it takes any.

    Parameters
    ----------
    learner, solver, lam, clip, rounds, radius, tail, finetune
        As for `MetaSGD`; `rounds` is the length of the stream. One round takes one task if there are as many
        as tasks, otherwise tasks / rounds of them.
    lam_meta : float
        Strength :math:`\lambda_m` of the regulariser, more than 0: 1 over the step per task. It
        should grow like the root of the number of tasks where noise is low.

    Privacy
    -------
    Each task takes part once, so nothing need be hidden: sensitivity `clip` or twice that of the one release
    it is in. Theorem 10 of the paper counts the rows of a task where the number of rounds belongs, and has
    lost a square root; the plan prices the mechanism that is run.

    References
    ----------
    Zhou and Bassily, "Task-level differentially private meta learning", Algorithm 4 and Theorems 10 to 14.

    Examples
    --------
    >>> from cloister import Plan
    >>> from cloister.learners import Convex, ExactSolver, LeastSquares
    >>> from cloister.sampling import OnePass
    >>> stream = FTMRL(Convex(LeastSquares(3)), ExactSolver(), rounds=50, lam_meta=20.0)
    >>> plan = Plan(stream, sampling=OnePass(), n_tasks=500).calibrate(epsilon=2.0)
    >>> plan.guarantee.epsilon <= 2.0
    True
    """

    lam_meta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lam_meta < math.inf:
            raise PlanError(f"lam_meta must be > 0 and finite. Got {self.lam_meta}.")

    def start(self) -> Public:
        return self.opened(self.shared_start, {"total": np.zeros_like(self.shared_start)})

    def update(self, release: Release, board: BoardView) -> Public:
        """Add the noisy sum of gradients to the running total; step from the start against it."""
        total = board["total"] + self.clip * release.value
        mean = self.projected(self.shared_start - total / self.lam_meta)
        return as_on(board, {"mean": mean, "total": total} | self.averaged(board, mean))


def as_on(board: BoardView, public: Public) -> Public:
    """Return public arrays as the board holds them: in 32 bits for networks."""
    return {name: np.asarray(array, dtype=board[name].dtype) for name, array in public.items()}
