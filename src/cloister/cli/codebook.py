"""``cloister codebook``: a template of what is public about the columns, and a check of data against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from cloister.cli.options import Data, Force, Json, SkipMissingTargets
from cloister.cli.shell import absent, emit, say, show_commands, show_table
from cloister.core.spelling import counted

if TYPE_CHECKING:
    from cloister.core.arrays import Array
    from cloister.tables.codebook import Codebook
    from cloister.tables.column_checks import ColumnCheck
    from cloister.tables.reading import Kind, Mask

#: So many tasks with the fewest rows are named.
_SMALLEST = 3
#: So many rows without a target are named.
_SHOWN = 10
_PRIVATE = (
    "For your own eyes: these numbers tell about the rows. Mend cells by them. Bounds or levels that are "
    "changed because of them are no longer public knowledge, and no noise hides what they tell."
)


def codebook(
    data: Data,
    task: Annotated[str | None, typer.Option(help="Column that says which task a row belongs to.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column to predict; may be repeated.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="CODEBOOK", help="Check the data against this filled-in codebook.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: DATA-codebook.toml here.")
    ] = None,
    skip: SkipMissingTargets = False,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Write a codebook template, or check data against a codebook.

    A codebook lists what is publicly possible in each column: bounds of numbers and dates, levels of
    categories, what stands for missing cells. The template holds column names only, and no value from the
    data. Fill it in; delete the heading and lines of a column that is not to be used.

    With --check it says, for your own eyes, how many cells of which column are clipped, missing, or not what
    the codebook says; of several targets all, or those that --target names. Nothing leaves and nothing is
    spent. The exit code is 1 if a fit with the same --skip-missing-targets would refuse the file.

    \b
    For example:
      cloister codebook exam.csv --task school --target score
      cloister codebook exam.csv --task school --target score -o new.toml
      cloister codebook exam.csv --check exam.toml
    """
    if check is not None:
        if task is not None or output is not None:
            raise typer.BadParameter("--check takes a codebook and DATA, and writes nothing.")
        return _check(data, check, target or (), skip, json)
    if skip:
        raise typer.BadParameter("A template looks at no row: --skip-missing-targets goes with --check.")
    if task is None or not target:
        raise typer.BadParameter("Name the columns with --task and --target, or --check a codebook.")
    from cloister.tables.codebook import Codebook

    kinds = _kinds(data, task, target)
    name = f"{Path(data.name.removesuffix('.gz')).stem}-codebook.toml"
    file = absent(Path(name) if output is None else output, force)
    file.write_text(Codebook.template(kinds, task, *target), encoding="utf-8")
    if json:
        return emit({"file": file, "columns": {k: v for k, v in kinds.items() if k != task}})
    say(
        f"Wrote {file}: {counted(len(kinds) - 1, 'column')} to fill in, with no value from the data.",
        "Write what is possible, not what is in the file. Then:",
    )
    return show_commands(
        ["cloister", "codebook", data, "--check", file], ["cloister", "fit", data, "--codebook", file]
    )


def _kinds(data: Path, task: str, targets: Sequence[str]) -> dict[str, Kind]:
    from cloister.core.errors import InputError
    from cloister.tables.reading import kind_of
    from cloister.tables.table_files import read_table

    table = read_table(data, text=[task])
    for name in (task, *targets):
        if name not in table:
            raise InputError(
                f"{data.name} has no column {name!r}. It has: {', '.join(table)}. Check the spelling."
            )
    if len({task, *targets}) < 1 + len(targets):
        got = ", ".join(map(repr, (task, *targets)))
        raise InputError(f"--task and each --target must be different columns. Got {got}. Name each once.")
    if len(table) < 2 + len(targets):
        raise InputError(f"{data.name} must have a column besides task and target to predict from. Add one.")
    return {name: "text" if name == task else kind_of(column) for name, column in table.items()}


def _books(path: Path, targets: Sequence[str]) -> list[Codebook]:
    """Read a codebook for each target, or for those that are named."""
    from cloister.core.errors import InputError
    from cloister.tables.codebook import Codebook

    books = {book.target.name: book for book in Codebook.load_all(path)}
    if len(set(targets)) < len(targets):
        raise InputError(f"Each --target must be another column. Got {', '.join(targets)}. Name each once.")
    for name in targets:
        if name not in books:
            known = ", ".join(books)
            raise InputError(
                f"--target must be a target of {path.name}: {known}. Got {name!r}. Name another."
            )
    return [book for name, book in books.items() if not targets or name in targets]


