"""One session of Ray for the tests of a process, and engines whose actors are killed on the way."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cloister.cluster.engine import session
from cloister.engines import Cluster

ray = pytest.importorskip("ray", reason="needs the extra ray")
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # earlier versions warn of it
}


@contextmanager
def started(cpus: int = 4) -> Iterator[Any]:
    """Start Ray on this machine: a small store, and as many actors as tests ask for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.cluster.engine.STORE", 10**8)
        with ExitStack() as stack:
            with warnings.catch_warnings():  # earlier versions leave files open that they give to processes
                warnings.simplefilter("ignore", ResourceWarning)
                stack.enter_context(session(None, cpus, 0))
                gc.collect()
            yield ray


@dataclass(frozen=True)
class Killing(Cluster):
    """A cluster of which some actors are killed before some rounds: (round, which of them)."""

    kills: tuple[tuple[int, int], ...] = ()

    @contextmanager
    def workers(self, plan, tasks, seeds):
        with super().workers(plan, tasks, seeds) as workers:
            collect = workers.collect

            def killing(board, *given):
                for t, which in self.kills:
                    if t == board.rounds:
                        holders = workers.actors.holders  # fewer, where none took a lost one's place in time
                        ray.kill(holders[which % len(holders)].handle)
                return collect(board, *given)

            workers.collect = killing
            yield workers
