"""What a write that was cut short leaves of a billboard's file, told from an edit.

A journal is synced after every record, or in a long run after several. What came since may be missing from
the file in any part; what was synced before was whole once, and stays whole unless somebody changes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloister.board.record_store import ByteSource
from cloister.board.records import HASH, HEADER

#: The last line of a file to which no record will be added.
END = b"end of billboard\n"
#: A run's journal is synced so many times at most: a power cut costs a thousandth of the rounds.
SYNCS = 1000
CHUNK = 1 << 16


def synced_every(capacity: int) -> int:
    """Return after how many records a journal is synced: after each one, up to a thousand."""
    return max(1, -(-capacity // SYNCS))


def is_torn(text: ByteSource, at: int, number: int, every: int, short: bool) -> bool:
    """Say whether the rest of a file can be what is left of records that were not synced yet.

    Some file systems leave zeros where bytes did not arrive, and of several records any part may be missing.
    If the last line follows, or more records than are synced together, then this one was whole once.

    Parameters
    ----------
    text : ByteSource
        The file.
    at, number : int
        Where the first record begins that is not whole, and which it is.
    every : int
        How many records are synced together.
    short : bool
        Whether the file ends within that record.
    """
    left = -number % every + 1  # this record and those after it that are synced with it
    if (
        every == 1
        and not short
        and text.read(text.size - HASH, HASH) != bytes(HASH)
        and not is_blank(text, at)
    ):
        return False
    headers = 0
    for window, seen in _windows(text, at, len(END) - 1):
        headers += window.count(HEADER, max(0, seen - len(HEADER) + 1))
        if headers > left or END in window:
            return False
    return True


def is_blank(text: ByteSource, at: int = 0) -> bool:
    return all(not window.strip(b"\0") for window, _ in _windows(text, at, 0))


def _windows(text: ByteSource, at: int, overlap: int) -> Iterator[tuple[bytes, int]]:
    """Pass through the rest of a text: pieces that begin with the end of the last, and how much of it."""
    kept = b""
    while piece := text.read(at, CHUNK):
        yield kept + piece, len(kept)
        kept = (kept + piece)[-overlap:] if overlap else b""
        at += len(piece)
