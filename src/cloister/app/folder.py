"""The folder of a run: a public part that anyone may see, and one model file for each task."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cloister.app.choice import Choice
from cloister.app.outcomes import has_outcomes, one_of, outcome_folders
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.run_record import RunRecord
from cloister.app.task_model import (
    INDEX,
    TaskModel,
    file_names,
    names_of_files,
    on_disk,
    task_of,
    write_index,
)
from cloister.core.arrays import States
from cloister.core.document import check_format
from cloister.core.errors import CloisterError, InputError, PlanError
from cloister.core.roster import Groups
from cloister.plan.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.files import (
    file_digest,
    private_folder,
    remove_drafts,
    storage_errors,
    sync_folder,
    sync_tree,
    write_file,
)
from cloister.store.model_store import read_models, remove_model
from cloister.tables.codebook import Codebook
from cloister.tables.table_files import read_table

GROUPS_FORMAT = "cloister groups 1"
RECORD = "run.toml"

README = """\
A run of cloister.

Public: anyone may see these files.
  plan.toml        what was run, how large the noise is, and for how many tasks
  board            the billboard: every noisy release, hash-chained
  manifest.txt     the hash of each of these files: check them by `sha256sum -c manifest.txt`
  head.txt         the hash of manifest.txt, which stands for all of them: sign it, publish it or keep a copy
  codebook.toml    what was publicly known about the columns
  estimator.toml   which estimator made the run, with which settings, if one did
  guarantee.txt    who is protected, against whom, how strongly, and what is not covered
  guarantee.json   the same for machines
  run.toml         when and by which version the run was made, who held the rows, who approved it, and which
                   charge in a ledger paid for it, if one did
  groups.json      the public group of each task, if tasks are in groups
  choice           what the run was chosen among, if tasks chose it by vote: plans and boards of all runs, and
                   of the vote. The guarantee is for all of them together

Private: each file goes to its own task, and to nobody else.
  models/NAME.json one task's own model. NAME is the task's id; what is not safe in the name of a file is
                   percent-encoded, and a very long name is cut, with a hash at its end. The file says under
                   "task" whose it is.
  models/index.csv which file is whose, for you alone
  models/shard-N.parquet
                   of a run over shards: the models of many tasks, one row each, for you alone. `cloister show
                   FOLDER TASK` shows one, and `cloister predict` uses them

Only its owner can read this folder. To publish the public part, copy those files.

Use it from Python:              cloister.load(FOLDER)
Check the public part:           cloister verify FOLDER --head HEAD
A task that comes later joins:   cloister replay FOLDER own-data.csv --task-name NAME
"""


def read_plan(path: Path, types: Iterable[object] = ()) -> Plan:
    """Read a plan file, or that of a run's folder; whatever is wrong with it is one sentence."""
    if (path / "choice").is_dir():
        raise PlanError(
            f"{path} was chosen among several runs, and costs more than its plan: see {path}/guarantee.txt. "
            f"Name {path}/plan.toml to look at the plan of the chosen run alone."
        )
    if path.is_dir():
        _refuse_several(path)
        return read_plan(path / "plan.toml", types)
    if not path.is_file():
        raise PlanError(f"There is no plan file {path}. Check the path.")
    try:
        plan = Plan.load(path, types)
        if plan.has_rounds:
            plan.algorithm.start()
    except CloisterError:
        raise
    except (ValueError, AttributeError, TypeError, ArithmeticError, MemoryError) as error:
        raise PlanError(f"{path} does not describe a plan that can be run: {error}.") from None
    return plan


def read_run(folder: Path, types: Iterable[object] = ()) -> TableRun:
    """Read a finished run with all models that are there; of the public part alone, there are none."""
    return with_models(folder, read_public(folder, types))


def read_public(folder: Path, types: Iterable[object] = ()) -> TableRun:
    """Read the public part of a finished run; refuse one that is not whole or not of its plan."""
    require_folder(folder)
    plan = read_plan(folder / "plan.toml", types)
    board = Billboard.load(folder / "board")
    plan.check(board)
    if not board.complete:
        raise InputError(
            f"The board holds {board.rounds} of {board.capacity} releases. Finish the run first."
        )
    book, place = read_codebook(folder, plan), folder / "estimator.toml"
    settings = EstimatorSettings.load(place) if place.exists() else EstimatorSettings()
    nobody, groups = settings.as_ids([]), read_groups(folder, plan)
    choice = read_choice(folder, plan, board, types)
    guarantee = plan.guarantee_on(board) if choice is None else choice.guarantee
    record = RunRecord.load(folder / RECORD)
    models = _stacked([], book)
    guarantee = replace(guarantee, one_of=one_of(folder, types))
    return TableRun(plan, board, guarantee, book, nobody, models, settings, groups, choice, record)


