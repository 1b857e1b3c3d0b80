"""Files that are on disk when a call returns, and one sentence for what the operating system refuses.

A large file is read piece by piece (`ByteSource`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import sys
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cloister.core.errors import StorageError

_FULL = {
    errno.ENOSPC: "there is no space left",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file may not grow any more",
}
_CLOSED = {
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
}
_AT_ONCE = 1 << 30
#: Bytes of a file that are kept in memory; one that is no larger is kept whole.
CACHE_BYTES = 1 << 25
BINARY = getattr(os, "O_BINARY", 0)  # Windows would change line ends


@contextmanager
def storage_errors(path: Path, after: str) -> Iterator[None]:
    """Raise StorageError for an OSError: why the path cannot be written, and what to do `after`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        code = error.errno or 0
        why = _FULL.get(code) or _CLOSED.get(code) or str(error.strerror or error).lower()
        todo = "Free some space" if code in _FULL else "Make it writable" if code in _CLOSED else "Mend that"
        raise StorageError(f"{path} cannot be written: {why}. {todo}; {after}.") from error


def write_file(path: Path, data: bytes | Iterable[bytes], mode: int = 0o666, *, synced: bool = True) -> Path:
    """Write a whole file, at once or in parts, or leave what is there as it is; on return it is on disk.

    A link that has the file's name is replaced, not followed. A process that is killed in between may leave a
    draft (see `remove_drafts`). Of many files, sync the folder once they are all there (`sync_tree`).
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    with storage_errors(path, "what was there is left as it was"):
        try:
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
            try:
                for part in [data] if isinstance(data, bytes) else data:
                    append(file, part)
                if synced:
                    os.fsync(file)
            finally:
                os.close(file)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        if synced:
            sync_folder(path.parent)
    return path


def write_private(path: Path, data: bytes, *, synced: bool = True) -> Path:
    """Write a whole file that its owner alone can read, as by `write_file`."""
    return write_file(path, data, 0o600, synced=synced)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes to an open file, and return when they are on disk."""
    append(file, data)
    os.fsync(file)


def append(file: int, data: bytes) -> None:
    """Write all bytes to an open file; they are safe from the end of this process, not from a power cut."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def read_at(file: int, at: int, size: int) -> bytes:
    """Return some bytes of an open file, fewer where it ends; of many as many as come at once."""
    if sys.platform == "win32":
        os.lseek(file, at, os.SEEK_SET)
        return os.read(file, min(size, _AT_ONCE))
    return os.pread(file, min(size, _AT_ONCE), at)


def write_at(file: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        if sys.platform == "win32":
            os.lseek(file, at, os.SEEK_SET)
            done = os.write(file, rest)
        else:
            done = os.pwrite(file, rest, at)
        rest, at = rest[done:], at + done


class ByteSource(Protocol):
    """Bytes that are read piece by piece."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, at: int, size: int) -> bytes:
        """Return so many bytes from there, or fewer where they end."""


class MemoryBytes:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, at: int, size: int) -> bytes:
        return self.data[at : at + size]


class FileBytes:
    """A file that stays open for reading as long as something refers to it, whatever becomes of its name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | BINARY)
        weakref.finalize(self, os.close, self._file)

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read(self, at: int, size: int) -> bytes:
        found = read_at(self._file, at, size)
        more = size - len(found)
        return found + self.read(at + len(found), more) if found and more else found


def bytes_of(path: str | os.PathLike[str]) -> ByteSource:
    """Return a file's bytes: in memory if they fit in the cache, else piece by piece from the file."""
    if os.stat(path).st_size <= CACHE_BYTES:
        return MemoryBytes(Path(path).read_bytes())
    return FileBytes(path)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_drafts(folder: Path) -> None:
    """Remove what killed writers (`write_file`) have left in a folder; none may be at work."""
    for draft in folder.glob(".*.draft"):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.draft", draft.name):
            draft.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are not there; on return they are on disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with storage_errors(folder, "then try again"):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def private_folder(folder: Path) -> Path:
    """Make a folder that its owner alone can enter, or take such a one that is there.

    Refused are a link, a folder of somebody else's, and one that others can write to: who has made it or put
    something in it could read, or swap, what is written there. One that others can only read is closed first.
    """
    make_folder(folder.parent)
    with storage_errors(folder, "then try again"):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if sys.platform != "win32":
                _close_to_others(folder)
        else:
            sync_folder(folder.parent)
    return folder


def _close_to_others(folder: Path) -> None:
    refusal = StorageError(
        f"{folder} must be a folder of your own that nobody else can write to: private files go there. "
        "Got a link, somebody else's, or an open one. Find out who made it, and remove it."
    )
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise refusal if error.errno in (errno.ELOOP, errno.ENOTDIR) else error from None
    try:
        found = os.fstat(file)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise refusal
        if found.st_mode & 0o077:
            os.fchmod(file, 0o700)
    finally:
        os.close(file)


def sync_folder(folder: Path) -> None:
    """Return when a folder's names are on disk; some systems do so by themselves, and refuse to be asked."""
    if sys.platform == "win32":
        return
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_tree(folder: Path) -> None:
    """Return when every file and folder under this one is on disk.

    Many at a time: file systems that keep a log write it once for all who wait.
    """
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(_sync_either, [*folder.rglob("*"), folder]))


def _sync_either(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
    else:
        _sync(path)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    #: A byte that no file reaches: Windows keeps others from reading what is locked.
    _FAR = 1 << 62

    def try_lock(file: int) -> bool:
        """Lock an open file for this process; say whether it was free. Closing the file unlocks it."""
        here = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(file, here, os.SEEK_SET)
        return True

else:
    import fcntl

    def try_lock(file: int) -> bool:
        """Lock an open file for this process; say whether it was free. Closing the file unlocks it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
