"""Draw the gallery: run every example of docs/gallery, keep its picture, and write docs/gallery.md.

``python docs/gallery.py`` draws all of them, ``python docs/gallery.py writers`` one. The page includes the
files themselves, so that what it shows is what has run; a test writes it anew and compares.
"""

from __future__ import annotations

import ast
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
EXAMPLES = DOCS / "gallery"
#: In this order on the page.
NAMES = (
    "price_of_privacy",
    "who_gains",
    "drawn_together",
    "newcomer",
    "districts",
    "enough_tasks",
    "attacker",
    "false_claims",
    "writers",
    "arrivals",
    "running_totals",
)
INTRODUCTION = """# Gallery

Pictures, and the program that drew each: copy it, run it, change it. They need the extra `tables`,
and take seconds (`false_claims.py` half a minute). Noise is drawn anew in every run.
"""
STYLE = {
    "figure.figsize": (6.4, 3.8),
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "lines.markersize": 4,
}


def page() -> str:
    """Return the page: of each example what it shows, its picture, and its code."""
    return "\n".join([INTRODUCTION, *map(_section, NAMES)])


def _section(name: str) -> str:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    heading, _, says = title.rstrip(".").partition(": ")
    begins = ast.parse(source).body[1].lineno
    return (
        f"## {heading}\n{says[:1].upper()}{says[1:]}.\n\n{text}\n\n![{heading}](gallery/{name}.png)\n\n"
        f"[Program](gallery/{name}.py):\n\n"
        f"```{{literalinclude}} gallery/{name}.py\n:lines: {begins}-\n```\n"
    )


def run(name: str) -> Any:
    """Run an example as a reader would, but for the window, and return its figure."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return plt.gcf()


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        run(name).savefig(EXAMPLES / f"{name}.png", metadata={"Software": None})
    (DOCS / "gallery.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
