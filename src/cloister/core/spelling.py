"""Words: what is seen of a name, so that two spellings of one party are found, and nouns with a number."""

from __future__ import annotations

import unicodedata

#: Other forms of characters, as Unicode marks them, that are read as the characters themselves: wide letters,
#: ligatures, Roman numerals in one character, spaces of all widths. Not raised, lowered or encircled ones.
_FORMS = {"wide", "narrow", "compat", "font", "noBreak", "small", "initial", "medial", "final", "isolated"}
#: Two letters that are written for one where a keyboard lacks it.
_SHARP_S = str.maketrans({"\u00df": "ss", "\u1e9e": "SS"})


def visible(name: str) -> str:
    """Return what is seen of a name: without characters of no width, such as a byte order mark."""
    if name.isascii():
        return name
    seen = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFC", seen).strip()


def look(name: str) -> str:
    r"""Return what is seen of a name, with a character for each other form of it: the same for look-alikes.

    Letters of two alphabets that look alike stay two.

    Examples
    --------
    >>> look("Stra\u00dfe") == look("Strasse"), look("Ward\u00b2") == look("Ward2")
    (True, False)
    """
    if name.isascii():
        return name
    plain = "".join(map(_plain_form, visible(name).translate(_SHARP_S)))
    return unicodedata.normalize("NFC", plain).strip()


def _plain_form(character: str) -> str:
    tag = unicodedata.decomposition(character).partition(">")[0].removeprefix("<")
    return unicodedata.normalize("NFKC", character) if tag in _FORMS else character


def plural(noun: str) -> str:
    """Return what several of a thing are called."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def counted(count: float, noun: str) -> str:
    """Say how many of a thing there are.

    Examples
    --------
    >>> counted(1, "noisy sum"), counted(2410, "clinic"), counted(2, "party")
    ('1 noisy sum', '2,410 clinics', '2 parties')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"
