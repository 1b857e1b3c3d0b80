"""Text of installed packages: rows are words of docstrings, classes the sections they stand in.

A row is 32 words, in order, of a section of one docstring; a class is what the section's heading says,
which is not in the row. Words are runs of letters in small print, hashed to 4,096 numbers. Headings are
underlined, as in NumPy, or end in a colon, as in PyTorch; sections with other headings are left out.
Sources are read, not imported, so that docstrings of compiled code are left out too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

WORDS, LEAST, VOCABULARY = 32, 8, 4096
#: Headings of a class, in small print; what comes before the first heading is the summary.
SECTIONS = (
    ("",),
    ("parameters", "other parameters", "args", "arguments"),
    ("returns", "yields"),
    ("notes", "note"),
    ("examples", "example"),
)
CLASS = {heading: index for index, headings in enumerate(SECTIONS) for heading in headings}
HEADING = re.compile(r"^(?:([A-Z][A-Za-z ]+)\n[-=]{3,}|([A-Z][a-z]+(?: [a-z]+)?)::?)[ ]*$", re.MULTILINE)
#: Folders of tests, and of what others have written.
SKIPPED = re.compile(r"(^|/)(tests?|testing|_?externals?|_vendor|array_api_\w+|_lib)/|(^|/)(test_|conftest)")


def sections(docstring: str) -> Iterator[tuple[int, str]]:
    """Yield each section's class and text."""
    found = list(HEADING.finditer(docstring))
    yield CLASS[""], docstring[: found[0].start()] if found else docstring
    ends = [*(one.start() for one in found), len(docstring)]
    for heading, (_, end) in zip(found, pairwise(ends), strict=True):
        name = (heading[1] or heading[2]).lower()
        if name in CLASS:
            yield CLASS[name], docstring[heading.end() : end]


def rows(docstring: str) -> Iterator[tuple[int, list[int]]]:
    """Yield each row's section and words; short ends of sections are left out, others end in zeros."""
    for section, text in sections(docstring):
        words = [1 + crc32(word.encode()) % (VOCABULARY - 1) for word in re.findall("[a-z]+", text.lower())]
        for at in range(0, len(words), WORDS):
            if len(some := words[at : at + WORDS]) >= LEAST:
                yield section, some + [0] * (WORDS - len(some))


class Row(NamedTuple):
    """Words, their section, and which docstring of the file they are of."""

    words: list[int]
    section: int
    docstring: int


class File(NamedTuple):
    """A source file's name and its rows, none of them twice."""

    name: str
    rows: list[Row]


def files(package: str) -> Iterator[File]:
    """Yield each source file, with rows of the docstrings that have headings."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py"), key=Path.as_posix):
        name = path.relative_to(root).as_posix()
        if SKIPPED.search(name):
            continue
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        documented = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))
        texts = [text for text in map(ast.get_docstring, documented) if text and HEADING.search(text)]
        found = [Row(words, kind, at) for at, text in enumerate(texts) for kind, words in rows(text)]
        yield File(f"{package}/{name}", list({tuple(row.words): row for row in reversed(found)}.values()))