def read_choice(folder: Path, plan: Plan, board: Billboard, types: Iterable[object]) -> Choice | None:
    """Read what a run was chosen among, if it was; refuse a record by which another was chosen."""
    if not (folder / "choice").is_dir():
        return None
    try:
        choice = Choice.load(folder / "choice", types)
    except OSError as error:
        raise InputError(f"{folder / 'choice'} is not whole: {error}. Restore it.") from None
    choice.check(plan, board)
    return choice


def read_groups(folder: Path, plan: Plan) -> dict[str, str]:
    """Read the public label of each task; refuse labels that the plan is not for."""
    if plan.algorithm.groups is None:
        return {}
    path = folder / "groups.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        check_format(document.get("format"), GROUPS_FORMAT, path)
        found = {str(task): str(label) for task, label in document["groups"].items()}
        if Groups.of(list(found.values())) == plan.algorithm.groups:
            return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise InputError(f"{path} must have the label of each task, as the plan has its groups. Restore it.")


def with_models(folder: Path, public: TableRun, tasks: Iterable[str] | None = None) -> TableRun:
    """Add the models whose files are there, of all tasks or of some: each may have been given its own."""
    sharded = sorted((folder / "models").glob("shard-*.parquet"))
    if sharded:
        return _with_sharded(sharded, public, tasks)
    models = _read_models(folder / "models", public.codebook, tasks)
    ids = public.settings.as_ids([model.task for model in models])
    order = np.argsort(ids)
    stacked = _stacked([models[i].arrays for i in order], public.codebook)
    return replace(public, ids=ids[order], models=stacked)


def tasks_with_models(folder: Path) -> list[str]:
    """Return the names of the tasks whose models are in a run's folder; private, as the models are."""
    sharded = sorted((folder / "models").glob("shard-*.parquet"))
    if sharded:
        return [name for file in sharded for name in read_table(file, ["task"], ["task"])["task"].tolist()]
    return [name for name in map(task_of, on_disk(folder / "models").values()) if name is not None]


def remove_task(folder: Path, task: str) -> list[Path]:
    """Remove a task's model from a run's folder; return the files that were removed or written anew."""
    home = folder / "models"
    sharded = [
        file for file in sorted(home.glob("shard-*.parquet")) if len(read_models(file, np.array([task]))[0])
    ]
    for file in sharded:
        remove_model(file, task)
    found = on_disk(home)
    gone = [found[name] for name in names_of_files(task) if name in found]
    gone = [path for path in gone if TaskModel.load(path).task == task]
    for path in gone:
        path.unlink()
    if gone and (home / INDEX).exists():
        rows = csv.reader((home / INDEX).read_text(encoding="utf-8").splitlines())
        write_index(home, {name: file for name, file in rows if name not in (task, "task")})
    sync_folder(home)
    return [*sharded, *gone]


def _with_sharded(files: list[Path], public: TableRun, tasks: Iterable[str] | None) -> TableRun:
    """Add models of a run over shards: many tasks in a file."""
    wanted = None if tasks is None else np.array([*tasks], dtype=np.str_)
    found = [part for part in (read_models(file, wanted) for file in files) if len(part[0])]
    if not found:
        return public
    names = public.settings.as_ids([name for ids, _ in found for name in ids.tolist()])
    order = np.argsort(names)
    models = {key: np.concatenate([part[key] for _, part in found])[order] for key in found[0][1]}
    return replace(public, ids=names[order], models=models)


