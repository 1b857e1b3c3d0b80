"""``cloister deploy``: the operator of a run between institutions sets it up, tries it, and starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.options import Json, Types
from cloister.cli.shell import Family, attach, emit, given, positive, say, show_table
from cloister.core.errors import InputError
from cloister.privacy.statement import rounded_up

if TYPE_CHECKING:
    from cloister.nodes.deploy.supervisor import Status

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
    deadline: Annotated[float, typer.Option(help="Seconds that every round waits; public.")] = 600.0,
    link_port: Annotated[int, typer.Option(help="Port of Flower's link, on this machine alone.")] = 8000,
    types: Types = None,
) -> None:
    r"""Write an operator's folder, with keys, app and a runbook.

    What it writes lets nobody in but nodes that you register: Flower's link listens on this machine alone,
    and nodes reach it through a proxy that passes on what a node needs and nothing else.

    \b
    For example:
      cloister deploy init exam --plan plan.toml --run exam-2026 \
          --address curator.example.org:9443
    """
    from cloister.nodes.deploy.kit import create
    from cloister.nodes.flower.deployment import DeploymentSettings
    from cloister.plan.plan import Plan

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            f"--address must be host:port. Got {address!r}. Write, say, curator.example.org:9443."
        )
    settings = DeploymentSettings(
        run, address, f"0.0.0.0:{port}", link_port, deadline=positive("--deadline", deadline)
    )
    book = None if codebook is None else codebook.read_bytes()
    made = create(folder, Plan.load(plan, types or ()), settings, book, trial=True)
    say(
        f"Wrote {folder}. Read {folder / 'README.md'}: it says what to do next, and what nodes need.",
        f"The operator's public key, for the nodes: {made.operator.public.hex()}",
    )


def try_(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")] = Path("trial"),
    nodes: Annotated[int, typer.Option(help="How many schools take part.", min=2)] = 5,
    epsilon: Annotated[float, typer.Option(help="Budget of each school.")] = 1.0,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="In Flower's simulation, without a network.")
    ] = False,
    json: Json = False,
) -> None:
    r"""Try all of it on this machine, with schools of the demo.

    Real processes for link, proxy, curator and nodes, TLS and keys; every school's rows, state and model stay
    in its own folder. Nothing leaves the machine. A folder that is there already is gone on with, until its
    run is complete.

    \b
    For example:
      cloister deploy try
      cloister deploy try ten-schools --nodes 10
      cloister deploy try many-schools --nodes 200 --simulation
    """
    from cloister.nodes.deploy.trial import make_trial, run_trial, simulate_trial
    from cloister.nodes.flower.deployment import Deployment

    known = (folder / "deploy.toml").exists()
    made = (
        Deployment(folder.resolve()) if known else make_trial(folder, nodes, positive("--epsilon", epsilon))
    )
    made_with = {"nodes": (nodes, len(made.keys)), "epsilon": (epsilon, made.ledger.epsilon)}
    for name, (asked, has) in made_with.items():
        if given(context, name) and abs(asked - has) > 0.002:  # a ledger has its epsilon to three places
            raise InputError(
                f"--{name} must be {has:g}, as {folder} was made with. Got {asked:g}. Leave it out to go on "
                "there, or name a new folder."
            )
    with _live() as view:
        now = (simulate_trial if simulation else run_trial)(made, view)
    if json:
        return emit(now.to_dict())
    _show(now)
    say(
        f"Each school has its own model in its own folder, {folder}/nodes/NAME/runs/trial/model.npz.",
        f"See that the board is whole, and within its plan: cloister verify {folder}/state/journal",
        apart=True,
    )


def start(folder: _Folder) -> None:
    r"""Register the nodes, start the curator, and stay to the end.

    Nodes are those of nodes.toml; the end is when the board is complete. Link, executor and proxy
    must run on this machine, as the folder's README says. Whatever dies on the way is started again, and the
    run goes on from its journal; it is charged once.

    \b
    For example:
      cloister deploy start exam
    """
    from cloister.nodes.deploy.supervisor import curate
    from cloister.nodes.flower.deployment import Deployment

    made = Deployment(folder.resolve())
    if made.finished:
        say(f"Run {made.settings.run} is finished: nothing is started, and nothing is left to do.")
    with _live() as view:
        now = curate(made, view)
    _show(now)


def status(folder: _Folder, json: Json = False) -> None:
    r"""Say where a run stands: rounds, spend, and who was heard of. For the operator alone.

    \b
    For example:
      cloister deploy status exam
      cloister deploy status exam --json
    """
    import httpx

    from cloister.nodes.deploy.supervisor import status as look
    from cloister.nodes.flower.deployment import Control, Deployment

    made = Deployment(folder.resolve())
    try:
        with Control.of(made) as control:
            now = look(made, control)
    except httpx.HTTPError:
        now = look(made)
    if json:
        return emit(now.to_dict())
    _show(now)


@contextmanager
def _live() -> Iterator[Callable[[Status], None]]:
    """Yield what shows a status in place, if a person is watching."""
    from rich.console import Console
    from rich.live import Live

    screen = Console(stderr=True, highlight=False)
    if not screen.is_terminal:
        yield lambda now: None
        return
    with Live(console=screen, transient=True, auto_refresh=False) as live:
        yield lambda now: live.update(_table(now), refresh=True)


def _table(now: Status) -> Any:
    from rich.table import Table

    spent = f"spent epsilon {rounded_up(now.spent)} of {now.budget:g}"
    title = f"{now.run}: round {now.done} of {now.rounds}; {spent}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("node", "link", "last answer"):
        table.add_column(head)
    for row in _rows(now):
        table.add_row(*row)
    return table


def _rows(now: Status) -> Iterator[tuple[str, str, str]]:
    for node in now.nodes:
        yield node.name, node.link, "none yet" if node.heard is None else f"{node.heard:.0f} s ago"


def _show(now: Status) -> None:
    say(
        f"Run {now.run}: {now.done} of {now.rounds} rounds are posted; spent epsilon "
        f"{rounded_up(now.spent)} of {now.budget:g}.",
        *([f"The board's head: {now.head}"] if now.head else []),
        *(
            [f"{now.notes} line(s) on messages that did not count are in state/log. Private."]
            if now.notes
            else []
        ),
    )
    show_table(["node", "link", "last answer"], _rows(now))


try_.__name__ = "try"
attach(deploy_family, init, try_, start, status)
