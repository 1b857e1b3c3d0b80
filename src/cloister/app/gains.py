"""Who gains by joining: errors on rows held out, of all tasks or of one. All private."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import xlogy

from cloister.algorithms.bases import Independent
from cloister.app.predict import Index, class_probabilities, numbers
from cloister.app.result import TableRun
from cloister.core.arrays import Array, Floats, Integers, States
from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.core.tasks import Tasks
from cloister.engines.run import replay
from cloister.plan.plan import Plan
from cloister.tables.codebook import Codebook
from cloister.tables.targets import Count, Positive

if TYPE_CHECKING:
    from cloister.app.result import TableRun
    from cloister.core.tasks import Tasks
    from cloister.tables.rows import Rows
from cloister.app.fit import own_learner
from cloister.tables.rows import Rows

SPLITS, TEST = 5, 0.3
#: Tasks of so many rows, up to the next number, are told of together.
SIZES = (2, 3, 4, 5, 8, 16, 32)
#: No mean of counts is less, for nobody: a deviance would be infinite.
LEAST_MEAN = 1e-3
#: A relative change that is none.
_SAME = 0.005


@dataclass(frozen=True, eq=False, repr=False)
class Gains:
    """Errors of tasks on rows held out: root mean squared error in the target's units, deviance, or log-loss.

    Attributes
    ----------
    joined, alone : array of shape (tasks,)
        With the board and the task's own rows, and with its own rows only.
    error : str
        Which error it is.
    left_out : int
        Tasks with too few rows to hold one out.
    rows : array of shape (tasks,)
        How many rows each has, those held out included.
    """

    joined: Floats
    alone: Floats
    error: str
    left_out: int
    rows: Integers

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

    @property
    def by_rows(self) -> list[tuple[str, int, int, float]]:
        """For tasks of about as many rows: how many rows, how many tasks, of which better, and `change`."""
        ends, found = [*SIZES[1:], None], []
        for low, end in zip(SIZES, ends, strict=True):
            there = (self.rows >= low) & (self.rows < (end or math.inf))
            if there.any():
                part = Gains(self.joined[there], self.alone[there], self.error, 0, self.rows[there])
                to = " or more" if end is None else f" to {end - 1}" * (end > low + 1)
                found.append((f"{low}{to}", len(part.rows), part.better, part.change))
        return found


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
    alone, measure = _alone(book, len(data)), ErrorMeasure.of(book)
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
            sums[name] += np.bincount(at, measure.each(book, test.X, test.y, each, at), minlength=len(data))
        if progress is not None:
            progress(seed + 1, SPLITS)
    measured = tested > 0
    if not measured.any():
        raise InputError("No task has rows enough to hold one out: 2 are needed. Leave the data out.")
    means = {name: total[measured] / tested[measured] for name, total in sums.items()}
    if measure.rooted:
        means = {name: np.sqrt(mean) for name, mean in means.items()}
    error = measure.told if book.classes is not None else f"{measure.told} of {book.target.name}"
    return Gains(means["joined"], means["alone"], error, int((~measured).sum()), data.sizes[measured])


@dataclass(frozen=True)
class ErrorMeasure:
    """How errors of a target are measured on rows held out.

    Attributes
    ----------
    name : str
        Of a row's.
    each : callable
        From codebook, encoded rows and targets, models, and which is whose, to each row's error.
    rooted : bool
        Whether a mean of them is told by its root.
    """

    name: str
    each: Callable[[Codebook, Floats, Array, States, Index], Floats]
    rooted: bool = False

    @classmethod
    def of(cls, book: Codebook) -> ErrorMeasure:
        """Return the squared error of numbers, a deviance, or the log-loss of classes."""
        if book.classes is not None:
            return cls("log-loss", _log_losses)
        if isinstance(book.target, Count):
            return cls("Poisson deviance", _deviances)
        if isinstance(book.target, Positive):
            return cls("gamma deviance", _relative_deviances)
        return cls("squared error", _squares, rooted=True)

    @property
    def told(self) -> str:
        """What a mean is called."""
        return f"root mean {self.name}" if self.rooted else self.name


def _squares(book: Codebook, X: Floats, y: Array, models: States, at: Index) -> Floats:
    return np.asarray((numbers(book, X, models, at) - book.decode_target(y)) ** 2)


def _deviances(book: Codebook, X: Floats, y: Array, models: States, at: Index) -> Floats:
    mean = np.maximum(numbers(book, X, models, at), LEAST_MEAN)
    return np.asarray(2 * (xlogy(y, y / mean) - y + mean))


def _relative_deviances(book: Codebook, X: Floats, y: Array, models: States, at: Index) -> Floats:
    ratio = book.decode_target(y) / numbers(book, X, models, at)
    return np.asarray(2 * (ratio - 1 - np.log(ratio)))


def _log_losses(book: Codebook, X: Floats, y: Array, models: States, at: Index) -> Floats:
    own = class_probabilities(book, X, models, at)[np.arange(len(y)), y.astype(np.intp)]
    return np.asarray(-np.log(np.maximum(own, 1e-15)))


def _alone(codebook: Codebook, n_tasks: int) -> Plan:
    """Return the plan by which every task learns on its own."""
    return Plan(Independent(own_learner(codebook)), n_tasks=n_tasks)


@dataclass(frozen=True, eq=False)
class TaskGain:
    """A task's own errors by method: one row for each random split of its rows.

    The interval of the difference allows for splits that overlap: variance times (1/splits + test/train).

    References
    ----------
    Nadeau, Bengio, *Inference for the generalization error*, Machine Learning 52, 2003, section 4.
    """

    errors: dict[str, Floats]
    train: int
    test: int

    @property
    def change(self) -> tuple[float, float, float]:
        """Change of the error by joining against one's own model, relative to it: (mean, low, high)."""
        from scipy.stats import t

        difference = self.errors["joined"] - self.errors["own"]
        splits, scale = len(difference), max(float(self.errors["own"].mean()), 1e-300)
        spread = float(difference.std(ddof=1)) * (1 / splits + self.test / self.train) ** 0.5
        half = float(t.ppf(0.975, splits - 1)) * spread
        mean = float(difference.mean())
        return mean / scale, max(-1.0, (mean - half) / scale), (mean + half) / scale

    def verdict(self, name: str) -> str:
        if (self.errors["joined"] == self.errors["own"]).all():
            return (
                "No difference: joined, your model is your own. Nothing on the board stands out so far from "
                f"its noise that a task with {counted(self.train, 'row')} relies on it."
            )
        mean, low, high = self.change
        if max(abs(low), abs(high)) < _SAME:
            return f"No difference (under 0.5 %): joined or alone, your {name} on held-out rows is the same."
        size = f"{abs(mean):.0%} {'lower' if mean < 0 else 'higher'} than alone"
        size = "within 0.5 % of what it is alone" if abs(mean) < _SAME else size
        span = f"95% range {low:+.0%} to {high:+.0%}"
        text = f"joined, your {name} on held-out rows is {size} ({span})."
        if high < 0:
            return f"Joining pays for you: {text}"
        if low > 0:
            return f"Joining does not pay for you: {text} Keep your own model."
        return f"No clear difference: {text}"


