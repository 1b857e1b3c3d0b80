"""Pages of the documentation, made from kept results: ``python -m papers pages`` writes docs/papers."""

from __future__ import annotations

import csv
import inspect
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import fill

from harness import catalog, records
from harness.pages import markdown
from harness.records import Record
from harness.sources import ROOT
from papers import inventory
from papers.figure import COLUMNS, Claim, Figure, Outcome, Verdict, folders
from papers.pictures import picture

FOLDER = ROOT / "docs" / "papers"
#: Behind a verdict whose code has changed since.
OLDER = " †"
#: Heads of a table of claims.
CLAIMED = ("the paper says", "printed", "as published", "with the true guarantee")
WORDS = {Verdict.YES: "yes", Verdict.PARTLY: "in part", Verdict.NO: "no"}


def page(figure: Figure, record: Record) -> str:
    """Return the page of one figure, in Markdown: the finding, the picture, what was claimed."""
    module, data = figure.module, record["data"]
    parts = [
        f"# {figure.title}",
        wrapped(f"*{figure.verdict(data).capitalize()}.* {module.finding(data)}"),
        f"![{figure.title.partition(':')[0]}]({figure.name}.svg)",
        markdown([CLAIMED, *(row(claim) for claim in figure.claims(data))]),
        wrapped(f"**Not covered:** {module.NOT_COVERED}"),
        wrapped(figure.text),
        f"[All numbers]({figure.name}.csv); [what the columns mean](README.md). "
        + records.provenance(record, catalog.source(figure.name)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def wrapped(text: str) -> str:
    """Return paragraphs in lines of 100 columns."""
    return "\n\n".join(
        fill(part, 100, break_long_words=False, break_on_hyphens=False) for part in text.split("\n\n")
    )


def row(claim: Claim) -> tuple[str, str, str, str]:
    """Return what a claim came to, a cell an accounting."""
    says = f"*Asked here:* {claim.says}" if claim.asked else claim.says
    return (says, claim.printed, outcome(claim.published), outcome(claim.repaired))


def outcome(found: Outcome | None) -> str:
    return f"**{WORDS[found.verdict]}:** {found.measured}" if found else ""


def numbers(figure: Figure, record: Record) -> str:
    """Return all numbers of a figure, as CSV."""
    return as_csv([COLUMNS, *figure.module.table(record["data"])])


def as_csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


INDEX = """\
# The papers, by command

What five papers show and state, run again: figures, tables and theorems. A function of what was measured
judges each statement. [All statements, with what came out](findings.csv); [what runs each item, and what
is not here](coverage.csv); [what is false in them](../found.md).

```
python -m papers list                    # what there is, what is kept, and whether its code has changed since
python -m papers stale                   # what to measure again, and how long it takes
python -m papers run mpmtl-figure-8      # one figure, or all of a paper's: mpmtl
python -m papers run --all --quick       # a look at everything
python -m papers run mpmtl-figure-12 --data lsoa=FILE.csv    # data that you have; celeba=DIR, too
python -m papers pages                   # these pages, from what is kept
```

* *printed*: the number that the paper prints, if any;
* *as published*: by the paper's method under its own accounting, even where its guarantee is
  [false](../found.md);
* *with the true guarantee*: by the same method, repaired, and priced as the library prices it;
* *ours* (in the files of numbers): what we would use instead, at the same price;
* *yes*, *in part*, *no*: in all the places that the statement is about, in some, in none. The *verdict*
  takes both accountings together.

A ± is one standard error over seeds. A run writes its result as JSON into `papers/results` (with `--quick`
or `--seeds`, or of your own data, into `build/papers`), and goes on where it was stopped. Runs are seeded,
so they come out the same again. That makes them INSECURE, which does not matter for simulations and public
data.

*Older code* († below): a file that the result depends on has changed since it was measured; `python -m
papers stale` says which. *Confirmed*: some of its cells, measured again on later code, agreed to the last
digit. On a card, cells were measured several at a time, in smaller blocks of tasks than a run takes by
itself: last digits may differ.
"""


def index(figures: list[Figure]) -> str:
    """Return the first page: every figure with its verdict, or the command that would run it."""
    lines = [INDEX]
    for paper, package in folders().items():
        mine = [figure for figure in figures if figure.paper == paper]
        if mine:
            title, _, reference = (inspect.getdoc(package) or paper).partition("\n\n")
            lines += [
                f"## {title.rstrip('.')}\n",
                f"{wrapped(' '.join(reference.split()))}\n",
                at_a_glance(mine),
                "",
            ]
    return "\n".join(lines)


def at_a_glance(figures: list[Figure]) -> str:
    """Return a table of a paper's figures: what its statements come to, or the command that would run it."""
    rows: list[Sequence[str]] = [("", "as published", "with the true guarantee", "verdict")]
    for figure in figures:
        record = catalog.record(figure.name)
        if record is None:
            rows.append((figure.title, "", "", f"not run yet: `python -m papers run {figure.name}`"))
            continue
        name, found, rest = figure.title.partition(":")
        older = OLDER * records.is_older(record, catalog.source(figure.name))
        claims = figure.claims(record["data"])
        own = [claim for claim in claims if not claim.asked] or claims
        counts = (tally(claim.published for claim in own), tally(claim.repaired for claim in own))
        verdict = WORDS[figure.verdict(record["data"])] + older
        rows.append((f"[{name}]({figure.name}.md){found}{rest}", *counts, verdict))
    return markdown(rows)


def tally(outcomes: Iterable[Outcome | None]) -> str:
    """Count outcomes by what they say."""
    words = Counter(WORDS[one.verdict] for one in outcomes if one)
    return ", ".join(f"{words[word]} {word}" for word in WORDS.values() if words[word])


def findings(figures: list[Figure]) -> list[Sequence[str]]:
    """Return every statement of every figure with what came out, heads first."""
    rows: list[Sequence[str]] = [("figure", *CLAIMED, "verdict")]
    for figure in figures:
        record = catalog.record(figure.name)
        for claim in figure.claims(record["data"]) if record else ():
            cells = (cell.replace("*", "") for cell in row(claim))
            rows.append((figure.name, *cells, WORDS[claim.verdict]))
    return rows


def pages(figures: list[Figure]) -> dict[str, str]:
    """Return every file of the pages, by its name."""
    made = {"README.md": index(figures)}
    made["coverage.csv"] = as_csv(inventory.rows())
    made["findings.csv"] = as_csv(findings(figures))
    for figure in figures:
        if record := catalog.record(figure.name):
            made[f"{figure.name}.md"] = page(figure, record)
            made[f"{figure.name}.csv"] = numbers(figure, record)
    return made


def write_pages(figures: list[Figure]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages(figures).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for figure in figures:
        if record := catalog.record(figure.name):
            picture(figure, record["data"], FOLDER / f"{figure.name}.svg")
