"""``cloister ledger``: what a population of tasks may spend over all runs, and what it has spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import Delta, Json, Neighbours, Protected, Types
from cloister.cli.shell import Family, attach, emit, note, positive, say, show_table
from cloister.core.errors import InputError
from cloister.core.lifts import Relation
from cloister.core.spelling import counted
from cloister.privacy.caveats import Caveat, Grade
from cloister.privacy.statement import rounded_down, rounded_up

if TYPE_CHECKING:
    from cloister.ledger import Ledger
    from cloister.ledger.accounts import Balance
    from cloister.ledger.charges import Account, Charge

_Where = Annotated[
    str, typer.Argument(metavar="LEDGER", help="SQLite file, or a URL like postgresql://user@host/database.")
]
_Whose = Annotated[str | None, typer.Option(help="Whose account. Default: the only one there.")]
_Group = Annotated[int | None, typer.Option(help="Also say what an owner of so many of the tasks has spent.")]
_Run = Annotated[
    str | None, typer.Option("--run", help="Key of the run; charging it again spends nothing. Default: new.")
]

ledger_family = typer.Typer(cls=Family, no_args_is_help=True, rich_markup_mode=None)


def create(
    ledger: _Where,
    epsilon: Annotated[float, typer.Option(help="Budget of every task over all runs.")],
    tasks: Annotated[int, typer.Option(help="Public number of tasks, or of what --unit says.")],
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    population: Annotated[str, typer.Option(help="Name of the population.")] = "tasks",
    unit: Protected = "task",
    json: Json = False,
) -> None:
    r"""Open an account for a population of tasks.

    The budget can never be changed afterwards. One ledger may hold the accounts of several populations, but
    a task that is in two of them has spent from both.

    \b
    For example:
      cloister ledger create exam.ledger --epsilon 4 --tasks 139
      cloister ledger create postgresql://ledger@db/privacy --population wards \
          --epsilon 2 --tasks 320
    """
    from cloister.ledger import Ledger
    from cloister.privacy.accounting import default_delta

    if tasks < 1:
        raise InputError(f"--tasks must be at least 1. Got {tasks}.")
    account = Ledger.create(
        ledger,
        population,
        epsilon=positive("--epsilon", epsilon),
        delta=default_delta(tasks) if delta is None else delta,
        n_tasks=tasks,
        relation=relation,
        unit=unit,
    )
    if json:
        return emit(_document(account.balance))
    return say(_budget(account.balance.account), "It can never be changed. Nothing is spent yet.")


def show(ledger: _Where, population: _Whose = None, group: _Group = None, json: Json = False) -> None:
    r"""Show the budget, what is spent and what remains.

    All charges are checked against their chain of hashes. Keep the head that is printed: a later ledger
    whose history does not contain it has lost charges.

    \b
    For example:
      cloister ledger show exam.ledger
      cloister ledger show exam.ledger --group 3
    """
    balance = _open(ledger, population).balance
    if json:
        return emit(_document(balance, group))
    unit = balance.account.unit
    rows = [_row(f"one {unit}", balance, 1)]
    if group is not None:
        rows.append(_row(f"{counted(group, unit)} of one owner", balance, group))
    say(_budget(balance.account))
    show_table(["epsilon of", "spent", "budget"], rows)
    say(
        f"{counted(len(balance.charges), 'run')} charged. Costs do not just add up: one more run alone could "
        f"have epsilon = {rounded_down(balance.remaining, 4)}.",
        f"{balance.all_runs}.",
        f"Head, to compare with a copy:\n{balance.head}",
        *(_warning(c, doubt) for c in balance.charges for doubt in c.doubts),
        apart=True,
    )
    return None


def charge(
    ledger: _Where,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A calibrated plan, or a run's folder.")],
    run: _Run = None,
    population: _Whose = None,
    types: Types = None,
    json: Json = False,
) -> None:
    r"""Charge a plan without running it, for a run elsewhere.

    Exit code 1, and nothing is charged, if the budget does not allow it: then the run must not start. What is
    charged is never refunded, whether the run happens or not.

    \b
    For example:
      cloister ledger charge exam.ledger exam-run
      cloister ledger charge exam.ledger exam-run --run 2025-07-night
    """
    from cloister.app.folder import read_plan
    from cloister.engines.curator import Bill
    from cloister.engines.curator import charge as charge_ledger

    account = _open(ledger, population)
    todo = read_plan(plan, types or ())
    before = len(account.history)
    doubts = todo.guarantee.doubts
    entry = charge_ledger(account, Bill(todo.fingerprint, todo.cost_under, doubts, todo.trust.adversary), run)
    again = entry.number < before
    for doubt in doubts:
        what = "does not hold" if doubt.grade == Grade.VOID else f"is {doubt.grade}"
        note(f"The plan's guarantee {what}, and no ledger mends that: {doubt.reason}.")
    if json:
        return emit({"charge": _entry(entry), "already": again, **_document(account.balance)})
    if again:
        return say(
            f"Run {entry.run} was charged already, as number {entry.number}; nothing more is spent. Go on "
            "with it only on the same board: a run that starts afresh needs a key of its own."
        )
    return say(
        f"Charged as number {entry.number}, run {entry.run}. Spent: epsilon = {rounded_up(account.spent)} of "
        f"{account.epsilon:g} at delta = {rounded_up(account.delta)}."
    )


def history(ledger: _Where, population: _Whose = None, json: Json = False) -> None:
    r"""List every charge, the oldest first.

    \b
    For example:
      cloister ledger history exam.ledger
      cloister ledger history exam.ledger --json
    """
    account = _open(ledger, population)
    charges = account.history
    if json:
        return emit({"population": account.population, "charges": [_entry(each) for each in charges]})
    rows = [
        [str(c.number), c.time[:16].replace("T", " "), c.plan[:8], c.run, rounded_up(c.mu), _said(c)]
        for c in charges
    ]
    show_table(["", "UTC", "plan", "run", "mu", "doubts"], rows)
    return None


attach(ledger_family, create, show, charge, history)


@ledger_family.callback(
    help="Keep account of what tasks have spent over all runs. Costs are composed by a filter that is proven "
    "for plans chosen after seeing earlier results. An exhausted budget refuses before anything leaves a "
    "task, and nothing is refunded."
)
def _start() -> None:
    pass


def _open(where: str, population: str | None) -> Ledger:
    from cloister.ledger import Ledger

    return Ledger.open(where, population)


def _budget(account: Account) -> str:
    tasks = f"{account.unit}s" if account.n_tasks is None else f"{counted(account.n_tasks, account.unit)}"
    return (
        f"Account of {account.population!r}: {tasks}. Over all runs, each may spend epsilon = "
        f"{account.epsilon:g} at delta = {rounded_up(account.delta)}; neighbours: {account.relation.value}."
    )


def _warning(charge: Charge, doubt: Caveat) -> str:
    void = doubt.grade == Grade.VOID
    start = "THE PROMISE DOES NOT HOLD (void)" if void else f"The promise is {doubt.grade}"
    return f"{start}: of charge {charge.number}, {doubt.reason}."


def _said(charge: Charge) -> str:
    """Return the grades of the doubts about a charge; `show` has the reasons."""
    return ", ".join(dict.fromkeys(str(doubt.grade) for doubt in charge.doubts)) or "none"


def _row(who: str, balance: Balance, group: int) -> list[str]:
    return [who, rounded_up(balance.spent_by(group)), rounded_up(balance.budget_of(group))]


def _document(balance: Balance, group: int | None = None) -> dict[str, object]:
    account = balance.account
    document: dict[str, object] = {
        "population": account.population,
        "tasks": account.n_tasks,
        "unit": account.unit,
        "relation": account.relation.value,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "spent": balance.spent_by(1),
        "remaining": balance.remaining,
        "all_runs": balance.all_runs.to_dict(),
        "runs": len(balance.charges),
        "head": balance.head,
    }
    if group is None:
        return document
    owner = {"tasks": group, "spent": balance.spent_by(group), "budget": balance.budget_of(group)}
    return {**document, "group": owner}


def _entry(charge: Charge) -> dict[str, object]:
    return {
        "number": charge.number,
        "time": charge.time,
        "plan": charge.plan,
        "run": charge.run,
        "mu": charge.mu,
        "hash": charge.hash,
        **charge.details,
        "doubts": [doubt.to_dict() for doubt in charge.doubts],
    }
