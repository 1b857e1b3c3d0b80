"""Whether the public part of a run is what it says it is: computed again, check by check."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cloister.app.choice import Choice
from cloister.app.folder import (
    MANIFEST,
    check_manifest,
    manifest_head,
    read_choice,
    read_codebook,
    read_groups,
    read_plan,
    require_folder,
)
from cloister.app.outcomes import Outcomes, one_of, promised_together, read_outcomes
from cloister.core.document import to_document
from cloister.core.errors import (
    BillboardError,
    CloisterError,
    InputError,
    MissingExtraError,
    MissingTypeError,
)
from cloister.core.findings import EarlierPrior
from cloister.core.spelling import counted
from cloister.engines.local import one_thread
from cloister.plan.board_checks import check_board
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import FORMAT, Guarantee
from cloister.privacy.statement import percent, rounded_up
from cloister.store.billboard import Billboard
from cloister.tables.naming import Naming

#: What arrays and numbers that were tampered with can raise.
_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
#: The files of a journal whose run has ended, and what `Run.save` writes beside them.
_PROMISE = {"guarantee.json", "guarantee.txt"}
_JOURNAL = {"plan.toml", "board", "roster", *_PROMISE}
#: What is said of checks that somebody must give something for.
_UNASKED = {"head": "the head was not compared", "earlier": "what it starts from was not compared"}
#: The checks that are about other files.
_BEYOND = {"files", "codebook"}


@dataclass
class Evidence:
    """What the checks have read so far."""

    folder: Path
    head: str | None
    types: Collection[object]
    exact: bool = False
    earlier: Path | None = None
    passed: set[str] = field(default_factory=set)
    plan: Plan = field(init=False)
    board: Billboard = field(init=False)
    choice: Choice | None = None
    guarantee: Guarantee | None = None
    words: bool = False
    naming: Naming = field(default_factory=Naming)
    good: bool = False
    unread: str = ""

    @cached_property
    def journal(self) -> bool:
        """Whether the folder is a finished journal or a saved `Run`: no table, and so no codebook."""
        return {path.name for path in self.folder.iterdir()} <= _JOURNAL

    @property
    def chosen(self) -> bool:
        """Whether the folder says that the run was chosen among several."""
        return (self.folder / "choice").is_dir()

    @property
    def starts_earlier(self) -> bool:
        """Whether the plan starts from an earlier board, or is said to."""
        return self.earlier is not None or ("plan" in self.passed and self._start is not None)

    @property
    def _start(self) -> EarlierPrior | None:
        return self.plan.algorithm.start_from

    @property
    def boards(self) -> list[tuple[Plan, Billboard]]:
        """Everything that is posted, with its plan: the run's, and those it was chosen among."""
        others = () if self.choice is None else zip(self.choice.plans, self.choice.boards, strict=True)
        return [(self.plan, self.board), *others]

    @cached_property
    def head_found(self) -> str:
        """The hash that stands for all public files; of an older folder, for its boards."""
        return manifest_head(self.folder) or self.boards_head

    @property
    def boards_head(self) -> str:
        """The hash of the board, or of all boards that the run was chosen among."""
        return self.board.head.hex() if self.choice is None else self.choice.head


@dataclass(frozen=True)
class Check:
    """One line of the list: passed, failed, or not reached (None)."""

    name: str
    ok: bool | None
    detail: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "NO", None: "--"}[self.ok]
        return f"{mark}  {self.name}" + (f": {self.detail}" if self.detail else "")


def verify_folder(seen: Evidence) -> list[Check]:
    """Check a run's public part, or a finished journal, by computing it again; `seen` has what was read.

    Compared are numbers up to rounding, or `exact`ly; and what the run starts from with an `earlier` folder.
    """
    require_folder(seen.folder, ("plan.toml", "board"))
    if not seen.journal:
        require_folder(seen.folder)
    asked = {"choice": lambda: seen.chosen, "earlier": lambda: seen.starts_earlier}
    checks = [_try(key, seen) for key in _CHECKS if key not in asked or asked[key]()]
    failed = any(check.ok is False for check in checks)
    seen.unread = "" if failed else seen.unread
    seen.good = not failed and not seen.unread  # what was not reached stands below one of these
    if seen.journal and seen.good:
        seen.guarantee = seen.plan.guarantee_on(seen.board)
    return checks


