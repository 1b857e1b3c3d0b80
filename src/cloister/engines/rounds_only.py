"""An engine that stops after the last release: nobody trains a model at home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloister.arrays import States, Words
from cloister.board.billboard import Billboard
from cloister.doubts import Doubt
from cloister.engines.devices import SeveralWorkers
from cloister.engines.workers import AnyTasks, Engine, Workers
from cloister.plan import Plan
from cloister.privacy.candidates import Sampler

__all__ = ["RoundsOnly"]


@dataclass(frozen=True)
class RoundsOnly:
    """Go through the rounds of a plan, and leave it to each task when to make its own model.

    For meta-learning over many tasks, where what is wanted is the public model: the last local training of
    all tasks would take longer than the rounds, and hold every task's network in memory at once. `adapt`
    gives a task its model whenever it asks, from the board and its own rows.

    Parameters
    ----------
    engine : Local or Batched
        Where and how tasks are computed on.
    """

    engine: Engine

    @property
    def remote(self) -> bool:
        return self.engine.remote

    def doubts_of(self, plan: Plan) -> tuple[Doubt, ...]:
        return self.engine.doubts_of(plan)

    def noise_sampler(self) -> Sampler:
        return self.engine.noise_sampler()

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[Workers]:
        with self.engine.workers(plan, tasks, seeds) as workers:
            yield _Unfinished([workers], [np.arange(len(tasks))])


class _Unfinished(SeveralWorkers):
    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        return {}
