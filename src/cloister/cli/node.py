"""``cloister node``: the owner of a task takes part in runs between institutions, and keeps the rows."""

from __future__ import annotations

import hashlib
import json as json_text
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.options import Json, Person, Protected, SkipMissingTargets, Types, check_person, own_value
from cloister.cli.shell import Family, attach, emit, note, positive, say, show_table
from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.privacy.statement import rounded_up

if TYPE_CHECKING:
    from cloister.core.tasks import Tasks
    from cloister.ledger.accounts import Balance
    from cloister.nodes import NodeFolder, NodeSettings
    from cloister.plan.plan import Plan
    from cloister.store.signatures import SignedHead, SignedRoster

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The node's folder.")]
_Key = Annotated[
    str, typer.Option("--operator", metavar="KEY", help="The operator's public key, 64 digits, or its file.")
]
_Source = Annotated[
    str,
    typer.Option(help="The rows: a CSV, Parquet, Arrow or Excel file, a database's URL, or module:function."),
]

node_family = typer.Typer(cls=Family, no_args_is_help=True, rich_markup_mode=None)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    task: Annotated[str, typer.Option(help="This task's name, as it is on the roster.")],
    operator: _Key,
    data: _Source,
    epsilon: Annotated[float, typer.Option(help="What this task may spend over all runs, ever.")],
    delta: Annotated[float, typer.Option(help="Chance that is left over; below 1 over the tasks.")],
    query: Annotated[str | None, typer.Option(help="SQL query, where --data is a database.")] = None,
    codebook: Annotated[Path | None, typer.Option(help="The codebook, as the operator sent it.")] = None,
    group: Annotated[str | None, typer.Option(help="This task's public group, where there are any.")] = None,
    unit: Protected = "task",
) -> None:
    r"""Make a node: a folder for one task.

    It has a key, a ledger and a log of its own. Nothing is read or sent yet. The budget can never be changed
    afterwards.

    \b
    For example:
      cloister node init elm --task Elm --operator operator.pub \
          --data pupils.csv --codebook exam.toml --epsilon 4 --delta 1e-3
    """
    from cloister.nodes import NodeFolder, NodeSettings

    source = data if "://" in data or ":" in Path(data).name else str(Path(data).resolve())
    if ("://" in source) != (query is not None):
        raise InputError("--query goes with the URL of a database in --data. Give both, or neither.")
    if codebook is None and not _is_function(source):
        raise InputError("A table becomes rows by a codebook. Add --codebook FILE, as the operator sent it.")
    book = None if codebook is None else str(codebook.resolve())
    settings = NodeSettings(task, _public_key(operator).hex(), group, source, query, book)
    budget = positive("--epsilon", epsilon)
    home = NodeFolder.create(folder, settings, epsilon=budget, delta=delta, unit=unit)
    say(
        f"Wrote {home.folder}: the node of task {home.settings.task!r}, for you alone. Keep no copy of it "
        "where the data may not go.",
        f"Next: read the plan, and agree to it or not:  cloister node approve {folder} PLAN",
    )


