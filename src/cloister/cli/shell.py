"""How commands speak: people read stdout, machines read ``--json``, errors are one sentence on stderr."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, get_type_hints

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from cloister.core.errors import CloisterError, InputError

if TYPE_CHECKING:
    from cloister.plan.plan import Plan

#: Text is broken at this width even on a wide screen.
_WIDTH = 100


class Family(TyperGroup):
    """A family of commands that reports what cloister refuses as one sentence, without a traceback."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """Find a command; of one that is not there, what was meant is asked once, by typer or by click."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if getattr(error, "possibilities", None) and "Did you mean" in str(getattr(error, "message", "")):
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command; turn a refusal into its sentence and exit code 1, or 2 if it was not understood."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader went away: `cloister ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except typer.BadParameter as error:
            if not error.message:  # something is missing: the parser says what, and how it is used
                raise
            option = None if error.param is None else max(error.param.opts, key=len)
            _fail(usage_sentence(error.message, option), code=2)
        except CloisterError as error:
            _fail(str(error))
        except MemoryError:
            _fail("There is not enough memory for this. Use a machine with more, or ask for less.")
        except OSError as error:
            _fail(f"{error.filename or 'A file'} cannot be used: {error.strerror or error}. Check the path.")


class Command(TyperCommand):
    """A command that says what the library refuses in the words of its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; refuse an option that is given twice, of which one would be passed over."""
        *_, typed = self.make_parser(ctx).parse_args(args=[*args])
        for option in typed:
            once = option.param_type_name == "option" and not (option.multiple or option.is_flag)  # type: ignore[attr-defined]
            if once and typed.count(option) > 1:
                raise typer.BadParameter("must be given once. Leave one out", ctx, option)
        return list(super().parse_args(ctx, args))

    def get_help(self, ctx: Any) -> str:
        """Return the help as plain text: some versions of typer escape brackets for rich even here."""
        return str(super().get_help(ctx)).replace(r"\[", "[")

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CloisterError as error:
            _fail(in_options(str(error), _spelled(ctx)))


def attach(family: typer.Typer, *commands: Callable[..., None]) -> None:
    r"""Add commands whose help is their docstring; the lines after ``\b`` keep their breaks."""
    for command in commands:
        text = cleandoc(command.__doc__ or "").replace(r"\b", "\b")
        family.command(cls=Command, help=text)(_flat(command))


def _flat(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one option for each field of the dataclasses that it takes."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}
    flat = [
        each
        for name, own in inspect.signature(command).parameters.items()
        for each in (_options_of(groups[name]) if name in groups else [own.replace(annotation=hints[name])])
    ]

    def call(**typed: Any) -> None:
        values = {
            name: kind(**{part.name: typed.pop(part.name) for part in fields(kind)})
            for name, kind in groups.items()
        }
        command(**typed, **values)

    by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in flat]
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in by_name}
    return call


def _options_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            part.name, inspect.Parameter.KEYWORD_ONLY, default=part.default, annotation=hints[part.name]
        )
        for part in fields(group)
    ]


def given(context: typer.Context, *options: str) -> list[str]:
    """Return those of these options that were typed out, as one types them."""
    spelled = _spelled(context)
    sources = {name: context.get_parameter_source(name) for name in options}
    typed = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    return [spelled[name] for name in typed]


def _spelled(context: Any) -> dict[str, str]:
    """Return each option of a command as one types it, by the name of its parameter."""
    options = (each for each in context.command.params if each.param_type_name == "option")
    return {each.name: max(each.opts, key=len) for each in options}


def _fail(sentence: str, code: int = 1) -> Never:
    typer.echo(f"Error: {' '.join(sentence.split())}", err=True)
    raise typer.Exit(code)


def _console(stderr: bool = False) -> Console:
    """Return a console for this moment's stdout or stderr."""
    found = Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=min(found.width, _WIDTH))


def say(*paragraphs: object, apart: bool = False) -> None:
    """Print paragraphs for people, an empty line between them; `apart`, also before the first."""
    out = _console()
    for number, paragraph in enumerate(paragraphs):
        if number or apart:
            out.print()
        out.print(str(paragraph), markup=False)


def show_commands(*commands: Sequence[object]) -> None:
    """Print commands to copy after an empty line: each on one line however long, quoted as shells need it."""
    typer.echo()
    for words in commands:
        typer.echo(f"  {shlex.join(map(str, words))}")


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a small table after an empty line; the first column is words, the others are numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    _console().print("", table, sep="\n")


def show_stages(plan: Plan) -> None:
    """Print what a plan asks tasks for, in how many rounds, with which part of the budget."""
    heads = ["what tasks are asked for", "rounds", "numbers", "of the budget"]
    rows = ([s.about, str(s.rounds), f"{s.numbers:,}", f"{100 * s.share:.1f} %"] for s in plan.stages)
    show_table(heads, rows)


def note(sentence: str) -> None:
    _console(stderr=True).print(sentence, markup=False, style="dim")


def emit(document: Mapping[str, object]) -> None:
    """Print strict JSON on stdout; infinity becomes the text "inf"."""
    typer.echo(json.dumps(_plain(document), allow_nan=False, ensure_ascii=False, indent=2))


