"""The manifest of a run's folder: the hash of each public file, and the one hash that stands for them all.

It is written as ``sha256sum`` writes: ``sha256sum -c manifest.txt`` checks the files without this library,
and ``sha256sum manifest.txt`` prints the head, the hash to sign, publish or keep.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cloister.errors import InputError
from cloister.store.files import file_digest, write_file

__all__ = ["check_manifest", "manifest_head", "write_manifest"]

NAME = "manifest.txt"
#: What may be in the folder of a run and is public, but for what says its head.
_PUBLIC = (
    "README.txt",
    "board",
    "choice/*/board",
    "choice/*/plan.toml",
    "codebook.toml",
    "estimator.toml",
    "groups.json",
    "guarantee.json",
    "guarantee.txt",
    "plan.toml",
)


def write_manifest(folder: Path) -> str:
    """Write the manifest of the public files that are there; return its head."""
    text = _text(_hashes(folder))
    write_file(folder / NAME, text)
    return hashlib.sha256(text).hexdigest()


def manifest_head(folder: Path) -> str | None:
    """Return the hash that stands for all public files as they are; None of a folder without a manifest."""
    return hashlib.sha256(_text(_hashes(folder))).hexdigest() if (folder / NAME).is_file() else None


def check_manifest(folder: Path) -> int:
    """Return how many public files are as they were written; refuse a folder where one is not."""
    listed, found = _read(folder / NAME), _hashes(folder)
    for name in sorted({*listed, *found}):
        if name not in found:
            raise InputError(f"{name} is gone. Restore it from a copy.")
        if name not in listed:
            raise InputError(f"{name} was added since. Remove it, or restore the folder from a copy.")
        if listed[name] != found[name]:
            raise InputError(f"{name} was changed since. Restore it from a copy.")
    return len(found)


def _hashes(folder: Path) -> dict[str, str]:
    places = (path for pattern in _PUBLIC for path in folder.glob(pattern) if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in places)
    return {name: file_digest(folder / name) for name in names}


def _text(hashes: dict[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in hashes.items()).encode()


def _read(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except ValueError:
        raise InputError(
            f"{path.name} must have a hash and a file's name in every line. Restore it."
        ) from None