def verify_together(folder: Path, runs: Mapping[str, Evidence]) -> tuple[Check, Guarantee | None]:
    """Check what a folder promises of all its outcomes, whose runs passed; return what they do promise."""
    name = "the guarantee of all outcomes is what their plans and boards give"
    if not all(seen.good and {"plan", "board"} <= seen.passed for seen in runs.values()):
        return Check(name, None, "not reached"), None
    try:
        due = _together(folder, runs)
    except CloisterError as error:
        return Check(name, False, str(error)), None
    rate = f"detected at most {percent(due.detection())}"
    price = f"epsilon {rounded_up(due.epsilon, 6)}, delta {rounded_up(due.delta)}"
    return Check(name, True, f"{price}, {due.relation}, {rate}"), due


def _together(folder: Path, runs: Mapping[str, Evidence]) -> Guarantee:
    plans = {name: seen.plan for name, seen in runs.items()}
    if read_outcomes(folder, "plans") != {name: plan.fingerprint for name, plan in plans.items()}:
        raise InputError("outcomes.json names other plans.")
    claimed = promised_together(folder)
    due = Outcomes(plans).guarantee_on({name: seen.board for name, seen in runs.items()})
    said = claimed.to_dict()
    for name in ("epsilon", "delta", "relation", "n_tasks", "other_epsilon", "curve"):
        if not _agree(said[name], value := due.to_dict()[name]):
            raise InputError(f"it says {name} = {shown(said[name])}, the plans give {shown(value)}.")
    words = folder / "guarantee.txt"
    naming = next(iter(runs.values())).naming
    if not words.is_file() or words.read_text(encoding="utf-8").strip() not in _texts(claimed, naming):
        raise InputError("guarantee.txt does not say what outcomes.json says.")
    return due


def _try(key: str, seen: Evidence) -> Check:
    name, needs, test = _CHECKS[key]
    promised = any((seen.folder / file).exists() for file in _PROMISE)
    if seen.journal and (key in _BEYOND or (key == "guarantee" and not promised)):
        return Check(name, None, "not checked, for a journal has no such file")
    if not seen.passed.issuperset(needs):
        return Check(name, None, "not reached")
    try:
        detail = test(seen)
        if key in _UNASKED and getattr(seen, key) is None:
            return Check(_UNASKED[key], None, detail)
    except (MissingTypeError, MissingExtraError) as error:  # nothing is wrong with the folder
        seen.unread = str(error)
        return Check(name, None, seen.unread)
    except CloisterError as error:
        return Check(name, False, str(error))
    except _BROKEN as error:
        return Check(name, False, f"what is there cannot be read ({type(error).__name__}).")
    seen.passed.add(key)
    return Check(name, True, detail)


def _plan_reads(seen: Evidence) -> str:
    seen.plan = read_plan(seen.folder / "plan.toml", seen.types)
    releases = counted(len(seen.plan.rounds), "release")
    return f"{type(seen.plan.algorithm).__name__}, {seen.plan.n_tasks} tasks, {releases}"


def _board_whole(seen: Evidence) -> str:
    seen.board = Billboard.load(seen.folder / "board")
    answered = [release.answered for release in seen.board.releases if release.answered is not None]
    least = f"; each release is of {counted(min(answered), 'task')} at least" if answered else ""
    records = counted(len(seen.board.records), "record")
    return f"the hashes of {records} match, the last of which is {seen.board.head.hex()}{least}"