def _plain(value: object) -> object:
    """Turn a tree into what strict JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def positive(option: str, value: float) -> float:
    """Return the value of an option that must be above 0 and finite."""
    if not 0 < value < math.inf:
        raise InputError(f"{option} must be above 0 and finite. Got {value:g}. 1 is a common start.")
    return value


def absent(path: Path, force: bool) -> Path:
    """Return a path to write a file to; refuse one that is taken, unless forced."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file to write to.")
    if path.exists() and not force:
        raise InputError(
            f"{path} is already there and is left as it is. Choose another name, or add --force."
        )
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent} to write {path.name} to. Make it first.")
    return path


#: Moves a bar: so many of so many are done.
Move = Callable[[int, int], None]


@contextmanager
def bars() -> Iterator[Callable[[str], Move]]:
    """Yield a function that makes progress bars on stderr, one for each label, if a person is watching."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = _console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as shown:
        known: dict[str, Any] = {}

        def bar(label: str) -> Move:
            if label not in known:
                known[label] = shown.add_task(label, total=None)
            return lambda done, total: shown.update(known[label], completed=done, total=total)

        yield bar


@contextmanager
def advance(label: str) -> Iterator[Move]:
    """Yield a function of (done, in all) that moves a progress bar on stderr, if a person is watching."""
    with bars() as bar:
        yield bar(label)


#: What a programmer is told, what one types instead, and the parameter that a command must have for it.
_SAID = (
    (r"\bPoisson rate\b", "--rate", "rate"),
    (r"\bFixedSize size\b", "--fixed-size", "fixed_size"),
    (r"\bEveryone\(\)", "neither --rate nor --fixed-size", "rate"),
    (r"\bGaussian\(\)", "--mechanism gaussian", "mechanism"),
    (r"\bNoNoise\(\)", "--epsilon inf", "epsilon"),
    (r"(?:the unit |\bunit=)?\bUnit\.task\(\)", "--unit task", "unit"),
    (r"\bMake a plan for as many\b", "Give --unit a larger public N", "unit"),
    (r"\bunit='(\w+)'", r"--unit \1", "unit"),
    (r"\bTrust\.(curator|silo)\(\)", r"--trust \1", "trust"),
    (r"\bn_tasks\b", "--tasks", "tasks"),
    (r"\bdefault_delta\(\d+\) = ", "--delta ", "delta"),
)
#: How the parser of options speaks of what was typed; typer before 0.21 has words of its own.
_PARSED = (
    (r"^Value error, ", ""),
    (r"^Input should be a valid number\b.*", "must be a number, such as 1.5"),
    (r"^Input should be a valid integer\b.*", "must be a whole number"),
    (r"^Input should be greater than or equal to ", "must be at least "),
    (r"^Input should be less than or equal to ", "must be at most "),
    (r"^Input should be ", "must be "),
    (r"^.* is not a valid float\b.*", "must be a number, such as 1.5"),
    (r"^.* is not a valid integer\b.*", "must be a whole number"),
    (r"^.* is not in the range x>=([^<>]+)\.$", r"must be at least \1"),
    (r"^.* is not in the range x<=([^<>]+)\.$", r"must be at most \1"),
    (r"^.* is not in the range (.+)<=x<=(.+)\.$", r"must be from \1 to \2"),
)


def in_options(sentence: str, options: Mapping[str, str]) -> str:
    """Return an error of the library as a command says it, which has these options for parameters.

    Examples
    --------
    >>> options = {"detection": "--detection", "false_alarms": "--false-alarms", "force": "--force"}
    >>> in_options("detection must be above false_alarms. Use detection=0.1, or force=True.", options)
    '--detection must be above --false-alarms. Use --detection 0.1, or --force.'
    """
    for pattern, words, parameter in _SAID:
        if parameter in options:
            sentence = re.sub(pattern, words, sentence)
    for name, option in options.items():
        sentence = re.sub(rf"(?<![\w-]){name}=True\b", option, sentence)
        sentence = re.sub(rf"(?<![\w-])(?<!--set ){name}=(?=\w)", f"{option} ", sentence)
        named = rf"(?<![\w-]){name}\b" if "_" in name else rf"^{name}(?= must\b)"
        sentence = re.sub(named, option, sentence)
    return sentence


def usage_sentence(message: str, option: str | None) -> str:
    """Return what is wrong with an option, or with several together, as one sentence.

    Examples
    --------
    >>> usage_sentence("Input should be a valid number, unable to parse string as a number", "--epsilon")
    '--epsilon must be a number, such as 1.5.'
    >>> usage_sentence("Value error, 'add' is not one of 'replace', 'zero_out'.", "--relation")
    "--relation: 'add' is not one of 'replace', 'zero_out'."
    >>> usage_sentence("10 is not in the range x>=1000.", "--draws")
    '--draws must be at least 1000.'
    """
    for pattern, words in _PARSED:
        message = re.sub(pattern, words, message)
    sentence = message.rstrip(".") + "."
    if option is None:
        return sentence
    return f"{option} {sentence}" if sentence.startswith("must") else f"{option}: {sentence}"
