"""``cloister predict`` and ``cloister replay``: what tasks do with a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from cloister.arrays import Array
from cloister.cli.options import Folder, Force, Json, Output, OwnData, SkipMissingTargets, TaskName, Types
from cloister.cli.shell import absent, advance, emit, note, say
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.tables.codebook import Codebook
    from cloister.tables.model import TaskModel
    from cloister.tables.rows import Rows

__all__ = ["predict", "replay"]


def predict(
    paths: Annotated[list[Path], typer.Argument(metavar="[FOLDER] DATA", help="Run folder, and data file.")],
    model: Annotated[
        Path | None, typer.Option(help="One task's own model file, instead of a folder.")
    ] = None,
    types: Types = None,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Predict each row with its own task's model.

    A task without a model file in the folder is served from the public board alone. Columns are added to
    those of the data: `prediction`, and `std` for numbers or one probability for each class. Without -o
    the table goes to stdout.

    \b
    For example:
      cloister predict exam-run new-pupils.csv -o predicted.csv
      cloister predict my-pupils.csv --model elm.json    # at one school
    """
    if len(paths) != (2 if model is None else 1):
        raise typer.BadParameter("Give FOLDER and DATA, or DATA and --model FILE.")
    if model is None and paths[0].is_file():
        raise InputError(f"The run's folder comes first, and {paths[0]} is a file. Name FOLDER, then DATA.")
    if model is None and paths[-1].is_dir():
        return _folder_of_parquet(paths[0], paths[1], types, output, force, json)
    file = None if output is None else absent(output, force)
    data = paths[-1]
    rows, added, unseen = _by_folder(paths[0], data, types) if model is None else _by_model(model, data)
    clash = [name for name in added if name in rows.table]
    if clash:
        raise InputError(f"{data.name} already has a column {clash[0]!r}. Rename it first.")
    if unseen:
        note(f"{unseen} task(s) without a model file: predicted from the board alone.")
    return _deliver(rows.table | added, added, file, json, unseen)


def _folder_of_parquet(
    folder: Path, data: Path, types: list[str] | None, output: Path | None, force: bool, json: bool
) -> None:
    """Predict one Parquet file after the other; each has its predictions in a file of the same name."""
    from cloister.store.files import private_folder
    from cloister.tables.binary_files import write_parquet
    from cloister.tables.parquet_folder import ParquetFolder

    if output is None:
        raise InputError(f"{data} is a folder, and so are its predictions. Name one: -o predicted.")
    if output.exists() and not force:
        raise InputError(f"{output} is already there and is left as it is. Add --force, or name another.")
    count, source = 0, ParquetFolder(data.resolve())
    with advance("Files") as progress:
        for number, file in enumerate(source.files):
            rows, added, _ = _by_folder(folder, file, types)
            place = output / file.relative_to(source.path)
            private_folder(place.parent)
            write_parquet(place, rows.table | added)
            count += len(rows)
            progress(number + 1, len(source.files))
    if json:
        return emit({"rows": count, "files": len(source.files), "folder": output})
    return say(f"Wrote {output}: {count} rows. Each prediction is private to its task.")


def _by_folder(folder: Path, data: Path, types: list[str] | None) -> tuple[Rows, dict[str, Array], int]:
    from cloister.tables.folder import read_public, with_models
    from cloister.tables.prediction import predicted_columns
    from cloister.tables.rows import read_rows, task_column

    public = read_public(folder, types or ())
    rows = read_rows(data, public.codebook, target=False)
    if rows.ids is None:
        raise InputError(
            f"{data.name} has no task column"
            + (f" {public.codebook.task!r}" if public.codebook.task else ", and the codebook names none")
            + ". Add it, or use --model FILE for the rows of one task."
        )
    _note_clipped(public.codebook, rows, data)
    ids = public.settings.as_ids(rows.ids.tolist())
    names = np.unique(ids).tolist()
    run = with_models(folder, public, map(str, names))
    column = str(public.settings.groups)
    labels = task_column(data, column) if column in rows.table else None
    added = predicted_columns(run.codebook, rows.X, *run.locate(ids, labels))
    return rows, added, len(names) - len(run.ids)


