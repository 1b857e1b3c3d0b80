"""What somebody has committed to, in a file: a line each, on disk before anything rests on it is said."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.core.errors import StorageError
from cloister.store.files import BINARY, storage_errors, sync_folder, write_all


class FolderMemory:
    """Names and what was written under them last, in a file that is only added to.

    A line that has no end is of a writer that was killed: it had not returned, and counts for nothing.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     FolderMemory(Path(folder) / "sums").write("0 head", b"h")
    ...     FolderMemory(Path(folder) / "sums").read("0 head")
    b'h'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, bytes] = {}
        whole = path.read_bytes() if path.exists() else b""
        self._size = whole.rfind(b"\n") + 1
        for line in whole[: self._size].splitlines():
            name, _, value = line.decode("utf-8", "replace").rpartition(" ")
            try:
                self._known[name] = bytes.fromhex(value)
            except ValueError:
                raise StorageError(f"{path} was edited. Restore it: it says what was answered.") from None

    def read(self, name: str) -> bytes | None:
        return self._known.get(name)

    def write(self, name: str, value: bytes) -> None:
        """Add a line; on return it is on disk."""
        new = not self.path.exists()
        with storage_errors(self.path, "then ask again"):
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | BINARY, 0o600)
            try:
                os.ftruncate(file, self._size)
                os.lseek(file, 0, os.SEEK_END)
                line = f"{name} {value.hex()}\n".encode()
                write_all(file, line)
            finally:
                os.close(file)
            if new:
                sync_folder(self.path.parent)
        self._size += len(line)
        self._known[name] = value
