"""Names of tasks, the public list of the tasks of a run, and their public groups.

A name is text or a whole number. A name decides whose rows are whose, so that nothing is guessed: two entries
are one task only if they are the same name, and names that look the same but are not are refused. Groups are
public: districts of schools, countries of hospitals.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Integral
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, Floats, Integers
from cloister.core.errors import InputError, PlanError
from cloister.core.spelling import look, visible

Name = str | int

#: The longest name. Arrays of text give every entry the room of the longest: one name could fill the memory.
LONGEST = 250
#: Unicode categories that no name holds: control characters, halves of a pair, ends of line or paragraph.
_REFUSED = {"Cc", "Cs", "Zl", "Zp"}
_RULE = "A task's name must be text or a whole number"


@dataclass(frozen=True)
class Roster:
    """The public list of the tasks of a run: each name once. It holds no rows.

    Parameters
    ----------
    names : sequence of str or of int
        Text or whole numbers, not both; see `task_ids` for what is refused.
    groups : sequence of str or of int, optional
        The public label of each task: its district, its country. Labels are kept as text.

    Privacy
    -------
    A price is for one message of each task. A task that is listed twice would send two for it, so that a
    roster with a name twice cannot be made. Names and labels are public: no guarantee hides that a task is
    on the roster, or in which group.

    Examples
    --------
    >>> schools = Roster(["Elm", "Oak "])
    >>> len(schools), schools.names, schools.position("Oak"), "Ash" in schools
    (2, ('Elm', 'Oak'), 1, False)
    >>> Roster(["Elm", "Oak", "Elm"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: Each task may be in a run once: the price is for one message of each. Got ...
    """

    names: Sequence[Name]
    groups: Sequence[Name] | None = None

    def __post_init__(self) -> None:
        self._settle(task_ids(self.names))

    @classmethod
    def written(cls, names: Sequence[Name], groups: Sequence[Name] | None = None) -> Roster:
        """Return a roster that a file has: of earlier versions, which let other forms of a letter pass."""
        found = object.__new__(cls)
        object.__setattr__(found, "groups", groups)
        found._settle(task_ids(names, written=True))
        return found

    def _settle(self, ids: Array) -> None:
        refuse_repeats(ids)
        object.__setattr__(self, "names", tuple(ids.tolist()))
        if self.groups is not None:
            labels = group_labels(self.groups)
            check_one_each(len(ids), len(labels))
            object.__setattr__(self, "groups", tuple(labels.tolist()))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Name]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return task_name(name) in self.names

    def __repr__(self) -> str:
        return f"Roster({len(self)} tasks)"

    def position(self, name: object) -> int:
        """Return where a name stands; refuse one that is not here."""
        if name not in self:
            raise InputError(f"There is no task {name!r} here. Write it as it is in the roster.")
        return self.names.index(task_name(name))

    @property
    def fingerprint(self) -> str:
        """A hash of all names, and labels if there are any, in their order: of this list and of no other."""
        listed = self.names if self.groups is None else [self.names, self.groups]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


class GrowingRoster:
    """A roster to which names are added one by one, each once; no addition takes longer than the first.

    Examples
    --------
    >>> schools = GrowingRoster()
    >>> schools.add("Elm"), schools.add(" Oak"), schools.position("Oak"), "Ash" in schools
    (None, None, 1, False)
    >>> schools.add("Oak")
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: Each task may be here once, and 'Oak' is, as number 2. Name another.
    """

    def __init__(self) -> None:
        self._places: dict[Name, int] = {}
        self._spelled: dict[str, Name] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return task_name(name) in self._places

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(self._places)

    def position(self, name: object) -> int:
        """Return where a name stands; refuse one that is not here."""
        if name not in self:
            raise InputError(f"There is no task {name!r} here. Write it as it is in the roster.")
        return self._places[task_name(name)]

    def checked(self, given: object, *, written: bool = False) -> Name:
        """Return a new name as it counts; refuse it where `Roster` would refuse it beside the others.

        Or, of one that a file has, where `Roster.written` would.
        """
        name = task_name(given)
        if name in self._places:
            place = self._places[name] + 1
            raise InputError(f"Each task may be here once, and {name!r} is, as number {place}. Name another.")
        first = next(iter(self._places), name)
        task_ids([first, name], written=written)  # all text, or all whole numbers
        alike = self._spelled.get(look(str(name)))
        if alike is not None:
            task_ids([alike, name], written=written)  # says which two look the same
        return name

    def add(self, given: object, *, written: bool = False) -> None:
        name = self.checked(given, written=written)
        self._spelled[look(str(name))] = name
        self._places[name] = len(self._places)


def task_name(value: object) -> Name:
    """Return one task's name as it counts; see `task_ids`.

    Examples
    --------
    >>> task_name(" Elm"), task_name(7.0)
    ('Elm', 7)
    """
    one = np.empty(1, dtype=object)
    one[0] = value
    name: Name = task_ids(one).tolist()[0]
    return name


def task_ids(values: ArrayLike | Sequence[object], *, written: bool = False) -> Array:
    """Return task ids as they count: an array of text or of whole numbers, one entry for each given.

    Text is put into Unicode's normal form NFC and loses white space at its ends; UUIDs become text. Whole
    floats below 2^53, which tables make of whole numbers with gaps, and whole decimals become whole numbers.

    Refused are: missing ids; names of different kinds in one list, such as ``1`` and ``"1"``; floats that are
    not whole, or so large that several whole numbers are written alike; booleans, dates, bytes and anything
    else; empty or very long text; control characters and halves of surrogate pairs, which files cannot hold;
    and one name in two spellings that look the same, with wide letters, ligatures or "ss" for the German
    sharp s, say. What was `written` by earlier versions may differ in such forms.

    Examples
    --------
    >>> task_ids(["Elm", "Oak "]).tolist(), task_ids([3.0, 1.0]).tolist()
    (['Elm', 'Oak'], [3, 1])
    >>> task_ids(["Elm", "Elm "])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: A task must be spelled in one way. Got 'Elm' and 'Elm ', which look ...
    """
    given = _entries(values)
    kind = given.dtype.kind
    if kind in "iu":
        return given
    if kind == "f":
        return _whole(given)
    if kind == "U" and _is_plain(given):
        return given
    if kind in "UT":
        return _text(given.tolist(), given, written)
    if kind == "O":
        return _objects(given, written)
    if kind in "mM" and np.isnat(given).any():
        raise _missing("NaT")
    raise InputError(f"{_RULE}. Got {_KINDS.get(kind, str(given.dtype))}. Write them as text.")


def group_labels(values: ArrayLike | Sequence[object]) -> Array:
    """Return labels of groups as they count: text, by the rules that names of tasks have.

    Examples
    --------
    >>> group_labels(["north ", "south"]).tolist(), group_labels([7.0, 3.0]).tolist()
    (['north', 'south'], ['7', '3'])
    """
    try:
        return np.array([str(label) for label in task_ids(values, written=True).tolist()], dtype=np.str_)
    except InputError as error:
        raise InputError(f"A group's label is written like a task's name. {error}") from None


def check_one_each(tasks: int, labels: int) -> None:
    if labels != tasks:
        raise InputError(f"groups must have one label a task, for {tasks} tasks. Got {labels}.")


def refuse_repeats(ids: Array) -> None:
    """Refuse a list in which a task stands twice."""
    if len(np.unique(ids)) < len(ids):
        name, times = Counter(ids.tolist()).most_common(1)[0]
        raise InputError(
            f"Each task may be in a run once: the price is for one message of each. Got {name!r} {times} "
            "times. Put all its rows under it once, or give different parties different names."
        )


def is_missing(value: object) -> bool:
    """Say whether a value is None, NaN or NaT (not equal to themselves) or NA (which will not say).

    Nor will a NaN of `decimal` that signals.
    """
    try:
        return value is None or bool(value != value)
    except (TypeError, ArithmeticError):
        return True
    except ValueError:  # an array, which is something else than a name, but not missing
        return False


_KINDS = {
    "b": "booleans",
    "S": "bytes",
    "M": "dates",
    "m": "durations",
    "c": "complex numbers",
    "V": "records",
}


def _entries(values: ArrayLike | Sequence[object]) -> Array:
    """Return the entries as an array that has lost nothing.

    What is not an array yet goes through objects: NumPy would turn a NaN among words into the word "nan", 1
    among words into "1", large whole numbers among floats into their neighbours, and drop NUL at the end.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise _missing("masked entries")
    given = np.asarray(values, dtype=None if hasattr(values, "__array__") else object)
    if given.ndim != 1:
        found = f"shape {given.shape}" if given.ndim else f"a single {type(given.item()).__name__}"
        raise InputError(f"Task ids must be one-dimensional. Got {found}. Pass a list, one entry a row.")
    return given


def _missing(found: str) -> InputError:
    return InputError(f"Task ids must not be missing: found {found}. Drop those rows or name their task.")


def _objects(given: Array, written: bool) -> Array:
    values = given.tolist()
    types = set(map(type, values))
    if not all(issubclass(kind, str) for kind in types):
        missing = [value for value in values if is_missing(value)]
        if missing:
            raise _missing("None" if missing[0] is None else "NaN")
    kinds = sorted({_kind(kind) for kind in types})
    if len(kinds) > 1:
        raise InputError(
            f"The names of tasks must be all text or all whole numbers. Got {' and '.join(kinds)} in one "
            "list. Write all of them as text."
        )
    match kinds:
        case [] | ["text"]:
            return _text([str.__str__(value) for value in values], None, written)
        case ["UUIDs"]:
            return _text([str(value) for value in values], None, written)
        case ["whole numbers"]:
            return _integers([int(value) for value in values])
        case ["floats"]:
            return _whole(np.array(values, dtype=np.float64))
        case ["decimals"]:
            whole = [value for value in values if value.is_finite() and value == value.to_integral_value()]
            if len(whole) == len(values):
                return _integers([int(value) for value in values])
    raise InputError(f"{_RULE}. Got {kinds[0]}. Write them as text.")


def _kind(kind: type) -> str:
    if issubclass(kind, bool | np.bool_):
        return "booleans"
    for base, name in (
        (str, "text"),
        (Integral, "whole numbers"),
        (float | np.floating, "floats"),
        (Decimal, "decimals"),
        (UUID, "UUIDs"),
    ):
        if issubclass(kind, base):
            return name
    return f"entries of type {kind.__name__}"


def _integers(values: list[int]) -> Array:
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= min(values) and max(values) <= np.iinfo(dtype).max:
            return np.array(values, dtype=dtype)
    raise InputError(
        f"A whole number that names a task must fit into 64 bits. Got {max(values, key=abs)}. Write all of "
        "them as text."
    )


def _whole(given: Array) -> Array:
    """Return floats as whole numbers, if each is one and no other whole number is the same float."""
    if np.isnan(given).any():
        raise _missing("NaN")
    limit = 2.0 ** min(53, np.finfo(given.dtype).nmant + 1)
    bad = ~(np.abs(given) < limit) | (given != np.floor(given))
    if bad.any():
        raise InputError(
            f"A float names a task only if it is whole and below {limit:.0f}: above, several whole numbers "
            f"are one float, and several tasks would be one. Got {given[bad][0]!s}. Write text."
        )
    return given.astype(np.int64)


def _text(values: list[str], given: Array | None, written: bool) -> Array:
    """Return text in its normal form; refuse one name in two spellings."""
    same = visible if written else look
    names: dict[str, str] = {}
    seen: dict[str, str] = {}
    for spelled in dict.fromkeys(values):
        names[spelled] = name = _normal(spelled)
        first = seen.setdefault(same(name), spelled)
        if first != spelled:
            raise InputError(
                f"A task must be spelled in one way. Got {_shown(first, spelled)} and "
                f"{_shown(spelled, first)}, which look the same: one party would count as two. Spell it "
                "alike in every row, or give two parties different names."
            )
    if given is not None and given.dtype.kind == "U" and all(old == new for old, new in names.items()):
        return given
    return np.array([names[value] for value in values], dtype=np.str_)


def _is_plain(given: Array) -> bool:
    """Say whether all names are of visible ASCII characters alone, and not too long: they are as they are."""
    if not given.size or given.dtype.itemsize > 4 * LONGEST or given.dtype.byteorder == ">":
        return False
    codes = np.ascontiguousarray(given).view(np.uint32).reshape(len(given), -1)
    if not codes.shape[1] or not codes[:, 0].all() or ((codes[:, :-1] == 0) & (codes[:, 1:] > 0)).any():
        return False  # empty, or with NUL
    return not ((codes > 126) | ((codes > 0) & (codes < 33))).any()


def _shown(spelled: str, other: str) -> str:
    """Return a spelling so that it can be told from the other: by its codes, if the ends are alike."""
    return repr(spelled) if spelled.strip() == other.strip() else ascii(spelled)


def _normal(spelled: str) -> str:
    if not (spelled.isascii() and spelled.isprintable()):
        for character in spelled:
            if unicodedata.category(character) in _REFUSED:
                raise InputError(
                    "A task's name must not hold control characters, line breaks or halves of surrogate "
                    f"pairs. Got {character!a} in {spelled[:LONGEST]!a}. Mend the name in every row."
                )
    name = unicodedata.normalize("NFC", spelled).strip()
    if not visible(name):
        raise InputError(f"A task's name must not be empty. Got {spelled[:LONGEST]!a}. Name the task.")
    if len(name) > LONGEST:
        raise InputError(
            f"A task's name must have at most {LONGEST} characters. Got {len(name)}, beginning with "
            f"{name[:20]!a}. Shorten it."
        )
    return name


#: The position of a task that belongs to no group: one that comes later, and does not say.
NO_GROUP = -1


@dataclass(frozen=True)
class Groups:
    """The groups that a plan knows, and how many tasks each has.

    Parameters
    ----------
    names : tuple of str
        Their names, each once.
    sizes : tuple of int
        How many tasks of the run are in each.

    Privacy
    -------
    All of it is public, and so is which group a task is in (see `Roster`). A guarantee says what can be
    learned of a task's *data*; that it is in this group and not in another is known to everybody.

    Examples
    --------
    >>> districts = Groups.of(["north", "south", "north"])
    >>> districts
    Groups(names=('north', 'south'), sizes=(2, 1))
    >>> districts.positions(["south", "north"]).tolist()
    [1, 0]
    >>> districts.positions(["east"])
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: There is no group 'east' in this plan. It has: north, south. Mend the label.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise PlanError(f"Groups must have different names, one at least. Got {self.names}.")
        if len(self.sizes) != len(self.names) or min(self.sizes) < 1:
            raise PlanError(
                f"Every group must have tasks: sizes must be {len(self.names)} whole numbers of at least 1. "
                f"Got {self.sizes}."
            )

    @classmethod
    def of(cls, labels: ArrayLike | Sequence[object]) -> Groups:
        """Return the groups of a run, from the label of each of its tasks."""
        names, sizes = np.unique(group_labels(labels), return_counts=True)
        return cls(tuple(names.tolist()), tuple(sizes.tolist()))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def tasks(self) -> int:
        """How many tasks there are in all groups together."""
        return sum(self.sizes)

    @property
    def counts(self) -> Floats:
        return np.array(self.sizes, dtype=np.float64)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def positions(self, labels: ArrayLike | Sequence[object]) -> Integers:
        """Return which group each label names; refuse one that names none."""
        found = group_labels(labels).tolist()
        for label in found:
            if label not in self._places:
                known = ", ".join(self.names[:10]) + ", ..." * (len(self) > 10)
                raise InputError(
                    f"There is no group {label!r} in this plan. It has: {known}. Mend the label."
                )
        return np.array([self._places[label] for label in found], dtype=np.int64)
