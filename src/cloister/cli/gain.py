"""``cloister gain``: whether joining pays for one task, measured at home on its own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from cloister.arrays import Array, Floats, States
from cloister.cli.options import Folder, Json, OwnData, SkipMissingTargets, TaskName, Types
from cloister.cli.shell import emit, say, show_table
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.tables.rows import Rows
    from cloister.tables.table_run import TableRun
    from cloister.tasks import Tasks

__all__ = ["Gain", "gain", "measure"]

METHODS = {
    "joined": "joined: the board and your own rows",
    "own": "alone: your own rows",
    "board": "the board alone",
}
_SAME = 0.005
_OPTIMISTIC = (
    "If you took part in the run, the rows held out here moved the board a little (epsilon bounds how "
    "much), so the comparison flatters joining slightly."
)


@dataclass(frozen=True, eq=False)
class Gain:
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
            return "No difference: nothing on the board stands out of its noise, and your model is your own."
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


def gain(
    folder: Folder,
    data: OwnData,
    task_name: TaskName,
    splits: Annotated[int, typer.Option(help="How many random splits of the rows.", min=2, max=1000)] = 20,
    test: Annotated[float, typer.Option(help="Share of the rows that is held out.")] = 0.3,
    skip: SkipMissingTargets = False,
    types: Types = None,
    json: Json = False,
) -> None:
    r"""Measure at home whether joining pays for one task.

    Splits the task's own rows at random, several times. Each time it fits on one part, with the board and
    without, and measures the error on the other. Nothing leaves and nothing is spent.

    \b
    For example:
      cloister gain exam-run my-pupils.csv --task-name "Elm Street"
    """
    from cloister.tables.folder import read_public
    from cloister.tables.rows import own_rows

    public = read_public(folder, types or ())
    rows = own_rows(data, public.codebook, task_name, skip)
    found = measure(public, rows, splits, test)
    numeric = public.codebook.classes is None
    name = "squared error" if numeric else "log-loss"
    if json:
        return emit(_document(task_name, name, found))
    say(
        f"{len(rows)} rows of task {task_name!r}: {splits} random splits, {found.train} rows to fit and "
        f"{found.test} held out each time."
    )
    means = {METHODS[k]: float(v.mean()) for k, v in found.errors.items()}
    rows_shown = ([method, f"{mean**0.5 if numeric else mean:.4g}"] for method, mean in means.items())
    show_table(["model", "root mean squared error" if numeric else name], rows_shown)
    say(found.verdict(name), f"{_OPTIMISTIC} This number is private to you.", apart=True)


def measure(public: TableRun, rows: Rows, splits: int, test: float) -> Gain:
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
    return Gain({k: np.array([each[k] for each in found]) for k in found[0]}, len(rows) - held, held)


def _split_errors(public: TableRun, rows: Rows, out: Array, kept: Array) -> dict[str, float]:
    """Return each method's mean squared error in the user's units, or log-loss, on the rows held out."""
    from sklearn.metrics import log_loss, mean_squared_error

    from cloister.tables.prediction import class_probabilities, numbers
    from cloister.tasks import Tasks

    assert rows.y is not None
    book, X, y, whose = public.codebook, rows.X[out], rows.y[out], np.zeros(len(out), dtype=np.intp)
    fits = _fits(public, Tasks.from_arrays(rows.X[kept], rows.y[kept], np.zeros(len(kept), dtype=int)))
    if book.classes is None:
        truth = book.decode_target(y)
        return {k: mean_squared_error(truth, numbers(book, X, fit, whose)) for k, fit in fits.items()}
    labels = range(book.classes)
    return {k: log_loss(y, class_probabilities(X, fit, whose), labels=labels) for k, fit in fits.items()}


def _fits(public: TableRun, own: Tasks) -> dict[str, States]:
    from cloister.engines.run import replay
    from cloister.estimators.baselines import SingleTaskClassifier, SingleTaskRegressor

    book = public.codebook
    kind = SingleTaskRegressor if book.classes is None else SingleTaskClassifier
    alone = kind().plan(1, book)
    fits = {
        "joined": replay(public.plan, public.board, own),
        "own": replay(alone, alone.create_board(), own),
    }
    try:
        return fits | {"board": public.newcomer()}
    except InputError:  # not every board has a model for a task without rows
        return fits


def _document(task: str, name: str, found: Gain) -> dict[str, object]:
    mean, low, high = found.change
    return {
        "task": task,
        "splits": len(found.errors["own"]),
        "rows_to_fit": found.train,
        "rows_held_out": found.test,
        f"mean_{name.replace(' ', '_').replace('-', '_')}": {
            k: float(v.mean()) for k, v in found.errors.items()
        },
        "change": mean,
        "change_95": [low, high],
        "verdict": found.verdict(name),
        "note": _OPTIMISTIC,
        "private": True,
    }
