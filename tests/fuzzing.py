"""Spoiled files for every reader: bytes that are changed, and documents that are changed by their structure.

``make fuzz`` tries all of them for as long as one likes and says how many cases each has seen; the fast tests
try each a few hundred times. A reader is one entry of `READERS` (`fuzz_readers.py`). Whatever it is given, it
returns, or raises a `CloisterError`: anything else, a thing that is executed, minutes of silence or gigabytes
are a defect.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from cloister import CloisterError

#: What no reader does.
FORBIDDEN = {
    "exec",
    "compile",
    "os.system",
    "os.exec",
    "subprocess.Popen",
    "pickle.find_class",
    "ctypes.dlopen",
}
#: What a reader may take on top of what the process has.
MEMORY = 1 << 31
#: Seconds a case may take.
PATIENCE = 60
TOKENS = [
    *(b"9" * k for k in (1, 3, 9, 19, 400, 5000)),
    *(b"-1", b"0", b"nan", b"inf", b"-inf", b"true", b"null", b"1e308", b"1e999", b"0x7f", b"2020-01-01"),
    *(b'"x"', b"[]", b"{}", b"[[", b"]", b"}", b"\n[", b"=", b'"', b"'", b'"""', b"\\u0000", b"\0", b"\xff"),
    *(b"[" * 20_000, bytes(32), b"[1000000000,[1]]", b"[4294967296,268435456]", b"../x", b"\r", b"\xef\xbb"),
    *(b"<f8", b"|b1", b"|O", b"<U9", b'"run"', b'"__class__"', b'"os:system/1"', b'"cloister/module/2"'),
]  # fmt: skip
#: What stands in a document where something else stood.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 10**6 + 1, 2**31, 2**53 + 1, 2**63, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "\ud800", "nan", "1", "../../x", "/etc/passwd", "a" * 5000, "os:system/1"),
    *([], {}, [[]], [{}], [0], ["x"], [1, 2], [10**400, 1], [float("nan"), 1.0], [[0] * 3] * 3, {"x": 1}),
    *({"type": "cloister/plan/1"}, {"type": "os:system/1"}),
]  # fmt: skip


def spoil_bytes(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Flip, drop, insert, replace, splice or cut off."""
    if rng.random() < 0.03:
        return rng.randbytes(rng.randrange(300))
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(out) + 1)
        stop = min(len(out), at + rng.randrange(12))
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:stop]
            case 2:
                out[at:at] = rng.choice(TOKENS)
            case 3:
                out[at:stop] = rng.choice(TOKENS)
            case 4 if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                out[at:stop] = other[start : start + rng.randrange(400)]
            case _:
                del out[at:]
    return bytes(out)


def spoil_document(document: Any, rng: random.Random) -> Any:
    """Change some values of a tree, drop or rename keys, repeat or reorder items, or nest it deeply."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        places = list(_places(document))
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        holder, key = rng.choice(places)
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(["x", "type", "format", key + "s", "\0"])] = holder.pop(key)
            case 1 | 2 if isinstance(holder, list):
                holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
            case 3:
                other, there = rng.choice(places)
                with suppress(LookupError):  # it may be gone
                    holder[key] = copy.deepcopy(other[there])
            case 4:
                for _ in range(rng.choice([1, 50, 400])):
                    holder[key] = [holder[key]]
            case 5 if type(holder[key]) in (int, float):
                holder[key] *= rng.choice([-1, 2, 1e9, 1e-9, 10**30])
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    return document


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a tree that holds a value: a dictionary or list, and a key."""
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        keys = (
            list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
        )
        for key in keys:
            yield found, key
            waiting.append(found[key])


#: What a document raises that cannot be changed so, or written again.
UNFIT = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError, MemoryError)


def spoil_json(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    try:
        return json.dumps(spoil_document(json.loads(data), rng)).encode()
    except UNFIT:
        return spoil_bytes(data, rng, others)


def spoil_toml(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    try:
        return tomli_w.dumps(spoil_document(tomllib.loads(data.decode()), rng)).encode()
    except UNFIT:
        return spoil_bytes(data, rng, others)


def spoil_lines(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Drop, repeat, swap or spoil lines."""
    lines = data.split(b"\n")
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(len(lines))
        match rng.randrange(4):
            case 0:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at] = spoil_bytes(lines[at], rng, others)
            case _:
                lines[at] = rng.choice(TOKENS)
    return b"\n".join(lines)


