"""``cloister plan``: answers to five questions become a plan, with what it promises and brings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.channel import Relation
from cloister.cli.methods import Method
from cloister.cli.options import Delta, Detection, Force, Json, Neighbours
from cloister.cli.questions import Answers, ask
from cloister.cli.shell import absent, emit, given, note, say, show_commands, show_table
from cloister.privacy.rounding import rounded_up

if TYPE_CHECKING:
    from cloister.cli.planning import Wish

__all__ = ["plan"]

_Table = Annotated[
    Path | None, typer.Argument(metavar="[DATA]", help="The table: names of columns and tasks are used.")
]
_Method = Annotated[
    Method | None,
    typer.Option(metavar="METHOD", help="What tasks have in common: a method of `cloister fit`."),
]
_Rows = Annotated[float | None, typer.Option(help="A public guess at how many rows a task has.")]


def plan(
    context: typer.Context,
    data: _Table = None,
    codebook: Annotated[Path | None, typer.Option(help="Filled-in codebook file: what is public.")] = None,
    task: Annotated[str | None, typer.Option(help="Task column, without a codebook.")] = None,
    column: Annotated[
        str | None, typer.Option("--target", help="Column to predict, without a codebook.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="How many classes that has, if it is no number.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Instead of DATA: how many tasks.")] = None,
    columns: Annotated[int | None, typer.Option(help="Instead of a codebook: how many columns.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of every task. Default: 1.")] = None,
    detection: Detection = None,
    method: _Method = None,
    rows: _Rows = None,
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the plan.")] = Path("plan.toml"),
    web: Annotated[bool, typer.Option("--web", help="A page with sliders instead, on this machine.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Propose a plan: what it promises, and whether joining pays.

    Method, noise, rounds and forecast come from public numbers: column names, how many tasks there are,
    bounds in the codebook. No row is looked at, so that the plan tells nothing about any. Given nothing, it
    asks five questions. With a codebook it writes the plan, for `cloister fit --plan` and `cloister account`;
    without one it says what to expect. --web shows the same with sliders, on a page that only this machine
    can open.

    \b
    For example:
      cloister plan exam.csv --codebook exam.toml
      cloister plan exam.csv --codebook exam.toml --detection 0.10 \
          --rows 20 -o ten-percent.toml
      cloister plan exam.csv --task school --target score
      cloister plan --tasks 139 --columns 5 --method low-rank --json
    """
    if epsilon is not None and detection is not None:
        raise typer.BadParameter("Give --epsilon or --detection, not both.")
    if codebook is not None and (said := given(context, "columns", "classes")):
        raise typer.BadParameter(f"The codebook says {' and '.join(said)} itself: leave that out.")
    if data is not None and tasks is not None:
        raise typer.BadParameter("The table says how many tasks there are: leave --tasks out.")
    answers = Answers(data, codebook, task, column, classes, tasks, columns, epsilon, detection, method, rows)
    if data is None and tasks is None and codebook is None and not web:
        if json:
            raise typer.BadParameter("Name the table, or give --tasks and --columns.")
        answers = ask(answers)
    wish = replace(answers.wish(web), relation=relation, delta=delta)
    if web:
        from cloister.cli.plan_page import Page, serve

        return serve(Page(wish, *answers.settled, answers.source))
    file = absent(output, force) if answers.codebook is not None else None
    document = _document(wish)
    if file is not None:
        wish.plan.save(file)
    if json:
        return emit(document | {"plan": file})
    return _show(wish, answers, file)


def _document(wish: Wish) -> dict[str, object]:
    from cloister.cli.planning import EPSILONS, MOST_EPSILON

    found, plan = wish.forecast, wish.plan
    return {
        "tasks": wish.tasks,
        "columns": wish.codebook.width - 1,
        "classes": wish.codebook.classes,
        "method": wish.method.value,
        "algorithm": type(plan.algorithm).__name__,
        "mechanism": plan.mechanism.kind,
        "rounds": len(plan.rounds),
        "epsilon": plan.guarantee.epsilon,
        "delta": plan.guarantee.delta,
        "detection": plan.guarantee.detection(),
        "holds": plan.guarantee.holds,
        "forecast": {"low": found.low, "high": found.high, "rho": found.rho, "calibrated": found.calibrated},
        "joining_pays_from": wish.pays_from,
        "epsilon_needed": wish.epsilon_needed if wish.epsilon_needed <= MOST_EPSILON else None,
        "verdict": wish.verdict,
        "at_other_epsilons": [
            dict(zip(("epsilon", "detection", "low", "high"), row, strict=True))
            for row in wish.over_epsilon(EPSILONS)
        ],
    }


def _show(wish: Wish, answers: Answers, file: Path | None) -> None:
    from cloister.cli.planning import COMMON, EPSILONS
    from cloister.privacy.statement import percent

    plan, told = wish.plan, wish.plan.guarantee
    words = f"{wish.tasks:,} tasks, {wish.codebook.width - 1} encoded columns"
    if answers.data is not None:
        words = (
            f"{answers.data.name}: {words}. Of it the names of columns and tasks were used, and no other cell"
        )
    say(
        f"{words}.",
        f"Proposed: {wish.method.value}, where tasks have in common {COMMON[wish.method]}. "
        f"{_sentence(plan.algorithm.spoken_name)}, {len(plan.rounds)} noisy sums, {plan.mechanism.kind}.",
        f"Promised: epsilon {rounded_up(told.epsilon)} at delta {rounded_up(told.delta)}; all others "
        f"together detect one task's data in at most {percent(told.detection())} of cases, with 5 % false "
        "alarms.",
        *([f"The guarantee does NOT hold: {'; '.join(told.reasons)}."] if not told.holds else []),
        f"Expected: {replace(wish.forecast, tasks_needed=None)}",
        wish.verdict,
    )
    heads = ["epsilon", "detected at most", "kept of the gain of sharing"]
    known = wish.forecast.calibrated
    show_table(
        heads,
        (
            [f"{e:g}", percent(d), _kept(low, high) if known else "no forecast"]
            for e, d, low, high in wish.over_epsilon(EPSILONS)
        ),
    )
    _show_next_steps(answers, file)


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]


def _kept(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %".replace("-", "−")


def _show_next_steps(answers: Answers, file: Path | None) -> None:
    data, table = answers.data, "TABLE" if answers.data is None else answers.data
    if file is not None:
        say(f"Wrote {file}. The whole guarantee, and the run:", apart=True)
        run = ["cloister", "fit", table, "--codebook", answers.codebook, "--plan", file]
        return show_commands(["cloister", "account", file], run)
    note("Every column was counted as one number; a category has one for each level but the first.")
    if data is None:
        words = "For a plan to run, name the table and its codebook: cloister plan TABLE --codebook FILE."
        return say(words, apart=True)
    say("For a plan to run, write down what is public about the columns first:", apart=True)
    names = ["--task", answers.task, "--target", answers.column]
    return show_commands(
        ["cloister", "codebook", data, *names, "-o", "codebook.toml"],
        ["cloister", "plan", data, "--codebook", "codebook.toml"],
    )
