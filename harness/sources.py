"""The code and data that a result depends on, told apart by their contents.

Contents rather than commits: a copy without a repository, such as a source distribution or another machine,
can tell as well whether a result is of the code that is there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]


def data_file(name: str) -> Path:
    """Return where a data file that is not part of the project should be: in ``$CLOISTER_DATA``."""
    return Path(os.environ.get("CLOISTER_DATA", ROOT / "data")).resolve() / name


@dataclass(frozen=True)
class Source:
    """What a result depends on.

    Parameters
    ----------
    paths : tuple of str
        Files and folders of the repository, relative to it: what measures, and what is measured.
    data : mapping of str to Path
        Data files by name; those that do not exist do not count.
    """

    paths: tuple[str, ...]
    data: Mapping[str, Path] = field(default_factory=dict)

    @cached_property
    def code(self) -> str:
        """Twelve digits of all Python files under the paths, whatever their names."""
        files = {file for path in self.paths for file in _files(ROOT / path)}
        contents = sorted(map(_digest, files))
        return hashlib.sha256("".join(contents).encode()).hexdigest()[:12]

    @cached_property
    def files(self) -> dict[str, str]:
        """Twelve digits of each data file."""
        return {name: _digest(path)[:12] for name, path in sorted(self.data.items()) if path.exists()}

    @cached_property
    def commit(self) -> str:
        """The commit that is checked out, with a plus sign if this code is not as committed there."""
        head = _git("rev-parse", "--short=9", "HEAD").strip()
        return head + "+" * bool(_git("status", "--porcelain", "--", *self.paths)) or "unknown"

    def changed(self, commit: str) -> list[str]:
        """Return the files that differ from those of a commit; nothing where git does not know it."""
        return _git("diff", "--name-only", commit.rstrip("+"), "--", *self.paths).split()


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"PATHS must name files or folders of the repository. Got {path}.")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout
