"""``cloister fit``: a private run over a table, from its price to one model file for each task."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cloister.channel import Relation
from cloister.cli.options import Data, Delta, Force, Json, Neighbours, Types
from cloister.cli.shell import advance, emit, given, note, positive, say
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.arrays import Array
    from cloister.board.billboard import Billboard
    from cloister.estimators.prior import SharedPriorClassifier, SharedPriorRegressor
    from cloister.ledger import Ledger
    from cloister.plan import Plan
    from cloister.tables.codebook import Codebook
    from cloister.tasks import Tasks

__all__ = ["fit"]


class Structure(StrEnum):
    """What tasks tell each other."""

    auto = "auto"
    joint = "joint"
    mean = "mean"
    relevance = "relevance"
    lowrank = "lowrank"
    sparse = "sparse"


def fit(
    context: typer.Context,
    data: Data,
    codebook: Annotated[Path, typer.Option(help="Filled-in codebook file: what is public.")],
    task: Annotated[str | None, typer.Option(help="Task column. Default: the codebook's.")] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict. Default: the codebook's.")] = None,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of every task; smaller is stricter.")] = 1.0,
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    structure: Annotated[Structure, typer.Option(help="What tasks tell each other.")] = Structure.auto,
    start_from: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="An earlier run, whose public board to start from.")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of each task's PUBLIC group, such as its district."),
    ] = None,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="PLAN.toml",
            help="Run this plan; one without a noise level gets it by --epsilon.",
        ),
    ] = None,
    types: Types = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Default: DATA-run here.")] = None,
    ledger: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Charge this ledger: a file, or a database URL.")
    ] = None,
    population: Annotated[str | None, typer.Option(help="Whose account in that ledger.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Fit every task's own model under a proven privacy bound.

    First prints what the run promises and what it can be expected to bring, from public numbers alone.
    Then runs it and writes a folder: a public part, and one model file for each task, for that task alone.
    Whether numbers or classes are predicted follows from the codebook. A run that was killed goes on when
    the same command is given again: nothing is posted or spent twice.

    \b
    For example:
      cloister fit exam.csv --codebook exam-codebook.toml
      cloister fit exam.csv --codebook exam-codebook.toml --epsilon 0.5 -o exam-half
      cloister fit exam-2027.csv --codebook exam-codebook.toml --epsilon 0.1 --start-from exam-half
      cloister fit exam.csv --codebook exam-codebook.toml --plan plan.toml --types mine.py:Mine
    """
    from cloister.tables import folder as folders
    from cloister.tables.fitting import fit_in_folder
    from cloister.tables.table_run import EstimatorSettings

    folder = Path(f"{data.stem}-run") if output is None else output
    folders.tidy(folder)
    folders.check_free(folder, force)
    if epsilon != math.inf:  # infinity is the non-private run, and says so
        positive("--epsilon", epsilon)
    book = _codebook(codebook, task, target)
    ids = _ids(data, book)
    labels = None if groups is None else _labels(data, book, groups)
    if plan_file is None:
        model = _estimator(book, epsilon, delta, relation, structure, start_from, groups)
        plan: Plan = model.plan(len(ids), book, None if labels is None else list(labels.values()))
        settings = EstimatorSettings.of(model, ids, named=True)
    else:
        said = given(context, "epsilon", "delta", "relation", "structure", "start_from")
        plan = _plan(plan_file, types or (), book, len(ids), epsilon, said)
        settings = EstimatorSettings()
    if not json:
        say(
            f"{data.name}: {plan.n_tasks} tasks by column {book.task!r}. "
            "The number of tasks is taken to be public.",
            plan.guarantee,
            f"Forecast, from public numbers alone: {plan.forecast()}",
        )
    account = _account(ledger, population)
    with advance("Rounds") as progress:
        finished = fit_in_folder(
            folder,
            plan,
            partial(_tasks, data, book, groups, labels),
            book,
            settings,
            ledger=account,
            force=force,
            progress=progress,
            resumed=_resumed,
        )
    head = (folder / "head.txt").read_text(encoding="utf-8").strip()
    if json:
        return emit(_summary(folder, plan) | {"location": finished.location, "head": head})
    say(
        *filter(None, [finished.location]),
        f"Wrote {folder}: the public part, and one file for each task in {folder / 'models'}. "
        "Give each of these to its own task alone; README.txt says more.",
        f"The board's head, to sign, publish or keep:\n{head}",
        f"Check the public part with:  cloister verify {folder} --head HEAD",
        apart=True,
    )


