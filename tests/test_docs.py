"""The pages hold together: links lead somewhere, and nothing is left to be filled in."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripts import docs_script

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: The most words that README.md and docs may have. Whoever adds a paragraph says something else shorter.
TOTAL = 61_500


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_placeholders(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    assert not re.search(r"\b[A-Z]+_TABLE\b|TODO|FIXME", text)


def prose(text):
    """Return the lines that people wrote: no code, tables, headings and pictures."""
    text = re.sub(r"^ *```.*?^ *```$|<!-- table.*?<!-- end -->", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not re.match(r" *\||#|!\[|    ", line)]


def test_pages_are_short():
    """Words as `wc -w` counts them, in docs and README.md; those of docs/papers are made from records."""
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    long = {page.name: count for page, count in words.items() if count > 1500}
    assert not long
    assert sum(count for page, count in words.items() if page not in PAGES[1:3]) < TOTAL
    guide = [page for page in PAGES if page.parent.name != "papers"]
    wide = [(page.name, line) for page in guide for line in prose(page.read_text("utf-8")) if len(line) > 100]
    assert not wide


def labels(drawing):
    """Return the names of code in a drawing, in order: titles and remarks have a class, names have none."""
    texts = ElementTree.parse(ROOT / "docs" / drawing).iter("{http://www.w3.org/2000/svg}text")
    return [text.text for text in texts if "class" not in text.attrib]


def test_drawings_are_of_this_code():
    """Every room and every step has its place, and nothing else: `python docs/draw.py` draws them anew."""
    pytest.importorskip("grimp")
    draw = docs_script("draw")
    assert sorted(labels("rooms.svg")) == sorted(draw.rooms())
    assert draw.traced() == list(draw.STEPS)
    assert labels("message.svg") == [draw.label(step) for step in draw.STEPS]
