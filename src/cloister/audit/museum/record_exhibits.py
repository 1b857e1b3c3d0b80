"""Exhibits about records: the mean of a task is clipped, not each of them; or divided by how many speak.

Both are bugs of the zoo, planted in the library's own code: a thousand records of twelve tasks are summed by
the engine of a real run, and the sum gets that run's noise. All records but one say the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.releases import Runs
from cloister.audit.zoo.bug import Bug, planted
from cloister.audit.zoo.plans import GramOfRecords
from cloister.audit.zoo.sensitivity_bugs import mean_over_the_records_that_speak, sum_before_clip
from cloister.core.arrays import Array, Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Plain, Relation
from cloister.core.tasks import Tasks
from cloister.engines.local import Local
from cloister.plan.plan import Plan
from cloister.privacy.randomness import SystemRandomness
from cloister.privacy.unit import Unit
from cloister.store.billboard import Billboard

_TASKS, _RECORDS, _DIM = 12, 1000, 3


@dataclass(frozen=True)
class RecordSum:
    """A noisy sum over records, by the code of a real run; the target is a record of the first task.

    Parameters
    ----------
    plan : Plan
        By record.
    engine : Local
        Where the sum is made: with ``block=1`` of each task by itself.
    bug : Bug, optional
        What is planted in the library meanwhile.
    """

    plan: Plan
    engine: Local
    bug: Bug | None = None

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the first number of the sum; the others say the least that fits, the target the most."""
        with nullcontext() if self.bug is None else planted(self.bug):
            channel, total = self._summed(speaking)
        runs = Runs.begin(self.plan, SystemRandomness(rng.bytes(32)), count)
        return runs.release(channel, (total, np.full(count, True)))[0][:, 0]

    def _summed(self, speaking: bool) -> tuple[Channel, Array]:
        """Return the sum over all records; that of the target is long, or the opposite, or zeros."""
        X, y = np.zeros((_RECORDS, _DIM - 1)), np.zeros(_RECORDS)
        silent = 0.0 if self.plan.relation == Relation.ZERO_OUT else -1e6
        X[:, 0], X[0, 0] = -1, 1e6 if speaking else silent
        tasks = Tasks.from_arrays(X, y, np.sort(np.arange(_RECORDS) % _TASKS))
        board = Billboard.create(self.plan.algorithm.start(), "", len(self.plan.rounds))
        channel, everyone = self.plan.algorithm.channel(board), np.full(_TASKS, True)
        with self.engine.workers(self.plan, tasks, np.zeros(_TASKS, dtype=np.uint64)) as workers:
            workers.start(board)
            return channel, workers.collect(board, channel, everyone)


def record_exhibits(epsilon: float = 1.0, delta: float = 1e-4) -> tuple[Exhibit, ...]:
    """Return a task's mean that is clipped for its records, and a sum that is divided by how many speak.

    Parameters
    ----------
    epsilon, delta : float
        What is claimed of each record.
    """
    replaced, zeroed = (_honest(epsilon, delta, relation) for relation in Relation)
    counted = replace(zeroed, bug=mean_over_the_records_that_speak)
    return (
        Exhibit(
            name="task-clipped-for-records",
            title="a clip of each task's mean, and the noise of one record",
            claim=Claim(epsilon, delta, Relation.REPLACE),
            source="not printed: gradients are averaged over a silo and then clipped, with noise as if each "
            "had been",
            story="A mean of n clipped records moves by 2/n of the clip if one of them is replaced: noise is "
            "set for that. A mean that is clipped itself goes from one end of the clip to the other if one "
            "record is long enough, n times as far.",
            attack=replace(replaced, bug=sum_before_clip),
            repaired=Repaired(
                "our sum: each record is clipped", Claim(epsilon, delta, Relation.REPLACE), replaced
            ),
        ),
        Exhibit(
            name="counted-records",
            title="a mean over the records that say something",
            claim=Claim(epsilon, delta, Relation.ZERO_OUT),
            source="not printed: a sum of clipped records divided by how many of them are not zero",
            story="Where a record says zeros the sum lacks its term, and the divisor is smaller too, so "
            "that all other terms grow. If the others say the opposite both add up, and the mean moves twice "
            "as far as the clip over the number of records. The divisor must be public.",
            attack=counted,
            repaired=Repaired(
                "our sum, with a public divisor", Claim(epsilon, delta, Relation.ZERO_OUT), zeroed
            ),
            draws=400_000,
        ),
    )


def _honest(epsilon: float, delta: float, relation: Relation) -> RecordSum:
    algorithm, unit = GramOfRecords(Channel(_DIM, lift=Plain())), Unit.record(_RECORDS)
    plan = Plan(algorithm, n_tasks=_TASKS, unit=unit, relation=relation, delta=delta)
    return RecordSum(plan.calibrate(epsilon), Local(block=1 if relation == Relation.REPLACE else None))
