"""Damaged ledger files; run by test_ledger_garbage.py in a process of its own, so that a crash or hang shows.

``WORK COUNT SEED``: damages a real ledger file in COUNT ways; prints how many were refused and how many read.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
from pathlib import Path

from cloister.errors import CloisterError
from cloister.ledger import Charge, Ledger
from cloister.privacy.events import Cost, GaussianEvent, PureEvent
from cloister.privacy.sampling import Everyone

COST = Cost((GaussianEvent(0.01),) * 3 + (PureEvent(0.02),), Everyone(), 50)


def make(file: Path) -> tuple[Charge, ...]:
    """Write a ledger whose last charges are still in the write-ahead log beside it."""
    ledger = Ledger.create(file, "schools", epsilon=1.0, delta=1e-3, n_tasks=50)
    Ledger.create(file, "banks", epsilon=2.0, delta=1e-4).charge("plan", COST)
    for number in range(12):
        ledger.charge(f"plan {number}", COST)
    holder = sqlite3.connect(file)  # while it reads, the log is not folded into the file
    holder.execute("BEGIN").close()
    holder.execute("SELECT count(*) FROM cloister_charges").fetchone()
    for number in range(12, 15):
        ledger.charge(f"plan {number}", COST)
    for suffix in ("", "-wal"):
        shutil.copy(f"{file}{suffix}", f"{file}.kept{suffix}")
    holder.close()
    return ledger.history


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Damage a file in one of several ways."""
    way, size = rng.randrange(7), len(data)
    out = bytearray(data)
    if way < 3:  # some bytes
        for _ in range(rng.choice((1, 2, 8, 64))):
            out[rng.randrange(size)] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
    elif way == 3:  # the end is missing
        del out[rng.randrange(size) :]
    elif way == 4:  # one page, or part of it, over another
        start, length = rng.randrange(size), rng.choice((16, 512, 4096))
        target = rng.randrange(size)
        out[target : target + length] = data[start : start + length]
    elif way == 5:  # something put in between
        place = rng.randrange(size)
        out[place:place] = rng.randbytes(rng.choice((1, 7, 4096)))
    else:  # the first page: header, schema
        for _ in range(rng.choice((1, 3))):
            out[rng.randrange(min(size, 4096))] = rng.randrange(256)
    return bytes(out)


def used(file: Path, true: tuple[Charge, ...], least: int) -> bool:
    """Open, read and charge; return whether it was possible. What is read must be true, and enough."""
    try:
        ledger = Ledger.open(file, "schools")
        history = ledger.history
        assert history == true[: len(history)], "altered content was read"
        assert len(history) >= least, "charges are missing"
        ledger.charge("next", COST, run="next")
        assert ledger.history[:-1] == history
    except CloisterError:
        return False
    return True


def main(work: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    true = make(work / "true")
    main_file, log = ((work / f"true.kept{suffix}").read_bytes() for suffix in ("", "-wal"))
    (work / "folded").write_bytes(main_file)
    least = len(
        Ledger.open(work / "folded", "schools").history
    )  # the others are in the log, which may be lost
    assert 0 < least < len(true)
    file, wal = work / "fuzzed", work / "fuzzed-wal"
    read = 0
    for turn in range(count):
        for suffix in ("-shm", "-journal"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
        which = turn % 3
        file.write_bytes(damaged(main_file, rng) if which < 2 else main_file)
        wal.write_bytes(damaged(log, rng) if which == 2 else log)
        if which == 1:
            wal.unlink()
        read += used(file, true, least)
    print(count - read, read)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