def _choice_stands(seen: Evidence) -> str:
    seen.choice = read_choice(seen.folder, seen.plan, seen.board, seen.types)
    assert seen.choice is not None
    return f"choice/{seen.choice.winner}, of {len(seen.choice.plans) - 1} by a noisy count of tasks' votes"


def _files_as_written(seen: Evidence) -> str:
    if not (seen.folder / MANIFEST).exists():
        return (
            "there is no manifest.txt, as in folders of older versions. The head covers boards and plans "
            "alone; compare codebook.toml, groups.json and estimator.toml with a copy"
        )
    return f"{check_manifest(seen.folder)} files match manifest.txt"


def _head_kept(seen: Evidence) -> str:
    beside = seen.folder / "head.txt"
    if beside.is_file() and beside.read_text(encoding="utf-8").strip() != seen.head_found:
        raise BillboardError(f"head.txt has another, and it is {seen.head_found}.")
    if seen.head is None:
        return "give --head, as it was printed, published or kept"
    if seen.head.lower() == seen.head_found:
        return "it is the one that was given"
    if seen.head.lower() == seen.boards_head:
        return "it is the one that was given, of the board: it covers no other file"
    raise BillboardError(
        f"it is {seen.head_found}, and not the one that was given: this is another run, or files were edited "
        "and their hashes computed anew. Ask who published it."
    )


def _board_of_plan(seen: Evidence) -> str:
    if seen.board.plan != seen.plan.fingerprint or seen.board.capacity != len(seen.plan.rounds):
        raise BillboardError("it was opened with another plan, or the plan was changed since.")
    return f"fingerprint {seen.plan.fingerprint}"


def _noise_as_priced(seen: Evidence) -> str:
    plan, board = seen.plan, seen.board
    denominator = plan.denominator
    for t, (part, release) in enumerate(zip(plan.rounds, board.releases, strict=False)):
        due = (denominator, part.share)
        same = all(map(_close, (release.denominator, release.share), due))
        channel = part.channels[release.channel]
        if not (same and plan.has_noise(t, channel, release.noise, answered=release.answered)):
            raise BillboardError(f"release {t} has another noise, denominator or share.")
    return ""


def _complete(seen: Evidence) -> str:
    if not seen.board.complete:
        raise BillboardError(f"{seen.board.rounds} of {seen.board.capacity} releases are posted.")
    return f"{seen.board.rounds} of {seen.board.capacity} releases"


def _updates_follow(seen: Evidence) -> str:
    for threads in (one_thread(), nullcontext()):  # tasks are computed on with one, or elsewhere
        with threads:
            if all(check_board(plan, board) for plan, board in seen.boards):
                return "to the last bit"
    if seen.exact:
        raise BillboardError(
            "it does up to rounding, not to the last bit. On the machine of the run, with its versions and "
            "threads, something else was written into last bits; elsewhere leave --exact out."
        )
    return (
        "up to rounding, which differs between processors and versions. On the machine of the run, --exact "
        "compares the last bits too"
    )


def _starts_there(seen: Evidence) -> str:
    start = seen.plan.algorithm.start_from
    if seen.earlier is None:
        assert start is not None
        return f"give --earlier, the folder of the run whose board has the head {start.source}"
    if start is None:
        raise InputError("its plan starts from no earlier board.")
    require_folder(seen.earlier, ("plan.toml", "board"))
    plan = read_plan(seen.earlier / "plan.toml", seen.types)
    found = plan.prior_on(Billboard.load(seen.earlier / "board"))
    if not _agree(to_document(start), to_document(found)):
        raise BillboardError(f"it starts from other numbers, or another board, than {seen.earlier} has.")
    return f"its numbers are what the board in {seen.earlier} says"


def _codebook_fits(seen: Evidence) -> str:
    book = read_codebook(seen.folder, seen.plan)
    seen.naming = book.naming
    read_groups(seen.folder, seen.plan)
    if not set(book.caveats) <= set(seen.plan.caveats):
        raise InputError("its bounds were read from the data, and the plan does not say so.")
    return ""


