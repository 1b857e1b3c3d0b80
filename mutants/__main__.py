"""Break the library in small ways, one at a time, and see whether its tests notice: ``python -m mutants``.

A mutant is an entry of a TOML file in this folder. It quotes no source text: it names a place and what to do
there, so it survives reformatting, nearby edits and moved functions. ::

    [[mutant]]
    name = "charged-again"
    breaks = "a run that goes on is charged a second time"
    at = "engines.curator:Curator.charge"
    use = "journal.run"
    to = "None"
    tests = ["tests/store/test_journal.py::test_a_run_is_charged_once_however_often_it_goes_on"]

======== ==================================================================================================
name     what to call it
breaks   what would be wrong, in words
at       ``module:function``, ``module:Class.method`` or ``module:NAME`` (a constant of a module or class),
         below ``cloister``; what is no longer in its module is found by its name, if one place has it
tests    ``file.py::test``, ``file.py -k word`` (all tests whose name holds it) or a whole ``file.py``: those
         that are expected to notice, in seconds
to       the expression (or operator) that takes the place; ``_`` in it is what was there
of       optional: a name, or a whole text, that the same statement mentions
nth      optional: which of several, from 1 on in the order of reading; without it there must be one
======== ==================================================================================================

and one operator, with the name of what it concerns (``keep`` and ``journal.keep`` both name
``self.journal.keep``):

============================================== ============================================================
``drop = "ledger.charge"``                     the statement that calls, or sets, this becomes ``pass``
``test = "fresh"``, ``to = "False"``           the test (of if, while, assert) that mentions this
``operator = "<="``, ``to = "<"``              of a comparison, of arithmetic, or of logic
``constant = 0.5``, ``to = "1.0"``             a number or a text, of this very value
``argument = "record(run)"``                   leaves this argument out of a call, or with ``to`` changes it
``argument = "record(0)"``, ``to = "None"``    an argument by its position
``use = "math.ceil"``, ``to = "math.floor"``   a variable, attribute or function where it is used
``value = "level"``, ``to = "_ / 4"``          what is assigned to this
``returns = "total"``, ``to = "0.9 * _"``      what is returned and mentions this; ``""`` for anything
============================================== ============================================================

The fewer words pick the node, the longer an entry lives: prefer a name to `nth`. A fast test
(``tests/test_mutants.py``) says which entries find no place any more: then write the same mistake for the new
code, or drop it if it cannot be made. Every mutant is made in a copy of the tree. Its tests must pass there
before, and fail after: the exit status is 1 if one survives, finds no place, or has tests that cannot be run.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.places import Change, NoPlaceError

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "docs", "mutants", "README.md", "pyproject.toml", "conftest.py")
OPERATORS = {"drop", "test", "operator", "constant", "argument", "use", "value", "returns"}
#: Seconds after which tests are said to have noticed: they never end.
PATIENCE = 300


@dataclass(frozen=True)
class Mutant:
    """One small mistake, and the tests that should notice it."""

    name: str
    breaks: str
    change: Change
    tests: tuple[str, ...]

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Mutant:
        """Read an entry; it has one operator."""
        operators = sorted(OPERATORS & entry.keys())
        if len(operators) != 1:
            sys.exit(f"An entry must have one operator. Got {operators} in {entry['name']!r}.")
        rest = {name: value for name, value in entry.items() if name in ("at", "to", "of", "nth")}
        change = Change(operator=operators[0], subject=entry[operators[0]], **rest)
        if unknown := entry.keys() - rest.keys() - {*operators, "name", "breaks", "tests"}:
            sys.exit(f"Not known in an entry: {sorted(unknown)} in {entry['name']!r}.")
        return cls(entry["name"], entry["breaks"], change, tuple(entry["tests"]))


def read_file(path: Path) -> list[Mutant]:
    """Read the entries of one file."""
    return [Mutant.of(entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def read(folder: Path) -> list[Mutant]:
    """Read all entries."""
    entries = [entry for path in sorted(folder.glob("*.toml")) for entry in read_file(path)]
    names = [mutant.name for mutant in entries]
    if len(set(names)) < len(names):
        sys.exit(f"Names of mutants must differ: {sorted({n for n in names if names.count(n) > 1})}")
    return entries


def read_sources(root: Path) -> dict[Path, str]:
    """Read all files in which a mutant can be made."""
    return {path: path.read_text(encoding="utf-8") for path in sorted((root / "src").rglob("*.py"))}


def chosen(test: str, root: Path) -> list[str]:
    """Return what pytest is told to run; a file that has moved is found by its name."""
    file, _, word = test.partition(" -k ")
    path, *function = file.split("::")
    moved = [] if (root / path).exists() else list((root / "tests").rglob(Path(path).name))
    path = str(moved[0].relative_to(root)) if len(moved) == 1 else path
    if not word:
        return ["::".join([path, *function])]
    text = (root / path).read_text(encoding="utf-8")
    return [f"{path}::{name}" for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE) if word in name]


def noticed(tests: Sequence[str], root: Path, patience: float | None = PATIENCE) -> str:
    """Run tests on the tree in `root`: return the first that fails, empty if all pass."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **threads, "PYTHONPATH": paths, "COLUMNS": "250"}
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    named = [each for test in tests for each in chosen(test, root)]
    command = [sys.executable, "-m", "pytest", *options, *named]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return "a test that never ends"
    told = done.stdout.decode(errors="replace")
    if done.returncode > 1 or not named:
        raise RuntimeError(f"These tests cannot be run: {', '.join(tests)}\n{told[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.*)$", told, re.MULTILINE)
    return "" if not done.returncode else failed[1] if failed else "a test"


