"""``cloister fit``: a private run over a table, from its price to one model file for each task."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.channel import Relation
from cloister.cli.methods import Method
from cloister.cli.options import (
    Data,
    Delta,
    Detection,
    FalseAlarms,
    Force,
    Json,
    Neighbours,
    SkipMissingTargets,
    Types,
)
from cloister.cli.participation import FixedSize, Hidden, Noise, OnePass, Rate, mechanism_of, sampling_of
from cloister.cli.sharded import Actors, Address, EngineName, OnEngine, ShardCount, ShardedTable
from cloister.cli.shell import emit, given, positive, say, show_commands, show_table
from cloister.cli.table import Table, codebook_of
from cloister.errors import InputError, PrivateDataError

if TYPE_CHECKING:
    from cloister.cli.proposals import Target
    from cloister.ledger import Ledger

__all__ = ["fit"]

_Methods = Annotated[
    list[Method] | None,
    typer.Option(metavar="METHOD", help=f"One of: {', '.join(Method)}. Of several, tasks choose by vote."),
]
_Mechanism = Annotated[Noise, typer.Option(metavar="NOISE", help=f"One of: {', '.join(Noise)}.")]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated."),
]
_StartFrom = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="An earlier run, whose public board to start from.")
]
_Groups = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of each task's PUBLIC group, such as its district."),
]
_PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="PLAN", help="Run this plan file, or the plan of a run's folder."),
]
_Place = Annotated[
    str | None, typer.Option(metavar="PLACE", help="Charge this ledger: a file, or a database URL.")
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print price and forecast; run, charge and write nothing.")
]


WHOSE = {EngineName.local: "one file for each task", EngineName.ray: "the models of all tasks"}
_EARLIER = "if anybody saw it, it counts too. --ledger adds up what all runs cost."
ONLY_TASKS = (
    "Of the file only the task column was looked at. Whether its rows fit the codebook, "
    "`cloister codebook FILE --check CODEBOOK` says."
)


def fit(
    context: typer.Context,
    data: Data,
    codebook: Annotated[
        Path | None, typer.Option(help="Filled-in codebook file: what is public. It must be given.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task column. Default: the codebook's.")] = None,
    column: Annotated[
        str | None, typer.Option("--target", help="Column to predict. Default: the codebook's.")
    ] = None,
    method: _Methods = None,
    settings: _Settings = None,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of every task; smaller is stricter.")] = 1.0,
    detection: Detection = None,
    false_alarms: FalseAlarms = 0.05,
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    rate: Rate = None,
    hidden: Hidden = False,
    fixed_size: FixedSize = None,
    one_pass: OnePass = False,
    mechanism: _Mechanism = Noise.gaussian,
    groups: _Groups = None,
    skip: SkipMissingTargets = False,
    start_from: _StartFrom = None,
    plan: _PlanFile = None,
    types: Types = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Default: DATA-run here.")] = None,
    ledger: _Place = None,
    population: Annotated[str | None, typer.Option(help="Whose account in that ledger.")] = None,
    engine: OnEngine = EngineName.local,
    actors: Actors = 2,
    address: Address = None,
    shards: ShardCount = 64,
    dry_run: _DryRun = False,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Fit every task's own model under a proven privacy bound.

    First prints what the run promises and what it can be expected to bring, from public numbers alone.
    Then runs it and writes a folder: a public part, and one model file for each task, for that task alone.
    Whether numbers or classes are predicted follows from the codebook. A run that was killed goes on when
    the same command is given again: nothing is posted or spent twice.

    Of several methods, all are run, tasks vote by rows that they kept back, and the one chosen is written
    with the price of everything. That is dear: each run has more noise than it would have alone.

    \b
    For example:
      cloister fit exam.csv --codebook exam.toml
      cloister fit exam.csv --codebook exam.toml --epsilon 0.5 -o half
      cloister fit exam.csv --codebook exam.toml --detection 0.10 -o ten-percent
      cloister fit exam.csv --codebook exam.toml --groups district -o grouped
      cloister fit exam.csv --codebook exam.toml --start-from half -o next
      cloister fit exam.csv --codebook exam.toml --method low-rank -o low-rank \
          --set lam=0.1,1 --relation zero_out --rate 0.2 --hidden
      cloister fit exam.csv --codebook exam.toml --plan low-rank --dry-run
      cloister fit exam.csv --codebook exam.toml -o chosen \
          --method shared-prior --method single-task
    """
    from cloister.cli.proposals import Comparison, OneRun, from_methods, from_plan
    from cloister.tables import folder as folders
    from cloister.tables.manifest import manifest_head

    if codebook is None:
        raise typer.BadParameter(
            "Add --codebook FILE, which says what is public about the columns. To begin one: `cloister "
            f"codebook {shlex.quote(str(data))} --task COLUMN --target COLUMN`."
        )
    folder = Path(f"{Path(data.name.removesuffix('.gz')).stem}-run") if output is None else output
    if not dry_run:
        folders.tidy(folder)
        folders.check_free(folder, force)
    replaced = (folder / "plan.toml").is_file()
    account = None if dry_run else _account(ledger, population)
    target = _target(context, epsilon, detection, false_alarms)
    proposal: OneRun | Comparison
    table = Table(data, codebook_of(codebook, task, column), groups, skip)
    if engine is EngineName.ray:
        if skip:
            raise InputError(
                "--skip-missing-targets needs all rows in one process, and --engine ray reads them apart. "
                "Drop such rows where the files are written, or leave --engine ray out."
            )
        if method is not None and len(method) > 1:
            raise InputError(
                f"--engine ray runs one method: a vote among several needs all rows in one process. "
                f"Got {', '.join(method)}. Name one --method, or leave --engine ray out."
            )
        table = ShardedTable.of(table, folder, actors, address, shards)
    elif set_ray := given(context, "actors", "address", "shards"):
        raise InputError(f"{', '.join(set_ray)} goes with --engine ray. Add it, or leave that out.")
    if plan is not None:
        proposal = from_plan(context, plan, types or (), table, target)
    else:
        parameters = {
            "epsilon": epsilon,
            "delta": delta,
            "relation": relation.value,
            "groups": groups,
            "start_from": start_from,
            "sampling": sampling_of(rate, hidden, fixed_size, one_pass),
            "mechanism": mechanism_of(mechanism),
        }
        methods = method or [Method.shared_prior]
        proposal = from_methods(context, methods, settings or (), parameters, table, target)
    if not json:
        say(
            f"{data.name}: {len(table.ids)} tasks by column {table.task!r}. "
            "The number of tasks is taken to be public. Whoever runs this holds everyone's rows.",
            *proposal.paragraphs,
            *([ONLY_TASKS] if dry_run else []),
        )
    if dry_run:
        return emit(proposal.document) if json else None
    try:
        finished = proposal.carry_out(folder, table, account, force)
    except PrivateDataError:
        if engine is EngineName.local:
            raise
        raise PrivateDataError(_see_rows(data, codebook)) from None
    head, outcome = manifest_head(folder), proposal.outcome(finished)
    if json:
        document = {"folder": folder} | proposal.document | outcome
        return emit(document | {"location": finished.location, "head": head})
    if outcome:
        _show_votes(outcome)
    say(
        *filter(None, [finished.location]),
        *([] if finished.guarantee.all_runs is None else [f"{finished.guarantee.all_runs}."]),
        *([f"{folder} held an earlier run: {_EARLIER}"] if replaced else []),
        f"Wrote {folder}: the public part, and {WHOSE[engine]} in {folder / 'models'}. "
        "Give each task its own model alone; README.txt says more.",
        f"The head, which stands for all public files, to sign, publish or keep:\n{head}",
        "Check the public part; read what all tasks have in common; a page about the run:",
        apart=True,
    )
    own = ["--types", "FILE.py:CLASS"] if types else []
    return show_commands(
        ["cloister", "verify", folder, "--head", "HEAD", *own],
        ["cloister", "summary", folder, *own],
        ["cloister", "report", folder, *own],
    )


def _target(context: typer.Context, epsilon: float, detection: float | None, false_alarms: float) -> Target:
    from cloister.cli.proposals import Target

    if detection is not None and given(context, "epsilon"):
        raise typer.BadParameter("Give --epsilon or --detection, not both.")
    if detection is None and given(context, "false_alarms"):
        raise typer.BadParameter("--false-alarms goes with --detection.")
    if epsilon != math.inf:  # infinity is the non-private run, and says so
        positive("--epsilon", epsilon)
    return Target(epsilon, detection, false_alarms)


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


def _account(place: str | None, population: str | None) -> Ledger | None:
    if place is None:
        if population is not None:
            raise InputError("--population names an account in a ledger. Add --ledger PLACE.")
        return None
    from cloister.ledger import Ledger

    account: Ledger = Ledger.open(place, population)
    return account
