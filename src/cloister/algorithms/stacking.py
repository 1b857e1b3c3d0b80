"""Each task weighs at home what several settings give it against what it can do alone.

It weighs blends of a shared and its own model by how well they predict its own rows, held out. Where these
are few they cannot tell, but all tasks together can: asked whether a little of the shared model is better
than none, they say yes or no, and whether they have few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.blends import (
    BY_ROWS,
    PARTS,
    QUESTION,
    estimated_share,
    log_prior,
    majorities,
    question_share,
)
from cloister.algorithms.constants import STACKING
from cloister.algorithms.locate import Locate
from cloister.algorithms.staged import Around, RoundsOf
from cloister.algorithms.stages import PartOfBoard, Stage
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.spec import Target
from cloister.core.tasks import local_uniforms
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.few_rows import too_few
from cloister.learners.linear.question import UNHEARD, votes
from cloister.plan.algorithm import Algorithm, Budget
from cloister.store.billboard import Billboard, BoardView

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.records import Release

#: The seed that folds are drawn with: public, as folds are no secret, so that `replay` needs no seed.
FOLDS = np.zeros(1, dtype=np.uint64)

#: Turns some rows into models.
Fit: TypeAlias = Callable[["Block"], States]


@dataclass(frozen=True)
class ChooseAtHome(Around):
    r"""Any algorithm, with a choice at home: each task weighs models by how well they predict rows left out.

    After the last release every task replays the algorithm, and each of its variants, against the posted
    releases on its own training folds, and does the same with its single-task model. Its model is their
    average, each weighed by the likelihood of the held-out rows: :math:`e_k^{-n/2}` for numbers, if n rows
    are predicted with a mean squared error :math:`e_k`, and the product of their probabilities for classes.
    With many rows that is the best of them, with few something of each. A task of one row has nothing to
    compare by, and keeps the algorithm's. Where tasks were asked, and no majority of them beyond doubt relies
    on the shared model, they keep their own; so do those of one to three rows if how far targets spread was
    looked for and not found.

    Parameters
    ----------
    algorithm : Algorithm
        What tasks do together; its models must have `coef`.
    learner : Regression or Classification
        What a task does alone; its loss is what models are compared by.
    folds : int
        Parts of a task's rows, each held out once; a task of less than twice as many rows leaves out one at
        a time.
    variants : tuple of Algorithm
        Other settings to choose from, such as other penalties. Messages are the algorithm's alone: a
        variant reads the same releases in its own way, so its schedule must be the same.
    alone : bool
        Whether the single-task model is among the choices.
    asks : float, optional
        At most this share of the squared budget buys one more round, in which tasks are asked whether a
        little of the shared model helps: where a task's few rows cannot tell, all tasks together can. What is
        weighed then are blends, with none, a quarter, a half, three quarters or all of a shared model and the
        rest of the single-task one, by their likelihood times a public prior. With variants tasks are asked
        about the model of `algorithm` alone, and the answer is the prior of all. By default nobody is asked.
    by_rows : bool, optional
        Whether tasks of one to three rows are counted apart from the others, whose answers need not hold for
        them. Earlier plans do not say it, and all are counted together.
    locate : Locate, optional
        Search for where targets and features are first; everything else is relative to what is found.

    Privacy
    -------
    Messages, channels and schedule are those of the algorithm, and so is the guarantee: the choice is made
    with a task's own data and the board, and never leaves. What others see does not depend on it, nor on
    how many variants there are. With `asks` there is one round more, in which a task says yes, no or nothing:
    no negative number and norm 1 at most, hence an l2 sensitivity of 1 (zero-out) or :math:`\sqrt 2`
    (replace), counted apart or not. It has a share of the same budget.

    Notes
    -----
    An insurance with a premium. It computes about five times as much. With eight rows a task that merely
    chooses loses up to a third to learning alone where the shared model is a bad one, since it is taken in by
    chance; asked, and with blends, hundredths at worst, and it gains more where the shared model is good
    (`python -m benchmarks feature-bounds`). If no answer could stand out, next to nothing is spent on it, and
    tasks rely on themselves.

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
    >>> bool(abs(models[0]["coef"] - models[1]["coef"])[0] < 0.01)
    True
    """

    algorithm: Algorithm
    learner: BayesianLearner
    folds: int = STACKING.folds
    variants: tuple[Algorithm, ...] = ()
    alone: bool = True
    asks: float | None = None
    locate: Locate | None = None
    by_rows: bool | None = None

    def __post_init__(self) -> None:
        if self.asks is not None and not (self.alone and 0 < self.asks < 1):
            raise PlanError(
                "asks must be a share of the budget, above 0 and below 1, with the single-task model among "
                f"the choices. Got asks={self.asks} and alone={self.alone}."
            )
        if self.folds < 2:
            raise PlanError(f"folds must be at least 2. Got {self.folds}.")
        for one in (self.algorithm, *self.variants):
            if one.rows is not None and one.rows != self.learner.rows:
                raise PlanError(
                    f"ChooseAtHome needs a learner for the rows of its algorithms, {one.rows}. "
                    f"Got one for {self.learner.rows}."
                )

        self.check_searches()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Searches; the rounds of the algorithm; with `asks`, how far tasks rely on it."""
        asked = () if self.asks is None else (AskParts(self, self.asks),)
        return (*self.searches, ComparedRounds(self.algorithm, len(asked), self.variants), *asked)

    def prepare(self, home: Home, board: BoardView) -> States:
        states = self.algorithm.init(home.rows, self._shared(board))
        if not states:  # what counts is how it ends, whoever took part in what
            return {}
        states = states | {"guarded_rounds": np.zeros((len(home), board.capacity), dtype=bool)}
        if self.asks is None:
            return states
        count = 1 + (len(PARTS) - 1) * (1 + len(self.variants))
        return states | {"held_out": np.full((len(home), count), np.nan)}

    def inside(self, board: BoardView) -> BoardView:
        return self._shared(self.main_part(board))

    def _shared(self, board: BoardView) -> BoardView:
        """Return the rounds of the algorithm, without the question at the end."""
        return board if self.asks is None else PartOfBoard(board, 0, 1)

    def solve(self, home: Home, board: BoardView) -> States:
        """Average at home: what predicts one's own held-out rows well counts most."""
        states, block = home.states, home.rows
        inner, took_part = split_states(states, len(block))
        shared = self.algorithm.finish(inner, block, self._shared(board))
        if shared["coef"].shape[1] != self.learner.size:
            raise PlanError("ChooseAtHome needs a learner that has as many weights as its algorithm.")
        first, *others = self._fits(board, took_part)
        if not others:
            return shared
        if self.asks is None:
            error = self._errors(block, [first, *others], lambda coefs: coefs)
            shares = self._shares(error, block)
        else:
            shares = self._blended(states, block, board, took_part)
        return _average(shares, [shared, *(fit(block) for fit in others)])

    def _errors(
        self, block: Block, fits: list[Fit], choices: Callable[[list[Floats]], list[Floats]]
    ) -> Floats:
        """Return summed errors on held-out rows, (choices, tasks), of what is made of the fits' weights."""
        error: Floats | None = None
        for training, weight in self._folds(block):
            coefs = choices([fit(training)["coef"] for fit in fits])
            found = np.stack([self._error(coef, block, weight) for coef in coefs])
            error = found if error is None else error + found
        assert error is not None
        return error

    def _blend_errors(self, block: Block, board: BoardView, took_part: NDArray[np.bool_]) -> Floats:
        """Return summed errors on held-out rows: of the own model, then of each shared one's blends."""

        def blends(coefs: list[Floats]) -> list[Floats]:
            *shared, own = coefs
            return [own, *(part * coef + (1 - part) * own for coef in shared for part in PARTS[1:])]

        return self._errors(block, self._fits(board, took_part), blends)

    def _blended(
        self, states: States, block: Block, board: BoardView, took_part: NDArray[np.bool_]
    ) -> Floats:
        """Return how much each model counts, (models, tasks), shared ones first: posterior mean parts."""
        known = states.get("held_out")
        if known is None or np.isnan(known).any():  # of the whole block: twice gives a task the same bits
            errors = self._blend_errors(block, board, took_part)
        else:
            errors = known.T
        many, few = (log_prior(one)[:, None] for one in self._relied_on(board))
        own, *parts = np.where(too_few(block.weight.sum(axis=1)), few, many)
        shared = 1 + len(self.variants)
        prior = np.stack([own, *[part - math.log(shared) for part in parts] * shared])
        posterior = _normal(np.where(_comparable(block), self._worth(errors, block), 0.0) + prior)
        each = posterior[1:].reshape(shared, len(PARTS) - 1, -1)
        counts = (each * PARTS[1:, None]).sum(axis=1)
        shares = np.concatenate([counts, 1 - sum(counts)[None]])
        usable = np.isfinite(shares).all(axis=0) & (block.weight > 0).any(axis=1)
        return np.where(usable, shares, np.arange(len(shares))[:, None] == 0)

    def _relied_on(self, board: BoardView) -> tuple[float, float]:
        """See `majorities`; in unknown units a task of few rows cannot tell how bad a shared model is."""
        many, few = majorities(board["blend"])
        searched = self.locate is not None and self.locate.targets
        return many, few if not searched or int(board["located_found"]) == 2 else 0.0

    @property
    def _numbers(self) -> bool:
        rows = self.learner.rows
        return rows is not None and rows.target is Target.NUMBER

    def _worth(self, error: Floats, block: Block) -> Floats:
        """Return the log-likelihood of held-out rows, from their summed errors (models, tasks)."""
        with np.errstate(all="ignore"):  # data that overflow spoil their own task only
            rows = block.weight.sum(axis=1)
            worth = -0.5 * rows * np.log(np.maximum(error, 1e-300)) if self._numbers else -error
        return np.where(np.isnan(worth), -np.inf, worth)

    def _shares(self, error: Floats, block: Block) -> Floats:
        """Return how much each model counts, from the summed errors (models, tasks) on held-out rows."""
        shares = _normal(self._worth(error, block))
        compared = np.isfinite(shares).all(axis=0) & _comparable(block)
        only_first = np.arange(len(error))[:, None] == 0
        return np.asarray(np.where(compared, shares, only_first), dtype=np.float64)

    def _fits(self, board: BoardView, took_part: NDArray[np.bool_]) -> list[Fit]:
        """Return what there is to choose from, the algorithm first: each turns some rows into models."""
        board = self._shared(board)
        boards = [board, *(_read_again(variant, board) for variant in self.variants)]
        shared: list[Fit] = [
            partial(_replay, algorithm, its_board, took_part)
            for algorithm, its_board in zip((self.algorithm, *self.variants), boards, strict=True)
        ]
        return [*shared, self._alone] if self.alone else shared

    def _alone(self, block: Block) -> States:
        states = self.learner.prepare(block)
        return self.learner.finish(Home(states, block), (), {})

    def _folds(self, block: Block) -> Iterator[tuple[Block, Floats]]:
        """Yield the block without each fold, and the weights of that fold's rows."""
        real = block.weight > 0
        draws = np.where(real, local_uniforms(FOLDS, 0, real.shape[1]), np.inf)
        rows = real.sum(axis=1)
        count = np.where(rows < 2 * self.folds, np.maximum(rows, 1), self.folds)
        fold = np.argsort(np.argsort(draws, axis=1), axis=1) % count[:, None]
        for i in range(count.max()):
            out = fold == i
            yield replace(block, weight=np.where(out, 0.0, block.weight)), np.where(out, block.weight, 0.0)

    def _error(self, coef: Floats, block: Block, weight: Floats) -> Floats:
        """Return each task's summed error over the weighted rows."""
        with np.errstate(all="ignore"):  # data that overflow compare as equal, in their own task only
            return np.asarray(
                weight.sum(axis=1) * self.learner.loss.value(coef, block.X, block.y, weight), dtype=np.float64
            )


