"""What the model files of a run are called: by their tasks' names where these are safe, with an index."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from cloister.store.files import write_private

__all__ = ["INDEX", "file_name", "file_names", "names_of_files", "on_disk", "task_of", "write_index"]

#: The table of which file is whose, beside the files.
INDEX = "index.csv"
#: Names that Windows keeps for devices, whatever the extension.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)")
#: The longest name that is written out; file systems allow 255 bytes.
_LONGEST = 200
_MARKS = frozenset(" _-.,'()+&")


def file_names(tasks: Iterable[str]) -> dict[str, str]:
    """Return the name of each task's model file: as people write it where that is safe, or else `file_name`.

    Letters, digits and a few marks stay, anything else is percent-encoded. Safe is what means the same on
    every file system and is like no other task's on one that does not tell capitals apart.

    Examples
    --------
    >>> file_names(["Elm", "Müller 2", "Oak", "oak", "Ash/Yew", "../Ash"])  # doctest: +NORMALIZE_WHITESPACE
    {'Elm': 'Elm.json', 'Müller 2': 'Müller 2.json', 'Oak': '%4Fak.json', 'oak': 'oak.json',
     'Ash/Yew': 'Ash%2FYew.json', '../Ash': '%2E%2E%2F%41sh.json'}
    """
    names = list(tasks)
    alike = Counter(map(_folded, names))
    return {task: names_of_files(task)[0] if alike[_folded(task)] == 1 else file_name(task) for task in names}


def names_of_files(task: str) -> tuple[str, ...]:
    """Return the names that a task's model file may have, the best first, whoever else was in the run.

    No two tasks have one in common: `urllib.parse.unquote` gives the id back from all but cut ones.
    """
    plain = "".join(c if _is_plain(c) else _percent(c) for c in task)
    return tuple(dict.fromkeys([*([f"{plain}.json"] if _is_safe(plain) else []), file_name(task)]))


def on_disk(folder: Path) -> dict[str, Path]:
    """Return the model files in a folder by name, letter for letter, whatever its file system makes of it."""
    return {unicodedata.normalize("NFC", path.name): path for path in sorted(folder.glob("*.json"))}


def file_name(task: str) -> str:
    """Return a name that is different for different tasks on every file system, whatever they are called.

    Capitals are encoded too, because some file systems do not tell them apart. `urllib.parse.unquote`
    gives the id back, unless it was too long for a file name.

    Examples
    --------
    >>> file_name("school-7"), file_name("A/b"), file_name("a/b")
    ('school-7.json', '%41%2Fb.json', 'a%2Fb.json')
    """
    name = "".join(c if re.fullmatch(r"[a-z0-9_-]", c) else _percent(c) for c in task)
    if _DEVICES.fullmatch(name):
        name = _percent(name[0]) + name[1:]
    if len(name) > _LONGEST:
        name = f"{name[:100]}...{hashlib.sha256(task.encode()).hexdigest()}"
    return f"{name}.json"


def task_of(path: Path) -> str | None:
    """Return the task whose model file this is by its name; None if the id was too long for it."""
    return None if "..." in path.name else unquote(path.name.removesuffix(".json"))


def write_index(folder: Path, files: dict[str, str]) -> None:
    """Write which file is whose, as a table that spreadsheets open; for the folder's owner alone."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("task", "file"), *files.items()])
    write_private(folder / INDEX, text.getvalue().encode(), synced=False)


def _is_plain(character: str) -> bool:
    same = unicodedata.normalize("NFKC", character) == character
    return same and (character.isalnum() or character in _MARKS)


def _is_safe(name: str) -> bool:
    """Say whether a name is one and the same file on every file system, and no place or option anywhere."""
    ends = re.fullmatch(r"[\w%].*[\w)]|\w", name) is not None and name[0] != "_" and ".." not in name
    device = _DEVICES.fullmatch(name.split(".")[0].rstrip().casefold())
    composed = unicodedata.normalize("NFC", name) == name
    held = name.isascii() or sys.getfilesystemencoding().lower() in ("utf-8", "utf8")
    return ends and not device and composed and held and len(name.encode()) <= _LONGEST


def _folded(task: str) -> str:
    """Return what a file system that does not tell capitals apart might take a name for."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", task).upper().casefold())


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
