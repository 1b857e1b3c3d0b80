"""``cloister report``: one page about a run, for its operator, for everybody, or for one task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AccountOptions, Folder, Force, Json, SkipMissingTargets, Types
from cloister.cli.shell import absent, advance, emit, given, note, say
from cloister.core.errors import InputError

if TYPE_CHECKING:
    from cloister.app.gains import Gains
    from cloister.app.result import TableRun
    from cloister.app.task_model import TaskModel
    from cloister.ledger.accounts import Balance
    from cloister.report.run_page import PublicPart

_Page = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="File to write. Default: RUN-EDITION.html here, RUN-task-NAME.html for a task's.",
    ),
]
_Public = Annotated[bool, typer.Option("--public", help="The edition that may be published.")]
_Task = Annotated[
    str | None, typer.Option(metavar="NAME", help="One task's own edition: its name, or its model file.")
]
_Data = Annotated[
    Path | None, typer.Option(metavar="TABLE", help="The rows again, to measure who gains. They stay here.")
]
_Ledger = Annotated[
    str | None, typer.Option(metavar="PLACE", help="The ledger it was charged to: a file, or a database URL.")
]
_Audit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What `cloister audit RUN --json` has printed.")
]

_Evaluation = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What `cloister evaluate RUN DATA -o FILE` has written.")
]


def report(
    context: typer.Context,
    folder: Folder,
    output: _Page = None,
    public: _Public = False,
    task: _Task = None,
    data: _Data = None,
    skip: SkipMissingTargets = False,
    ledger: _Ledger = None,
    population: Annotated[str | None, typer.Option(help="Whose account in that ledger.")] = None,
    audit: _Audit = None,
    evaluation: _Evaluation = None,
    types: Types = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Write a page about a run: to keep, to publish, or for one task.

    What was learned, promised, seen and spent, and how to check it. The page holds everything it needs: no
    script, nothing to fetch, for screens, phones and print. By default it is the operator's, with parts made
    of tasks' own models, which are PRIVATE and marked so. With --public it is made of plan, billboard,
    guarantee and ledger alone, and may be published. With --task it is for that task, with its own model.

    \b
    For example:
      cloister report exam-run
      cloister report exam-run --data exam.csv -o for-us.html
      cloister report exam-run --public --ledger exam.ledger
      cloister report exam-run --task 007
      cloister report exam-run --task elm.json -o elm.html
    """
    from cloister.app.outcomes import has_outcomes
    from cloister.app.task_model import names_of_files
    from cloister.report import run_page as pages
    from cloister.report.html_page import load_template

    if has_outcomes(folder):
        if said := given(context, "output", "audit", "evaluation", "json"):
            raise InputError(
                f"{folder} has several outcomes, and a page for each. Leave {', '.join(said)} out, or name "
                "the folder of one."
            )
        kind = "public" if public else "operator" if task is None else names_of_files(task)[0][:-5]

        def one(place: Path, page: Path) -> PublicPart:
            report(
                context, place, page, public, task, data, skip, ledger, population, None, None, types, force
            )
            return _public_part(place, types)[1]

        return _report_outcomes(folder, kind, one, task is None, force)
    if public and (said := given(context, "task", "data")):
        raise typer.BadParameter(f"--public is made of public things alone: leave {' and '.join(said)} out.")
    if skip and data is None:
        raise typer.BadParameter("--skip-missing-targets goes with --data.")
    if task is not None and data is not None:
        raise typer.BadParameter("--data is for the operator's edition; a task asks `cloister gain`.")
    load_template("run.html")  # what is missing is said before the work, not after
    edition = "public" if public else "task" if task is not None else "operator"
    run, part = _public_part(folder, types)
    own = None if task is None else _model(folder, run, task)
    named = edition if own is None else f"{edition}-{names_of_files(own.task)[0].removesuffix('.json')}"
    page = absent(Path(f"{folder.resolve().name}-{named}.html") if output is None else output, force)
    part = _with_evidence(part, _balance(ledger, population), audit)
    if evaluation is not None:
        part = replace(part, evaluation=pages.read_evaluation(evaluation, part.plan, part.board.head.hex()))
    if not public:
        part = replace(part, folder=str(folder))
    whole, gains = (None, None) if public or own is not None else _private(folder, run, data, skip)
    pages.write_edition(part, page, public=public, model=own, run=whole, gains=gains)
    if json:
        return emit({"page": page, "edition": edition, "private": not public, "plan": part.plan.fingerprint})
    whose = {
        "public": "It is made of public things alone, and may be published.",
        "operator": "It is PRIVATE, for whoever holds all rows. Add --public for one to publish.",
        "task": "It is PRIVATE, for this task alone.",
    }
    return say(f"Wrote {page} ({page.stat().st_size / 1024:.0f} kB): open it in a browser.", whose[edition])