def _guarantee_follows(seen: Evidence) -> str:
    if seen.chosen and seen.choice is None:
        if seen.unread:
            raise MissingTypeError(seen.unread)
        raise InputError("what the run was chosen among, and paid for with it, does not pass.")
    path = seen.folder / "guarantee.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        claimed = Guarantee.from_dict(document)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"guarantee.json cannot be read: {error}") from None
    due = seen.plan.guarantee_on(seen.board) if seen.choice is None else seen.choice.guarantee
    current = document.get("format") == FORMAT
    unsaid = () if current or claimed.curve is not None else ("curve",)  # older ones have none
    said = claimed.to_dict()
    for name, value in due.to_dict().items():
        if name in (
            "detection",
            "statement",
        ):  # they follow from the others; earlier versions had other words
            if (name == "detection" or current) and not _agree(document.get(name, said[name]), said[name]):
                raise InputError(f"its {name} is not what its numbers say.")
        elif name not in unsaid and not _agree(said[name], value):
            raise InputError(f"it says {name} = {shown(said[name])}, plan and board give {shown(value)}.")
    together = one_of(seen.folder, seen.types)
    if claimed.one_of is not None and not (together and _agree(claimed.one_of.to_dict(), together.to_dict())):
        raise InputError(f"it says that this is {claimed.one_of}, and plans give: {together}.")
    words = seen.folder / "guarantee.txt"
    seen.words = current and words.is_file()  # older versions had other words
    if seen.words and words.read_text(encoding="utf-8").strip() not in _texts(claimed, seen.naming):
        raise InputError("guarantee.txt does not say what guarantee.json says.")
    seen.guarantee = claimed
    rate = f"detected at most {percent(claimed.detection())}"
    price = f"epsilon {rounded_up(claimed.epsilon, 6)}, delta {rounded_up(claimed.delta)}"
    return f"{price}, {claimed.relation}, {rate}"


def _texts(guarantee: Guarantee, naming: Naming) -> tuple[str, str]:
    """Return what may stand in guarantee.txt: in the codebook's words, or as earlier versions wrote it."""
    return str(guarantee.statement.in_words(naming.words)), str(guarantee)


def _close(said: object, value: float, tolerance: float = 1e-9) -> bool:
    return isinstance(said, float) and math.isclose(said, value, rel_tol=tolerance)


def _agree(said: object, due: object, tolerance: float = 1e-9) -> bool:
    """Compare what JSON can hold. Points of a curve have six digits: another machine may flip the last."""
    if isinstance(due, dict):
        return isinstance(said, dict) and all(_agree(said.get(k), due.get(k)) for k in {**said, **due})
    if isinstance(due, list):
        if not isinstance(said, list) or len(said) != len(due):
            return False
        return all(_agree(a, b, 1e-5) for a, b in zip(said, due, strict=True))
    return _close(said, due, tolerance) if isinstance(due, float) else said == due


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


#: Key, what is checked, which checks must have passed before, and how.
_CHECKS: dict[str, tuple[str, tuple[str, ...], Callable[[Evidence], str]]] = {
    "plan": ("the plan can be read", (), _plan_reads),
    "board": ("the board is whole", (), _board_whole),
    "match": ("the board belongs to the plan", ("plan", "board"), _board_of_plan),
    "choice": ("the vote has chosen this run among several", ("match",), _choice_stands),
    "files": ("every public file is as it was written", (), _files_as_written),
    "head": ("the head is the one that was kept", ("board",), _head_kept),
    "noise": ("every release has the noise that the plan prices", ("match",), _noise_as_priced),
    "complete": ("the run is complete", ("match",), _complete),
    "updates": ("what is posted follows from the releases", ("noise",), _updates_follow),
    "earlier": ("what it starts from is on the earlier board", ("plan",), _starts_there),
    "codebook": ("codebook and groups fit the plan", ("plan",), _codebook_fits),
    "guarantee": ("the guarantee is what plan and board give", ("match",), _guarantee_follows),
}
