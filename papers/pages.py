"""Pages of the documentation, made from kept results: ``python -m papers pages`` writes docs/papers.

Another page may show a figure's numbers as well, by a table that the figure has for it. It names the figure
between two marks, and whatever stands between them is written anew::

    <!-- paper: meta-table-1 -->
    <!-- end -->
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papers.figure import COLUMNS, Figure, folders
from papers.pictures import picture
from papers.store import ROOT, is_older, read

FOLDER = ROOT / "docs" / "papers"
MARKED = re.compile(r"(<!-- paper: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
#: Behind a result whose measuring code has changed since.
OLDER = ", of older code"


def section(figure: Figure, document: dict[str, Any]) -> str:
    """Return what there is to say of one figure, in Markdown."""
    module, data = figure.module, document["data"]
    finding = module.finding(data)
    parts = [
        f"## {figure.title}",
        f"**The paper:** {module.CLAIM}",
        f"**Here:** the finding *{finding.verdict}*. {finding.sentence}",
        markdown([COLUMNS, *module.table(data)]),
        f"![{figure.title}]({figure.name}.svg)",
        figure.text,
        provenance(document, OLDER * is_older(figure, document)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    shown = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in shown)


def provenance(document: dict[str, Any], older: str = "") -> str:
    """Return the line that says how a result was made."""
    seeds, span = document["seeds"], document["first and last seed"]
    drawn = f"{seeds} seed{'s' * (seeds != 1)} ({span}), " if seeds else ""
    command = document.get("command", f"python -m papers run {document['name']}")
    minutes = document["seconds"] / 60
    took = f"{minutes:.0f} minutes" if minutes >= 2 else f"{document['seconds']:.0f} s"
    dated = document["date"] + older
    return (
        f"`{command}`: {drawn}{took} of one core, {document['machine']}, "
        f"cloister {document['versions'].get('cloister', '')} at {document['commit']}, {dated}."
    )


def page(paper: str, figures: list[Figure]) -> str:
    """Return a paper's page: those of its figures that have a kept result."""
    doc = inspect.getdoc(folders()[paper]) or ""
    title, _, reference = doc.partition("\n\n")
    kept = [(figure, read(figure.name)) for figure in figures]
    sections = [section(figure, document) for figure, document in kept if document]
    head = f"# {title.rstrip('.')}\n\n{' '.join(reference.split())}\n\nMade by `python -m papers pages` from "
    head += "`papers/results`; [what the columns mean](README.md).\n"
    return "\n".join([head, *sections])


INDEX = """\
# The papers, by command

Figures, tables and theorems of the papers whose algorithms are here, run again:

```
python -m papers list                    # what there is, what is kept, and whether its code has changed since
python -m papers run mpmtl-figure-8      # one figure, or all of a paper's: mpmtl
python -m papers run --all --quick       # a look at everything: five minutes of one core
python -m papers pages                   # these pages, from what is kept
```

A run writes its result as JSON into `papers/results` (one with `--quick` into `build/papers/quick`),
a picture as SVG and PNG into `build/papers`, and says whether the finding comes out. What was measured
is kept part by part, so that a run that is stopped goes on. Data that are not public are named by
`--data lsoa=FILE.npz`; what is made of them stays in `build/papers`.

* *the paper*: what it prints, where it prints a number;
* *its method*: as published, with the noise and the composition that the paper states, even where its
  guarantee is [false](../found.md);
* *with the true guarantee*: the same algorithm, repaired, and priced as the library prices it;
* *ours*: what we would use instead, at the same price.

A ± is one standard error over seeds, and of one seed there is none; `--seeds N` runs another number of them
than a figure's own. Runs are seeded, so that they come out the same again; that makes them INSECURE, which
does not matter for simulations and data that are public.

What is marked *of older code* was measured before a definition changed that its measuring or its summary
uses, and may come out otherwise now. Changes of the library itself are not marked: the commit says which it
was. Figures 2 and 3 and Table 1 of PMTL, and Table 1 of meta-learning, were measured several cells at a time
on one card, in smaller blocks of tasks than a run takes by itself: last digits may come out otherwise.
"""


def index(figures: list[Figure]) -> str:
    """Return the first page: every figure with its verdict, or the command that would run it."""
    lines = [INDEX, "| figure | the finding | seeds |", "|---|---|---|"]
    for figure in figures:
        document = read(figure.name)
        if document is None:
            command = f"`python -m papers run {figure.name}`"
            lines.append(f"| `{figure.name}`: {figure.title} | not run yet: {command} | - |")
            continue
        verdict = figure.module.finding(document["data"]).verdict + OLDER * is_older(figure, document)
        link = f"[{figure.title}]({figure.paper}.md)"
        lines.append(f"| `{figure.name}`: {link} | {verdict} | {document['seeds'] or '-'} |")
    return "\n".join(lines) + "\n"


def pages(figures: list[Figure]) -> dict[str, str]:
    """Return every page by its file name."""
    made = {"README.md": index(figures)}
    for paper in dict.fromkeys(figure.paper for figure in figures):
        mine = [figure for figure in figures if figure.paper == paper]
        if any(read(figure.name) for figure in mine):
            made[f"{paper}.md"] = page(paper, mine)
    return made


def elsewhere() -> list[Path]:
    """Return the pages that may show figures as well."""
    return sorted((ROOT / "docs").glob("*.md"))


def with_figures(text: str, figures: list[Figure]) -> str:
    """Return a page with the tables of figures that it names as they should be."""
    by_name = {figure.name: figure for figure in figures}

    def between(name: str) -> str:
        figure, document = by_name[name], read(name)
        if document is None:
            raise FileNotFoundError(f"No result {name}: python -m papers run {name} makes it.")
        rows = figure.module.elsewhere(document["data"])
        return f"{markdown(rows)}\n\n{provenance(document, OLDER * is_older(figure, document))}\n"

    return MARKED.sub(lambda found: f"{found[1]}\n{between(found[2])}\n{found[3]}", text)


def write_pages(figures: list[Figure]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages(figures).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for figure in figures:
        document = read(figure.name)
        if document:
            picture(figure, document["data"], FOLDER / f"{figure.name}.svg")
    for path in elsewhere():
        text = path.read_text(encoding="utf-8")
        if with_figures(text, figures) != text:
            path.write_text(with_figures(text, figures), encoding="utf-8")