def _check(data: Path, path: Path, targets: Sequence[str], skip: bool, json: bool) -> None:
    from cloister.tables.look_alikes import look_alikes
    from cloister.tables.rows import codebook_table

    books = _books(path, targets)
    tables = [codebook_table(data, book, target=True) for book in books]
    found = _checked(books, tables, skip)
    book, table = books[0], tables[0]
    wrong = _task_column(data, book)
    ids = None if wrong else _ids(data, book)
    refused = [*([] if wrong is None else [str(book.task)]), *(each.name for each in found if each.refused)]
    about_targets = [
        _without_targets(each, table[each.target.name], ids, skip)
        for each, table in zip(books, tables, strict=True)
    ]
    lost = [each.target.name for each, (_, tasks) in zip(books, about_targets, strict=True) if tasks]
    refused += [name for name in lost if name not in refused]
    used = {*book.names, *(each.target.name for each in books), book.task}
    unused = [name for name in table if name not in used]
    if json:
        columns = {column.name: _document(column) for column in found}
        emit(
            {
                "rows": found[0].rows,
                "columns": columns,
                "unused": unused,
                "refused": refused,
                "task_column": wrong,
                "look_alikes": look_alikes([] if ids is None else ids),
                "note": _PRIVATE,
            }
        )
    else:
        say(f"{data.name} against {path.name}: {book.naming.rows(found[0].rows)}.")
        _show(found)
        say(
            *filter(None, ["\n".join(f"  {column}" for column in found if column.refused or column.clipped)]),
            *([f"Not in the codebook, and not used: {', '.join(unused)}."] if unused else []),
            *([] if wrong is None else [wrong]),
            f"A fit would refuse this file: mend {', '.join(refused)}." if refused else _taken(data, book),
            *_remedies(books, found, path),
            *([] if ids is None else _about_tasks(book, ids)),
            *(line for rows, tasks in about_targets for line in (*rows, *tasks)),
            _PRIVATE,
            apart=True,
        )
    if refused:
        raise typer.Exit(1)


def _checked(books: list[Codebook], tables: list[dict[str, Array]], skip: bool) -> list[ColumnCheck]:
    """Check the columns, then each target; of rows that have one alone, if the others are left out."""
    from cloister.tables.rows import rows_with_target

    if not skip:
        checked = [book.check(table) for book, table in zip(books, tables, strict=True)]
        return [*checked[0], *(columns[-1] for columns in checked[1:])]
    kept = [rows_with_target(book, table) for book, table in zip(books, tables, strict=True)]
    used = np.unique(np.concatenate(kept))  # by one target or another
    features = books[0].check({name: column[used] for name, column in tables[0].items()})[:-1]
    each = zip(books, tables, kept, strict=True)
    goals = (book.check({name: column[rows] for name, column in table.items()}) for book, table, rows in each)
    return [*features, *(columns[-1] for columns in goals)]


def _about_tasks(book: Codebook, ids: Array) -> list[str]:
    """Say how many tasks there are and how small, and which names may be two spellings of one."""
    from cloister.tables.look_alikes import look_alikes

    names, counts = np.unique(ids, return_counts=True)
    smallest = np.argsort(counts, kind="stable")[:_SMALLEST]
    small = ", ".join(f"{str(names[i])!r} ({counts[i]})" for i in smallest)
    least = "" if counts.min() == counts.max() else f"{counts.min()} to "
    tasks, rows = book.naming.tasks(len(names)), book.naming.rows(counts.max())
    lines = [f"{tasks} by column {book.task!r}, of {least}{rows} each; fewest: {small}."]
    pairs = look_alikes(map(str, names.tolist()))
    if pairs:
        shown = "; ".join(f"{one!r} and {other!r}" for one, other in pairs[:_SHOWN])
        lines.append(
            f"Names that look alike: {shown}{'; ...' * (len(pairs) > _SHOWN)}. Two spellings of one party "
            "count as two parties, and each is protected by itself alone: write one of them throughout."
        )
    return lines


