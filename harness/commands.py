"""What the commands of `benchmarks` and `papers` do alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness import catalog, records


def print_stale(names: Iterable[str]) -> None:
    """List results of older code, and what was never measured."""
    for name in names:
        source = catalog.source(name)
        kept = [one for one in (catalog.record(name), catalog.record(f"{name}-cuda")) if one]
        for record in kept or [None]:
            line = records.stale_line(record["name"] if record else name, record, source)
            print(line, end="\n" * bool(line))


def confirm(measures: Mapping[str, Callable[[Any], Any]], device: str = "cpu") -> int:
    """Measure samples of kept results again, each by a function of one cell; return how many disagree."""
    failed = 0
    for name, measure in measures.items():
        record = catalog.record(name)
        try:
            if record is None:
                raise ValueError(f"Nothing is kept of {name}: measure it first.")
            again = records.confirmed(record, catalog.source(name), measure, device)
        except ValueError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        records.write(again, catalog.result_path(name))
        print(f"{name}: {len(record['samples'])} of {record['cells']} cells agree to the last digit.")
    return failed