@dataclass(frozen=True)
class ComparedRounds(RoundsOf):
    """The rounds of an algorithm, which variants of it read too; tasks remember in which they took part."""

    variants: tuple[Algorithm, ...] = ()

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        for variant in self.variants:
            if variant.schedule(n_tasks, budget) != self.algorithm.schedule(n_tasks, budget):
                raise PlanError(
                    "Variants must have the rounds and channels of the algorithm, whose releases they read. "
                    f"Got {variant} beside {self.algorithm}."
                )
        return super().rounds(n_tasks, budget, share)

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        inner, took_part = split_states(home.states, len(home))
        messages, inner = self.algorithm.send(inner, home.rows, self.part(board))
        if not inner:
            return messages, {}
        took_part = took_part.copy()
        took_part[:, board.rounds] = True
        return messages, home.states | inner | {"guarded_rounds": took_part}


@dataclass(frozen=True, eq=False)
class AskParts(Stage):
    """One round: whether a little of the shared model is better than none."""

    choice: ChooseAtHome
    most: float

    about = "how far tasks rely on what they share"

    def share(self, n_tasks: int, budget: Budget) -> float:
        answers = 2 if self.choice.by_rows else 1  # whose sum has the noise of both
        return question_share(self.most, n_tasks / math.sqrt(answers), budget.mu)

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        return (Round(share, (self.question,)),)

    @property
    def question(self) -> Channel:
        return BY_ROWS if self.choice.by_rows else QUESTION

    def start(self) -> Public:
        return {"blend": np.array([UNHEARD] * 3 if self.choice.by_rows else UNHEARD)}

    def channel(self, board: BoardView) -> Channel:
        return self.question

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        states, block = home.states, home.rows
        _, took_part = split_states(states, len(block))
        errors = self.choice._blend_errors(block, board, took_part)
        said = np.where(_comparable(block)[:, None], votes(*errors[:2]), 0.0)
        if self.choice.by_rows:
            few = too_few(block.weight.sum(axis=1))[:, None]
            said = np.concatenate([np.where(few, 0.0, said), np.where(few, said, 0.0)], axis=1)
        return said, states | {"held_out": errors.T} if states else {}

    def update(self, release: Release, board: BoardView) -> Public:
        if not self.choice.by_rows:
            return {"blend": estimated_share(release.value, release.noise, release.denominator)}
        many, few = release.value.reshape(2, 2)
        sums = (many + few, math.sqrt(2) * release.noise), (many, release.noise), (few, release.noise)
        return {"blend": np.stack([estimated_share(*one, release.denominator) for one in sums])}


