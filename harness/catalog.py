"""What there is to measure: modules of `benchmarks` that have a NAME, and of `papers` that have a CLAIM.

Their constants are read without importing them, so that it can be said of every result whether it is of
older code, even where a library that it needs is not installed:

====== ======================================================================================================
PATHS  what its results depend on of the library: files and folders, relative to the repository
DATA   names of data files that it reads; one with a folder in it is relative to the repository
====== ======================================================================================================

Whatever a module imports of `benchmarks` and `papers` counts as well, with what that names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.records import Record, read
from harness.sources import ROOT, Source, data_file

IMPORT = re.compile(r"^from ((?:benchmarks|papers)(?:\.\w+)*) import (\(.*?\)|.*)", re.MULTILINE)


@cache
def modules() -> dict[str, Path]:
    """Return where each benchmark and each figure of a paper is, by name."""
    benchmarks = {constant(path, "NAME"): path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
    figures = (path for path in sorted((ROOT / "papers").glob("*/*.py")) if constant(path, "CLAIM"))
    papers = {f"{path.parent.name}-{path.stem}".replace("_", "-"): path for path in figures}
    return {name: path for name, path in (benchmarks | papers).items() if name}


def constant(path: Path, name: str) -> Any:
    """Return a constant of a module; None if there is none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    return None


def source(name: str, given: Mapping[str, Path] | None = None) -> Source | None:
    """Return what results of this name depend on; None if there is nothing of this name.

    Parameters
    ----------
    name : str
        A benchmark's or a figure's; its results on a card end in ``-cuda``.
    given : mapping of str to Path, optional
        Data files that the user has, by name; others are in ``$CLOISTER_DATA``.
    """
    path = modules().get(name.removesuffix("-cuda"))
    if path is None:
        return None
    own = _with_imports(path)
    paths = [one.relative_to(ROOT).as_posix() for one in own] + _named(own, "PATHS")
    files = {one: _file(one, given or {}) for one in _named(own, "DATA")}
    return Source(tuple(dict.fromkeys(paths)), files)


def _with_imports(path: Path) -> list[Path]:
    """Return a module of `benchmarks` or `papers` with all that it imports from there, and their packages."""
    found, waiting = [], [path]
    while waiting:
        one = waiting.pop()
        if one in found or not one.exists():
            continue
        found.append(one)
        package = one.parent / "__init__.py"
        waiting += [package] if constant(package, "PATHS") else []
        for package, names in IMPORT.findall(one.read_text(encoding="utf-8")):
            folder = ROOT / package.replace(".", "/")
            waiting += [
                folder.with_suffix(".py"),
                *(folder / f"{name}.py" for name in re.findall(r"\w+", names)),
            ]
    return found


def _named(modules: list[Path], what: str) -> list[str]:
    return [name for path in modules for name in constant(path, what) or ()]


def _file(name: str, given: Mapping[str, Path]) -> Path:
    return given[name] if name in given else ROOT / name if "/" in name else data_file(name)


def result(name: str) -> Path:
    """Return where a result of this name is kept."""
    path = modules().get(name.removesuffix("-cuda"))
    papers = path is not None and path.parent.parent.name == "papers"
    return ROOT / ("papers" if papers else "benchmarks") / "results" / f"{name}.json"


def kept(name: str) -> Record | None:
    """Return the record of this name, or None."""
    return read(result(name))
