"""What a task with unusable rows does where tasks are apart: it sends zeros, and is told at home.

Where one operator holds all rows, such rows are refused before anything is charged (`PrivateDataError`), to
the operator alone. Between parties a refusal would be a release that nobody paid for: everybody would learn
that this task has a missing value. So nobody else notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Words
from cloister.board.billboard import Billboard
from cloister.doubts import Doubt
from cloister.engines.devices import SeveralWorkers
from cloister.engines.workers import AnyTasks, Coins, Engine, Workers, rows_of
from cloister.errors import PrivateDataError
from cloister.plan import Plan
from cloister.privacy.candidates import Sampler
from cloister.roster import Name
from cloister.tasks import Tasks, check_finite

__all__ = ["ZeroInvalid", "complaints", "invalid_tasks"]


@dataclass(frozen=True)
class ZeroInvalid:
    """An engine for tasks that live apart: one with an invalid row sends zeros for the whole run.

    No algorithm sees an invalid row, so that none can stop the others or change what is computed for them. A
    task whose rows do not even fit the codebook takes part with one row of NaN.

    Parameters
    ----------
    engine : Engine
        Where and how tasks are computed on.

    Privacy
    -------
    A message of zeros is one that every channel allows, so that such a task is as protected as any other, and
    nothing public depends on how many there are. Its model is that of rows of zeros.

    Examples
    --------
    >>> from cloister import run
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.engines import Local
    >>> from cloister.learners import LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]], [[1.0]]], [[2.0], [4.0], [6.0]])
    >>> tasks.y[2] = np.nan
    >>> plan = Plan(MeanRegularized(LeastSquares(1), rounds=1, clip=1e3), NoNoise(), n_tasks=3)
    >>> board = run(plan, tasks, engine=ZeroInvalid(Local())).board
    >>> tasks.y[2] = -np.inf  # whatever it is
    >>> board.head == run(plan, tasks, engine=ZeroInvalid(Local())).board.head
    True
    >>> list(complaints(plan, tasks))
    [2]
    """

    engine: Engine

    @property
    def remote(self) -> bool:
        return self.engine.remote

    def doubts_of(self, plan: Plan) -> tuple[Doubt, ...]:
        return self.engine.doubts_of(plan)

    def noise_sampler(self) -> Sampler:
        return self.engine.noise_sampler()

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[Workers]:
        """Make the engine's own workers of valid rows; tasks with others are never asked."""
        rows = rows_of(tasks, self)
        invalid = invalid_tasks(plan, rows)
        valid = rows.blanked(invalid) if invalid.any() else rows
        with self.engine.workers(plan, valid, seeds) as workers:
            yield _Masked([workers], [np.arange(len(tasks))], ~invalid)


@dataclass
class _Masked(SeveralWorkers):
    valid: NDArray[np.bool_]

    def collect(self, board: Billboard, coins: Coins) -> Any:
        return super().collect(board, coins & self.valid)

    def listen(self, board: Billboard, coins: Coins) -> None:
        super().listen(board, coins & self.valid)


def invalid_tasks(plan: Plan, tasks: Tasks) -> NDArray[np.bool_]:
    """Say which tasks have a row that is not finite, or a target that is no class of the plan. Private."""
    invalid = tasks.invalid
    if _mislabelled(plan, tasks):
        invalid |= np.array([bool(_mislabelled(plan, tasks.select([i]))) for i in range(len(tasks))])
    return invalid


def _mislabelled(plan: Plan, tasks: Tasks) -> str:
    rows = plan.algorithm.rows
    try:
        if rows is not None:
            rows.check_labels(tasks.X, tasks.y)
    except PrivateDataError as error:
        return str(error)
    return ""


def complaints(plan: Plan, tasks: Tasks) -> dict[Name, str]:
    """Return what is wrong with the rows of each invalid task. Private: each sentence is for its own task."""
    found: dict[Name, str] = {}
    for task in np.flatnonzero(invalid_tasks(plan, tasks)):
        own = tasks.select([task])
        try:
            check_finite(own.X, own.y, np.repeat(own.ids, own.sizes))
            sentence = _mislabelled(plan, own) or "A row has a weight that is not finite or below 0."
        except PrivateDataError as error:
            sentence = str(error)
        found[own.ids.tolist()[0]] = sentence
    return found
