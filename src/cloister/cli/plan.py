"""``cloister plan``: answers to five questions become a plan, with what it promises and brings."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cloister.cli.methods import Method
from cloister.cli.options import (
    AccountOptions,
    Delta,
    Detection,
    Force,
    Json,
    Neighbours,
    TrustOptions,
    UnitOption,
    codebook_of,
    typed_unit,
)
from cloister.cli.shell import (
    absent,
    emit,
    given,
    note,
    positive,
    say,
    show_commands,
    show_stages,
    show_table,
)
from cloister.core.errors import CloisterError, InputError
from cloister.core.lifts import Relation
from cloister.core.spelling import counted
from cloister.privacy.statement import rounded_up

if TYPE_CHECKING:
    from cloister.cli.planning import Wish
    from cloister.cli.proposals import PrivacyTarget
    from cloister.ledger.charges import Room
    from cloister.tables.codebook import Codebook


@dataclass(frozen=True)
class Answers:
    """What was answered, by options or to the questions."""

    data: Annotated[
        Path | None, typer.Argument(metavar="[DATA]", help="The table: names of columns and tasks are used.")
    ] = None
    codebook: Annotated[Path | None, typer.Option(help="Filled-in codebook file: what is public.")] = None
    task: Annotated[str | None, typer.Option(help="Task column, without a codebook.")] = None
    column: Annotated[str | None, typer.Option("--target", help="Column to predict, without a codebook.")] = (
        None
    )
    classes: Annotated[int | None, typer.Option(help="How many classes that has, if it is no number.")] = None
    tasks: Annotated[int | None, typer.Option(help="Instead of DATA: how many tasks.")] = None
    columns: Annotated[int | None, typer.Option(help="Instead of a codebook: how many columns.")] = None
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of every task. Default: 1.")] = None
    detection: Detection = None
    method: Annotated[
        Method | None,
        typer.Option(metavar="METHOD", help="What tasks have in common: a method of `cloister fit`."),
    ] = None
    rows: Annotated[float | None, typer.Option(help="A public guess at how many rows a task has.")] = None

    def wish(self, web: bool = False) -> Wish:
        """Return what is asked of a plan; a page has numbers to begin with, to be moved."""
        from cloister.cli.planning import Wish

        book = self.book(web)
        tasks = self.tasks
        if self.data is not None and tasks is None:
            from cloister.app.source import TableFile

            tasks = len(TableFile(self.data, book).ids)
        elif tasks is None:
            tasks = len(book.naming.roster) or None
        if tasks is None:
            if not web:
                raise InputError(
                    "How many tasks are there? Name the table, give --tasks, or list a roster in the "
                    "codebook."
                )
            tasks = 150
        listed = len(book.naming.roster)
        if listed and tasks != listed:
            raise InputError(f"--tasks must be the codebook's roster, {listed}. Got {tasks}. Leave it out.")
        method = Method.shared_prior if self.method is None else self.method
        return Wish(book, tasks, self.target, method, self.rows)

    def book(self, web: bool) -> Codebook:
        """Return the codebook, or one that stands for it."""
        from cloister.cli.planning import stand_in

        if self.codebook is not None:
            return codebook_of(self.codebook, self.task, self.column)
        if self.columns is not None or (web and self.data is None):
            book = stand_in(5 if self.columns is None else self.columns, self.classes)
            return replace(book, task=self.task) if self.data is not None else book
        if self.data is None:
            raise InputError("How many columns predict the target? Give --codebook, or --columns.")
        if self.task is None or self.column is None:
            raise InputError(
                "Without a codebook, name the columns: --task COLUMN --target COLUMN. Or add --codebook."
            )
        features = _features(self.data, self.task, self.column)
        return replace(stand_in(len(features), self.classes), task=self.task)

    @property
    def target(self) -> PrivacyTarget:
        from cloister.cli.proposals import PrivacyTarget
        from cloister.privacy.tradeoff import FALSE_ALARMS

        epsilon = 1.0 if self.epsilon is None else positive("--epsilon", self.epsilon)
        if self.detection is not None:
            _check_rate(self.detection)
        return PrivacyTarget(epsilon, self.detection, FALSE_ALARMS)

    @property
    def settled(self) -> tuple[bool, bool]:
        """Whether the table settles how many tasks there are, and whether the codebook is its own."""
        return self.data is not None, self.codebook is not None

    @property
    def source(self) -> str:
        """How a command names table and codebook."""
        named = [] if self.data is None else [shlex.quote(str(self.data))]
        named += [] if self.codebook is None else [f"--codebook {shlex.quote(str(self.codebook))}"]
        if self.codebook is None and self.data is not None:
            named.append(f"--task {shlex.quote(str(self.task))}")
        return " ".join(named)


def plan(
    context: typer.Context,
    answers: Answers,
    account: AccountOptions,
    trusted: TrustOptions,
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    unit: UnitOption = "task",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the plan.")] = None,
    web: Annotated[bool, typer.Option("--web", help="A page with sliders instead, on this machine.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Propose a plan: what it promises, and whether joining pays.

    Method, noise, rounds and forecast come from public numbers: column names, how many tasks there are,
    bounds in the codebook. No row is looked at, so that the plan tells nothing about any. Given nothing, it
    asks five questions. With -o it writes the plan of a codebook, for `cloister fit --plan` and `cloister
    account`. --ledger says what the run would leave for later ones; nothing is charged. --web shows the same
    with sliders, on a page that only this machine can open.

    \b
    For example:
      cloister plan exam.csv --codebook exam.toml
      cloister plan exam.csv --codebook exam.toml -o plan.toml
      cloister plan exam.csv --codebook exam.toml --detection 0.10 \
          --rows 20 -o ten-percent.toml
      cloister plan exam.csv --task school --target score
      cloister plan --tasks 139 --columns 5 --method low-rank --json
      cloister plan --tasks 24 --columns 5 --trust secure-sum --colluders 3
      cloister plan --tasks 12 --columns 20 --unit record=6000
    """
    data, tasks, codebook = answers.data, answers.tasks, answers.codebook
    if answers.epsilon is not None and answers.detection is not None:
        raise typer.BadParameter("Give --epsilon or --detection, not both.")
    if codebook is not None and (said := given(context, "columns", "classes")):
        raise typer.BadParameter(f"The codebook says {' and '.join(said)} itself: leave that out.")
    if data is not None and tasks is not None:
        raise typer.BadParameter("The table says how many tasks there are: leave --tasks out.")
    if data is None and tasks is None and codebook is None and not web:
        if json:
            raise typer.BadParameter("Name the table, or give --tasks and --columns.")
        answers = ask(answers)
    wish = replace(answers.wish(web), relation=relation, delta=delta, trust=trusted.value, unit=unit)
    if web and (trusted.value.at_home or wish.unit.by_record):
        raise typer.BadParameter(
            "The page plans for tasks, with a trusted curator: leave --trust and --unit out, or --web."
        )
    if web:
        from cloister.cli.plan_page import Page, serve

        return serve(Page(wish, *answers.settled, answers.source))
    if output is not None and answers.codebook is None:
        raise InputError("A plan to run needs the table's codebook. Add --codebook FILE, or leave -o out.")
    file = None if output is None else absent(output, force)
    ledger = account.open()
    room = None
    if ledger is not None:
        room = ledger.balance.room_for(wish.plan.cost_under(ledger.relation), trusted.value.adversary)
    document = _document(wish) | ({} if room is None else {"ledger": asdict(room)})
    if file is not None:
        wish.plan.save(file)
    if json:
        return emit(document | {"plan": file})
    _show(wish, answers, file, room)
    _show_next_steps(wish, answers, account, file)