def _report_outcomes(
    folder: Path, kind: str, one: Callable[[Path, Path], PublicPart], together: bool, force: bool
) -> None:
    """Write a page for each outcome by `one` and, together, a page with all of them."""
    from cloister.app.outcomes import Outcomes, runs_in
    from cloister.report.outcomes_page import write_outcomes

    whole, places = folder.resolve().name, runs_in(folder)
    page = absent(Path(f"{whole}-{kind}.html"), force) if together else None
    own = {name: Path(f"{whole}-{place.name}-{kind}.html") for name, place in places.items()}
    written = {name: (one(place, own[name]), own[name]) for name, place in places.items()}
    if page is None:
        return
    parts = {name: part for name, (part, _) in written.items()}
    plans = Outcomes({name: part.plan for name, part in parts.items()})
    told = plans.guarantee_on({name: part.board for name, part in parts.items()})  # whatever a file claims
    if told.holds:
        write_outcomes(page, told, written)
        say(f"Wrote {page}: all outcomes on one page, of public things alone.")


def _public_part(folder: Path, types: list[str] | None) -> tuple[TableRun | None, PublicPart]:
    """Read what is public: of a run over a table, or of a journal that has no table."""
    from cloister.app.folder import check_manifest, manifest_head, read_public
    from cloister.engines.run import Run
    from cloister.report.run_page import PublicPart

    journal = (folder / "board").is_file() and not (folder / "codebook.toml").exists()
    if journal and not (folder / "head.txt").exists():
        done = Run.load(folder, types or ())
        return None, PublicPart(done.plan, done.board, done.guarantee)
    run = read_public(folder, types or ())
    part, head = PublicPart.of(run), manifest_head(folder)
    if head is not None:
        check_manifest(folder)  # a page beside a file that somebody edited would seem to vouch for it
    return run, replace(part, head=head or part.head)


def _balance(place: str | None, population: str | None) -> Balance | None:
    account = AccountOptions(place, population).open()
    return None if account is None else account.balance


def _with_evidence(part: PublicPart, balance: Balance | None, audit: Path | None) -> PublicPart:
    from cloister.report.run_page import read_audit

    part = part if balance is None else part.charged_to(balance)
    return part if audit is None else replace(part, audit=read_audit(audit, part.plan))


def _model(folder: Path, run: TableRun | None, task: str) -> TaskModel:
    """Return the model of a task, from its file or from the folder's models."""
    from cloister.app.folder import with_models
    from cloister.app.task_model import TaskModel

    if run is None:
        raise InputError(f"{folder} is not a run over a table, and has no models of tasks. Leave --task out.")
    if task.endswith(".json") and Path(task).is_file():
        model = TaskModel.load(task)
        if model.codebook.to_dict() != run.codebook.to_dict():
            raise InputError(f"{task} belongs to another run's codebook. Name a model of {folder}.")
        return model
    found = with_models(folder, run, [task])
    if not len(found.ids):
        raise InputError(
            f"{folder} has no model of task {task!r}. Check the name, or make its model from its own rows "
            "with `cloister replay`, and give --task the file."
        )
    return found.task_model(found.ids[0])


def _private(
    folder: Path, run: TableRun | None, data: Path | None, skip: bool
) -> tuple[TableRun | None, Gains | None]:
    from cloister.app.folder import with_models
    from cloister.app.gains import measure_gains
    from cloister.app.source import TableFile

    if run is None:
        if data is not None:
            raise InputError(f"{folder} is not a run over a table. Leave --data out.")
        return None, None
    whole = with_models(folder, run)
    if data is None:
        return whole, None
    groups = run.settings.groups
    table = TableFile(data, run.codebook, None if groups is None else str(groups), skip, note)
    if run.codebook.task is None:
        raise InputError("The run's codebook names no task column, so whose row is whose is not known.")
    with advance("Splits") as progress:
        return whole, measure_gains(run, table.tasks(), progress)
