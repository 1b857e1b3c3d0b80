"""What is public about tasks beforehand: which there are, and what people call a task and a row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cloister.core.errors import InputError
from cloister.core.roster import Roster
from cloister.core.spelling import counted, plural
from cloister.tables.feature import require
from cloister.tables.look_alikes import did_you_mean

_NAMED = 5
_TASK = re.compile(r"""the account of (?:'[^']*'|"[^"]*")|(?P<article>\b[Aa] )?\b(?P<task>[Tt]asks?)\b""")
#: Whom guarantees speak of beside tasks: one that is called so would change whom they promise what.
_TAKEN = {"anybody", "anyone", "curator", "everybody", "everyone", "group", "nobody", "operator", "other"}
_TAKEN |= {"people", "person", "public", "record", "row", "run", "task"}
#: One word or two.
_PLAIN = re.compile(r"[^\W\d_]+([ -][^\W\d_]+)?")


@dataclass(frozen=True)
class Naming:
    """The names of all tasks, and the words for a task and for a row.

    Parameters
    ----------
    roster : tuple of str, optional
        All tasks that take part, each once; without one, the tasks are those that have rows.
    task_noun, row_noun : str
        One word each, in the singular: "clinic", "patient".

    Notes
    -----
    **Privacy.** All of it is public. A price is for one message of each task, so that a clinic in two
    spellings would send two: a roster refuses the second. It also keeps a typing error from being published
    as the name of a task.

    Examples
    --------
    >>> naming = Naming(("Ahlen", "Beckum"), "clinic", "patient")
    >>> naming.tasks(2), naming.rows(1)
    ('2 clinics', '1 patient')
    >>> naming.explained
    'Here tasks are clinics and rows are patients.'
    >>> naming.words("each of the 2 tasks, with all its rows")
    'each of the 2 clinics, with all its patients'
    >>> naming.check(["Ahlen", "Bekum"], "stays.csv")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: Every clinic of stays.csv must be on the codebook's roster. Got 'Bekum'...
    """

    roster: tuple[str, ...] = ()
    task_noun: str = "task"
    row_noun: str = "row"

    KEYS: ClassVar = ("roster", "task_noun", "row_noun")

    def __post_init__(self) -> None:
        for key in ("task_noun", "row_noun"):
            noun = getattr(self, key)
            require(
                isinstance(noun, str) and noun.isprintable() and 0 < len(noun.strip()) <= 40,
                f'{key} must be a word in the singular. Got {noun!r}. Write {key} = "clinic", say.',
            )
        try:
            names = Roster(self.roster).names if self.roster else ()
        except InputError as error:
            raise InputError(f"roster in the codebook: {error}") from None
        object.__setattr__(self, "roster", tuple(map(str, names)))

    @classmethod
    def from_keys(cls, data: Mapping[str, Any]) -> Naming:
        """Read the keys at the top of a codebook; others are passed over."""
        found = {key: data[key] for key in cls.KEYS if key in data}
        names = found.get("roster", [None, None])
        require(
            isinstance(names, list | tuple) and len(names) > 1,
            f"roster must be a list of the names of all tasks, 2 or more. Got {names!r}. Write roster = "
            '["Ahlen", "Beckum"], or leave it out.',
        )
        return cls(**found)

    def to_keys(self) -> dict[str, Any]:
        """Return what is not the default: `from_keys` is the inverse."""
        plain = asdict(Naming())
        said = {key: value for key, value in asdict(self).items() if value != plain[key]}
        return said | ({"roster": [*self.roster]} if self.roster else {})

    @property
    def plural(self) -> str:
        """What tasks are called."""
        return plural(self.task_noun)

    @property
    def explained(self) -> str:
        """Say what tasks and rows are, where sentences speak of these; nothing if they have no other name."""
        told = [("tasks", self.plural), ("rows", plural(self.row_noun))]
        parts = [f"{word} are {called}" for word, called in told if word != called]
        return f"Here {' and '.join(parts)}." if parts else ""

    def tasks(self, count: int) -> str:
        """Say how many tasks."""
        return counted(count, self.task_noun)

    def rows(self, count: int) -> str:
        """Say how many rows."""
        return counted(count, self.row_noun)

    def words(self, text: str) -> str:
        """Return a sentence about tasks in the words for them; what an account is called stays.

        So nobody changes a promise by a name: it keeps its own words where a task is called as somebody else
        is there, or as a row, and where there are more words than two.
        """
        if self.task_noun == self.row_noun or not all(map(_PLAIN.fullmatch, (self.task_noun, self.row_noun))):
            return text
        if self.task_noun != Naming.task_noun:
            called = re.split("[ -]", self.task_noun.casefold())
            if {*called, *(word.removesuffix("s") for word in called)} & _TAKEN:
                return text
            text = _TASK.sub(self._named, text)
        return text.replace("all its rows", f"all its {plural(self.row_noun)}")

    def _named(self, found: re.Match[str]) -> str:
        article, task = found["article"], found["task"]
        if task is None:
            return found[0]
        noun = plural(self.task_noun) if task.endswith("s") else self.task_noun
        noun = noun if task[0] == "t" else noun[0].upper() + noun[1:]
        vowel = noun[0] in "aeiouAEIOU"
        return f"{article[0]}{'n' * vowel} {noun}" if article else noun

    def check(self, names: Iterable[object], source: str) -> None:
        """Refuse a table whose tasks are not those of the roster."""
        fault = self.fault(names, source)
        require(fault is None, str(fault))

    def fault(self, names: Iterable[object], source: str) -> str | None:
        """Say what is wrong with a table's tasks; None if they are the roster's, or there is none."""
        found, listed = set(map(str, names)), set(self.roster)
        if not listed or found == listed:
            return None
        outside, absent = sorted(found - listed), sorted(listed - found)
        if outside:
            first = f"{outside[0]!r}{did_you_mean(outside[0], self.roster)}"
            others = f", and {len(outside) - 1} more" if len(outside) > 1 else ""
            return (
                f"Every {self.task_noun} of {source} must be on the codebook's roster. Got {first}{others}. "
                "Respell it; or, if everybody may see that it takes part, add it to the roster."
            )
        shown = ", ".join(map(repr, absent[:_NAMED])) + ", ..." * (len(absent) > _NAMED)
        return (
            f"Every {self.task_noun} on the codebook's roster must have a {self.row_noun} in {source}. "
            f"{len(absent)} of {len(listed)} have none: {shown}. Add theirs; or, if everybody may see that "
            "they do not take part, delete them from the roster."
        )
