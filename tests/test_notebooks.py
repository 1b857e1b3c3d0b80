"""Notebooks are those of the tutorials, and run."""

from __future__ import annotations

import json

import pytest
from scripts import DOCS, docs_script

SCRIPT = docs_script("notebooks")


@pytest.mark.parametrize("name", SCRIPT.NAMES)
def test_notebooks_are_of_these_tutorials(name: str) -> None:
    """`python docs/notebooks.py` makes them anew."""
    page = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    kept = (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert kept == SCRIPT.write(SCRIPT.make_notebook(page))
    code = "".join(line for cell in json.loads(kept)["cells"] for line in cell["source"] if "outputs" in cell)
    assert page.count("\n>>> ") > 10
    assert ">>>" not in code


def test_cells_end_where_something_is_shown_and_links_lead_from_the_notebook() -> None:
    shown = ">>> x = 1\n>>> x\n1\n>>> for i in range(2):\n...     x += i\n\n"
    notebook = SCRIPT.make_notebook(f"# T\n[a](../a.md)\n\n```python\n{shown}```\nend\n")
    assert ["".join(cell["source"]) for cell in notebook["cells"]] == [
        "# T\n[a](../tutorials/../a.md)",
        "x = 1\nx",
        "for i in range(2):\n    x += i",
        "end",
    ]
    assert SCRIPT.run_cells(notebook)["x"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPT.NAMES)
def test_notebooks_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("MPLBACKEND", "agg")
    kept = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert SCRIPT.run_cells(kept)