def _task_column(data: Path, book: Codebook) -> str | None:
    """Return why a fit refuses the task column or its tasks; None if it takes them, or none is named."""
    from cloister.core.errors import InputError
    from cloister.tables.rows import task_column

    if book.task is None:
        return None
    try:
        book.naming.check(np.unique(task_column(data, book.task)).tolist(), data.name)
    except InputError as error:
        return str(error)
    return None


def _taken(data: Path, book: Codebook) -> str:
    from cloister.tables.rows import task_column

    if book.task is None:
        return "A fit takes these columns. The codebook names no task column, so none was checked."
    if len(set(task_column(data, book.task).tolist())) < 2:
        return "A fit takes these rows beside others': they are all of one task, and it needs two or more."
    return "A fit takes it."


def _remedies(books: list[Codebook], found: list[ColumnCheck], path: Path) -> list[str]:
    """Return what to write so that missing cells and other ways to write dates are taken."""
    targets = {book.target.name: book.target for book in books}
    parts = {part.name: part for part in books[0].features} | targets
    lines, cells = [], []
    for column in found:
        part, wrong = parts[column.name], [cell.strip("'\" ") for cell, _ in column.examples]
        if column.wrong:
            lines += [f"  {column.name}: {advice}" for advice in part.admit(wrong)]
            cells += [f"  {column.name}: {advice}" for advice in part.mend(wrong)]
        if column.missing and not column.filled and column.name not in targets:
            lines.append(f"  {column.name}: {part.example}")
    known = f"If it is known beforehand that cells may be so, write in {path.name}:"
    told = (("Mend the cells:", cells), (known, lines))
    return ["\n".join([head, *each]) for head, each in told if each]


def _ids(data: Path, book: Codebook) -> Array | None:
    from cloister.tables.rows import task_column

    return None if book.task is None else task_column(data, book.task)


def _without_targets(
    book: Codebook, column: Array, ids: Array | None, skip: bool
) -> tuple[list[str], list[str]]:
    """Say which rows have no target, how to leave them out, and which tasks would have no row left."""
    absent = book.target.read(book.cells(book.target.name, column)).missing
    missing = (np.flatnonzero(absent) + 1).tolist()
    if not missing:
        return [], []
    shown = ", ".join(map(str, missing[:_SHOWN])) + ", ..." * (len(missing) > _SHOWN)
    remedy = (
        "They were left out here, as `cloister fit --skip-missing-targets` does."
        if skip
        else "To leave such rows out, add --skip-missing-targets, here and to `cloister fit`."
    )
    rows = f"Data rows that have no {book.target.name!r}, and teach nothing: {len(missing)} ({shown})."
    return [f"{rows} {remedy}"], _tasks_without_targets(book.target.name, absent, ids)


def _tasks_without_targets(target: str, absent: Mask, ids: Array | None) -> list[str]:
    """Name the tasks of which no row has a target: a fit refuses them whatever is left out."""
    without = [] if ids is None else np.setdiff1d(ids[absent], ids[~absent]).tolist()
    if not without:
        return []
    shown = ", ".join(map(repr, without[:_SHOWN])) + ", ..." * (len(without) > _SHOWN)
    return [
        f"Tasks of which no row has a {target!r}, and which a fit refuses all the same: {len(without)} "
        f"({shown}). Fill in one of each task's targets; or, if everybody may see that it does not take "
        "part, delete its rows."
    ]


def _show(found: list[ColumnCheck]) -> None:
    counts = ((column, (column.clipped, column.missing, column.refused)) for column in found)
    rows = ([column.name, *(_share(n, column.rows) for n in each)] for column, each in counts)
    show_table(["column", "clipped", "missing", "refused"], rows)


def _share(count: int, rows: int) -> str:
    digits = 2 if 100 * count < 99 * rows else 3
    return f"{count} ({100 * count / rows:.{digits}g} %)" if count else "-"


def _document(column: ColumnCheck) -> dict[str, object]:
    return {
        "clipped_below": column.below,
        "clipped_above": column.above,
        "missing": column.missing,
        "filled": column.filled,
        "refused": column.refused,
        "examples": dict(column.examples),
    }