def _document(wish: Wish) -> dict[str, object]:
    from cloister.cli.planning import EPSILONS

    found, plan, by_record = wish.forecast, wish.plan, wish.unit.by_record
    return {
        "tasks": wish.tasks,
        "columns": wish.codebook.width - 1,
        "classes": wish.codebook.classes,
        "method": wish.method.value,
        "algorithm": type(plan.algorithm).__name__,
        "mechanism": plan.trust.kind(plan.mechanism.kind),
        "rounds": len(plan.rounds),
        "stages": [asdict(stage) for stage in plan.stages],
        "epsilon": plan.guarantee.epsilon,
        "delta": plan.guarantee.delta,
        "detection": plan.guarantee.detection(),
        "holds": plan.guarantee.holds,
        "forecast": found.to_dict(),
        **({} if by_record else _enough(wish)),  # of records, Q says it
        "verdict": str(wish.which_unit) if by_record else wish.verdict,
        "unit": plan.guarantee.unit,
        "which_unit": None if wish.which_unit is None else asdict(wish.which_unit),
        "at_other_epsilons": [
            {"epsilon": epsilon, "detection": rate}
            | ({"heard": wish.heard_at(epsilon)} if by_record else {"low": low, "high": high})
            for epsilon, rate, low, high in wish.over_epsilon(EPSILONS)
        ],
    }


def _enough(wish: Wish) -> dict[str, object]:
    from cloister.plan.forecast import MOST_EPSILON

    needed = wish.epsilon_needed
    return {
        "joining_pays_from": wish.pays_from,
        "epsilon_needed": None if needed > MOST_EPSILON else needed,
    }


