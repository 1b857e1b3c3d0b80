"""``cloister fit``: a private run over a table, from its price to one model file for each task."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.methods import Method
from cloister.cli.options import (
    AccountOptions,
    CodebookOptions,
    Data,
    EngineName,
    EngineOptions,
    RoundOptions,
    RowOptions,
    RunOptions,
    Strictness,
    TrustOptions,
    Types,
    UnitOption,
    check_person,
    codebook_of,
)
from cloister.cli.shell import advance, emit, given, note, positive, say, show_commands, show_table
from cloister.core.errors import InputError, PrivateDataError

if TYPE_CHECKING:
    from cloister.app.result import TableRun
    from cloister.app.source import TableFile
    from cloister.cli.proposals import ComparedRuns, OneRun, PrivacyTarget
    from cloister.privacy.guarantee import Guarantee
    from cloister.tables.codebook import Codebook

WHOSE = {EngineName.local: "one file for each task", EngineName.ray: "the models of all tasks"}
_EARLIER = "if anybody saw it, it counts too. --ledger adds up what all runs cost."
ONLY_TASKS = (
    "Of the file only the task column was looked at. Whether its rows fit the codebook, "
    "`cloister codebook FILE --check CODEBOOK` says."
)


@dataclass(frozen=True)
class MethodOptions:
    """How tasks learn together."""

    method: Annotated[
        list[Method] | None,
        typer.Option(metavar="METHOD", help=f"One of: {', '.join(Method)}."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated."),
    ] = None
    shares: Annotated[
        list[str] | None,
        typer.Option(
            "--share",
            metavar="TARGET=NUMBER",
            help="Of several: its part of the budget.",
        ),
    ] = None


@dataclass(frozen=True)
class PlanOptions:
    """What a run starts from, a plan that says all of it, and where the run is left."""

    start_from: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="An earlier run to start from.")
    ] = None
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN", help="Run this plan file, or that of a run."),
    ] = None
    types: Types = None
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Default: DATA-run here.")] = None


def fit(
    context: typer.Context,
    data: Data,
    book: CodebookOptions,
    methods: MethodOptions,
    strictness: Strictness,
    rounds: RoundOptions,
    trusted: TrustOptions,
    rows: RowOptions,
    start: PlanOptions,
    account: AccountOptions,
    machines: EngineOptions,
    manner: RunOptions,
    unit: UnitOption = "task",
) -> None:
    r"""Fit every task's own model under a proven privacy bound.

    First prints what the run promises and what it can be expected to bring, from public numbers alone.
    Then runs it and writes a folder: a public part, and one model file for each task, for that task alone.
    What is predicted follows from the codebook; several targets have a run each, and one budget. A run that
    was killed goes on when the same command is given again: nothing is posted or spent twice.

    Of several methods, all are run and paid for; tasks vote by rows that they kept back.

    \b
    For example:
      cloister fit exam.csv --codebook exam.toml
      cloister fit exam.csv --codebook exam.toml --epsilon 0.5 -o half
      cloister fit exam.csv --codebook exam.toml --groups district -o grouped
      cloister fit exam.csv --codebook exam.toml --start-from half -o next
      cloister fit exam.csv --codebook exam.toml --method low-rank -o low-rank \
          --set lam=0.1,1 --relation zero_out --rate 0.2 --hidden
      cloister fit exam.csv --codebook exam.toml --plan low-rank --dry-run
      cloister fit exam.csv --codebook exam.toml -o persons \
          --unit person=2000:3 --person pupil
      cloister fit exam.csv --codebook exam.toml -o chosen \
          --method shared-prior --method single-task
    """
    from cloister.app import folder as folders
    from cloister.app.outcomes import has_outcomes
    from cloister.app.run_record import RunRecord
    from cloister.cli.outcomes import fit_outcomes
    from cloister.tables.codebook import Codebook

    if book.codebook is None:
        raise typer.BadParameter(
            "Add --codebook FILE, which says what is public about the columns. To begin one: `cloister "
            f"codebook {shlex.quote(str(data))} --task COLUMN --target COLUMN`."
        )
    folder = start.output or Path(f"{Path(data.name.removesuffix('.gz')).stem}-run")
    if not (manner.dry_run or has_outcomes(folder)):
        folders.tidy(folder)
        folders.check_free(folder, manner.force)
    replaced = (folder / "plan.toml").is_file()
    ledger = account.open()
    target = _target(context, strictness)
    promise: dict[str, Any] = {"trust": trusted.value, "unit": unit}
    names = [one.target.name for one in Codebook.load_all(book.codebook)]
    if len(names) > 1 and book.column is None:
        _check_several(methods, strictness, start, machines)

        def propose(name: str) -> tuple[TableFile, OneRun | ComparedRuns]:
            one = _table(context, data, replace(book, column=name), rows, machines, None, folder)
            one = replace(one, note=lambda sentence: None)
            return one, _proposal(context, methods, strictness, rounds, promise, start, one, target)

        return fit_outcomes(folder, names, propose, strictness.epsilon, methods.shares or (), manner, ledger)
    if methods.shares:
        raise InputError("--share is for a codebook with several [[target]] tables. Leave it out.")
    table = _table(context, data, book, rows, machines, methods.method, folder)
    proposal = _proposal(context, methods, strictness, rounds, promise, start, table, target)
    room = proposal.room(ledger) if manner.dry_run and ledger is not None else None
    if not manner.dry_run:
        with advance("Reading"):
            table.check()
    naming = table.codebook.naming
    if not manner.json:
        say(
            f"{data.name}: {naming.tasks(len(table.ids))} by column {table.task!r}. Their number is taken to "
            "be public. Whoever runs this holds everyone's rows.",
            *proposal.before,
            *_promise(proposal.guarantee, table.codebook, folder, manner.verbose or manner.dry_run),
            *proposal.forecasts,
            *([] if room is None else [room]),
            *([ONLY_TASKS] if manner.dry_run else []),
        )
    if manner.dry_run:
        return (
            emit(proposal.document | ({} if room is None else {"ledger": asdict(room)}))
            if manner.json
            else None
        )
    try:
        finished = proposal.carry_out(
            folder, table, RunRecord.approved(manner.approved_by), ledger, manner.force
        )
    except KeyboardInterrupt:
        note(_stopped(folders.unfinished_folder(folder)))
        raise
    except PrivateDataError:
        if machines.engine is EngineName.local:
            raise
        raise PrivateDataError(_see_rows(data, book.codebook)) from None
    head, outcome = folders.manifest_head(folder), proposal.outcome(finished)
    if manner.json:
        document = {"folder": folder} | proposal.document | outcome
        return emit(document | {"location": finished.location, "head": head})
    if outcome:
        _show_votes(outcome)
    earlier = [f"{folder} held an earlier run: {_EARLIER}"] if replaced else []
    return _show_end(folder, finished, head, earlier, naming.words(WHOSE[machines.engine]), bool(start.types))


def _check_several(
    methods: MethodOptions, strictness: Strictness, start: PlanOptions, machines: EngineOptions
) -> None:
    """Refuse what is for one outcome alone."""
    alone = {
        "several --method": len(methods.method or ()) > 1,
        "--detection": strictness.detection is not None,
        "--plan": start.plan is not None,
        "--start-from": start.start_from is not None,
        "--engine ray": machines.engine is EngineName.ray,
    }
    if given_alone := [name for name, used in alone.items() if used]:
        raise InputError(
            f"Several outcomes share an epsilon, without {', '.join(given_alone)}. Leave that out, or name "
            "one with --target."
        )


def _target(context: typer.Context, strictness: Strictness) -> PrivacyTarget:
    from cloister.cli.proposals import PrivacyTarget

    epsilon, detection = strictness.epsilon, strictness.detection
    if detection is not None and given(context, "epsilon"):
        raise typer.BadParameter("Give --epsilon or --detection, not both.")
    if detection is None and given(context, "false_alarms"):
        raise typer.BadParameter("--false-alarms goes with --detection.")
    if epsilon != math.inf:  # infinity is the non-private run, and says so
        positive("--epsilon", epsilon)
    return PrivacyTarget(epsilon, detection, strictness.false_alarms)


def _table(
    context: typer.Context,
    data: Path,
    book: CodebookOptions,
    rows: RowOptions,
    machines: EngineOptions,
    methods: list[Method] | None,
    folder: Path,
) -> TableFile:
    from cloister.app.source import TableFile

    assert book.codebook is not None
    codebook = codebook_of(book.codebook, book.task, book.column)
    table = TableFile(data, codebook, rows.groups, rows.skip, note, rows.person)
    if machines.engine is not EngineName.ray:
        if set_ray := given(context, "actors", "address", "shards"):
            raise InputError(f"{', '.join(set_ray)} goes with --engine ray. Add it, or leave that out.")
        return table
    if rows.skip:
        raise InputError(
            "--skip-missing-targets needs all rows in one process, and --engine ray reads them apart. "
            "Drop such rows where the files are written, or leave --engine ray out."
        )
    if rows.person is not None:
        raise InputError(
            "--person needs all rows in one process, and --engine ray reads them apart. Leave one out."
        )
    if methods is not None and len(methods) > 1:
        raise InputError(
            f"--engine ray runs one method: a vote among several needs all rows in one process. "
            f"Got {', '.join(methods)}. Name one --method, or leave --engine ray out."
        )
    from cloister.app.shards import TableFolder
    from cloister.cluster import Cluster

    positive("--actors", machines.actors)
    positive("--shards", machines.shards)
    cluster = Cluster(machines.actors, address=machines.address)
    return TableFolder.of(table, folder, cluster, machines.shards, advance)


def _proposal(
    context: typer.Context,
    methods: MethodOptions,
    strictness: Strictness,
    rounds: RoundOptions,
    promise: dict[str, Any],
    start: PlanOptions,
    table: TableFile,
    target: PrivacyTarget,
) -> OneRun | ComparedRuns:
    from cloister.cli.proposals import from_methods, from_plan

    if start.plan is not None:
        planned = from_plan(context, start.plan, start.types or (), table, target)
        check_person(planned.plan.unit, table.person)
        return planned
    check_person(promise["unit"], table.person)
    parameters = {
        "epsilon": strictness.epsilon,
        "delta": strictness.delta,
        "relation": strictness.relation.value,
        "groups": table.groups,
        "start_from": start.start_from,
        "sampling": rounds.sampling,
        "mechanism": rounds.uncalibrated,
        **promise,
    }
    chosen = methods.method or [Method.shared_prior]
    return from_methods(context, chosen, methods.settings or (), parameters, table, target)


def _show_end(
    folder: Path, finished: TableRun, head: str | None, earlier: list[str], whose: str, own_types: bool
) -> None:
    say(
        *filter(None, [finished.location]),
        *([] if finished.guarantee.all_runs is None else [f"{finished.guarantee.all_runs}."]),
        *earlier,
        f"Wrote {folder}: the public part, and {whose} in {folder / 'models'}. "
        "Give nobody another's model; README.txt says more.",
        f"The head, which stands for all public files, to sign, publish or keep:\n{head}",
        "Check the public part; read what all have in common; a page about the run:",
        apart=True,
    )
    own = ["--types", "FILE.py:CLASS"] if own_types else []
    show_commands(
        ["cloister", "verify", folder, "--head", "HEAD", *own],
        ["cloister", "summary", folder, *own],
        ["cloister", "report", folder, *own],
    )


def _promise(guarantee: Guarantee, codebook: Codebook, folder: Path, whole: bool) -> list[object]:
    """Return the guarantee, all of it or its four lines and numbers."""
    from cloister.privacy.statement import rounded_up

    said = guarantee.statement.in_words(codebook.naming.words)
    if whole or math.isinf(guarantee.epsilon):
        return [said]
    numbers = f"Epsilon {rounded_up(guarantee.epsilon)}, delta {rounded_up(guarantee.delta)}"
    return [
        said.short,
        f"{numbers}, {guarantee.relation}; {folder / 'guarantee.txt'} will have the rest (here: --verbose).",
    ]


def _stopped(draft: Path) -> str:
    """Say what became of a run that somebody stopped."""
    if not draft.exists():
        return "Stopped before anything was charged or released."
    return (
        f"Stopped. What was charged stays charged, and what is posted is in {draft}. The same command goes "
        "on from there, without a second charge; to give the run up, remove that folder."
    )


def _see_rows(data: Path, codebook: Path) -> str:
    """Say how to find rows that actors refused: which they are stays with the actors."""
    file, each = ("FILE", f", for each FILE of {data}") if data.is_dir() else (data, "")
    return (
        "Some rows do not fit the codebook. Which they are stays with the actors; to see it, type "
        f"`cloister codebook {file} --check {codebook}`{each}."
    )


def _show_votes(outcome: dict[str, Any]) -> None:
    show_table(["method", "votes, with noise"], ([name, f"{n:.1f}"] for name, n in outcome["votes"].items()))
    say(f"Chosen: {outcome['chosen']}. The vote and all boards are public, and beside it.", apart=True)
