"""``cloister gain``: whether joining pays for one task, measured at home on its own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from cloister.arrays import Floats
from cloister.cli.options import Folder, Json, OwnData, TaskName, Types
from cloister.cli.shell import emit, say, show_table
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.tables.codebook import Codebook
    from cloister.tables.rows import Rows
    from cloister.tables.table_run import TableRun

__all__ = ["Gain", "gain", "measure"]

METHODS = {
    "joined": "joined: the board and your own rows",
    "own": "alone: your own rows",
    "board": "the board alone",
}
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
            return (
                "No difference: nothing was heard on the board above its noise, and your model is your own."
            )
        mean, low, high = self.change
        size = f"{abs(mean):.0%} {'lower' if mean < 0 else 'higher'}"
        span = f"95% range {low:+.0%} to {high:+.0%}"
        text = f"joined, your {name} on held-out rows is {size} than alone ({span})."
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
    from cloister.cli.own_types import own_types
    from cloister.tables.folder import read_public
    from cloister.tables.rows import own_rows

    public = read_public(folder, own_types(types))
    rows = own_rows(data, public.codebook, task_name)
    found = measure(public, rows, splits, test)
    numeric = hasattr(public.codebook.target, "low")
    name = "squared error" if numeric else "log-loss"
    if json:
        return emit(_document(task_name, name, found))
    say(
        f"{len(rows)} rows of task {task_name!r}: {splits} random splits, {found.train} rows to fit and "
        f"{found.test} held out each time."
    )
    heads = ["model", *(["root mean squared error"] if numeric else ["log-loss"])]
    show_table(heads, ([METHODS[k], f"{_shown(v, numeric):.4g}"] for k, v in found.errors.items()))
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
    errors: dict[str, list[float]] = {}
    assert rows.y is not None
    for _ in range(splits):
        order = rng.permutation(len(rows))
        weights = _fits(public, rows.X[order[held:]], rows.y[order[held:]])
        for name, found in weights.items():
            error = _error(public.codebook, found, rows.X[order[:held]], rows.y[order[:held]])
            errors.setdefault(name, []).append(error)
    return Gain({k: np.array(v) for k, v in errors.items()}, len(rows) - held, held)


def _fits(public: TableRun, X: Floats, y: NDArray[Any]) -> dict[str, Floats]:
    from cloister.algorithms.independent import Independent
    from cloister.engines.run import replay
    from cloister.learners.linear.classification import Classification
    from cloister.learners.linear.regression import Regression
    from cloister.plan import Plan
    from cloister.tasks import Tasks

    tasks = Tasks.from_arrays(X, y, np.zeros(len(X), dtype=int))
    book = public.codebook
    levels = getattr(book.target, "levels", None)
    learner = Regression(book.width) if levels is None else Classification(book.width, len(levels))
    alone = Plan(Independent(learner), n_tasks=1)
    fits = {
        "joined": replay(public.plan, public.board, tasks)["coef"][0],
        "own": replay(alone, alone.create_board(), tasks)["coef"][0],
    }
    try:
        return fits | {"board": public.newcomer()["coef"][0]}
    except InputError:  # not every board has a model for a task without rows
        return fits


def _error(codebook: Codebook, weights: Floats, X: Floats, y: NDArray[Any]) -> float:
    from cloister.learners.linear.softmax import probabilities

    if hasattr(codebook.target, "low"):
        return float(np.mean((X @ weights - y) ** 2)) * codebook.target_scale**2
    chances = probabilities(X @ weights.reshape(-1, codebook.width).T)
    return float(-np.log(np.maximum(chances[np.arange(len(y)), y], 1e-300)).mean())


def _shown(errors: Floats, numeric: bool) -> float:
    return float(np.sqrt(errors.mean())) if numeric else float(errors.mean())


def _document(task: str, name: str, found: Gain) -> dict[str, Any]:
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