def _show(wish: Wish, answers: Answers, file: Path | None, room: Room | None) -> None:
    from cloister.cli.planning import COMMON, EPSILONS
    from cloister.privacy.statement import percent

    plan, told = wish.plan, wish.plan.guarantee
    words = f"{wish.tasks:,} tasks, {counted(wish.codebook.width - 1, 'encoded column')}"
    if answers.data is not None:
        words = (
            f"{answers.data.name}: {words}. Of it the names of columns and tasks were used, and no other cell"
        )
    say(
        f"{words}.",
        f"Proposed: {wish.method.value}, where tasks have in common {COMMON[wish.method]}. "
        f"{_sentence(plan.algorithm.plain_name)}, {counted(len(plan.rounds), 'noisy sum')}, "
        f"{plan.trust.kind(plan.mechanism.kind)}.",
        f"Promised: epsilon {rounded_up(told.epsilon)} at delta {rounded_up(told.delta)}; {_whom(wish)} "
        f"detect one {told.unit}'s data in at most {percent(told.detection())} of cases, with 5 % false "
        "alarms.",
        *([f"The guarantee does NOT hold: {'; '.join(told.reasons)}."] if not told.holds else []),
        f"Expected: {replace(wish.forecast, tasks_needed=None)}",
        *filter(None, [wish.verdict, wish.which_unit]),
    )
    show_stages(plan)
    by_record, known = wish.unit.by_record, wish.forecast.calibrated
    heads = ["epsilon", "detected at most", "Q" if by_record else "kept of the gain of sharing"]
    rows = []
    for epsilon, rate, low, high in wish.over_epsilon(EPSILONS):
        kept = _kept(low, high) if known else "no forecast"
        rows.append([f"{epsilon:g}", percent(rate), f"{wish.heard_at(epsilon):.3g}" if by_record else kept])
    show_table(heads, rows)
    if room is not None:
        say(str(room), apart=True)


def _whom(wish: Wish) -> str:
    """Say against whom a plan is priced."""
    return f"{wish.trust.adversary} together" if wish.trust.at_home else "all others together"


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]


