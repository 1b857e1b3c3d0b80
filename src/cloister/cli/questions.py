"""The five questions of `cloister plan`, and their answers, however they were given."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cloister.cli.methods import Method
from cloister.cli.shell import positive, say
from cloister.cli.table import Table, codebook_of
from cloister.errors import CloisterError, InputError

if TYPE_CHECKING:
    from cloister.cli.planning import Wish
    from cloister.cli.proposals import Target
    from cloister.tables.codebook import Codebook

__all__ = ["Answers", "ask"]

T = TypeVar("T")


@dataclass(frozen=True)
class Answers:
    """What was said, by options or to the questions."""

    data: Path | None
    codebook: Path | None
    task: str | None
    column: str | None
    classes: int | None
    tasks: int | None
    columns: int | None
    epsilon: float | None
    detection: float | None
    method: Method | None
    rows: float | None

    def wish(self, web: bool = False) -> Wish:
        """Return what is asked of a plan; a page has numbers to begin with, to be moved."""
        from cloister.cli.planning import Wish

        book = self.book(web)
        tasks = self.tasks
        if self.data is not None and tasks is None:
            tasks = len(Table(self.data, book).ids)
        if tasks is None:
            if not web:
                raise InputError("How many tasks are there? Name the table, or give --tasks.")
            tasks = 150
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
    def target(self) -> Target:
        from cloister.cli.proposals import Target
        from cloister.privacy.tradeoff import FALSE_ALARMS

        epsilon = 1.0 if self.epsilon is None else positive("--epsilon", self.epsilon)
        if self.detection is not None:
            _check_rate(self.detection)
        return Target(epsilon, self.detection, FALSE_ALARMS)

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


def _features(data: Path, task: str, target: str) -> list[str]:
    """Return the names of the columns that would predict; what is in them is not used."""
    from cloister.tables.files import read_table

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
