"""A lock on an open file that no process can leave behind: it goes when the process does."""

from __future__ import annotations

import sys

__all__ = ["try_lock"]

if sys.platform == "win32":
    import msvcrt
    import os

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
