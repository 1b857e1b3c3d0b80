"""Many processes at one ledger, some of them killed: never more than the budget, never less than was told."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from cloister import Ledger
from cloister.errors import BudgetError, LedgerError
from cloister.privacy import tradeoff
from cloister.privacy.events import Cost, GaussianEvent
from cloister.sampling import Everyone

DELTA, TASKS = 1e-3, 50
MU = tradeoff.mu(1.0, DELTA)


def crowd(*arguments: object) -> str:
    script = Path(__file__).with_name("ledger_crowd.py")
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # it forks
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | one_thread, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("fit", "tries"), [pytest.param(1, 1, marks=pytest.mark.slow), (40, 1)])
def test_64_processes_never_exceed_the_budget(where, fit, tries):
    """Two runs racing for the last of a budget never both get it, and what fits is not refused."""
    mu = MU / math.sqrt(fit)
    ledger = Ledger.create(where, "schools", epsilon=1.0, delta=DELTA, n_tasks=TASKS)
    assert int(crowd("race", where, tries, mu)) == fit
    assert len(ledger.history) == len({charge.run for charge in ledger.history}) == fit
    assert math.fsum(charge.mu**2 for charge in ledger.history) <= MU**2 * (1 + 1e-9)
    assert ledger.spent == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(BudgetError):
        ledger.charge("one more", Cost((GaussianEvent(mu),), Everyone(), TASKS))


def test_killed_processes_leave_the_ledger_whole(where):
    """Whatever was told to be recorded is there, and at most one charge a killed process was not told of."""
    ledger = Ledger.create(where, "schools", epsilon=1.0, delta=DELTA, n_tasks=TASKS)
    told = crowd("kill", where, 12).split()
    recorded = [charge.run for charge in Ledger.open(where).history]
    assert len(told) >= 12
    assert set(told) <= set(recorded)
    assert len(recorded) - len(told) <= 12
    ledger.charge("after", Cost((GaussianEvent(1e-4),), Everyone(), TASKS))  # nobody holds the lock


def test_accounts_made_at_once_in_a_new_place(where):
    with ThreadPoolExecutor(8) as threads:
        make = partial(Ledger.create, where, epsilon=1.0, delta=DELTA)
        made = list(threads.map(make, [f"population {number}" for number in range(8)]))
    assert len({ledger.head for ledger in made}) == 8
    with pytest.raises(LedgerError, match=r"'population 0', 'population 1', .*'population 7'"):
        Ledger.open(where)
