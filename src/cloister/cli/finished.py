"""Commands over a finished run: ``summary``, ``show``, ``predict``, ``replay``, ``gain``, ``withdraw``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from cloister.cli.options import Folder, Force, Json, Output, OwnData, SkipMissingTargets, TaskName, Types
from cloister.cli.shell import absent, advance, emit, note, say, show_table
from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.core.spelling import counted

if TYPE_CHECKING:
    from cloister.app.gains import TaskGain
    from cloister.app.task_model import TaskModel
    from cloister.tables.codebook import Codebook
    from cloister.tables.rows import Rows


#: So many tasks are named in a sentence.
_NAMED = 5
_Place = Annotated[
    Path, typer.Argument(metavar="PLACE", help="Folder of a run with its models, or one task's model file.")
]
_Task = Annotated[str | None, typer.Argument(metavar="TASK", help="Whose page; not beside a model file.")]


def summary(folder: Folder, types: Types = None, json: Json = False) -> None:
    r"""Show what all tasks have in common, from the public board alone.

    Coefficients of the population in the table's units, with standard errors that count the privacy noise;
    how far tasks lie apart; and what does not stand out from the noise. All of it is public, and free.

    \b
    For example:
      cloister summary exam-run
      cloister summary exam-run --json
    """
    from cloister.app.folder import read_public
    from cloister.app.outcomes import runs_in

    found = {name: read_public(place, types or ()).summary() for name, place in runs_in(folder).items()}
    if json:
        each = {name: one.to_dict() for name, one in found.items()}
        return emit(each if len(each) > 1 else next(iter(each.values())))
    return typer.echo(
        "\n\n".join(f"Outcome {name}\n\n{one}" if name else str(one) for name, one in found.items())
    )


def show(place: _Place, task: _Task = None, types: Types = None, json: Json = False) -> None:
    r"""Show one task's own page. It is PRIVATE, as the task's model is.

    Its coefficients with standard errors, and how far its own rows have moved them from what tasks share.

    \b
    For example:
      cloister show exam-run 007
      cloister show elm.json    # at one school, from its model file
    """
    page = _model_of(place, task, types).summary()
    return emit(page.to_dict() | {"private": True}) if json else typer.echo(page)


def _model_of(place: Path, task: str | None, types: list[str] | None) -> TaskModel:
    from cloister.app.folder import read_public, tasks_with_models, with_models
    from cloister.app.task_model import TaskModel
    from cloister.tables.look_alikes import did_you_mean

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
        meant = did_you_mean(task, tasks_with_models(place))
        raise InputError(
            f"{place} has no model of task {task!r}{meant}. Check the name, as models/index.csv has "
            "it, or compute its model from its own rows with `cloister replay`."
        )
    return run.task_model(run.ids[0])


def predict(
    paths: Annotated[list[Path], typer.Argument(metavar="[FOLDER] DATA", help="Run folder, and data file.")],
    model: Annotated[
        Path | None, typer.Option(help="One task's own model file, instead of a folder.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Add columns low and high, which hold such a share: 0.9."),
    ] = None,
    types: Types = None,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Predict each row with its own task's model.

    A task without a model file in the folder is served from the public board alone; the column
    `served_by` says which. Also added are `prediction`, and `std` for numbers or one probability for each
    class. Cells stay as they are written, with the separator and decimal comma of DATA. -o writes .csv or
    .parquet, as the name ends; without it the table goes to stdout.

    \b
    For example:
      cloister predict exam-run new-pupils.csv -o predicted.csv
      cloister predict exam-run new-pupils.csv --interval 0.9
      cloister predict my-pupils.csv --model elm.json    # at one school
    """
    from cloister.app.predict import PredictedTable, check_format_of

    if len(paths) != (2 if model is None else 1):
        raise typer.BadParameter("Give FOLDER and DATA, or DATA and --model FILE.")
    if interval is not None and not 0 < interval < 1:
        raise InputError(f"--interval must be between 0 and 1. Got {interval:g}. Write 0.9 for 90 %.")
    if model is None and paths[0].is_file():
        raise InputError(f"The run's folder comes first, and {paths[0]} is a file. Name FOLDER, then DATA.")
    if model is None and paths[-1].is_dir():
        return _folder_of_parquet(paths[0], paths[1], interval, types, output, force, json)
    if output is not None:
        check_format_of(output)
    file = None if output is None else absent(output, force)
    data, unseen = paths[-1], 0
    if model is None:
        rows, added, unseen = _by_outcomes(paths[0], data, interval, types)
    else:
        rows, added = _by_model(model, data, interval)
    clash = [name for name in added if name in rows.table]
    if clash:
        raise InputError(f"{data.name} already has a column {clash[0]!r}. Rename it first.")
    found = PredictedTable(data, rows.table, added)
    if file is not None:
        found.write(file)
    if json:
        where = {"file": file} if file is not None else {k: v.tolist() for k, v in added.items()}
        return emit({"rows": len(rows), "tasks_from_board": unseen, **where})
    if file is None:
        return typer.echo(found.text(), nl=False)
    return say(f"Wrote {file}: {counted(len(rows), 'row')}. Each prediction is private to its task.")


