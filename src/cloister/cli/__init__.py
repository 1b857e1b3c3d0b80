"""The command line: ``cloister --help``."""

from __future__ import annotations

from typing import Annotated

import typer

from cloister import __version__
from cloister.cli.account import account
from cloister.cli.audit import audit
from cloister.cli.codebook import codebook
from cloister.cli.demo import demo
from cloister.cli.deploy import deploy_family
from cloister.cli.evaluate import evaluate
from cloister.cli.finished import gain, predict, replay, show, summary, withdraw
from cloister.cli.fit import fit
from cloister.cli.ledger import ledger_family
from cloister.cli.museum import museum
from cloister.cli.node import node_family
from cloister.cli.plan import plan
from cloister.cli.report import report
from cloister.cli.shell import Family, attach
from cloister.cli.verify import verify

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Family,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
attach(
    app,
    codebook,
    plan,
    account,
    audit,
    fit,
    verify,
    summary,
    show,
    report,
    predict,
    replay,
    gain,
    evaluate,
    withdraw,
    demo,
    museum,
)
app.add_typer(ledger_family, name="ledger")
app.add_typer(deploy_family, name="deploy", help="Run a plan between institutions.")
app.add_typer(node_family, name="node", help="Keep a task's rows at home, and answer.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cloister {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Private multi-task learning: many tasks learn together, and each ends with its own model.

    Start with `codebook`, then `fit`; `plan` says beforehand what to expect. Anyone can `verify` what was
    published, and read its `summary`; `report` writes a page about a run. A task uses its own model with
    `predict`, looks at it with `show`, gets it again or joins late with `replay`, and asks `gain` whether
    it pays; `evaluate` says for how many it does, at a price; `withdraw` removes one that leaves.
    `account` prices a plan, `ledger` keeps account over all runs, `audit` attacks a plan's own releases,
    `museum` refutes guarantees that are false, `demo` shows it all on 2410 real schools. Between
    institutions, each keeps its rows at a `node` of its own, and `deploy` sets the run up.
    """


def main() -> None:
    """Run the command line."""
    app()
