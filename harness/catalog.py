"""What there is to measure: modules of `benchmarks` that have a NAME, of `papers` that have a NOT_COVERED.

Their constants are read without importing them, so that it can be said of every result whether it is of
older code, even where a library that it needs is not installed:

====== ======================================================================================================
PATHS  for times and sizes of a part of the library: its files and folders, relative to the repository. Where
       nothing says so, a benchmark depends on all of it, as it may start commands and servers
DATA   names of data files that it reads; one with a folder in it is relative to the repository
====== ======================================================================================================

Whatever a module imports of `benchmarks` and `papers` counts as well, with what that names. A figure of a
paper depends on what it imports of the library, and what that imports; not on rooms that nothing of it
reaches.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.records import Record, read
from harness.sources import ROOT, Source, data_file

LIBRARY = ROOT / "src" / "cloister"


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
    reached = _reached(path)
    own = [one for one in reached if not one.is_relative_to(LIBRARY) and one.name != "__init__.py"]
    files = {one: _file(one, given or {}) for module in own for one in constant(module, "DATA") or ()}
    library = constant(path, "PATHS") or ("src/cloister",)
    if constant(path, "NOT_COVERED"):
        library = tuple(_text(one) for one in reached if one.is_relative_to(LIBRARY))
    return Source(tuple(_text(one) for one in own), library, files)


def _reached(path: Path) -> list[Path]:
    """Return a module, and all that it imports of the repository, with what that imports."""
    found, waiting = {path}, [path]
    while waiting:
        for module, name in _imports(waiting.pop()):
            if (one := _home(module, name)) and one not in found:
                found.add(one)
                waiting.append(one)
    return [path, *sorted(found - {path})]


@cache
def _imports(path: Path) -> list[tuple[str, str]]:
    """Return what a module imports of the repository: a module, and a name of it, or none for all."""
    found = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return [one for one in found if one[0].partition(".")[0] in ("benchmarks", "cloister", "papers")]


def _home(module: str, name: str) -> Path | None:
    """Return the file that has a name, beyond packages that only hand it on."""
    for root in (ROOT / "src", ROOT):
        place = root / module.replace(".", "/")
        for file in (place / f"{name}.py", place / name / "__init__.py", place.with_suffix(".py")):
            if file.exists():
                return file
        if (package := place / "__init__.py").exists():
            handed_on = (_home(*one) for one in _imports(package) if one[1] == name)
            return next(handed_on, package)
    return None


def _text(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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
