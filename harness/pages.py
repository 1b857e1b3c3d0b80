"""The tables of README.md and docs, made from kept records.

A page names a table between two marks, and whatever stands between them is written anew::

    <!-- table: prior-accuracy -->
    <!-- end -->

The name is that of a benchmark's record. ``NAME/TABLE`` is one of several tables that
a benchmark prints, and ``NAME/figures`` its figures with their targets. ``NAME; ROW; ROW`` shows these rows
alone, in this order, each named by its first cell, and ``NAME; first 6`` as many. Under a page's first table
of a record stands what made it and, if that code has changed since, that it has.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path

from harness import catalog
from harness.records import Record, provenance
from harness.sources import ROOT

MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)

Table = list[list[str]]


def pages_with_tables() -> list[Path]:
    """Return the pages that may have tables; those of the papers are made whole by `papers.pages`."""
    docs = (page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "papers")
    return [ROOT / "README.md", *sorted(docs)]


def table(record: Record, name: str, chosen: list[str]) -> Table:
    """Return a table of a record: all rows, or the chosen ones."""
    if name == "figures":
        goals = {key: f"{op} {goal:g}" for key, (op, goal) in record["targets"].items()}
        values = [[key, f"{value:.4g}", goals.get(key, "")] for key, value in record["figures"].items()]
        rows = [["figure", "measured", "target"], *values]
    else:
        rows = record["tables"][name]
    if not chosen:
        return rows
    if chosen[0].startswith("first "):
        return rows[: 1 + int(chosen[0].removeprefix("first "))]
    by_name = {row[0]: row for row in rows[1:]}
    missing = [row for row in chosen if row not in by_name]
    if missing:
        raise KeyError(
            f"{record['name']} must have the rows that a page names. Got {missing}: change the page."
        )
    return [rows[0], *(by_name[row] for row in chosen)]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    shown = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown)


def between(said: str, told: Container[str] = ()) -> str:
    """Return what stands between two marks; how records that were `told` of were made is not repeated."""
    which, *chosen = (part.strip() for part in said.split(";"))
    name, _, part = which.partition("/")
    record = catalog.record(name)
    if record is None:
        raise FileNotFoundError(f"No record {name}: python -m benchmarks {name} --keep makes it.")
    rows = table(record, part or next(iter(record["tables"])), chosen)
    made = "" if name in told else f"\n{provenance(record, catalog.source(name))}\n"
    return f"{markdown(rows)}\n{made}"


def page(text: str) -> str:
    """Return a page with its tables as they should be."""
    told: set[str] = set()

    def filled(found: re.Match[str]) -> str:
        inside = between(found[2], told)
        told.add(re.split("[/;]", found[2])[0].strip())
        return f"{found[1]}\n{inside}\n{found[3]}"

    return MARKED.sub(filled, text)


def write_pages() -> None:
    for path in pages_with_tables():
        text = path.read_text(encoding="utf-8")
        if page(text) != text:
            path.write_text(page(text), encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is written anew.")