def split_states(states: States, count: int) -> tuple[States, NDArray[np.bool_]]:
    """Return the algorithm's states, and in which rounds each of so many tasks took part, if that counts."""
    inner = {name: array for name, array in states.items() if name not in ("guarded_rounds", "held_out")}
    return inner, states.get("guarded_rounds", np.zeros((count, 0), dtype=bool))


def _comparable(block: Block) -> NDArray[np.bool_]:
    """Say which tasks have rows to hold out and others to fit."""
    return np.asarray((block.weight > 0).sum(axis=1) > 1)


def _normal(worth: Floats) -> Floats:
    """Return shares that are proportional to exp of what each is worth."""
    with np.errstate(all="ignore"):
        odds = np.exp(worth - worth.max(axis=0))
        return np.asarray(odds / sum(odds))  # in order, whoever else is there, which NumPy does not promise


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


def _average(shares: Floats, models: list[States]) -> States:
    """Return the average of what all models have; a covariance counts how far they are apart too."""
    first, *others = models
    names = [name for name in first if all(name in other for other in others)]
    found = {
        name: _weighed(shares, [model[name] for model in models])
        for name in names
        if np.issubdtype(first[name].dtype, np.floating)
    }
    if "covariance" in found:
        apart = [np.where(np.isfinite(off := model["coef"] - found["coef"]), off, 0.0) for model in models]
        found["covariance"] += _weighed(shares, [off[:, :, None] * off[:, None, :] for off in apart])
    return found


def _weighed(shares: Floats, arrays: list[Array]) -> Array:
    """Return the weighted sum; what does not count may be anything, infinite too."""
    found = np.zeros_like(arrays[0])
    for share, array in zip(shares, arrays, strict=True):
        each = share.reshape(-1, *([1] * (array.ndim - 1)))
        with np.errstate(over="ignore", invalid="ignore"):
            found += np.where(each > 0, each * array, 0.0)
    return found
