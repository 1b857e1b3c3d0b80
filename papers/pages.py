"""Pages of the documentation, made from kept results: ``python -m papers pages`` writes docs/papers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from harness import catalog, records
from harness.pages import markdown
from harness.records import Record
from harness.sources import ROOT
from papers import inventory
from papers.figure import COLUMNS, Claim, Figure, Outcome, Verdict, folders
from papers.pictures import picture

FOLDER = ROOT / "docs" / "papers"
#: Behind a verdict whose code has changed since.
OLDER = ", of older code"
#: Heads of a table of claims.
CLAIMED = ("the paper says", "printed", "as published", "with the true guarantee")
WORDS = {Verdict.YES: "yes", Verdict.PARTLY: "in part", Verdict.NO: "no"}


def section(figure: Figure, record: Record) -> str:
    """Return what there is to say of one figure, in Markdown: the finding, the picture, what was claimed."""
    module, data = figure.module, record["data"]
    folded = [markdown([COLUMNS, *module.table(data)]), figure.text]
    parts = [
        f"## {figure.title}",
        f"*{figure.verdict(data).capitalize()}.* {module.finding(data)}",
        f"![{figure.title}]({figure.name}.svg)",
        markdown([CLAIMED, *(row(claim) for claim in figure.claims(data))]),
        f"**Not covered:** {module.NOT_COVERED}",
        "<details><summary>All numbers, and how they were made</summary>",
        *folded,
        "</details>",
        records.provenance(record, catalog.source(figure.name)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def row(claim: Claim) -> tuple[str, str, str, str]:
    """Return what a claim came to, a cell an accounting."""
    says = f"*Asked here:* {claim.says}" if claim.asked else claim.says
    return (says, claim.printed, outcome(claim.published), outcome(claim.repaired))


def outcome(found: Outcome | None) -> str:
    return f"**{WORDS[found.verdict]}:** {found.measured}" if found else ""


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

What five papers show and state, run again: figures, tables and theorems, each statement judged by a
function of what was measured. [What is here of each paper, and what is not](coverage.md); [what is false in
them](../found.md).

```
python -m papers list                    # what there is, what is kept, and whether its code has changed since
python -m papers stale                   # what is to be measured again, and how long it takes
python -m papers run mpmtl-figure-8      # one figure, or all of a paper's: mpmtl
python -m papers run --all --quick       # a look at everything
python -m papers run mpmtl-figure-12 --data lsoa=FILE.csv    # data that you have; celeba=DIR, too
python -m papers pages                   # these pages, from what is kept
```

* *printed*: the number that the paper prints, where it prints one;
* *as published*: by the paper's method under the paper's own accounting, even where its guarantee is
  [false](../found.md);
* *with the true guarantee*: by the same method, repaired, and priced as the library prices it;
* *yes*, *in part*, *no*: in all the places that the statement is about, in some, in none. The *verdict*
  takes both accountings together.

Below the pictures are all numbers, in the same columns and one more: *ours* is what we would use instead,
at the same price. A ± is one standard error over seeds. A run writes its result as JSON into
`papers/results` (with `--quick` or `--seeds`, or of your own data, into `build/papers`), and goes on where
it was stopped. Runs are seeded, so that they come out the same again; that makes them INSECURE, which does
not matter for simulations and public data.

*Of older code* was measured before something changed in the files that it depends on, and may come out
otherwise now: `python -m papers stale` lists these. Figures 2 and 3 and Table 1 of PMTL, and Table 1 of
meta-learning, were measured several cells at a time on one card, in smaller blocks of tasks than a run
takes by itself: last digits may come out otherwise.
"""


def index(figures: list[Figure]) -> str:
    """Return the first page: every figure with its verdict, or the command that would run it."""
    lines = [INDEX]
    for paper, title in titles().items():
        mine = [figure for figure in figures if figure.paper == paper]
        if mine:
            lines += [f"## [{title}]({paper}.md)\n", *at_a_glance(mine), ""]
    return "\n".join(lines)


def titles() -> dict[str, str]:
    """Return the papers' titles, by folder."""
    return {
        paper: (inspect.getdoc(package) or paper).partition("\n")[0].rstrip(".")
        for paper, package in folders().items()
    }


def at_a_glance(figures: list[Figure]) -> list[str]:
    """Return a table of a paper's figures: a row a claim, or the command that would run it."""
    rows: list[Sequence[str]] = [("", *CLAIMED, "verdict")]
    for figure in figures:
        record = catalog.record(figure.name)
        title = figure.title.partition(":")[0]
        if record is None:
            command = f"not run yet: `python -m papers run {figure.name}`"
            rows.append((title, command, "", "", "", "-"))
            continue
        older = OLDER * records.is_older(record, catalog.source(figure.name))
        for place, claim in enumerate(figure.claims(record["data"])):
            first = f"{title}, {record['seeds']} seeds" if record["seeds"] else title
            rows.append((first * (not place), *row(claim), f"{claim.verdict}{older}"))
    return [markdown(rows)]


def pages(figures: list[Figure]) -> dict[str, str]:
    """Return every page by its file name."""
    made = {"README.md": index(figures), "coverage.md": inventory.page(titles())}
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
