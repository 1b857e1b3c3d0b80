"""``cloister deploy``: the operator of a run between institutions sets it up, tries it, and starts it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.options import Json, Types
from cloister.cli.shell import Family, attach, emit, given, note, positive, say, show_table
from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.privacy.statement import rounded_up

if TYPE_CHECKING:
    from cloister.nodes.deploy.status import Status

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The operator's folder.")]

deploy_family = typer.Typer(cls=Family, no_args_is_help=True, rich_markup_mode=None)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    plan: Annotated[Path, typer.Option(help="The plan, a TOML file.")],
    address: Annotated[str, typer.Option(help="host:port at which nodes reach this machine.")],
    run: Annotated[str, typer.Option(help="Name of the run; used once.")],
    codebook: Annotated[
        Path | None, typer.Option(help="Codebook by which nodes make rows of tables.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of a codebook with several: the plan's target.")] = None,
    quorum: Annotated[
        int | None, typer.Option(help="Nodes that a round needs; public. Default: all but a fifth.", min=1)
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that every round waits; public.")] = 600.0,
    types: Types = None,
) -> None:
    r"""Write an operator's folder, with keys and a runbook.

    What it writes lets nobody in but nodes that you add. The plan in it has the quorum: it is the one that
    owners approve.

    \b
    For example:
      cloister deploy init exam --plan plan.toml --run exam-2026 \
          --address curator.example.org:9443
    """
    from cloister.nodes.deploy.deployment import DeploymentSettings
    from cloister.nodes.deploy.kit import create, usual_quorum
    from cloister.plan.plan import Plan

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            f"--address must be host:port. Got {address!r}. Write, say, curator.example.org:9443."
        )
    settings = DeploymentSettings(run, address, f"0.0.0.0:{port}", deadline=positive("--deadline", deadline))
    proposed = Plan.load(plan, types or ())
    needed = quorum or proposed.quorum or usual_quorum(proposed)
    made = create(folder, replace(proposed, quorum=needed), settings, codebook, True, target)
    say(
        f"Wrote {folder}. Read {folder / 'README.md'}: it says what to do next, and what nodes need.",
        f"A round needs {needed} of {proposed.n_tasks} nodes: below that it waits. Owners approve "
        f"{folder / 'plan.toml'}, which says so, and not {plan}.",
        f"The operator's public key, for the nodes: {made.operator.public.hex()}",
    )


def add(
    folder: _Folder,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")],
    key: Annotated[Path, typer.Argument(metavar="LINK.PUB", help="The file that its owner has sent.")],
    group: Annotated[str | None, typer.Option(help="The task's public group, where there are any.")] = None,
) -> None:
    r"""Note who takes part, and print the fingerprint of the keys.

    Have the owner read the fingerprint to you by telephone: who has other keys on the roster in a node's name
    answers in its name.

    \b
    For example:
      cloister deploy add exam Elm link.pub
    """
    from cloister.nodes.deploy.deployment import Deployment
    from cloister.nodes.deploy.kit import add_node

    made = Deployment(folder.resolve())
    found = add_node(made, task, key.read_text(encoding="ascii", errors="replace"), group)
    say(
        f"Task {task!r} has keys with this fingerprint:",
        found,
        f"{len(made.keys)} of {made.n_tasks} nodes are there.",
    )


def roster(folder: _Folder) -> None:
    r"""Print names and fingerprints; sign them when all are there.

    Send roster.json to every owner, with the plan: they approve both together.

    \b
    For example:
      cloister deploy roster exam
    """
    from cloister.nodes.deploy.deployment import Deployment
    from cloister.nodes.identity import PublicIdentity

    made = Deployment(folder.resolve())
    keys = made.keys
    show_table(
        ["task", "fingerprint"],
        ([name, PublicIdentity.from_text(key).fingerprint] for name, key in keys.items()),
    )
    if len(keys) != made.n_tasks:
        say(
            f"{len(keys)} of {made.n_tasks} nodes are there: nothing is signed yet. Add the others with "
            f"cloister deploy add {folder} TASK LINK.PUB",
            apart=True,
        )
        raise typer.Exit(1)
    made.sign_roster()
    say(
        f"Signed: {folder / 'roster.json'}. Send it to every owner with {folder / 'plan.toml'}; they type",
        "  cloister node approve NODE plan.toml --roster roster.json",
        apart=True,
    )


def try_(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")] = Path("trial"),
    nodes: Annotated[int, typer.Option(help="How many schools take part.", min=2)] = 5,
    epsilon: Annotated[float, typer.Option(help="Budget of each school.")] = 1.0,
    secure: Annotated[
        bool, typer.Option("--secure", help="Nobody sees a message: only the schools' sum opens.")
    ] = False,
    json: Json = False,
) -> None:
    r"""Try all of it on this machine, with schools of the demo.

    Real processes for service, curator and nodes, TLS and keys; every school's rows, state and model stay in
    its own folder. Nothing leaves the machine, and no process stays when this ends, however it ends. The
    folder stays: the same command goes on with it until its run is complete.

    \b
    For example:
      cloister deploy try
      cloister deploy try ten-schools --nodes 10 --secure
    """
    from cloister.nodes.deploy.deployment import Deployment
    from cloister.nodes.deploy.trial import make_trial, run_trial

    known = (folder / "deploy.toml").exists()
    if not known:
        note(f"Making {nodes} schools with keys, ledgers and approved plans in {folder} ...")
    if known:
        made = Deployment(folder.resolve())
    else:
        made = make_trial(folder, nodes, positive("--epsilon", epsilon), secure)
    made_with = {"nodes": (nodes, len(made.keys)), "epsilon": (epsilon, made.ledger.epsilon)}
    for name, (asked, has) in made_with.items():
        if given(context, name) and abs(asked - has) > 0.002:  # a ledger has its epsilon to three places
            raise InputError(
                f"--{name} must be {has:g}, as {folder} was made with. Got {asked:g}. Leave it out to go on "
                "there, or name a new folder."
            )
    with _live() as view:
        now = run_trial(made, view)
    if json:
        return emit(now.to_dict())
    _show(now)
    say(
        f"Each school has its own model in its own folder, {folder}/nodes/NAME/runs/trial/model.npz.",
        f"See that the board is whole, and within its plan: cloister verify {folder}/state/journal",
        apart=True,
    )


def serve(folder: _Folder) -> None:
    r"""Run the service that nodes and curator speak to.

    It runs until it is stopped. It lets in the keys of nodes.toml, as that file is now, and the operator's,
    keeps nothing on disk, and runs nothing that comes. It says here what it turns away: the first of a kind
    at once, then one line a minute at most.

    \b
    For example:
      cloister deploy serve exam
    """
    from cloister.nodes.deploy.deployment import Deployment
    from cloister.nodes.service import serve as run_service

    def tell(sentence: str) -> None:
        typer.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {sentence}", err=True)

    made = Deployment(folder.resolve())
    tell(f"Listening on {made.settings.listen} for {made.settings.address}.")
    run_service(made.service(tell), tell)


def start(folder: _Folder, types: Types = None) -> None:
    r"""Run the plan over the nodes, and stay to the end.

    The service must run, and stay. If too few nodes answer, this waits for them. If this is stopped, or dies,
    type the same again: the run goes on from its journal, and is charged once.

    \b
    For example:
      cloister deploy start exam
    """
    from cloister.nodes.deploy.deployment import Deployment
    from cloister.nodes.deploy.status import shown
    from cloister.nodes.deploy.status import status as look

    made = Deployment(folder.resolve())
    if made.finished:
        say(f"Run {made.settings.run} is finished: nothing is started, and nothing is left to do.")
    else:
        with _live() as view, shown(made, view, 1.0), made.transport() as transport:
            transport.check()
            made.curate(transport, types or ())
    _show(look(made))


def status(folder: _Folder, json: Json = False) -> None:
    r"""Say where a run stands: rounds, spend, and who was heard of. For the operator alone.

    \b
    For example:
      cloister deploy status exam
      cloister deploy status exam --json
    """
    from cloister.nodes.deploy.deployment import Deployment
    from cloister.nodes.deploy.status import status as look

    now = look(Deployment(folder.resolve()))
    if json:
        return emit(now.to_dict())
    _show(now)


@contextmanager
def _live() -> Iterator[Callable[[Status], None]]:
    """Yield what shows a status: in place if a person is watching, else as a line for each step."""
    from rich.console import Console
    from rich.live import Live

    screen = Console(stderr=True, highlight=False)
    try:
        if not screen.is_terminal:
            yield _Lines()
            return
        with Live(console=screen, transient=True, auto_refresh=False) as live:
            yield lambda now: live.update(_table(now), refresh=True)
    except KeyboardInterrupt:
        note("Stopped. Type the same again to go on.")
        raise typer.Exit(130) from None


class _Lines:
    """Prints where a run stands, when that has changed, and not more often than every ten seconds."""

    def __init__(self) -> None:
        self._said, self._when = "", -math.inf

    def __call__(self, now: Status) -> None:
        line, moment = _where(now), time.monotonic()
        if line != self._said and moment - self._when > 10.0:
            self._said, self._when = line, moment
            note(line)


def _where(now: Status) -> str:
    spent = f"spent epsilon {rounded_up(now.spent)} of {now.budget:g}"
    here = sum(node.link == "here" for node in now.nodes)
    return f"{now.run}: round {now.done} of {now.rounds}; {here} of {len(now.nodes)} nodes here; {spent}"


def _table(now: Status) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("node", "link", "last answer"):
        table.add_column(head)
    for row in _rows(now):
        table.add_row(*row)
    return Group(Text(_where(now)), table, Text(now.last))


def _rows(now: Status) -> Iterator[tuple[str, str, str]]:
    for node in now.nodes:
        yield node.name, node.link, "none yet" if node.heard is None else f"{node.heard:.0f} s ago"


def _show(now: Status) -> None:
    paragraphs = [
        f"Run {now.run}: {now.done} of {counted(now.rounds, 'round')} posted; spent epsilon "
        f"{rounded_up(now.spent)} of {now.budget:g}."
    ]
    if now.head:
        paragraphs.append(f"The board's head: {now.head}")
    if (fewest := min(now.answered, default=len(now.nodes))) < len(now.nodes):
        some = sum(answered < len(now.nodes) for answered in now.answered)
        paragraphs.append(
            f"Not of all {len(now.nodes)} nodes: {counted(some, 'release')}, of {fewest} at the fewest."
        )
    if now.notes:
        paragraphs.append(f"The private state/log has {counted(now.notes, 'line')}; the last: {now.last}")
    say(*paragraphs)
    show_table(["node", "link", "last answer"], _rows(now))


try_.__name__ = "try"
attach(deploy_family, init, add, roster, try_, serve, start, status)