def _folder_of_parquet(
    folder: Path,
    data: Path,
    interval: float | None,
    types: list[str] | None,
    output: Path | None,
    force: bool,
    json: bool,
) -> None:
    """Predict one Parquet file after the other; each has its predictions in a file of the same name."""
    from cloister.app.parquet import ParquetFolder
    from cloister.app.predict import write_parquet
    from cloister.store.files import private_folder

    if output is None:
        raise InputError(f"{data} is a folder, and so are its predictions. Name one: -o predicted.")
    if output.exists() and not force:
        raise InputError(f"{output} is already there and is left as it is. Add --force, or name another.")
    count, source = 0, ParquetFolder(data.resolve())
    with advance("Files") as progress:
        for number, file in enumerate(source.files):
            rows, added, _ = _by_folder(folder, file, interval, types)
            place = output / file.relative_to(source.path)
            private_folder(place.parent)
            write_parquet(place, rows.table | added)
            count += len(rows)
            progress(number + 1, len(source.files))
    if json:
        return emit({"rows": count, "files": len(source.files), "folder": output})
    return say(f"Wrote {output}: {counted(count, 'row')}. Each prediction is private to its task.")


def _by_outcomes(
    folder: Path, data: Path, interval: float | None, types: list[str] | None
) -> tuple[Rows, dict[str, Array], int]:
    """Predict by a run's folder, or every outcome by its own in a folder of several: columns of its name."""
    from cloister.app.outcomes import runs_in
    from cloister.tables.codebook import Codebook

    places = runs_in(folder)
    if interval is not None and len(places) > 1:
        books = {name: Codebook.load(place / "codebook.toml") for name, place in places.items()}
        classes = [name for name, book in books.items() if book.classes is not None]
        numbers = [f", or predict {places[name]}" for name in books if name not in classes]
        if classes:
            raise InputError(
                f"Intervals are for numbers, and {classes[0]!r} has classes. Leave --interval out"
                f"{''.join(numbers[:1])}."
            )
    found = {name: _by_folder(place, data, interval, types) for name, place in places.items()}
    rows, added, unseen = next(iter(found.values()))
    if len(found) == 1:
        return rows, added, unseen
    served = {"served_by": added["served_by"]}
    each = {
        f"{name}.{key}": column
        for name, (_, more, _) in found.items()
        for key, column in more.items()
        if key not in served
    }
    return rows, each | served, unseen


def _by_folder(
    folder: Path, data: Path, interval: float | None, types: list[str] | None
) -> tuple[Rows, dict[str, Array], int]:
    from cloister.app.folder import read_public, with_models
    from cloister.app.predict import predicted_columns
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
    names = np.unique(ids)
    run = with_models(folder, public, map(str, names.tolist()))
    unseen = [str(name) for name in np.setdiff1d(names, run.ids).tolist()]
    if unseen:
        note(_without_models(folder, unseen))
    column = str(public.settings.groups)
    labels = task_column(data, column) if column in rows.table else None
    added = predicted_columns(run.codebook, rows.X, *run.locate(ids, labels), interval)
    return rows, added | {"served_by": np.where(np.isin(ids, run.ids), "own model", "board")}, len(unseen)


def _without_models(folder: Path, unseen: list[str]) -> str:
    """Name tasks without a model file, the first of them with the names that may be meant."""
    from cloister.app.folder import tasks_with_models
    from cloister.tables.look_alikes import did_you_mean

    known = tasks_with_models(folder)
    shown = [f"{name!r}{did_you_mean(name, known)}" for name in unseen[:_NAMED]]
    more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
    tasks, are = ("task", "is") if len(unseen) == 1 else ("tasks", "are")
    return (
        f"{len(unseen)} {tasks} without a model file in {folder} {are} predicted from the board alone: "
        f"{', '.join(shown)}{more}."
    )


def _by_model(path: Path, data: Path, interval: float | None) -> tuple[Rows, dict[str, Array]]:
    from cloister.app.predict import predicted_columns
    from cloister.app.task_model import TaskModel
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
    return rows, predicted_columns(model.codebook, rows.X, model.arrays, whose, interval)


