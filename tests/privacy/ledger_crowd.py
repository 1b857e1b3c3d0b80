"""Many processes at one ledger; run by test_ledger_crowd.py in a process of its own, from which it forks.

``race WHERE TRIES MU``: 64 processes charge at once, TRIES times each; prints how many charges went through.
``kill WHERE TIMES``: kills a charging process with -9, TIMES times; prints the runs it reported as recorded.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable

from cloister.errors import BudgetError
from cloister.ledger import Ledger
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.sampling import Everyone

PROCESSES, TASKS = 64, 50


def forked(work: Callable[[], int]) -> int:
    """Run a function in a child and return its process id; what it returns is the exit code."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def race(where: str, tries: int, mu: float) -> None:
    ledger = Ledger.open(where)
    cost = Cost((GaussianEvent(mu),), Everyone(), TASKS)
    start, gun = os.pipe()

    def charge_all(number: int) -> int:
        os.close(gun)
        os.read(start, 1)  # returns once the parent closes its end, for all at once
        won = 0
        for n in range(tries):
            try:
                ledger.charge(f"plan {number}", cost, run=f"{number}-{n}")
                won += 1
            except BudgetError:
                pass
        return won

    children = [forked(lambda number=number: charge_all(number)) for number in range(PROCESSES)]
    os.close(gun)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if 255 in codes:
        sys.exit("a process failed")
    print(sum(codes))


def kill(where: str, times: int) -> None:
    ledger = Ledger.open(where)
    cost = Cost((GaussianEvent(1e-4),), Everyone(), TASKS)
    rng = random.Random(0)
    told = b""
    for turn in range(times):
        ear, mouth = os.pipe()

        def charge_on(turn: int = turn, mouth: int = mouth) -> int:
            for n in range(10_000):
                ledger.charge("plan", cost, run=f"{turn}-{n}")
                os.write(mouth, f"{turn}-{n}\n".encode())
            return 0

        child = forked(charge_on)
        os.close(mouth)
        told += os.read(ear, 1)  # it is on its way
        time.sleep(0.03 * rng.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while part := os.read(ear, 65536):
            told += part
        os.close(ear)
    print(told.decode(), end="")


if __name__ == "__main__":
    if sys.argv[1] == "race":
        race(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        kill(sys.argv[2], int(sys.argv[3]))
