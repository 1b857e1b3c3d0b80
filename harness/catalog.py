"""What there is to measure: modules of `benchmarks` that have a NAME, of `papers` that have a NOT_COVERED.

Their constants are read without importing them, so that it can be said of every result whether it is of
older code, even where a library that it needs is not installed:

====== ======================================================================================================
PATHS  for times and sizes of a part of the library: its files and folders, relative to the repository. Where
       nothing says so, a result depends on all of it
DATA   names of data files that it reads; one with a folder in it is relative to the repository
====== ======================================================================================================

Whatever a module imports of `benchmarks` and `papers` counts as well, with what that names.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.records import Record, read
from harness.sources import ROOT, Source, data_file


@cache
def modules() -> dict[str, Path]:
    """Return where each benchmark and each figure of a paper is, by name."""
    benchmarks = {constant(path, "NAME"): path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
    figures = (path for path in sorted((ROOT / "papers").glob("*/*.py")) if constant(path, "NOT_COVERED"))
    papers = {f"{path.parent.name}-{path.stem}".replace("_", "-"): path for path in figures}
    return {name: path for name, path in (benchmarks | papers).items() if name}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def constant(path: Path, name: str) -> Any:
    """Return a constant of a module; None if there is none."""
    for node in _tree(path).body:
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
    files = {one: _file(one, given or {}) for module in own for one in constant(module, "DATA") or ()}
    library = constant(path, "PATHS") or ("src/cloister",)
    return Source(tuple(one.relative_to(ROOT).as_posix() for one in own), library, files)


def _with_imports(path: Path) -> list[Path]:
    """Return a module of `benchmarks` or `papers`, with all that it imports from there."""
    found, waiting = [], [path]
    while waiting:
        one = waiting.pop()
        if one in found or not one.exists() or one.name == "__init__.py":
            continue
        found.append(one)
        for node in ast.walk(_tree(one)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [f"{names[0]}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else []
            ours = (name for name in names if name.startswith(("benchmarks.", "papers.")))
            waiting += [(ROOT / name.replace(".", "/")).with_suffix(".py") for name in ours]
    return found


def _file(name: str, given: Mapping[str, Path]) -> Path:
    return given[name] if name in given else ROOT / name if "/" in name else data_file(name)


def result_path(name: str) -> Path:
    """Return where a record of this name is kept."""
    path = modules().get(name.removesuffix("-cuda"))
    papers = path is not None and path.is_relative_to(ROOT / "papers")
    return ROOT / ("papers" if papers else "benchmarks") / "results" / f"{name}.json"


def record(name: str) -> Record | None:
    """Return the record of this name, or None."""
    return read(result_path(name))