def _codebook(path: Path, task: str | None, target: str | None) -> Codebook:
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


def _ids(data: Path, book: Codebook) -> Array:
    """Return the tasks' ids, each once; no other column is looked at."""
    from cloister.tables.rows import task_column

    assert book.task is not None
    ids = np.unique(task_column(data, book.task))
    if len(ids) < 2:
        raise InputError(
            f"Column {book.task!r} of {data.name} must hold at least 2 tasks. Got 1, with nobody to learn "
            "from. Name the column that tells schools, hospitals or persons apart."
        )
    return ids


def _labels(data: Path, book: Codebook, column: str) -> dict[Any, str]:
    """Return the public group of each task; no other columns are looked at."""
    from cloister.tables.columns import labels_by_task
    from cloister.tables.rows import task_column

    assert book.task is not None
    return labels_by_task(task_column(data, book.task), task_column(data, column, "groups' column "))


def _estimator(
    book: Codebook,
    epsilon: float,
    delta: float | None,
    relation: Relation,
    structure: Structure,
    start_from: Path | None,
    groups: str | None,
) -> SharedPriorRegressor | SharedPriorClassifier:
    from cloister.estimators.prior import SharedPriorClassifier, SharedPriorRegressor

    kind = SharedPriorRegressor if book.classes is None else SharedPriorClassifier
    return kind(
        book.task,
        epsilon=epsilon,
        delta="auto" if delta is None else delta,
        relation=relation.value,
        structure=structure.value,
        start_from=start_from,
        groups=groups,
    )


def _plan(
    path: Path, types: Iterable[Any], book: Codebook, tasks: int, epsilon: float, said: list[str]
) -> Plan:
    """Read a plan for this table; refuse options that it settles (a draft leaves --epsilon open)."""
    from cloister.tables.folder import read_plan

    plan = read_plan(path, types)
    draft = plan.has_rounds and not plan.mechanism.calibrated
    if settled := [option for option in said if option != "--epsilon" or not draft]:
        raise InputError(f"{path} settles {', '.join(settled)} itself: nothing would change. Leave it out.")
    if plan.n_tasks != tasks:
        raise InputError(f"{path} is a plan for {plan.n_tasks} tasks. Got {tasks} in the table.")
    plan = replace(plan, caveats=tuple(dict.fromkeys((*plan.caveats, *book.caveats))))
    return plan.calibrate(epsilon) if draft else plan


def _account(place: str | None, population: str | None) -> Ledger | None:
    if place is None:
        if population is not None:
            raise InputError("--population names an account in a ledger. Add --ledger PLACE.")
        return None
    from cloister.ledger import Ledger

    account: Ledger = Ledger.open(place, population)
    return account


def _resumed(board: Billboard) -> None:
    if board.complete:
        note("An earlier run of this command was complete, but not yet in place. It is now; nothing was run.")
    else:
        note(f"Going on with the unfinished run: {board.rounds} of {board.capacity} releases are posted.")


def _tasks(data: Path, book: Codebook, groups: str | None, labels: dict[Any, str] | None) -> Tasks:
    from cloister.tables.rows import read_rows
    from cloister.tasks import Tasks

    rows = read_rows(data, book, target=True)
    used = {*book.names, book.target.name, book.task, groups}
    unused = [name for name in rows.table if name not in used]
    if unused:
        note(f"Columns that the codebook does not name are not used: {', '.join(unused)}.")
    assert rows.y is not None
    assert rows.ids is not None
    tasks = Tasks.from_arrays(rows.X, rows.y, rows.ids)
    return tasks if labels is None else tasks.with_groups(labels)


def _summary(folder: Path, plan: Plan) -> dict[str, object]:
    forecast = plan.forecast()
    return {
        "folder": folder,
        "tasks": plan.n_tasks,
        "guarantee": plan.guarantee.to_dict(),
        "statement": str(plan.guarantee),
        "forecast": {"low": forecast.low, "high": forecast.high, "rho": forecast.rho},
    }