def _read_models(folder: Path, codebook: Codebook, tasks: Iterable[str] | None) -> list[TaskModel]:
    found = on_disk(folder)
    if tasks is not None:
        wanted = {name for task in tasks for name in names_of_files(task)}
        found = {name: path for name, path in found.items() if name in wanted}
    models: dict[str, TaskModel] = {}
    for name, path in found.items():
        model = TaskModel.load(path)
        if name not in names_of_files(model.task):
            raise InputError(f"{path} is the model of task {model.task!r}, and not its file. Restore it.")
        if model.task in models:
            raise InputError(f"{path} is a second model of task {model.task!r}. Remove the wrong one.")
        if model.codebook.to_dict() != codebook.to_dict():
            raise InputError(f"{path} belongs to another codebook. Take this run's model.")
        models[model.task] = model
    return list(models.values())


def _stacked(models: list[States], codebook: Codebook) -> States:
    """Put models together, one row a task; of what not all have, nothing."""
    if not models:
        return {"coef": np.zeros((0, codebook.size))}
    shared = set.intersection(*(set(model) for model in models))
    if any(np.shape(model[name]) != np.shape(models[0][name]) for model in models for name in shared):
        raise InputError("The models of a folder must be of one size. Restore the files that were changed.")
    return {name: np.concatenate([model[name] for model in models]) for name in models[0] if name in shared}


def read_codebook(folder: Path, plan: Plan) -> Codebook:
    """Read a run's codebook; refuse one that gives other columns or classes than the plan is for."""
    return codebook_of_plan(folder / "codebook.toml", plan)


def codebook_of_plan(path: Path, plan: Plan, target: str | None = None) -> Codebook:
    """Read a codebook file, of several targets the one that is named; refuse one that the plan is not for."""
    book = Codebook.load(path, target)
    rows = plan.algorithm.rows
    due = None if rows is None or rows.features is None else (*rows.features, rows.classes)
    found = (book.row_width, book.classes)
    if due is not None and found != due:
        raise InputError(
            f"{path} must give the plan's columns and classes, {due}. Got {found}. Take the codebook that "
            "the plan was made with."
        )
    if book.naming.roster and len(book.naming.roster) != plan.n_tasks:
        raise InputError(
            f"The roster in {path} must name the plan's {plan.n_tasks} tasks. Got {len(book.naming.roster)}. "
            "Make the plan for these, or mend the roster."
        )
    return book


def require_folder(folder: Path, names: Sequence[str] = ("plan.toml", "board", "codebook.toml")) -> None:
    """Refuse what is not the folder of a run, and say what is missing."""
    if folder.is_file():
        raise InputError(f"{folder} is a file. Name the folder that `cloister fit` wrote.")
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}. Name the folder that `cloister fit` wrote.")
    _refuse_several(folder)
    for name in names:
        if not (folder / name).is_file():
            raise InputError(f"{folder} is not the folder of a run: it has no {name}.")


def _refuse_several(folder: Path) -> None:
    if has_outcomes(folder):
        such = next(iter(outcome_folders(folder).values()))
        raise InputError(f"{folder} holds several outcomes: name one, such as {such}.")


