"""Make notebooks of the tutorials' examples, so that the two never differ: ``python docs/notebooks.py``.

Text becomes cells of text, examples become cells of code. What an example prints is left out: a reader's own
run shows it. A test makes the notebooks anew and compares. The tutorials' picture is drawn by running one.
"""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
#: Tutorials that have a notebook.
NAMES = ("networks", "few-shot")
_EXAMPLE = re.compile(r"^```python\n(>>> .*?)^```\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)]+\.(?:md|svg)[^)]*)\)")


def make_notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a page in Markdown, without outputs."""
    cells = []
    for at, part in enumerate(_EXAMPLE.split(page)):  # text, example, text, example, ..., text
        found = _code(part) if at % 2 else [_LINK.sub(r"](../tutorials/\1)", part.strip())]
        cells += [_cell(f"cell-{at}-{k}", text, code=bool(at % 2)) for k, text in enumerate(found) if text]
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _code(block: str) -> list[str]:
    """Return a block's lines, a cell for each up to something that is shown."""
    cells = [""]
    for example in doctest.DocTestParser().get_examples(block):
        cells[-1] += example.source
        if example.want:
            cells.append("")
    return [cell.rstrip("\n") for cell in cells]


def _cell(name: str, text: str, *, code: bool) -> dict[str, Any]:
    kind = (
        {"cell_type": "code", "execution_count": None, "outputs": []} if code else {"cell_type": "markdown"}
    )
    return kind | {"id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def write(notebook: dict[str, Any]) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def run_cells(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run a notebook's code in this process, without Jupyter, and return the names that it has made."""
    names: dict[str, Any] = {"__name__": "__notebook__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    return names


def main() -> None:
    pages = {name: (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
    notebooks = {name: make_notebook(page) for name, page in pages.items()}
    for name, notebook in notebooks.items():
        (DOCS / "notebooks" / f"{name}.ipynb").write_text(write(notebook), encoding="utf-8")
    figure = run_cells(notebooks["networks"])["axes"].figure
    figure.set_size_inches(6.5, 4.8)
    figure.savefig(DOCS / "tutorials" / "networks.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
