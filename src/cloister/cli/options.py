"""Arguments and options that several commands share, alone and in groups; and what is typed in them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.core.errors import InputError
from cloister.core.lifts import Relation
from cloister.privacy.events import UnitName

if TYPE_CHECKING:
    from cloister.ledger import Ledger
    from cloister.privacy.mechanisms import Mechanism
    from cloister.privacy.sampling import Sampling
    from cloister.privacy.trust import Trust
    from cloister.privacy.unit import Unit
    from cloister.tables.codebook import Codebook


def own_types(names: Iterable[str] | None) -> list[object]:
    """Return what `--types` names, each as `module:Class` or `path/to/file.py:Class`.

    This runs the module's code, as importing does: a plan file cannot ask for it, only the command line can.
    """
    return [own_value(name, "--types") for name in names or ()]


def own_value(name: str, option: str) -> object:
    """Return what an option names, as `own_types` does."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute.isidentifier():
        raise InputError(f"{option} must read module:Class or file.py:Class. Got {name!r}.")
    try:
        module = _from_file(Path(place), option) if place.endswith(".py") else _from_path(place, option)
    except InputError:
        raise
    except Exception as error:  # it is somebody's own code, and may fail in any way
        raise InputError(
            f"{option} {name}: {place} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if attribute not in vars(module):
        raise InputError(f"{option} {name}: {place} has no {attribute!r}. Check the spelling.")
    return vars(module)[attribute]


def _from_path(place: str, option: str) -> ModuleType:
    """Import a module that is installed, or lies in the folder where the command is given."""
    _let_import_from(Path.cwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise InputError(
            f"{option}: there is no module {place!r} here. Install it, give the command in the folder "
            "where it lies, or name its file: path/to/file.py:Class."
        ) from None


def _from_file(path: Path, option: str) -> ModuleType:
    """Import a file under its own name, as `import` does in the folder where it lies."""
    if not path.is_file():
        raise InputError(f"{option}: there is no file {path}. Check the path.")
    loaded = sys.modules.get(path.stem)
    if loaded is None:
        _let_import_from(path.resolve().parent)
        return _executed(path)
    if Path(str(vars(loaded).get("__file__"))).resolve() != path.resolve():
        raise InputError(f"{option}: {path} has the name of another module, {path.stem!r}. Rename the file.")
    return loaded


def _executed(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _let_import_from(folder: Path) -> None:
    """Add a folder after all others: nothing that lies in it takes an installed module's place."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV, Parquet, Arrow or Excel file with column names.")
]
OwnData = Annotated[
    Path, typer.Argument(metavar="DATA", help="The task's own rows; others in the file are passed over.")
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run; its public part is enough.")]
SkipMissingTargets = Annotated[
    bool, typer.Option("--skip-missing-targets", help="Leave out rows whose target is missing.")
]
TaskName = Annotated[str, typer.Option(help="Which task this is.")]
Delta = Annotated[float | None, typer.Option(help="Default: min(m^-1.5, 1/(10 m)) for m tasks.")]


def _rate(text: str) -> float:
    """Read 0.10 or 10%; whether the rate can be reached is asked where it is used."""
    number, percent, _ = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        raise typer.BadParameter("must be a number, such as 0.10, or 10%.") from None
    if not percent and 1 < value < 100:
        raise typer.BadParameter(f"must be below 1. Got {value:g}; write {value / 100:.4g} for {value:g} %.")
    return value / 100 if percent else value


Detection = Annotated[
    float | None,
    typer.Option(
        metavar="RATE",
        parser=_rate,
        help="Instead of --epsilon: how often to be detected.",
    ),
]
FalseAlarms = Annotated[float, typer.Option(help="With so many false alarms.")]
Protected = Annotated[
    UnitName, typer.Option(help="Whose budget it is: each task, each record of one, or each person.")
]
Neighbours = Annotated[Relation, typer.Option(help="Neighbours: a task's data replaced, or left out.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is already there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Types = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:CLASS",
        callback=own_types,
        help="Your class in the plan; or FILE.py:CLASS.",
    ),
]


@dataclass(frozen=True)
class CodebookOptions:
    """The codebook, and what is said of it once more."""

    codebook: Annotated[Path | None, typer.Option(help="Filled-in codebook file. It must be given.")] = None
    task: Annotated[str | None, typer.Option(help="Task column. Default: the codebook's.")] = None
    column: Annotated[
        str | None, typer.Option("--target", help="To predict. Default: all the codebook's.")
    ] = None


@dataclass(frozen=True)
class Strictness:
    """How strict a run is to be."""

    epsilon: Annotated[float, typer.Option(help="Privacy budget of every task.")] = 1.0
    detection: Detection = None
    false_alarms: FalseAlarms = 0.05
    delta: Delta = None
    relation: Neighbours = Relation.REPLACE


@dataclass(frozen=True)
class ParticipationOptions:
    """Who takes part in a round: by default everyone; at most one way can be asked for."""

    rate: Annotated[float | None, typer.Option(help="Chance of each task to be in a round.")] = None
    hidden: Annotated[
        bool, typer.Option("--hidden", help="Assert: only the curator sees who takes part.")
    ] = False
    fixed_size: Annotated[int | None, typer.Option(help="So many random tasks take part in a round.")] = None
    one_pass: Annotated[bool, typer.Option("--one-pass", help="Each task takes part in one round.")] = False

    @property
    def sampling(self) -> Sampling:
        from cloister.privacy import sampling

        if (self.rate is not None) + (self.fixed_size is not None) + self.one_pass > 1:
            raise typer.BadParameter("Give at most one of --rate, --fixed-size and --one-pass.")
        if self.rate is not None:
            return sampling.Poisson(self.rate, hidden=self.hidden)
        if self.fixed_size is not None:
            return sampling.FixedSize(self.fixed_size, hidden=self.hidden)
        if self.hidden:
            raise typer.BadParameter("--hidden goes with --rate.")
        return sampling.OnePass() if self.one_pass else sampling.Everyone()


class Noise(StrEnum):
    """What kind of noise a release gets."""

    gaussian = "gaussian"
    laplace = "laplace"
    wishart = "wishart"
    toeplitz = "toeplitz"
    tree = "tree"
    blt = "blt"


@dataclass(frozen=True)
class RoundOptions(ParticipationOptions):
    """Who takes part in a round, and with what kind of noise."""

    mechanism: Annotated[
        Noise, typer.Option("--mechanism", metavar="NOISE", help=f"One of: {', '.join(Noise)}.")
    ] = Noise.gaussian

    @property
    def uncalibrated(self) -> Mechanism:
        """A mechanism that is still to be calibrated."""
        from cloister.mechanisms import BLT, Gaussian, L2Laplace, Toeplitz, Tree, Wishart

        kinds = {
            Noise.gaussian: Gaussian,
            Noise.laplace: L2Laplace,
            Noise.wishart: Wishart,
            Noise.toeplitz: Toeplitz,
            Noise.tree: Tree,
            Noise.blt: BLT,
        }
        made: Mechanism = kinds[self.mechanism]()
        return made


class TrustName(StrEnum):
    """Whom tasks trust with their messages."""

    curator = "curator"
    secure_sum = "secure-sum"
    silo = "silo"


@dataclass(frozen=True)
class TrustOptions:
    """Whom tasks trust with their messages, and who adds the noise."""

    trust: Annotated[
        TrustName,
        typer.Option("--trust", metavar="WHOM", help="curator, secure-sum or silo."),
    ] = TrustName.curator
    dropouts: Annotated[
        int, typer.Option(help="Of a secure sum: tasks that may be missing.", show_default=False)
    ] = 0
    colluders: Annotated[int, typer.Option(help="Of it: tasks that may collude.")] = 1
    curator_noise: Annotated[
        bool, typer.Option("--curator-noise", help="Of it: the curator adds noise on top.")
    ] = False

    @property
    def value(self) -> Trust:
        from cloister.privacy.trust import Trust

        if self.trust is TrustName.secure_sum:
            return Trust.secure_sum(self.dropouts, self.colluders, self.curator_noise or None)
        if (self.dropouts, self.colluders, self.curator_noise) != (0, 1, False):
            raise typer.BadParameter(
                "--dropouts, --colluders and --curator-noise go with --trust secure-sum."
            )
        return Trust.silo() if self.trust is TrustName.silo else Trust.curator()


def _unit(text: str) -> Unit:
    """Read `task`, `record=3000`, or `person=3000:4`."""
    from cloister.privacy.unit import Unit

    name, _, numbers = text.partition("=")
    rows, _, most = numbers.partition(":")
    if text == "task":
        return Unit.task()
    if name == "record" and numbers.isdigit():
        return Unit.record(int(rows))
    if name == "person" and rows.isdigit() and most.isdigit():
        return Unit.person(int(rows), int(most))
    raise typer.BadParameter(
        "must be task, record=N with the public number of all rows, or person=N:K, where of a person's rows "
        "in a task the first K send."
    )


def typed_unit(unit: Unit) -> str | None:
    """Return how a unit is typed; None for the task, which goes without saying."""
    if not unit.by_record:
        return None
    return f"record={unit.count(0)}" if unit.limit is None else f"person={unit.count(0)}:{unit.limit}"


def check_person(unit: Unit, column: str | None) -> None:
    """Refuse a plan for persons without a column that says whose each row is, and the column without one."""
    if unit.limit is not None and column is None:
        raise InputError(
            "The plan protects persons, and whose each row is nobody has said. Add --person COLUMN."
        )
    if unit.limit is None and column is not None:
        raise InputError("--person is for a plan that protects persons. Leave it out, or change --unit.")


UnitOption = Annotated[
    Any,
    typer.Option(
        "--unit",
        metavar="UNIT",
        parser=_unit,
        help="task; record=N: each of N rows; person=N:K: each person, of K rows in a task.",
        show_default=False,
    ),
]
Person = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Of --unit person: whose each row is; private."),
]


@dataclass(frozen=True)
class RowOptions:
    """Which public groups tasks are in, which rows are left out, and whose each is."""

    groups: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of each task's PUBLIC group."),
    ] = None
    skip: SkipMissingTargets = False
    person: Person = None


@dataclass(frozen=True)
class AccountOptions:
    """An account in a ledger."""

    ledger: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The ledger that pays: a file, or a URL."),
    ] = None
    population: Annotated[str | None, typer.Option(help="Whose account in that ledger.")] = None

    def open(self) -> Ledger | None:
        """Return the account, if one is named."""
        if self.ledger is None:
            if self.population is not None:
                raise InputError("--population names an account in a ledger. Add --ledger PLACE.")
            return None
        from cloister.ledger import Ledger

        found: Ledger = Ledger.open(self.ledger, self.population)
        return found


class EngineName(StrEnum):
    """Where tasks are computed on."""

    local = "local"
    ray = "ray"


@dataclass(frozen=True)
class EngineOptions:
    """Where tasks are computed on."""

    engine: Annotated[
        EngineName, typer.Option("--engine", help="ray: actors that read a folder of Parquet.")
    ] = EngineName.local
    actors: Annotated[int, typer.Option(help="Of Ray: how many.")] = 2
    address: Annotated[str | None, typer.Option(help="Of Ray: a cluster that is there.")] = None
    shards: Annotated[int, typer.Option("--shards", help="Of Ray: parts of the rows.")] = 64


@dataclass(frozen=True)
class RunOptions:
    """How a command goes about it."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print price and forecast, do nothing.")] = False
    approved_by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who approved the price; it is kept."),
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the whole guarantee.")] = False
    force: Force = False
    json: Json = False


def codebook_of(path: Path, task: str | None, target: str | None) -> Codebook:
    """Read the codebook; the columns named on the command line must be its own."""
    from cloister.tables.codebook import Codebook

    books = {book.target.name: book for book in Codebook.load_all(path)}
    if len(books) > 1 and target not in books:
        raise InputError(
            f"{path} has several targets: {', '.join(books)}. Add --target NAME, one of these; `cloister fit "
            "--dry-run` has the price of all together."
        )
    book = books[target] if target in books else next(iter(books.values()))
    if target is not None and target != book.target.name:
        raise InputError(
            f"--target must be the codebook's target, {book.target.name!r}. Got {target!r}. "
            "Leave the option out, or write another codebook."
        )
    if book.task is not None and task not in (None, book.task):
        raise InputError(
            f"--task must be the codebook's task column, {book.task!r}. Got {task!r}. "
            "Leave the option out, or change the line `task` in the codebook."
        )
    if book.task is None and task is None:
        raise InputError("The codebook names no task column. Add --task COLUMN.")
    return replace(book, task=book.task or task)