def framed(spoil: Callable[..., bytes]) -> Callable[..., bytes]:
    """Return how to spoil the head of a frame: eight bytes of its length, and what they say."""

    def spoil_head(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        end = 8 + int.from_bytes(data[:8], "little")
        head = spoil(data[8:end], rng, others)
        size = len(head) if rng.random() < 0.9 else rng.choice([0, 1, 2**20, 2**63, len(head) + 8])
        return size.to_bytes(8, "little") + head + data[end:]

    return spoil_head


@dataclass(frozen=True)
class Reader:
    """One reader: what it reads, as files that are made once, and how that is spoiled.

    Attributes
    ----------
    name : str
        What it is called.
    make : callable
        Writes what is whole into a folder, and returns files to be spoiled.
    read : callable
        Reads the folder, and returns; or raises a `CloisterError`.
    spoil : tuple of callables
        From bytes, a generator and other bytes to spoiled bytes; one of them is drawn for each case.
    """

    name: str
    make: Callable[[Path], Sequence[Path]]
    read: Callable[[Path], object]
    spoil: tuple[Callable[..., bytes], ...] = (spoil_bytes,)


def wrote(path: Path, data: bytes) -> list[Path]:
    path.write_bytes(data)
    return [path]


@dataclass
class Found:
    """What a reader did with all cases."""

    cases: int = 0
    refused: int = 0
    seconds: float = 0.0
    defects: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


_seen: list[tuple[object, ...]] = []
_watching = False


def watch() -> None:
    """Note from now on, in `guarded` parts, what is executed; nobody can undo it."""
    sys.addaudithook(
        lambda event, told: _seen.append((event, told)) if _watching and event in FORBIDDEN else None
    )


@contextmanager
def guarded() -> Iterator[None]:
    """Fail if anything is executed, waits for a minute, or takes gigabytes."""
    global _watching

    def hung(*_: object) -> None:
        raise AssertionError("it hangs")

    old, limits = signal.signal(signal.SIGALRM, hung), resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _LINUX else 0
    if size:
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, limits[1]))
    _seen.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert _seen == [], _seen[0]


_LINUX = Path("/proc/self/statm").exists()


def fuzz(reader: Reader, seed: int, most: int, seconds: float = 1e9) -> Found:
    """Spoil one file after the other, so many times or so long, and see what the reader does."""
    rng, found = random.Random(seed), Found()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        files = list(reader.make(Path(folder)))
        kept = {path: path.read_bytes() for path in files}
        others = list(kept.values())
        with suppress(CloisterError):
            reader.read(Path(folder))  # whatever it imports is imported, and some write what they need
        start = time.monotonic()
        while found.cases < most and time.monotonic() - start < seconds:
            path = rng.choice(files)
            spoiled = rng.choice(reader.spoil)(kept[path], rng, others)
            path.unlink(missing_ok=True)  # some file systems sync a file that is written over
            path.write_bytes(spoiled)
            _try(reader, Path(folder), found, f"seed {seed}, case {found.cases}, {path.name}")
            found.cases += 1
            path.write_bytes(kept[path])
        found.seconds = time.monotonic() - start
    return found


def _try(reader: Reader, folder: Path, found: Found, which: str) -> None:
    try:
        with guarded():
            signal.alarm(PATIENCE)
            reader.read(folder)
    except CloisterError:
        found.refused += 1
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        key = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        found.defects[key] += 1
        found.examples.setdefault(
            key, f"{which}: {str(error)[:150]}\n{''.join(traceback.format_exc())[-1500:]}"
        )


def main() -> int:
    from fuzz_readers import READERS

    parser = argparse.ArgumentParser(description="Try readers with spoiled files, and say what they did.")
    parser.add_argument("names", nargs="*", help="readers; by default all")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each reader (default: 1)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    chosen = [reader for reader in READERS if not given.names or reader.name in given.names]
    print(f"seed {given.seed}; memory bounded at {MEMORY >> 30} GiB above the start, {PATIENCE} s a case")
    print(f"{'reader':24} {'cases':>9} {'refused':>9} {'minutes':>8} {'defects':>8}", flush=True)
    watch()
    failed = False
    for reader in chosen:
        found = fuzz(reader, given.seed, sys.maxsize, 60 * given.minutes)
        counts = f"{found.cases:9} {found.refused:9} {found.seconds / 60:8.1f} {found.defects.total():8}"
        print(f"{reader.name:24} {counts}", flush=True)
        for key, example in found.examples.items():
            print(f"  {found.defects[key]} times {key}\n    {example}", flush=True)
        failed |= bool(found.defects)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"peak memory of the process: {peak} MiB")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