def _note_clipped(codebook: Codebook, rows: Rows, data: Path) -> None:
    features = {name: rows.table[name] for name in codebook.names}
    beyond = {column.name: column.clipped for column in codebook.check(features) if column.clipped}
    if beyond:
        count = sum(beyond.values())
        note(
            f"Beyond the bounds, and clipped to them: {counted(count, 'cell')} of {data.name}, in "
            f"{', '.join(beyond)}."
        )


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
    from cloister.app.folder import read_public
    from cloister.app.source import own_tasks

    file = None if output is None else absent(output, force)
    run = read_public(folder, types or ())
    own = own_tasks(data, run.codebook, task_name, skip, str(run.settings.groups), run.groups)
    model = run.model_of(own, own.ids[0])
    if file is not None:
        model.save(file)
    if json:
        return emit(_model_document(model) | ({} if file is None else {"file": file}))
    typer.echo(model.summary())
    say(
        "Computed here, from the public board and these rows alone: nothing left and nothing was spent.",
        apart=True,
    )
    if file is not None:
        say(f"Wrote {file}. It is private to task {model.task!r}.")


def _model_document(model: TaskModel) -> dict[str, object]:
    return {
        "task": model.task,
        "columns": list(model.codebook.column_names),
        "coef": model.coef.tolist(),
        "intercept": np.asarray(model.intercept).tolist(),
    }


def withdraw(
    folder: Folder,
    task_name: TaskName,
    types: Types = None,
    force: Annotated[bool, typer.Option("--force", help="Remove without asking.")] = False,
    json: Json = False,
) -> None:
    r"""Remove what a run's folder holds of one task: its model.

    It asks first, unless --force or --json is given. The board stays: no task can be taken out of its noisy
    sums, and the guarantee bounds what they tell of this one. The ledger stays: what was released stays
    released. Delete rows, copies and pages elsewhere yourself; it says where to look.

    \b
    For example:
      cloister withdraw exam-run --task-name 009 --force
    """
    from cloister.app.folder import read_public, remove_task, tasks_with_models
    from cloister.privacy.statement import percent
    from cloister.tables.look_alikes import did_you_mean

    run, known = read_public(folder, types or ()), tasks_with_models(folder)
    if task_name not in known:
        raise InputError(
            f"{folder} has no model of task {task_name!r}{did_you_mean(task_name, known)}. Nothing "
            "was removed."
        )
    if not force and not json:
        typer.confirm(f"Remove the model of task {task_name!r} from {folder}, for good?", abort=True)
    removed = remove_task(folder, task_name)
    told = run.guarantee
    bound = (
        "What it tells of this task stays within the guarantee: a test with 5 % false alarms detects what it "
        f"held in at most {percent(told.detection())} of cases."
        if told.holds
        else "The guarantee of this run does not hold, so nothing bounds what it tells of this task."
    )
    if told.holds and told.unit != "task":
        bound = (
            f"The guarantee is about each {told.unit}, and not about a whole task: what all records of this "
            "one have in common may show in it for ever."
        )
    if json:
        rate = told.detection() if told.holds and told.unit == "task" else 1.0
        return emit({"task": task_name, "files": removed, "detection": rate, "holds": told.holds})
    return say(
        f"Removed the model of task {task_name!r}: {', '.join(map(str, removed))}.",
        "The board and the ledger are as they were. The board holds sums of all tasks with noise, and "
        f"nothing of one task can be taken out of it. {bound} The charge stays, because what was released "
        "stays released.",
        "Still to be deleted by hand, where they are: the task's rows in data files and their copies, its "
        "own page (cloister report --task), predictions of its rows, its node's folder, and models of other "
        "runs.",
    )


METHODS = {
    "joined": "joined: the board and your own rows",
    "own": "alone: your own rows",
    "board": "the board alone",
}
_OPTIMISTIC = (
    "If you took part in the run, the rows held out here moved the board a little (epsilon bounds how "
    "much), so the comparison flatters joining slightly."
)


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
    from cloister.app.folder import read_public
    from cloister.app.gains import ErrorMeasure, measure_gain
    from cloister.app.source import own_rows

    public = read_public(folder, types or ())
    rows = own_rows(data, public.codebook, task_name, skip)
    found = measure_gain(public, rows, splits, test)
    measure = ErrorMeasure.of(public.codebook)
    name = measure.name
    if json:
        return emit(_gain_document(task_name, name, found))
    say(
        f"{counted(len(rows), 'row')} of task {task_name!r}: {counted(splits, 'random split')}, "
        f"{counted(found.train, 'row')} to fit and {found.test} held out each time."
    )
    means = {METHODS[k]: float(v.mean()) for k, v in found.errors.items()}
    rows_shown = ([method, f"{mean**0.5 if measure.rooted else mean:.4g}"] for method, mean in means.items())
    show_table(["model", measure.told], rows_shown)
    say(found.verdict(name), f"{_OPTIMISTIC} This number is private to you.", apart=True)


def _gain_document(task: str, name: str, found: TaskGain) -> dict[str, object]:
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
