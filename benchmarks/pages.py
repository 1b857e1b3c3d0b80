"""The tables of README.md and docs, made from kept records: ``python -m benchmarks pages`` writes them.

A page names a table between two marks, and whatever stands between them is written anew::

    <!-- table: prior-accuracy -->
    <!-- end -->

The name is a record's in ``benchmarks/results``. ``NAME/TABLE`` is one of several tables that a benchmark
prints, and ``NAME/figures`` its figures with their targets. ``NAME; ROW; ROW`` shows these rows alone, in
this order, each named by its first cell, and ``NAME; first 6`` as many. Under a table stands what made it
and, if that code has changed since, that it has.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from benchmarks import Table
from benchmarks.records import ROOT, Record, code, constant, read

MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
#: Behind figures whose code has changed since.
OLDER = " **Measured on older code.**"


def sources() -> list[Path]:
    """Return the pages that may have tables; those of the papers are made by `papers.pages`."""
    docs = (page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "papers")
    return [ROOT / "README.md", *sorted(docs)]


@cache
def modules() -> dict[str, Path]:
    """Return where each benchmark is, whether or not its libraries are installed."""
    paths = {constant(path, "NAME"): path for path in (ROOT / "benchmarks").glob("*.py")}
    return {name: path for name, path in paths.items() if name}


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


def markdown(rows: Table) -> str:
    shown = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown)


def code_of(name: str) -> str:
    """Return the digits of the code that a record of this name would be of; none if it is gone."""
    path = modules().get(name.removesuffix("-cuda"))
    return "" if path is None else code(path)


def is_older(record: Record) -> bool:
    """Say whether a record's code has changed since, or is gone."""
    return record["code"] != code_of(record["name"])


def provenance(record: Record) -> str:
    """Return the line that says how figures were made."""
    load = f", load {record['load']:g} at the start" if record.get("load") is not None else ""
    at = "" if record["commit"] == "unknown" else f" at {record['commit']}"
    note = f" {record['note']}" if record.get("note") else ""
    older = OLDER if is_older(record) else ""
    return f"`{record['command']}`{at}, {record['date']}, {record['machine']}{load}.{note}{older}"


def between(said: str) -> str:
    """Return what stands between two marks."""
    which, *chosen = (part.strip() for part in said.split(";"))
    name, _, part = which.partition("/")
    record = read(name)
    if record is None:
        raise FileNotFoundError(f"No record {name}: python -m benchmarks {name} --keep makes it.")
    rows = table(record, part or next(iter(record["tables"])), chosen)
    return f"{markdown(rows)}\n\n{provenance(record)}\n"


def page(text: str) -> str:
    """Return a page with its tables as they should be."""
    return MARKED.sub(lambda found: f"{found[1]}\n{between(found[2])}\n{found[3]}", text)


def write_pages() -> None:
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if page(text) != text:
            path.write_text(page(text), encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is written anew.")