def measure_gain(public: TableRun, rows: Rows, splits: int, test: float) -> TaskGain:
    """Fit a task's rows with the board, without it, and not at all; return errors on held-out rows."""
    if not 0 < test < 1:
        raise InputError(f"--test must be a share in (0, 1). Got {test}.")
    held = max(1, round(test * len(rows)))
    if len(rows) < 4 or len(rows) - held < 2:
        raise InputError(
            f"A comparison needs at least 4 rows, 2 of them to fit. Got {len(rows)}, {held} held out. "
            "Get a model with `cloister replay` instead."
        )
    rng = np.random.default_rng(0)  # of the splits only: nothing here is secret or leaves
    orders = (np.split(rng.permutation(len(rows)), [held]) for _ in range(splits))
    found = [_split_errors(public, rows, *order) for order in orders]
    return TaskGain({k: np.array([each[k] for each in found]) for k in found[0]}, len(rows) - held, held)


def _split_errors(public: TableRun, rows: Rows, out: Array, kept: Array) -> dict[str, float]:
    """Return each method's mean error on the rows held out."""
    assert rows.y is not None
    book, X, y, at = public.codebook, rows.X[out], rows.y[out], np.zeros(len(out), dtype=np.intp)
    fits = _fits(public, Tasks.from_arrays(rows.X[kept], rows.y[kept], np.zeros(len(kept), dtype=int)))
    each = ErrorMeasure.of(book).each
    return {name: float(each(book, X, y, fit, at).mean()) for name, fit in fits.items()}


def _fits(public: TableRun, own: Tasks) -> dict[str, States]:
    alone = _alone(public.codebook, 1)
    fits = {
        "joined": replay(public.plan, public.board, own),
        "own": replay(alone, alone.create_board(), own),
    }
    try:
        return fits | {"board": public.findings.new_tasks}
    except InputError:  # not every board has a model for a task without rows
        return fits
