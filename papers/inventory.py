"""Everything that the papers state or show, each with what runs it here, or why nothing does.

``inventory.txt`` has a line for each: its name, what runs it, and a note. What runs it is a figure's name
(``python -m papers run NAME``), an exhibit's (``cloister museum NAME``), a test (``tests/...::name``),
something to import (``cloister....``), or nothing: then the note says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Item:
    """One algorithm, theorem, figure, table or data set of a paper."""

    paper: str
    name: str
    how: tuple[str, ...] = ()
    note: str = ""


def read(text: str) -> tuple[Item, ...]:
    r"""Read lines of ``name | how, how | note`` under ``[paper]``.

    Examples
    --------
    >>> read("[toy]\nFigure 1 | | a drawing")
    (Item(paper='toy', name='Figure 1', how=(), note='a drawing'),)
    """
    paper, found = "", []
    for line in text.splitlines():
        if line.startswith("["):
            paper = line.strip("[]")
        elif line and not line.startswith("#"):
            name, how, note = (part.strip() for part in line.split("|"))
            found.append(Item(paper, name, tuple(how.replace(",", " ").split()), note))
    return tuple(found)


INVENTORY = read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))


def rows() -> list[tuple[str, str, str, str]]:
    """Return a table of all items, heads first."""
    found = [(one.paper, one.name, ", ".join(one.how), one.note) for one in INVENTORY]
    return [("paper", "item", "run by", "note"), *found]
