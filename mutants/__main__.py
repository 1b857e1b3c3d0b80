"""Break the library in small ways, one at a time, and see whether its tests notice: ``python -m mutants``.

A mutant is an entry of a TOML file in this folder:

=========== ===============================================================================================
name        what to call it
breaks      what would be wrong, in words
old, new    a piece of source text that occurs once in ``src``, and what takes its place
tests       test files, ``file.py::test`` or ``file.py -k word``: those that are expected to notice
within      optional: part of a path, where the text occurs in several files
=========== ===============================================================================================

No path and no line number: an entry survives that files move and that lines change around it. It is *stale*
when its text is gone; then write the same mistake in the new code, or drop it if it cannot be made any more.
Every mutant is made in a copy of the tree. The tests must pass there before, and fail after: the exit status
is 1 if a mutant survives or is stale.
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
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "docs", "README.md", "pyproject.toml", "conftest.py")
#: Seconds after which tests are said to have noticed: they never end.
PATIENCE = 600


@dataclass(frozen=True)
class Mutant:
    """One small mistake, and the tests that should notice it."""

    name: str
    breaks: str
    old: str
    new: str
    tests: tuple[str, ...]
    within: str = ""

    def place(self, sources: Mapping[Path, str]) -> Path | None:
        """Return the one file that holds the text once; None if it is stale."""
        counts = {
            path: text.count(self.old) for path, text in sources.items() if self.within in path.as_posix()
        }
        holding = [path for path, count in counts.items() if count]
        return holding[0] if len(holding) == 1 and counts[holding[0]] == 1 else None


def read_sources(root: Path) -> dict[Path, str]:
    """Read all files in which a mutant can be made."""
    return {path: path.read_text(encoding="utf-8") for path in sorted((root / "src").rglob("*.py"))}


def read(folder: Path) -> list[Mutant]:
    """Read all entries."""
    entries = [
        Mutant(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]
    names = [mutant.name for mutant in entries]
    if len(set(names)) < len(names):
        sys.exit(f"Names of mutants must differ: {sorted({n for n in names if names.count(n) > 1})}")
    return entries


def arguments(tests: Sequence[str], root: Path) -> Iterator[list[str]]:
    """Return pytest's arguments for each entry of `tests`; a file that has moved is found by its name."""
    for test in tests:
        file, *rest = re.split(r"(?=::)|\s+", test)
        if not (root / file).exists():
            moved = list((root / "tests").rglob(Path(file).name))
            file = str(moved[0].relative_to(root)) if len(moved) == 1 else file
        selector = "".join(part for part in rest if part.startswith("::"))
        yield [file + selector, *(part for part in rest if not part.startswith("::"))]


def passes(tests: Sequence[str], root: Path) -> bool:
    """Say whether all these tests pass on the tree in `root`."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **threads, "PYTHONPATH": paths}
    for each in arguments(tests, root):
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *each]
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode == 1:
            return False
        if done.returncode:
            sys.exit(f"These tests cannot be run: {' '.join(each)}\n{done.stdout.decode()[-2000:]}")
    return True


def copy_tree(target: Path) -> Path:
    """Copy what tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)
    return target


def outcome(mutant: Mutant, trees: queue.Queue[Path], clock: Iterator[int]) -> str:
    """Make the mutant in a copy of the tree, run its tests there, and take it back."""
    root = trees.get()
    try:
        sources = read_sources(root)
        path = mutant.place(sources)
        if path is None:
            return "stale"
        sound = sources[path]
        try:
            _write(path, sound.replace(mutant.old, mutant.new), next(clock))
            return "SURVIVED" if passes(mutant.tests, root) else "killed"
        finally:
            _write(path, sound, next(clock))
    finally:
        trees.put(root)


def _write(path: Path, text: str, time: int) -> None:
    """Write a file under a time that no compiled file knows: two writes may fall into one second."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time, time))


def main() -> int:
    """Run all mutants, or those whose names hold a word."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants whose names contain one of these")
    parser.add_argument("-n", type=int, default=2, help="processes (2)")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass unbroken")
    options = parser.parse_args()
    words = options.words or [""]
    mutants = [mutant for mutant in read(ROOT / "mutants") if any(word in mutant.name for word in words)]
    clock, counts = iter(range(10**9, 2 * 10**9)), {"killed": 0, "SURVIVED": 0, "stale": 0}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.n) as pool:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(options.n):
            trees.put(copy_tree(Path(folder) / str(number)))
        if not options.no_baseline:
            needed = sorted({test for m in mutants for test in m.tests})
            print(f"{len(needed)} groups of tests without a mutant ...", flush=True)
            sound = pool.map(lambda test: passes([test], Path(folder) / str(hash(test) % options.n)), needed)
            broken = [test for test, good in zip(needed, sound, strict=True) if not good]
            if broken:
                sys.exit(f"These tests fail without any mutant: {', '.join(broken)}")
        waiting = {pool.submit(outcome, mutant, trees, clock): mutant for mutant in mutants}
        for done, future in enumerate(as_completed(waiting), 1):
            mutant, found = waiting[future], future.result()
            counts[found] += 1
            if sys.stderr.isatty():
                bar = "#" * (30 * done // len(mutants))
                print(f"\r[{bar:30}] {done}/{len(mutants)}", end="", file=sys.stderr, flush=True)
            if found != "killed" or not sys.stderr.isatty():
                print(f"\r{found:9} {mutant.name}: {mutant.breaks}", flush=True)
    print(f"\n{len(mutants)} mutants: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return int(counts["killed"] < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
