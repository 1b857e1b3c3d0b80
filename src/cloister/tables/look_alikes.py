"""Names of tasks that are nearly the same: two spellings of one party would count as two."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

#: What tells names apart on purpose: a word with a digit, a single letter, a Roman numeral.
_CODE = re.compile(r".*\d.*|.|[ivxlc]+")
#: Of fewer letters than this, two different names are easily alike by chance.
_LETTERS = 5


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a name's letters, without case, accents, marks and spaces; and its codes apart, in order."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    words = re.findall(r"\w+", "".join(each for each in plain if not unicodedata.combining(each)))
    codes = tuple(word for word in words if _CODE.fullmatch(word))
    return "".join(word for word in words if not _CODE.fullmatch(word)), codes


def _shortened(letters: str) -> set[str]:
    """Return the letters, and what is left of them without any one."""
    some = {letters}
    if len(letters) >= _LETTERS:
        some |= {letters[:at] + letters[at + 1 :] for at in range(len(letters))}
    return some


def look_alikes(names: Iterable[object]) -> list[tuple[str, str]]:
    """Return pairs of names that differ in case, accents, spaces, marks or about one letter, sorted.

    Two names are alike if they have the same digits, single letters and Roman numerals, and the other letters
    are the same after one is dropped from each: one is wrong, missing, doubled or moved.

    Examples
    --------
    >>> look_alikes(["Ahlen Nord", "Ahlen nord", "Ahlen Nrod", "Ahlen Ost", "Ward 1", "Ward 2"])
    [('Ahlen Nord', 'Ahlen Nrod'), ('Ahlen Nord', 'Ahlen nord'), ('Ahlen Nrod', 'Ahlen nord')]
    """
    found = defaultdict(list)
    for name in sorted(set(map(str, names))):
        letters, codes = _parts(name)
        for each in _shortened(letters):
            found[each, codes].append(name)
    return sorted({pair for alike in found.values() for pair in combinations(alike, 2)})


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question whether a known name is meant that looks like this one; nothing if there is none.

    Examples
    --------
    >>> "Beckun" + did_you_mean("Beckun", ["Ahlen Nord", "Beckum"])
    "Beckun (did you mean 'Beckum'?)"
    """
    meant = likely_meant(name, known)
    return f" (did you mean {meant[0]!r}?)" if meant else ""


def likely_meant(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that look like this one.

    Examples
    --------
    >>> likely_meant("ahlen nord", ["Ahlen Nord", "Beckum"])
    ['Ahlen Nord']
    """
    letters, codes = _parts(name)
    some = _shortened(letters)
    parts = ((other, *_parts(other)) for other in sorted(set(known)))
    return [other for other, own, code in parts if code == codes and some & _shortened(own)]
