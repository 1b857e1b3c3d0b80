"""The pages hold together: links lead somewhere, and nothing is left to be filled in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import docs_script

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_placeholders(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    assert not re.search(r"\b[A-Z]+_TABLE\b|TODO|FIXME", text)


def test_drawings_are_of_this_code():
    """`python docs/draw.py` makes them anew."""
    pytest.importorskip("grimp")
    draw = docs_script("draw")
    assert draw.traced() == list(draw.STEPS)
    assert (ROOT / "docs" / "rooms.svg").read_text(encoding="utf-8") == draw.draw_rooms()
    assert (ROOT / "docs" / "message.svg").read_text(encoding="utf-8") == draw.draw_message()
