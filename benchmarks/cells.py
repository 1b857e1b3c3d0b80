"""Measuring in parts: each part in a process of its own and, where a folder is given, kept as it finishes.

``python -m benchmarks NAME --cells FOLDER`` writes ``FOLDER/NAME.pickle`` part by part, and goes on from what
is there, whether this machine began it or another: only load what you have measured yourself, for a pickle
can do anything. Parts of other code are measured again. A record of such parts names the machines and
commits of all of them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from inspect import getfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import records, track

Job = TypeVar("Job")
Value = TypeVar("Value")


@dataclass
class Cells:
    """The finished parts of one benchmark, by the words of their jobs.

    Attributes
    ----------
    path : Path, optional
        The file; without one nothing is kept.
    code : str
        Digits of the code that measures.
    """

    path: Path | None
    code: str
    found: dict[str, tuple[Any, records.Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        whole = 0
        with self.path.open("rb") as file:
            while True:
                try:
                    job, value, made = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):  # the end, or what a stopped run left half-written
                    break
                if made["code"] == self.code:
                    self.found[job] = value, made
                whole = file.tell()
        os.truncate(self.path, whole)

    def add(self, job: str, value: Any) -> None:
        made = {"code": self.code, "machine": records.machine("cpu"), "versions": records.versions()}
        made["commit"] = records.commit()
        self.found[job] = value, made
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                pickle.dump((job, value, made), file)


def measured(
    measure: Callable[[Job], Value], jobs: Sequence[Job], name: str, folder: Path | None = None
) -> list[Value]:
    """Return what each job finds, in their order; the first jobs are begun first.

    Parameters
    ----------
    measure : callable
        The benchmark's function of this name, of one job; it draws what it draws from the job alone.
    jobs : sequence
        What is to be measured: values whose ``repr`` tells them apart.
    name : str
        The benchmark's.
    folder : Path, optional
        Where finished parts are, and are kept.
    """
    path = None if folder is None else folder / f"{name}.pickle"
    cells = Cells(path, records.code(Path(getfile(measure)), "measure"))
    missing = [job for job in jobs if repr(job) not in cells.found]
    # No more processes than cores that this one may use: `taskset` can leave the others free.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        begun = {pool.submit(measure, job): job for job in missing}
        for done in track(as_completed(begun), len(begun), name):
            cells.add(repr(begun[done]), done.result())
    return [cells.found[repr(job)][0] for job in jobs]


def makers(name: str, folder: Path, path: Path) -> records.Record:
    """Return the machines, versions and commits of a benchmark's parts, those of its module at this path.

    A copy that is no repository does not know its commit: by the digits its code is the one that is here.
    """
    kept = Cells(folder / f"{name}.pickle", records.code(path, "measure"))
    found = [made for _, made in kept.found.values()]
    commits = {records.commit() if made["commit"] == "unknown" else made["commit"] for made in found}
    return {
        "machine": " and ".join(sorted({made["machine"] for made in found})),
        "versions": records.together([made["versions"] for made in found]),
        "commit": " and ".join(sorted(commits)),
    }
