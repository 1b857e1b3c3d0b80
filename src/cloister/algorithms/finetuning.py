"""Training at home after the last release: as told, or as each task's own cross-validation advises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.core.arrays import Array, namespace
from cloister.core.errors import PlanError
from cloister.core.spelling import counted
from cloister.learners.descent import Solver, StepSolver

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.learners.learner import ClientLearner
    from cloister.learners.penalties import Penalty


@dataclass(frozen=True)
class FineTuning:
    """Training at home after the last release: free.

    Parameters
    ----------
    solver : Descent, Adam and their like, or ExactSolver
        How long and how fast.
    penalty : Quadratic, SymmetrizedKL or EWC, optional
        What holds a model near the public one meanwhile.
    """

    solver: Solver
    penalty: Penalty | None = None

    @property
    def variants(self) -> tuple[FineTuning, ...]:
        return (self,)

    def tune(self, learner: ClientLearner, weights: Array, block: Block, round: int, anchor: Array) -> Array:
        return learner.descend(weights, block, self.solver, round, anchor, self.penalty)


@dataclass(frozen=True)
class CrossValidatedTuning:
    """Fine-tuning of each task's own choosing: which variant, how long, or none at all.

    A task deals its rows into folds, trains every variant without each of them, one run of its solver after
    another, and looks after each run how well the rows left out are predicted. What did best in the sum over
    folds it does again with all its rows. At a tie it is the shorter training, and the variant named first; a
    task with a single row has nothing to compare by and is not tuned.

    Parameters
    ----------
    variants : tuple of FineTuning
        What to choose from, besides no fine-tuning.
    checks : int
        How often a variant's solver is run, at most. Each run counts as a round: the solver's schedule
        over rounds goes on, its momentum starts anew.
    folds : int
        Parts of a task's rows, each left out once; a task of fewer rows leaves one out at a time.

    Privacy
    -------
    Free, however many variants there are: the choice is made from the board and a task's own rows, and stays
    at home.

    Notes
    -----
    It computes ``folds + 1`` times as much as all variants together. The models of `Ditto` and `Personalized`
    were trained on all rows in the rounds before, so there the choice leans towards no fine-tuning.
    Two engines agree unless two losses do, to rounding.

    Examples
    --------
    >>> from cloister.learners import Descent, Quadratic
    >>> stretch = Descent(lr=0.1, batch=5, steps=20)  # 20, 40, 60 or 80 steps, or none
    >>> choice = CrossValidatedTuning((FineTuning(stretch), FineTuning(stretch, Quadratic(1.0))), checks=4)
    """

    variants: tuple[FineTuning, ...]
    checks: int = 4
    folds: int = 5

    def __post_init__(self) -> None:
        if not self.variants or self.checks < 1:
            raise PlanError(
                "CrossValidatedTuning needs at least one variant and one check. "
                f"Got {len(self.variants)} and {self.checks}; leave finetune out for no fine-tuning."
            )
        if self.folds < 2:
            raise PlanError(f"folds must be at least 2. Got {self.folds}.")

    def tune(self, learner: ClientLearner, weights: Array, block: Block, round: int, anchor: Array) -> Array:
        """Train every variant without each fold and with all rows; keep what did best on rows left out."""
        parts = learner.folds(block, self.folds)
        best, smallest = weights, _left_out_loss(learner, [weights] * self.folds, parts)
        for variant in self.variants:
            tried, tuned = [weights] * self.folds, weights
            for later in range(round, round + self.checks):
                tried = [
                    variant.tune(learner, own, rest, later, anchor)
                    for own, (rest, _) in zip(tried, parts, strict=True)
                ]
                tuned = variant.tune(learner, tuned, block, later, anchor)
                loss = _left_out_loss(learner, tried, parts)
                better = loss < smallest  # nowhere where a loss is not a number
                best = where(better[:, None], tuned, best)
                smallest = where(better, loss, smallest)
        return best


def variants_of(finetune: object, rounds: int) -> tuple[FineTuning, ...]:
    """Return all that may happen at home after the last release; refuse training in steps of size 0."""
    if finetune is None:
        return ()
    if not isinstance(finetune, FineTuning | CrossValidatedTuning):
        kind = type(finetune).__name__
        given = f"{kind}(...)" if isinstance(finetune, StepSolver) else "Descent(lr=0.1, steps=20)"
        raise PlanError(
            f"finetune must be a FineTuning or a CrossValidatedTuning. Got {kind}. Write FineTuning({given})."
        )
    for variant in finetune.variants:
        if isinstance(variant.solver, StepSolver) and variant.solver.rate(rounds) == 0:
            raise PlanError(
                "Training at home after the last round counts as one round more, and after "
                f"{counted(rounds, 'round')} the step size of its solver is 0: nothing would be trained. "
                "Leave its over_rounds= out, or give Cosine a floor=."
            )
    return finetune.variants


def _left_out_loss(learner: ClientLearner, models: list[Array], parts: list[tuple[Block, Block]]) -> Array:
    """Return each task's summed loss over its rows, each by the model that was trained without it."""
    first, *others = (
        out.weight.sum(1) * learner.losses(model, out) for model, (_, out) in zip(models, parts, strict=True)
    )
    total: Array = sum(others, first)
    return total


def where(mask: Array, one: Array, other: Array) -> Array:
    """Take one array where the mask is true and another elsewhere, be they of NumPy or of torch."""
    chosen: Array = namespace(mask).where(mask, one, other)
    return chosen