def approve(
    folder: _Folder,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, or the folder of a run.")],
    roster: Annotated[
        Path | None, typer.Option(help="Who takes part, with their keys, as the operator has signed it.")
    ] = None,
    types: Types = None,
    trial: Annotated[
        bool, typer.Option("--trial", help="Accept noise from a seed too: nothing is promised then.")
    ] = False,
    zeros: Annotated[
        bool, typer.Option("--zeros", help="Send zeros: for rows that do not fit. No other task notices.")
    ] = False,
    skip: SkipMissingTargets = False,
    person: Person = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: the statement was read elsewhere.")] = False,
) -> None:
    r"""Read what a plan promises, and agree to take part in it or not.

    First prints the guarantee in words, who takes part by which keys, and what it takes of this task's own
    budget; then asks. Whoever says yes has the rows read, checked and kept in the node's folder as they are
    now. Whether you take part is seen, and must not depend on your rows: where they do not fit the codebook,
    mend them, or send zeros.

    \b
    For example:
      cloister node approve elm plan.toml --roster roster.json
    """
    from cloister.app.folder import read_plan
    from cloister.nodes import NodeFolder
    from cloister.nodes.identity import Identity
    from cloister.store.signatures import SignedRoster
    from cloister.tables.codebook import Codebook

    home = NodeFolder(folder)
    settings, proposed = home.settings, read_plan(plan, types or ())
    if not zeros:
        check_person(proposed.unit, person)
    if roster is None and Identity.is_in(folder):
        raise InputError(
            "This node answers over the network, and its owner agrees to plan and roster together. Add "
            "--roster FILE: the operator sends it when all nodes are there."
        )
    signed = None if roster is None else SignedRoster.from_bytes(roster.read_bytes())
    book = None if settings.codebook is None else Path(settings.codebook)
    allowed, budget = _budget(home, proposed)
    say(
        f"This plan is for {proposed.n_tasks} tasks and {counted(len(proposed.rounds), 'release')}; "
        f"{proposed.sampling.describe()}. Task {settings.task!r} sends at most one message a round: "
        f"{proposed.longest_message} whole numbers at most, {_leaves_as(proposed)}.",
        proposed.guarantee,
        *filter(None, [proposed.not_compared]),
        budget,
        *([_TRIAL] if trial else []),
    )
    if signed is not None:
        home.check_roster(signed, proposed)
        if book is not None:
            Codebook.load(book).naming.check(signed.roster.names, "roster.json")
        _show_circle(signed)
    if not allowed:
        raise typer.Exit(1)
    if not yes and not typer.confirm("Take part in runs of this plan?"):
        say("Not approved. Nothing was read, and nothing has left this machine.", apart=True)
        raise typer.Exit(1)
    digest = "" if book is None else hashlib.sha256(book.read_bytes()).hexdigest()
    rows = None if zeros else _rows(settings, book, skip, person)
    home.approve(proposed, rows, digest, trial, signed)
    kept = (
        "Zeros will be sent for it"
        if rows is None
        else f"{folder} keeps {counted(len(rows.y), 'row')} for it"
    )
    say(f"Approved. {kept}.", apart=True)


def _leaves_as(plan: Plan) -> str:
    """Say in which form a message leaves."""
    if plan.trust.masked:
        return "clipped, with this node's share of the noise, under masks that only the sum of all is rid of"
    if plan.trust.at_home:
        return "clipped, with all of the noise"
    return "a sum over its records, each of them clipped" if plan.unit.by_record else "clipped"


_TRIAL = (
    "As a trial, boards are accepted whose noise comes from a seed. Whoever knows the seed can take the "
    "noise off: use data that anybody may see."
)


def link(
    folder: _Folder,
    address: Annotated[str, typer.Option(help="host:port of the curator, as the operator told you.")],
    certificate: Annotated[Path, typer.Option(help="The authority that the curator's certificate is from.")],
) -> None:
    r"""Say where the curator is, and draw the keys of this node.

    Send the file link.pub to the operator, and compare the fingerprint by telephone: who has other keys
    registered in your name answers in your name.

    \b
    For example:
      cloister node link elm --address curator.example.org:9443 \
          --certificate ca.crt
    """
    from cloister.nodes import NodeFolder
    from cloister.nodes.identity import CuratorAddress, Identity, PublicIdentity

    task = NodeFolder(folder).settings.task
    CuratorAddress(address, str(certificate.resolve(strict=True))).save(folder)
    found = PublicIdentity.from_text(Identity.create(folder).public)
    say(
        f"Task {task!r} will connect to {address}. Send {folder / 'link.pub'} to the operator:",
        found.text.strip(),
        "Its fingerprint, to compare by telephone:",
        found.fingerprint,
    )


def run(
    folder: _Folder,
    exchange: Annotated[
        Path | None,
        typer.Option(help="A folder shared with the curator, in place of the network; for trials."),
    ] = None,
    types: Types = None,
    once: Annotated[
        bool, typer.Option("--once", help="Answer what waits in --exchange now, and end.")
    ] = False,
) -> None:
    r"""Answer a curator's questions, until it is stopped.

    Over the network, as `link` has set up: this node connects to the curator and opens no port, and nothing
    that comes from there is run. Or through a folder that both sides can write to: on one machine, on a
    shared disk, or on media that are carried. Stop it at any time and start it again: it goes on.

    \b
    For example:
      cloister node run elm
      cloister node run elm --exchange /mnt/exam
    """
    from cloister.nodes import Node
    from cloister.nodes.local_transports import POLL, answer_question

    node = Node(folder, types or ())
    for name in node.runs:
        node.finish(name)
    if exchange is None:
        from cloister.nodes.agent import NodeAgent

        if once:
            raise InputError("--once goes with --exchange. Leave it out, and stop the node with Ctrl-C.")
        return NodeAgent(folder, types or (), note).serve()
    note(f"Task {node.home.settings.task!r} answers in {exchange}. Stop with Ctrl-C.")
    while not once:
        if not answer_question(node, exchange):
            time.sleep(POLL)
    answer_question(node, exchange)
    return None