def _kept(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %".replace("-", "−")


def _show_next_steps(wish: Wish, answers: Answers, account: AccountOptions, file: Path | None) -> None:
    data, table = answers.data, "TABLE" if answers.data is None else answers.data
    book = ["--codebook", answers.codebook, *_typed({"--task": answers.task, "--target": answers.column})]
    charged = _typed({"--ledger": account.ledger, "--population": account.population})
    if file is not None:
        price = ["cloister", "account", file]
        run = ["cloister", "fit", table, *book, "--plan", file, *_typed(_whose(wish)), *charged]
        if data is not None:
            say(f"Wrote {file}. The whole guarantee, and the run:", apart=True)
            return show_commands(price, run)
        say(f"Wrote {file}. The whole guarantee; the run; or the run between institutions:", apart=True)
        where = ["--run", "NAME", "--address", "HOST:PORT"]
        target = _typed({"--target": answers.column})
        between = ["cloister", "deploy", "init", "FOLDER", "--plan", file, *book[:2], *target, *where]
        return show_commands(price, run, between)
    if answers.codebook is not None and wish.trust.at_home:
        return say("Add -o plan.toml: cloister fit --plan and cloister deploy init run it.", apart=True)
    if answers.codebook is not None:
        say("To keep this plan, add -o plan.toml. To run it:", apart=True)
        return show_commands(["cloister", "fit", table, *book, *_promised(wish, answers), *charged])
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


def _promised(wish: Wish, answers: Answers) -> list[object]:
    """Return the options that make `cloister fit` propose the same plan."""
    return _typed(
        {
            "--method": None if wish.method is Method.shared_prior else wish.method.value,
            "--epsilon": answers.epsilon,
            "--detection": answers.detection,
            "--delta": wish.delta,
            "--relation": None if wish.relation is Relation.REPLACE else wish.relation.value,
            "--unit": typed_unit(wish.unit),
            **_whose(wish),
        }
    )


def _whose(wish: Wish) -> dict[str, object]:
    """Return what is to be filled in where persons are protected."""
    return {} if wish.unit.limit is None else {"--person": "COLUMN"}


def _typed(options: dict[str, object]) -> list[object]:
    """Return those options that have a value, as they are typed."""
    return [word for name, value in options.items() if value is not None for word in (name, value)]


T = TypeVar("T")


def _features(data: Path, task: str, target: str) -> list[str]:
    """Return the names of the columns that would predict; what is in them is not used."""
    from cloister.tables.table_files import read_table

    names = list(read_table(data, text=[task, target]))
    for name in (task, target):
        if name not in names:
            raise InputError(
                f"{data.name} has no column {name!r}. It has: {', '.join(names)}. Check the spelling."
            )
    found = [name for name in names if name not in (task, target)]
    if task == target or not found:
        raise InputError("Task, target and what predicts it must be different columns. Name others.")
    return found


def ask(known: Answers) -> Answers:
    """Ask the five questions; an answer that will not do is asked for again."""
    from cloister.cli.planning import COMMON
    from cloister.tables.codebook import Codebook

    say("Five questions. No row is looked at, and nothing leaves this machine.")
    table = _prompt("1. Your table, or how many tasks there are", _table_or_number)
    known = replace(known, tasks=table) if isinstance(table, int) else replace(known, data=table)
    book = _prompt("2. Its codebook (Enter if there is none yet)", _file_or_nothing(Codebook.load), "")
    if book is not None:
        known = replace(known, codebook=book)
    elif known.data is not None:
        known = replace(known, task=_prompt("   The column that tells tasks apart", _word))
        known = replace(known, column=_prompt("   The column to predict", _word))
    else:
        known = replace(known, columns=_prompt("   How many columns predict the target", _whole))
    if known.epsilon is None and known.detection is None:
        strict = "3. How strict: an epsilon, or a detection rate like 10 %"
        epsilon, detection = _prompt(strict, _strictness, "1")
        known = replace(known, epsilon=epsilon, detection=detection)
    if known.method is None:
        say("\n".join(f"   {number}  {words}" for number, words in enumerate(COMMON.values(), start=1)))
        known = replace(known, method=_prompt("4. What tasks have in common", _one_of(list(COMMON)), "1"))
    if known.rows is None:
        words = "5. About how many rows a task has, if that is public (Enter if not)"
        known = replace(known, rows=_prompt(words, _rows_or_nothing, ""))
    return known


def _prompt(words: str, read: Callable[[str], T], default: str | None = None) -> T:
    """Ask until the answer can be read; without anybody to ask, say what to type instead."""

    def checked(text: str) -> T:
        try:
            return read(text.strip())
        except CloisterError as error:
            raise typer.BadParameter(str(error)) from None
        except ValueError:
            raise typer.BadParameter(f"that must be a number. Got {text.strip()!r}.") from None

    try:
        found: T = typer.prompt(words, default=default, value_proc=checked, show_default=bool(default))
    except typer.Abort:
        raise InputError("Nobody answers. Give options instead: `cloister plan --help` lists them.") from None
    return found


def _table_or_number(text: str) -> Path | int:
    if text.isdigit():
        return _whole(text)
    path = Path(text)
    if not path.is_file():
        raise InputError(f"There is no file {path}. Name a table, or give a number of tasks.")
    return path


def _file_or_nothing(load: Callable[[Path], Any]) -> Callable[[str], Path | None]:
    def read(text: str) -> Path | None:
        if not text:
            return None
        if not Path(text).is_file():
            raise InputError(f"There is no file {text}. Make one with `cloister codebook`, or press Enter.")
        load(Path(text))
        return Path(text)

    return read


def _word(text: str) -> str:
    if not text:
        raise InputError("Name a column.")
    return text


def _whole(text: str) -> int:
    if not (text.isdigit() and int(text) >= 1):
        raise InputError(f"That must be a whole number of at least 1. Got {text!r}.")
    return int(text)


def _strictness(text: str) -> tuple[float | None, float | None]:
    """Return an epsilon, or a detection rate."""
    if not text.endswith("%"):
        return positive("Epsilon", float(text)), None
    return None, _check_rate(float(text.removesuffix("%")) / 100)


def _check_rate(rate: float) -> float:
    from cloister.privacy.tradeoff import FALSE_ALARMS

    if not FALSE_ALARMS < rate < 1:
        raise InputError(
            f"A detection rate must be above 5 %, which guessing detects, and below 100 %. Got {rate:.3g}."
        )
    return rate


def _one_of(choices: list[Method]) -> Callable[[str], Method]:
    def read(text: str) -> Method:
        if text in list(choices):
            return Method(text)
        if text.isdigit() and 1 <= int(text) <= len(choices):
            return choices[int(text) - 1]
        raise InputError(f"That must be a number from 1 to {len(choices)}. Got {text!r}.")

    return read


def _rows_or_nothing(text: str) -> float | None:
    if text and not 1 <= float(text) < float("inf"):
        raise InputError(f"A task has at least 1 row. Got {text}. Press Enter if it is not public.")
    return float(text) if text else None
