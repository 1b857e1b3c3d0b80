"""A data file with its codebook, as `fit` reads it: public columns first, values last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.cli.shell import Move, note
from cloister.errors import InputError, PrivateDataError

if TYPE_CHECKING:
    from cloister.arrays import Array
    from cloister.engines.sharded_tasks import Shards
    from cloister.engines.workers import Engine
    from cloister.tables.codebook import Codebook
    from cloister.tasks import Tasks

__all__ = ["Table", "codebook_of"]


def codebook_of(path: Path, task: str | None, target: str | None) -> Codebook:
    """Read the codebook; the columns named on the command line must be its own."""
    from cloister.tables.codebook import Codebook

    book = Codebook.load(path)
    if target is not None and target != book.target.name:
        raise InputError(
            f"--target must be the codebook's target, {book.target.name!r}. Got {target!r}. "
            "Leave the option out, or write another codebook."
        )
    if book.task is not None and task not in (None, book.task):
        raise InputError(
            f"--task must be the codebook's task column, {book.task!r}. Got {task!r}. "
            "Leave the option out, or change the line `task` in the codebook."
        )
    if book.task is None and task is None:
        raise InputError("The codebook names no task column. Add --task COLUMN.")
    return replace(book, task=book.task or task)


@dataclass(frozen=True)
class Table:
    """A data file, the codebook that says what is public in it, and the column of public groups, if any.

    With `skip`, rows whose target is missing are left out; who takes part does not depend on that.
    """

    file: Path
    codebook: Codebook
    groups: str | None = None
    skip: bool = False

    @property
    def task(self) -> str:
        assert self.codebook.task is not None
        return self.codebook.task

    @cached_property
    def ids(self) -> Array:
        """The tasks' ids, each once; no other column is looked at."""
        from cloister.tables.rows import task_column

        ids = np.unique(task_column(self.file, self.task))
        if len(ids) < 2:
            raise InputError(
                f"Column {self.task!r} of {self.file.name} must hold at least 2 tasks. Got 1, with nobody to "
                "learn from. Name the column that tells schools, hospitals or persons apart."
            )
        return ids

    @cached_property
    def labels(self) -> dict[Any, str] | None:
        """The public group of each task, if tasks are in groups; no other columns are looked at."""
        from cloister.tables.columns import labels_by_task
        from cloister.tables.rows import task_column

        if self.groups is None:
            return None
        column = task_column(self.file, self.groups, "groups' column ")
        return labels_by_task(task_column(self.file, self.task), column)

    def engine(self, draft: Path, bar: Callable[[str], Move]) -> Engine:
        """Return where tasks are computed on; models that it keeps go into the draft of a run's folder.

        What it does beside rounds has a progress bar of its own.
        """
        from cloister.engines.local import Local

        return Local()

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Keep what a run needs until its folder is in place."""
        yield

    def data(self) -> Tasks | Shards:
        """Return what is run over: all rows, or shards of them."""
        return self.tasks()

    def tasks(self) -> Tasks:
        """Read and encode all rows; refuse what does not fit the codebook."""
        from cloister.tables.rows import read_rows
        from cloister.tasks import Tasks

        rows = read_rows(self.file, self.codebook, target=True, skip=self.skip)
        used = {*self.codebook.names, self.codebook.target.name, self.task, self.groups}
        unused = [name for name in rows.table if name not in used]
        if unused:
            note(f"Columns that the codebook does not name are not used: {', '.join(unused)}.")
        assert rows.y is not None
        assert rows.ids is not None
        self._refuse_without_targets(rows.ids)
        tasks = Tasks.from_arrays(rows.X, rows.y, rows.ids)
        return tasks if self.labels is None else tasks.with_groups(self.labels)

    def _refuse_without_targets(self, left: Array) -> None:
        """Refuse tasks of which no row is left: they would be missing among those that take part."""
        without = np.setdiff1d(self.ids, left)
        if len(without):
            others = f" (the first of {len(without)} tasks)" if len(without) > 1 else ""
            raise PrivateDataError(
                f"Every task must have a row whose {self.codebook.target.name!r} is not missing. Task "
                f"{str(without[0])!r} has none{others}. Fill in one of its targets; or, if everybody may "
                f"see that it does not take part, delete its rows from {self.file.name}."
            )