def _by_model(path: Path, data: Path) -> tuple[Rows, dict[str, Array], int]:
    from cloister.tables.model import TaskModel
    from cloister.tables.prediction import predicted_columns
    from cloister.tables.rows import read_rows

    model = TaskModel.load(path)
    rows = read_rows(data, model.codebook, target=False)
    if rows.ids is not None and (rows.ids != model.task).any():
        raise InputError(
            f"{path} is the model of task {model.task!r}, but {data.name} has rows of other tasks. "
            "Keep this task's rows only."
        )
    _note_clipped(model.codebook, rows, data)
    whose = np.zeros(len(rows), dtype=np.intp)
    return rows, predicted_columns(model.codebook, rows.X, model.arrays, whose), 0


def _note_clipped(codebook: Codebook, rows: Rows, data: Path) -> None:
    features = {name: rows.table[name] for name in codebook.names}
    beyond = {column.name: column.clipped for column in codebook.check(features) if column.clipped}
    if beyond:
        count = sum(beyond.values())
        note(f"{count} cell(s) of {data.name} beyond the bounds were clipped to them: {', '.join(beyond)}.")


def _deliver(
    table: dict[str, Array], added: dict[str, Array], file: Path | None, json: bool, unseen: int
) -> None:
    from cloister.tables.files import csv_text, write_csv

    rows = len(table["prediction"])
    if file is not None:
        write_csv(file, table)
    if json:
        where = {"file": file} if file is not None else {k: v.tolist() for k, v in added.items()}
        return emit({"rows": rows, "tasks_from_board": unseen, **where})
    if file is None:
        return typer.echo(csv_text(table), nl=False)
    say(f"Wrote {file}: {rows} rows. Each prediction is private to its task.")
    return None


def replay(
    folder: Folder,
    data: OwnData,
    task_name: TaskName,
    skip: SkipMissingTargets = False,
    types: Types = None,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Compute one task's own model at home.

    Uses the public board and the task's own rows. A task that comes late joins so; a task of the run gets
    its model again. Nothing leaves and nothing is spent. The file may have a task column, or hold this
    task's rows only.

    \b
    For example:
      cloister replay exam-run my-pupils.csv --task-name "Elm Street" -o elm.json
    """
    from cloister.roster import group_labels
    from cloister.tables.columns import labels_by_task
    from cloister.tables.folder import read_public
    from cloister.tables.rows import own_rows, task_column
    from cloister.tasks import Tasks

    file = None if output is None else absent(output, force)
    run = read_public(folder, types or ())
    rows = own_rows(data, run.codebook, task_name, skip)
    assert rows.y is not None
    own = Tasks.from_arrays(rows.X, rows.y, [task_name] * len(rows))
    column = str(run.settings.groups)
    if column in rows.table:
        alone = rows.ids is None or data.is_dir()  # of a folder, this task's rows alone are read
        whose = own.ids[:1] if alone else task_column(data, str(run.codebook.task))
        labels = group_labels(rows.table[column]) if data.is_dir() else task_column(data, column)
        own = own.with_groups(labels_by_task(np.resize(whose, len(labels)), labels))
    elif task_name in run.groups:
        own = own.with_groups({own.ids[0]: run.groups[task_name]})
    model = run.model_of(own, own.ids[0])
    if file is not None:
        model.save(file)
    if json:
        return emit(_document(model) | ({} if file is None else {"file": file}))
    typer.echo(model.summary())
    say(
        "Computed here, from the public board and these rows alone: nothing left and nothing was spent.",
        apart=True,
    )
    if file is not None:
        say(f"Wrote {file}. It is private to task {model.task!r}.")


def _document(model: TaskModel) -> dict[str, object]:
    return {
        "task": model.task,
        "columns": list(model.codebook.column_names),
        "coef": model.coef.tolist(),
        "intercept": np.asarray(model.intercept).tolist(),
    }