def status(
    folder: _Folder,
    run: Annotated[str | None, typer.Option("--run", help="One run. Default: all.")] = None,
    records: Annotated[int | None, typer.Option(help="The head after so many records. Default: all.")] = None,
    json: Json = False,
) -> None:
    r"""Show the runs of a node, their signed heads, and what is spent.

    Compare heads with other owners: every node of a run must have the same one after as many records.

    \b
    For example:
      cloister node status elm
      cloister node status elm --run exam-2026 --json > elm-head.json
    """
    from cloister.nodes import Node

    node = Node(folder)
    task, names = node.home.settings.task, [run] if run is not None else node.runs
    heads = {name: node.signed_head(name, records) for name in names}
    if json and run is not None:
        return emit(heads[run].to_dict())
    balance = node.home.ledger.balance
    spent = {"epsilon": balance.spent_by(1), "budget": balance.account.epsilon}
    if json:
        return emit({"task": task, "spent": spent, "runs": _documents(heads)})
    say(
        f"Task {task!r}: epsilon = {rounded_up(balance.spent_by(1))} of "
        f"{balance.account.epsilon:g} is spent{_of_each(balance)}, by "
        f"{counted(len(balance.charges), 'run')}."
    )
    show_table(
        ["run", "records", "model", "head"],
        (
            [name, str(head.length), _is_done(node.home, name), head.head.hex()]
            for name, head in heads.items()
        ),
    )
    return None


def model(
    folder: _Folder,
    run: Annotated[str, typer.Option("--run", help="The run that is over.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model's file. Private: it is yours.")],
) -> None:
    r"""Write your model of a finished run to a file.

    `cloister show` prints it, and `cloister predict --model` predicts with it.

    \b
    For example:
      cloister node model elm --run exam-2026 -o elm.json
    """
    from cloister.app.task_model import TaskModel
    from cloister.nodes import Node
    from cloister.tables.codebook import Codebook

    node = Node(folder)
    settings, found = node.home.settings, node.model(run)
    if settings.codebook is None or "coef" not in found:
        raise InputError(
            f"The models of run {run!r} are not those of a table. Read them in Python: Node(folder).model."
        )
    path = Path(settings.codebook)
    if hashlib.sha256(path.read_bytes()).hexdigest() != node.codebook(run):
        raise InputError(f"{path} is another codebook than the run's. Restore the one that was approved.")
    TaskModel.of(str(settings.task), Codebook.load(path), found).save(output)
    say(f"Wrote {output}: the model of task {settings.task!r}, private.")


def compare(
    one: Annotated[Path, typer.Argument(metavar="HEAD", help="A signed head: node status --run RUN --json.")],
    other: Annotated[Path, typer.Argument(metavar="HEAD", help="Another node's, of as many records.")],
    operator: _Key,
    json: Json = False,
) -> None:
    r"""Say whether two nodes were shown the same board.

    Two heads of one run and one length that differ, both signed by the operator, prove that the board was
    forked. Exit code 3 then; 1 if they cannot be compared.

    \b
    For example:
      cloister node compare elm-head.json oak-head.json --operator operator.pub
    """
    heads = [_read_head(path) for path in (one, other)]
    forked = heads[0].forks(heads[1], _public_key(operator))
    if json:
        emit({"forked": forked, "run": heads[0].run, "records": heads[0].length})
    elif forked:
        say(
            f"FORKED: the operator has signed two boards of run {heads[0].run!r}. Keep both files: they "
            "prove it to whoever has the operator's public key. Answer no more, and tell the other owners."
        )
    else:
        say(f"Both nodes have the same board of run {heads[0].run!r}, of {heads[0].length} records.")
    if forked:
        raise typer.Exit(3)