def write_run(folder: Path, run: TableRun, models: Iterable[TaskModel] | None) -> None:
    """Write everything but the plan and the board, which a run's journal has written; return when on disk.

    Parameters
    ----------
    folder : Path
        Where the run works until it is complete.
    run : TableRun
        The finished run.
    models : iterable of TaskModel, optional
        A file is written for each. Without them, of a run over shards, the engine has written models.
    """
    # What follows from the plan and the board, for ever; and what other outcomes cost with it.
    guarantee = replace(run.guarantee, all_runs=None, one_of=one_of(folder) or run.guarantee.one_of)
    with storage_errors(folder, "then do the same again: every release is posted, and models come again"):
        run.codebook.save(folder / "codebook.toml")
        if run.settings.name:
            run.settings.save(folder / "estimator.toml")
        for name, text in {
            "guarantee.json": guarantee.to_json(),
            "guarantee.txt": str(guarantee.statement.in_words(run.codebook.naming.words)),
            "README.txt": README.rstrip(),
        }.items():
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
        if run.record != RunRecord():
            run.record.save(folder / RECORD)
        if run.choice is not None and not (folder / "choice").exists():  # unless journals have written it
            run.choice.save(folder / "choice")
        if run.groups:
            listed = {"format": GROUPS_FORMAT, "groups": dict(run.groups)}
            (folder / "groups.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        (folder / "head.txt").write_text(f"{write_manifest(folder)}\n", encoding="utf-8")
        if models is not None:
            home = private_folder(folder / "models")
            remove_drafts(home)  # of a process that was killed here
            files = file_names(map(str, run.ids.tolist()))
            for model in models:
                model.save(home / files[model.task], synced=False)
            write_index(home, files)
        sync_tree(folder)


def save_run(folder: Path, run: TableRun, models: bool, force: bool) -> None:
    """Write a finished run to its folder, all of it or nothing; on return it is on disk."""
    check_free(folder, force)
    own = run.task_models() if models else None
    whole = folder.resolve()
    draft = private_folder(whole.with_name(f".{whole.name}.{secrets.token_hex(8)}.unfinished"))
    try:
        run.plan.save(draft / "plan.toml")
        run.board.save(draft / "board")
        write_run(draft, run, own)
        put_in_place(draft, folder, force)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_free(folder: Path, force: bool) -> None:
    """Refuse to write over a folder, unless forced and it is the folder of a run or empty."""
    if folder.is_symlink():
        raise InputError(f"{folder} is a link, and private files do not go where one leads. Name a folder.")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not force:
        raise InputError(
            f"{folder} is already there and is left as it is. Choose another folder, or replace it by "
            "force=True."
        )
    if not (folder / "plan.toml").is_file() or not (folder / "board").is_file():
        raise InputError(
            f"{folder} is not the folder of a run, so force does not replace it. Choose another."
        )


def unfinished_folder(folder: Path) -> Path:
    """Return where a run works until it is complete: beside its folder."""
    whole = folder.resolve()
    return whole.with_name(f".{whole.name}.unfinished")


def tidy(folder: Path) -> None:
    """Remove what a run needs until its folder is in place: the one it replaced, and whose run it is."""
    if folder.exists():
        shutil.rmtree(_replaced(folder.resolve()), ignore_errors=True)
    if folder.name.endswith(".unfinished"):
        return
    whose = folder / ("election" if (folder / "choice" / "vote").is_dir() else "complete")
    if (folder / "models").is_dir() and whose.is_file():
        whose.unlink()
        sync_folder(folder)


def put_in_place(unfinished: Path, folder: Path, force: bool) -> None:
    """Let a complete run take its folder's place at once; on return that is on disk."""
    folder = folder.resolve()
    check_free(folder, force)
    tidy(folder)
    old = _replaced(folder)
    with storage_errors(folder, f"the run is complete in {unfinished}, and the same again puts it in place"):
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(unfinished, folder)
        except OSError:
            if old.exists():
                os.rename(old, folder)
            raise
        sync_folder(folder.parent)
    tidy(folder)


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


MANIFEST = "manifest.txt"
#: What may be in the folder of a run and is public, but for what says its head.
_PUBLIC = (
    "README.txt",
    "board",
    "choice/*/board",
    "choice/*/plan.toml",
    "codebook.toml",
    "estimator.toml",
    "groups.json",
    "guarantee.json",
    "guarantee.txt",
    "plan.toml",
    RECORD,
)


def write_manifest(folder: Path) -> str:
    """Write the manifest of the public files that are there; return its head."""
    text = _text(_hashes(folder))
    write_file(folder / MANIFEST, text)
    return hashlib.sha256(text).hexdigest()


def manifest_head(folder: Path) -> str | None:
    """Return the hash that stands for all public files as they are; None of a folder without a manifest."""
    return hashlib.sha256(_text(_hashes(folder))).hexdigest() if (folder / MANIFEST).is_file() else None


def check_manifest(folder: Path) -> int:
    """Return how many public files are as they were written; refuse a folder where one is not."""
    listed, found = _read(folder / MANIFEST), _hashes(folder)
    for name in sorted({*listed, *found}):
        if name not in found:
            raise InputError(f"{name} is gone. Restore it from a copy.")
        if name not in listed:
            raise InputError(f"{name} was added since. Remove it, or restore the folder from a copy.")
        if listed[name] != found[name]:
            raise InputError(f"{name} was changed since. Restore it from a copy.")
    return len(found)


def _hashes(folder: Path) -> dict[str, str]:
    places = (path for pattern in _PUBLIC for path in folder.glob(pattern) if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in places)
    return {name: file_digest(folder / name) for name in names}


def _text(hashes: dict[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in hashes.items()).encode()


def _read(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except ValueError:
        raise InputError(
            f"{path.name} must have a hash and a file's name in every line. Restore it."
        ) from None
