"""Each task chooses at home among what several settings give it and what it can do alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloister.algorithm import Algorithm, Budget, Wrapper
from cloister.arrays import Array, Floats, States
from cloister.board.billboard import Billboard, BoardView
from cloister.channel import Round
from cloister.errors import PlanError
from cloister.learners.learner import BayesianLearner

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["ChooseAtHome"]


#: The counter of the tasks' own randomness that folds are drawn with; rounds and steps never get so far.
FOLDS = 2**31 - 1


@dataclass(frozen=True)
class ChooseAtHome(Wrapper):
    """Any algorithm, with a choice at home: each task keeps what its own cross-validation finds best.

    After the last release every task replays the algorithm, and each of its variants, against the posted
    releases on its own training folds, does the same with its single-task model, and keeps what predicted
    its held-out rows best, by squared error or log-loss. Where nothing is better, and for a task without
    rows to compare by, that is the algorithm itself.

    Parameters
    ----------
    algorithm : Algorithm
        What tasks do together; its models must have `coef`.
    learner : Regression or Classification
        What a task does alone; its loss is what choices are compared by.
    folds : int
        Parts of a task's rows, each held out once; a task of fewer rows leaves one out at a time.
    variants : tuple of Algorithm
        Other settings to choose from, such as other penalties. Messages are the algorithm's alone: a
        variant reads the same releases in its own way, so its schedule must be the same.
    alone : bool
        Whether the single-task model is among the choices.

    Privacy
    -------
    Messages, channels and schedule are those of the algorithm, and so is the guarantee: the choice is made
    with a task's own data and the board, and never leaves. What others see does not depend on it, nor on
    how many variants there are.

    Notes
    -----
    An insurance with a premium. At epsilon 1 on two tables of schools (hsb82, exam; half of the rows for
    training, six splits) it lowered the share of tasks that did worse than alone for all six settings of four
    algorithms: from 28-43 % to 24-29 % where sharing paid on average, for a mean error up to 1.3 % larger,
    and from 52-92 % to 8-32 % where it did not, for a mean error within 2 % of single-task learning. It
    computes about five times as much.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares, Regression
    >>> from cloister.mechanisms import NoNoise
    >>> X = [np.linspace(-1, 1, 9)[:, None]] * 4
    >>> y = [0.5 * x[:, 0] for x in X[:3]] + [-X[3][:, 0]]  # three tasks agree, one does not
    >>> shared = MeanRegularized(LeastSquares(1), lam=2.0, rounds=3)
    >>> plan = Plan(ChooseAtHome(shared, Regression(1, intercept=False)), NoNoise(), n_tasks=4)
    >>> run(plan, Tasks.from_list(X, y)).private.models["coef"].round(1)[3].tolist()
    [-1.0]

    It would rather not be pulled at all, and may choose so:

    >>> free = MeanRegularized(LeastSquares(1), lam=0.0, rounds=3)
    >>> chooser = ChooseAtHome(shared, Regression(1, intercept=False), variants=(free,), alone=False)
    >>> models = [run(Plan(a, NoNoise(), n_tasks=4), Tasks.from_list(X, y)).model(3) for a in (chooser, free)]
    >>> models[0]["coef"].tolist() == models[1]["coef"].tolist()
    True
    """

    algorithm: Algorithm
    learner: BayesianLearner
    folds: int = 5
    variants: tuple[Algorithm, ...] = ()
    alone: bool = True

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise PlanError(f"folds must be at least 2. Got {self.folds}.")
        for one in (self.algorithm, *self.variants):
            if one.rows is not None and one.rows != self.learner.rows:
                raise PlanError(
                    f"ChooseAtHome needs a learner for the rows of its algorithms, {one.rows}. "
                    f"Got one for {self.learner.rows}."
                )

    @property
    def inner(self) -> Algorithm:
        return self.algorithm

    def around(self, inner: Algorithm) -> ChooseAtHome:
        return replace(self, algorithm=inner)

    @property
    def network(self) -> None:
        """None: the choice is made in NumPy, so what is inside is too."""

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        rounds = self.algorithm.schedule(n_tasks, budget)
        for variant in self.variants:
            if variant.schedule(n_tasks, budget) != rounds:
                raise PlanError(
                    "Variants must have the rounds and channels of the algorithm, whose releases they read. "
                    f"Got {variant} beside {self.algorithm}."
                )
        return rounds

    def init(self, block: Block, board: BoardView) -> States:
        states = self.algorithm.init(block, board)
        return states | {"guarded_rounds": np.zeros((len(block), board.capacity), dtype=bool)}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        inner, took_part = self._split(states)
        messages, inner = self.algorithm.send(inner, block, board)
        took_part = took_part.copy()
        took_part[:, board.rounds] = True
        return messages, inner | {"guarded_rounds": took_part}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        """Choose at home: what predicts one's own held-out rows best, the algorithm's model at a tie."""
        inner, took_part = self._split(states)
        shared = self.algorithm.finish(inner, block, board)
        if shared["coef"].shape[1] != self.learner.size:
            raise PlanError("ChooseAtHome needs a learner that has as many weights as its algorithm.")
        first, *others = self._fits(board, took_part)
        if not others:
            return shared
        error = np.zeros((1 + len(others), len(block)))
        for training, weight in self._folds(block):
            for i, fit in enumerate((first, *others)):
                error[i] += self._error(fit(training)["coef"], block, weight)
        best = np.where(np.isnan(error), np.inf, error).argmin(axis=0)
        models = [shared, *(fit(block) for fit in others)]
        names = [name for name in shared if all(name in model for model in models)]
        return {name: _choose(best, [model[name] for model in models]) for name in names}

    def _fits(self, board: BoardView, took_part: NDArray[np.bool_]) -> list[Callable[[Block], States]]:
        """Return what there is to choose from, the algorithm first: each turns some rows into models."""
        boards = [board, *(_read_again(variant, board) for variant in self.variants)]
        shared: list[Callable[[Block], States]] = [
            partial(_replay, algorithm, its_board, took_part)
            for algorithm, its_board in zip((self.algorithm, *self.variants), boards, strict=True)
        ]
        return [*shared, self._alone] if self.alone else shared

    def _split(self, states: States) -> tuple[States, NDArray[np.bool_]]:
        inner = {name: array for name, array in states.items() if name != "guarded_rounds"}
        return inner, states["guarded_rounds"]

    def _alone(self, block: Block) -> States:
        states = self.learner.prepare(block)
        return self.learner.finish(states, block, (), {})

    def _folds(self, block: Block) -> Iterator[tuple[Block, Floats]]:
        """Yield the block without each fold, and the weights of that fold's rows."""
        real = block.weight > 0
        draws = np.where(real, block.uniforms(FOLDS), np.inf)
        fold = np.argsort(np.argsort(draws, axis=1), axis=1) % self.folds
        for i in range(self.folds):
            out = fold == i
            yield replace(block, weight=np.where(out, 0.0, block.weight)), np.where(out, block.weight, 0.0)

    def _error(self, coef: Floats, block: Block, weight: Floats) -> Floats:
        """Return each task's summed error over the weighted rows."""
        with np.errstate(all="ignore"):  # data that overflow compare as equal, in their own task only
            return np.asarray(
                weight.sum(axis=1) * self.learner.loss.value(coef, block.X, block.y, weight), dtype=np.float64
            )


def _read_again(variant: Algorithm, board: BoardView) -> BoardView:
    """Return the board that a variant would have made of the same releases: public, hence free."""
    other = Billboard.create(variant.start(), board.plan, board.capacity)
    for release in board.releases:
        other = other.post(release, variant.update(release, other))
    return other


def _replay(algorithm: Algorithm, board: BoardView, took_part: NDArray[np.bool_], block: Block) -> States:
    """Return an algorithm's models for other rows of the same tasks, against the same board."""
    states = algorithm.init(block, board.before(0))
    for t in np.flatnonzero(took_part[:, : board.rounds].any(axis=0)).tolist():
        _, after = algorithm.send(states, block, board.before(t))
        states = {name: _rows_where(took_part[:, t], after[name], states[name]) for name in states}
    return algorithm.finish(states, block, board)


def _rows_where(mask: NDArray[np.bool_], one: Array, other: Array) -> Array:
    """Take rows of one array where the mask is true, of the other elsewhere."""
    return np.where(mask.reshape(-1, *([1] * (one.ndim - 1))), one, other)


def _choose(best: NDArray[np.int_], candidates: list[Array]) -> Array:
    return np.stack(candidates)[best, np.arange(len(best))]