def copy_tree(target: Path) -> Path:
    """Copy what tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)
    return target


def outcome(mutant: Mutant, trees: queue.Queue[Path], clock: Iterator[int]) -> tuple[str, str]:
    """Make the mutant in a copy of the tree, run its tests there, and take it back."""
    root = trees.get()
    try:
        sources = read_sources(root)
        path, broken = mutant.change.make(sources)
        try:
            _write(path, broken, next(clock))
            by = noticed(mutant.tests, root)
        finally:
            _write(path, sources[path], next(clock))
        return ("killed", by) if by else ("SURVIVED", mutant.breaks)
    except NoPlaceError as error:
        return "NO PLACE", str(error)
    except RuntimeError as error:
        return "NOT RUN", str(error)
    finally:
        trees.put(root)


def _write(path: Path, text: str, time: int) -> None:
    """Write a file under a time that no compiled file knows: two writes may fall into one second."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time, time))


def check_unbroken(mutants: Sequence[Mutant], trees: Sequence[Path], pool: ThreadPoolExecutor) -> None:
    """Stop if the tests of these mutants do not pass as they are; each runs once."""
    needed = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(needed)} groups of tests without a mutant ...", flush=True)
    parts = [needed[number :: len(trees)] for number in range(len(trees))]
    failed = list(filter(None, pool.map(noticed, parts, trees, [None] * len(trees))))
    if failed:
        sys.exit(f"These tests fail without any mutant: {'; '.join(failed)}")


def main() -> int:
    """Run all mutants, or those whose name or place holds a word."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name or place contains one of these")
    parser.add_argument("-n", type=int, default=2, help="processes (2)")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass unbroken")
    options = parser.parse_args()
    words, begun = options.words or [""], time.monotonic()
    mutants = [m for m in read(ROOT / "mutants") if any(w in f"{m.name} {m.change.at}" for w in words)]
    clock, counts = iter(range(10**9, 2 * 10**9)), {"killed": 0, "SURVIVED": 0, "NO PLACE": 0, "NOT RUN": 0}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.n) as pool:
        copies = [copy_tree(Path(folder) / str(number)) for number in range(options.n)]
        if not options.no_baseline:
            check_unbroken(mutants, copies, pool)
        trees: queue.Queue[Path] = queue.Queue()
        for copy in copies:
            trees.put(copy)
        waiting = {pool.submit(outcome, mutant, trees, clock): mutant for mutant in mutants}
        for done, future in enumerate(as_completed(waiting), 1):
            mutant, (found, told) = waiting[future], future.result()
            counts[found] += 1
            if sys.stderr.isatty():
                bar = "#" * (30 * done // len(mutants))
                print(f"\r[{bar:30}] {done}/{len(mutants)}", end="", file=sys.stderr, flush=True)
            if found != "killed" or not sys.stderr.isatty():
                print(f"\r{found:9} {mutant.name}: {told}", flush=True)
    seconds = time.monotonic() - begun
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"\n{len(mutants)} mutants in {seconds:.0f} s: {told}")
    return int(counts["killed"] < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
