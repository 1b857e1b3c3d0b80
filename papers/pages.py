"""Pages of the documentation, made from kept results: ``python -m papers pages`` writes docs/papers."""

from __future__ import annotations

import inspect

from harness import catalog, records
from harness.pages import markdown
from harness.records import Record
from harness.sources import ROOT
from papers.figure import COLUMNS, Figure, folders
from papers.pictures import picture

FOLDER = ROOT / "docs" / "papers"
#: Behind a verdict whose code has changed since.
OLDER = ", of older code"


def section(figure: Figure, record: Record) -> str:
    """Return what there is to say of one figure, in Markdown."""
    module, data = figure.module, record["data"]
    finding = module.finding(data)
    parts = [
        f"## {figure.title}",
        f"**The paper:** {module.CLAIM}",
        f"**Here:** the finding *{finding.verdict}*. {finding.sentence}",
        markdown([COLUMNS, *module.table(data)]),
        f"![{figure.title}]({figure.name}.svg)",
        figure.text,
        records.provenance(record, catalog.source(figure.name)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def page(paper: str, figures: list[Figure]) -> str:
    """Return a paper's page: those of its figures that have a kept result."""
    doc = inspect.getdoc(folders()[paper]) or ""
    title, _, reference = doc.partition("\n\n")
    kept = [(figure, catalog.record(figure.name)) for figure in figures]
    sections = [section(figure, record) for figure, record in kept if record]
    head = f"# {title.rstrip('.')}\n\n{' '.join(reference.split())}\n\nMade by `python -m papers pages` from "
    head += "`papers/results`; [what the columns mean](README.md).\n"
    return "\n".join([head, *sections])


INDEX = """\
# The papers, by command

Figures, tables and theorems of the papers whose algorithms are here, run again:

```
python -m papers list                    # what there is, what is kept, and whether its code has changed since
python -m papers stale                   # what is to be measured again, and how long it takes
python -m papers run mpmtl-figure-8      # one figure, or all of a paper's: mpmtl
python -m papers run --all --quick       # a look at everything: five minutes of one core
python -m papers pages                   # these pages, from what is kept
```

A run writes its result as JSON into `papers/results` (with `--quick` or `--seeds` into `build/papers/quick`),
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

What is marked *of older code* was measured before something changed in the files that it depends on, and may
come out otherwise now. `python -m papers stale` lists these; `python -m papers confirm NAME` measures some
cells again, and takes the mark away if they agree to the last digit. Figures 2 and 3 and Table 1 of PMTL, and
Table 1 of meta-learning, were measured several cells at a time on one card, in smaller blocks of tasks than a
run takes by itself: last digits may come out otherwise.
"""


def index(figures: list[Figure]) -> str:
    """Return the first page: every figure with its verdict, or the command that would run it."""
    lines = [INDEX, "| figure | the finding | seeds |", "|---|---|---|"]
    for figure in figures:
        record = catalog.record(figure.name)
        if record is None:
            command = f"`python -m papers run {figure.name}`"
            lines.append(f"| `{figure.name}`: {figure.title} | not run yet: {command} | - |")
            continue
        older = records.is_older(record, catalog.source(figure.name))
        verdict = figure.module.finding(record["data"]).verdict + OLDER * older
        link = f"[{figure.title}]({figure.paper}.md)"
        lines.append(f"| `{figure.name}`: {link} | {verdict} | {record['seeds'] or '-'} |")
    return "\n".join(lines) + "\n"


def pages(figures: list[Figure]) -> dict[str, str]:
    """Return every page by its file name."""
    made = {"README.md": index(figures)}
    for paper in dict.fromkeys(figure.paper for figure in figures):
        mine = [figure for figure in figures if figure.paper == paper]
        if any(catalog.record(figure.name) for figure in mine):
            made[f"{paper}.md"] = page(paper, mine)
    return made


def write_pages(figures: list[Figure]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages(figures).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for figure in figures:
        if record := catalog.record(figure.name):
            picture(figure, record["data"], FOLDER / f"{figure.name}.svg")
