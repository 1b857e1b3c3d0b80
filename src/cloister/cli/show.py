"""``cloister summary`` and ``cloister show``: what a run has found of all tasks, and one task's own page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import Folder, Json, Types
from cloister.cli.shell import emit
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.tables.model import TaskModel

__all__ = ["show", "summary"]

_Place = Annotated[
    Path, typer.Argument(metavar="PLACE", help="Folder of a run with its models, or one task's model file.")
]
_Task = Annotated[str | None, typer.Argument(metavar="TASK", help="Whose page; not beside a model file.")]


def summary(folder: Folder, types: Types = None, json: Json = False) -> None:
    r"""Show what all tasks have in common, from the public board alone.

    Coefficients of the population in the table's units, with standard errors that count the privacy noise;
    how far tasks lie apart; and what was not heard above the noise. All of it is public, and free.

    \b
    For example:
      cloister summary exam-run
      cloister summary exam-run --json
    """
    from cloister.tables.folder import read_public

    found = read_public(folder, types or ()).summary()
    return emit(found.to_dict()) if json else typer.echo(found)


def show(place: _Place, task: _Task = None, types: Types = None, json: Json = False) -> None:
    r"""Show one task's own page. It is PRIVATE, as the task's model is.

    Its coefficients with standard errors, and how far its own rows have moved them from what tasks share.

    \b
    For example:
      cloister show exam-run 007
      cloister show elm.json    # at one school, from its model file
    """
    page = _model(place, task, types).summary()
    return emit(page.to_dict() | {"private": True}) if json else typer.echo(page)


def _model(place: Path, task: str | None, types: list[str] | None) -> TaskModel:
    from cloister.tables.folder import read_public, with_models
    from cloister.tables.model import TaskModel

    if place.is_file():
        model = TaskModel.load(place)
        if task not in (None, model.task):
            raise InputError(f"{place} is the model of task {model.task!r}. Got {task!r}. Leave TASK out.")
        return model
    public = read_public(place, types or ())
    if task is None:
        raise InputError(f"Name the task whose page to show: cloister show {shlex.quote(str(place))} TASK.")
    run = with_models(place, public, [task])
    if not len(run.ids):
        raise InputError(
            f"{place} has no model of task {task!r}. Check the name, as models/index.csv has it, or compute "
            "its model from its own rows with `cloister replay`."
        )
    return run.task_model(run.ids[0])