attach(node_family, init, approve, link, run, status, model, compare)


def _show_circle(signed: SignedRoster) -> None:
    """Print who takes part in a run, and the fingerprints of their keys."""
    from cloister.nodes.identity import PublicIdentity

    say(
        f"Run {signed.run!r} is of these {len(signed.roster)} nodes and of no others. Compare fingerprints "
        "with the other owners: whoever is not who they seem is one of those whom you are not protected "
        "against together.",
        apart=True,
    )
    found = (PublicIdentity.from_text(key).fingerprint for key in signed.keys)
    show_table(["task", "fingerprint"], ([str(n), f] for n, f in zip(signed.roster, found, strict=True)))
    say("")


def _budget(home: NodeFolder, plan: Plan) -> tuple[bool, str]:
    """Say whether this node's own budget allows a run of a plan; and what is left of it, or what to do."""
    from cloister.core.errors import BudgetError

    balance = home.ledger.balance
    account, told = balance.account, plan.guarantee
    try:
        after = balance.next(
            plan.fingerprint, plan.cost_under(account.relation), "the next", (), plan.trust.adversary
        )
    except BudgetError as error:
        needed = f"--epsilon {rounded_up(told.epsilon)} --delta {rounded_up(told.delta)}"
        return False, (
            "This node's own budget does NOT allow it, and the node would refuse every round. "
            f"{error} The plan is priced at epsilon = {rounded_up(told.epsilon)} and delta = "
            f"{rounded_up(told.delta)}; at a smaller delta the same run costs a larger epsilon. A budget "
            "stays as it was made: if you agree to that price, make a new node in another folder with "
            f"{needed}."
        )
    total = type(balance)(account, (*balance.charges, after)).spent_by(1)
    return True, (
        f"Of this task's own budget, epsilon = {account.epsilon:g} at delta = {account.delta:g} over all "
        f"runs{_of_each(balance)}, {rounded_up(balance.spent_by(1))} is spent, and {rounded_up(total)} will "
        "be after one run of it."
    )


def _of_each(balance: Balance) -> str:
    """Say of whom a price is, where it is not of the task."""
    unit = balance.account.unit
    return "" if unit == "task" else f" for each {unit}"


def _rows(settings: NodeSettings, path: Path | None, skip: bool, person: str | None) -> Tasks:
    """Read the task's rows from where its owner keeps them; with `skip`, those that have a target."""
    from cloister.app.source import rows_of_file, rows_of_function, rows_of_query
    from cloister.core.errors import PrivateDataError
    from cloister.tables.codebook import Codebook

    data, book = settings.data, None if path is None else Codebook.load(path)
    if data is None:
        raise InputError("node.toml must say where the rows are: data = '...'. Make the node anew.")
    try:
        if _is_function(data):
            function = own_value(data, "--data")
            if not callable(function):
                raise InputError(f"--data must name a function. Got {data!r}.")
            return rows_of_function(settings.task, function, book, skip, person)
        assert book is not None
        if settings.query is not None:
            return rows_of_query(settings.task, data, settings.query, book, skip, person)
        return rows_of_file(settings.task, Path(data), book, skip, person)
    except PrivateDataError as error:
        raise InputError(
            f"{error} Mend them; or take part with zeros meanwhile, which no other task notices: --zeros."
        ) from None


def _is_function(data: str) -> bool:
    """Say whether a source is ``module:function`` or ``file.py:function``, and no path or address."""
    place, _, name = data.rpartition(":")
    return bool(place) and name.isidentifier() and not Path(data).exists()


def _public_key(text: str) -> bytes:
    from cloister.store.signatures import public_key

    path = Path(text)
    return public_key(path.read_text(encoding="ascii") if path.is_file() else text)


def _read_head(path: Path) -> SignedHead:
    from cloister.store.signatures import SignedHead

    try:
        document = json_text.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        document = {}
    return SignedHead.from_dict(document if isinstance(document, dict) else {})


def _documents(heads: dict[str, SignedHead]) -> dict[str, Any]:
    return {name: head.to_dict() for name, head in heads.items()}


def _is_done(home: NodeFolder, run: str) -> str:
    return "made" if (home.folder / "runs" / run / "model.npz").exists() else "not yet"
