"""Who gains by joining: every task's error on rows held out, with the board and without. All private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloister.algorithms.independent import Independent
from cloister.arrays import Floats, States
from cloister.engines.run import replay
from cloister.errors import InputError
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.regression import Regression
from cloister.plan import Plan
from cloister.tables.codebook import Codebook
from cloister.tables.prediction import class_probabilities, numbers
from cloister.tables.table_run import TableRun
from cloister.tasks import Tasks

__all__ = ["Gains", "measure_gains"]

SPLITS, TEST = 5, 0.3


@dataclass(frozen=True, eq=False, repr=False)
class Gains:
    """Errors of tasks on rows held out: root mean squared error in the target's units, or log-loss.

    Attributes
    ----------
    joined, alone : array of shape (tasks,)
        With the board and the task's own rows, and with its own rows only.
    error : str
        Which error it is.
    left_out : int
        Tasks with too few rows to hold one out.
    """

    joined: Floats
    alone: Floats
    error: str
    left_out: int

    def __repr__(self) -> str:
        return f"Gains({len(self.joined)} tasks, private)"

    @property
    def changes(self) -> Floats:
        return self.joined - self.alone

    @property
    def better(self) -> int:
        """How many tasks have a smaller error joined."""
        return int(np.count_nonzero(self.changes < 0))

    @property
    def share(self) -> float:
        """Share of tasks whose error is smaller joined."""
        return float(np.mean(self.changes < 0))

    @property
    def change(self) -> float:
        """Change of the mean error over tasks, relative to that alone."""
        return float(self.joined.mean() / max(float(self.alone.mean()), 1e-300) - 1)


def measure_gains(run: TableRun, data: Tasks, progress: Callable[[int, int], None] | None = None) -> Gains:
    """Split every task's rows, five times, and compare models on the part held out.

    Nothing leaves: models of the parts are computed from the board, which is as it was. Rows that were in
    the run have moved it a little, within its guarantee, so the comparison flatters joining slightly.

    Parameters
    ----------
    run : TableRun
        A finished run.
    data : Tasks
        Rows of tasks, encoded by the run's codebook.
    progress : callable, optional
        Called with (splits done, splits in all).
    """
    book, plan = run.codebook, run.plan
    learner = Regression(book.width) if book.classes is None else Classification(book.width, book.classes)
    alone = Plan(Independent(learner), n_tasks=len(data))
    sums: dict[str, Floats] = {name: np.zeros(len(data)) for name in ("joined", "alone")}
    tested = np.zeros(len(data))
    for seed in range(SPLITS):
        train, test = data.split(TEST, seed)
        at = np.repeat(np.searchsorted(train.ids, test.ids), test.sizes)
        models = {
            "joined": replay(plan, run.board, train),
            "alone": replay(alone, alone.create_board(), train),
        }
        tested += np.bincount(at, minlength=len(data))
        for name, each in models.items():
            sums[name] += np.bincount(at, _errors(book, test, each, at), minlength=len(data))
        if progress is not None:
            progress(seed + 1, SPLITS)
    measured = tested > 0
    if not measured.any():
        raise InputError("No task has rows enough to hold one out: 2 are needed. Leave the data out.")
    means = {name: total[measured] / tested[measured] for name, total in sums.items()}
    if book.classes is None:
        means = {name: np.sqrt(mean) for name, mean in means.items()}
    error = f"root mean squared error of {book.target.name}" if book.classes is None else "log-loss"
    return Gains(means["joined"], means["alone"], error, int((~measured).sum()))


def _errors(book: Codebook, test: Tasks, models: States, at: np.ndarray) -> Floats:
    """Return the squared error of each row in the user's units, or the log-loss of its class."""
    if book.classes is None:
        found = numbers(book, test.X, models, at)
        return np.asarray((found - book.decode_target(test.y)) ** 2)
    chances = class_probabilities(test.X, models, at)
    own = chances[np.arange(len(test.y)), test.y.astype(np.intp)]
    return np.asarray(-np.log(np.maximum(own, 1e-15)))
