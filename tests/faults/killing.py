"""Runs that are killed, at chosen points or at random times, and then go on; prints what was found as JSON.

One process imports everything and forks a child for each run. A point is a call that changes or opens a file
of the run (or locks it): the child counts them and sends SIGKILL to itself just before the n-th; if that one
is a write, also after half of its bytes. A stream also loses its power then: of what was written to its
board (or its roster) since the last sync some bytes never arrive.

    python tests/faults/killing.py WORK {seeded,secure} {points,times} RUNS KIND [KIND ...]

where KIND is one of engine, stream, sums, arrivals, network, cli, nodes, node.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from killed_runs import KINDS, SEED, whole_board

from cloister import Billboard, Ledger

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"}


def count_points(work: Path, kill_at: int | None, torn: bool, power: bool = False) -> list[str]:
    """From now on list every point this process passes; at the given one, end, perhaps with the power."""
    passed: list[str] = []
    synced = {path.stat().st_ino: path.stat().st_size for path in appended(work)}
    write, write_at, sync = os.write, os.pwrite, os.fsync

    def die() -> None:
        if power:
            for path in appended(work):
                lose(path, synced.get(path.stat().st_ino, 0), random.Random(kill_at), write)
        os.kill(os.getpid(), signal.SIGKILL)

    def noted(file: int) -> None:
        sync(file)
        synced[os.fstat(file).st_ino] = os.fstat(file).st_size

    def point(kind: str) -> bool:
        passed.append(kind)
        return len(passed) - 1 == kill_at

    def hook(event: str, arguments: tuple) -> None:
        inside = arguments and (isinstance(arguments[0], int) or str(arguments[0]).startswith(str(work)))
        if event in EVENTS and inside and point(event):
            die()

    def wrap(function: Callable, kind: str) -> Callable:
        def called(file: int, *rest):
            if point(kind):
                if torn and rest:
                    function(file, rest[0][: len(rest[0]) // 2], *rest[1:])
                die()
            return function(file, *rest)

        return called

    sys.addaudithook(hook)
    os.write, os.pwrite, os.fsync = wrap(write, "write"), wrap(write_at, "write"), wrap(noted, "fsync")
    return passed


def appended(work: Path) -> list[Path]:
    return [*work.rglob("board"), *work.rglob("roster")]


def lose(path: Path, synced: int, rng: random.Random, write: Callable) -> None:
    """Leave of a file what was synced, and of the rest as much as there happens to be, with a hole."""
    synced = min(synced, path.stat().st_size)
    rest = bytearray(path.read_bytes()[synced:])
    hole = rng.randint(0, len(rest))
    rest[hole : hole + 200] = bytes(len(rest[hole : hole + 200]))
    os.truncate(path, synced)
    with path.open("ab", buffering=0) as file:
        write(file.fileno(), rest[: rng.randint(0, len(rest))])


def charges(work: Path) -> list[str]:
    return [charge.run for charge in Ledger.open(work / "ledger").history]


def child(action: Callable[[], object], kill_after: float | None = None) -> int:
    """Run an action in a child; return its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2) if not os.environ.get("LOUD") else None
            action()
            code = 0
        except BaseException as error:
            if os.environ.get("LOUD"):
                print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)  # still ours: it is not waited for yet
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def uninterrupted(job, work: Path) -> tuple[bytes, bytes] | None:
    """Run with the same secret from the beginning to the end, elsewhere; return its board and models."""
    secret = job.folder(work) / "secret"
    if not secret.exists():
        return None
    twin = work.with_name(f"{work.name}-twin")
    twin.mkdir()
    job.prepare(twin)
    folder = job.folder(twin)
    folder.mkdir(exist_ok=True)
    for name in ("secret", "plan.toml"):
        shutil.copy(job.folder(work) / name, folder / name)
    (folder / "board").touch()
    assert child(lambda: job.go(twin)) == 0
    result = ((job.folder(twin) / "board").read_bytes(), job.models(twin))
    shutil.rmtree(twin)
    return result


def go_on(job, work: Path, expected: tuple[bytes, bytes] | None) -> list[str]:
    """Let a run that was killed go on to its end; return what is wrong."""
    wrong = []
    before, early = whole_board(job.folder(work) / "board"), charges(work)
    twin = uninterrupted(job, work) if expected is None else expected
    if before is not None and before.rounds and len(early) != 1:
        wrong.append("released before it was charged")
    if child(lambda: job.go(work)) != 0:
        return [*wrong, "it does not go on"]
    path = job.folder(work) / "board"
    board = Billboard.load(path)
    if not board.complete:
        wrong.append("not complete")
    posted = [] if before is None else [record.hash for record in before.records]
    if posted != [record.hash for record in board.records[: len(posted)]]:
        wrong.append("a posted record was changed")
    if twin is not None and twin != (path.read_bytes(), job.models(work)):
        wrong.append("another board or other models than without interruption")
    late = charges(work)
    if len(late) != 1 or (early and late != early):
        wrong.append(f"charged {early}, then {late}")
    if job.strays(work):
        wrong.append(f"stray files {job.strays(work)}")
    return wrong


Kill = Callable[[Path], int]


def plan_kills(job, how: str, count: int, points: list[str], seconds: float) -> list[list[Kill]]:
    """Return for each run how it is killed, once or (every other run) twice."""
    rng = random.Random(0)

    def by_point(at: int, torn: bool) -> Kill:
        return lambda work: child(lambda: (count_points(work, at, torn, job.power), job.go(work)))

    def by_time(after: float) -> Kill:
        return lambda work: child(lambda: job.go(work), kill_after=after)

    def any_time() -> Kill:
        return by_time(rng.uniform(0, seconds))

    if how == "times":
        return [[any_time() for _ in range(1 + number % 2)] for number in range(count)]
    every = [(at, torn) for at, name in enumerate(points) for torn in (False, True)[: 1 + (name == "write")]]
    chosen = rng.sample(every, min(count, len(every)))
    second = [by_point(*rng.choice(every)) for _ in chosen]
    return [[by_point(*one), second[k]][: 1 + k % 2] for k, one in enumerate(chosen)]


def kill_and_go_on(work: Path, kind: str, noise: str, how: str, count: int) -> dict[str, object]:
    job = KINDS[kind](SEED if noise == "seeded" else None)
    first, listing = work / "first", work / "points.json"
    for folder in (work / "warm", first):
        folder.mkdir(parents=True)
        job.prepare(folder)
    with redirect_stdout(io.StringIO()):
        job.go(work / "warm")  # children inherit what is imported and computed here

    def count_all() -> None:
        points = count_points(first, None, False)
        job.go(first)
        listing.write_text(json.dumps(points[:]))

    start = time.perf_counter()
    assert child(count_all) == 0, "it does not run at all"
    seconds = time.perf_counter() - start
    points = json.loads(listing.read_text())
    expected = ((job.folder(first) / "board").read_bytes(), job.models(first)) if noise == "seeded" else None
    problems, kills = [], 0
    runs = plan_kills(job, how, count, points, seconds)
    for number, deaths in enumerate(runs):
        folder = work / f"run{number}"
        folder.mkdir()
        job.prepare(folder)
        kills += sum(kill(folder) == -signal.SIGKILL for kill in deaths)
        problems += [f"{number}: {wrong}" for wrong in go_on(job, folder, expected)]
        shutil.rmtree(folder)
    return {"points": len(points), "runs": len(runs), "kills": kills, "problems": problems}


def main() -> None:
    work, noise, how, count, *kinds = sys.argv[1:]
    found = {k: kill_and_go_on(Path(work).resolve() / k, k, noise, how, int(count)) for k in kinds}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
