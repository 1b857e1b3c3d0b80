"""Noise that tasks add before they speak, and secure sums, among the tasks of one machine.

What crosses from one task to another, and to the curator, is what would cross between institutions: the
state machines are those of `cloister.secure`. The machine holds every task's rows all the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from cloister.core.arrays import Integers, States
from cloister.core.channel import Channel
from cloister.core.errors import PlanError
from cloister.engines.workers import Coins, Collected, Workers
from cloister.plan.plan import Plan
from cloister.privacy.noise_states import NoisySum
from cloister.privacy.randomness import Randomness, Stream
from cloister.privacy.trust import SecureSum, with_share
from cloister.secure.committee import Committee
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import SavedState


def noisy_message(
    plan: Plan, round: int, channel: Channel, row: Integers, group: int, stream: Stream
) -> Integers:
    """Return what a task adds to the sum of a round where tasks add the noise: its message, with its share.

    Parameters
    ----------
    plan : Plan
        Its `trust` says how large a share is.
    round, channel : int, Channel
        Which.
    row : int64 array
        The task's message, of `Channel.rows`: it is lifted, and placed by its group, here. Where records
        send, the lifted sum of theirs.
    group : int
        The position of the task's public group; -1 without.
    stream : Stream
        Of this round, which the task alone knows.

    Privacy
    -------
    The lifted message has the channel's sensitivity. The share is a discrete Gaussian whose variance is that
    which is priced, over `Trust.parts`.
    """
    lifted = row if plan.unit.by_record else channel.whole_sum(row[None], np.array([group]))
    return with_share(plan.trust, plan.mechanism, plan.schedule, round, channel, lifted, stream)


@runtime_checkable
class RowWorkers(Workers, Protocol):
    """Workers of this process that show what each task sends."""

    def collect_rows(self, board: Billboard, channel: Channel) -> Integers:
        """Let every task do a round's work; return what leaves each for another machine."""


def with_noise_at_home(plan: Plan, workers: Workers, groups: Integers, source: Randomness) -> Workers:
    """Return workers whose tasks add noise themselves, if the plan's trust has it so; else as they are.

    Each task's noise is a stream of its own of the run's source.
    """
    if not plan.trust.at_home:
        return workers
    if not isinstance(workers, RowWorkers):
        raise PlanError(
            f"{type(plan.trust).__name__} runs on Local(), whose tasks speak one by one. Use engine=Local(), "
            "or Trust.curator()."
        )
    return NoiseAtHome(plan, workers, groups, source)


@dataclass
class NoiseAtHome:
    """Workers whose sums have the noise of all tasks in them, and open as the plan's trust has it."""

    plan: Plan
    workers: RowWorkers
    groups: Integers
    source: Randomness = field(repr=False)

    @cached_property
    def _committee(self) -> Committee | None:
        """The tasks as members of secure sums, where messages are masked."""
        trust = self.plan.trust
        if not trust.masked:
            return None
        assert isinstance(trust, SecureSum)
        return Committee.of(os.urandom(16).hex(), self.plan.fingerprint, trust, self.plan.n_tasks)

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> Collected:
        rows = self.workers.collect_rows(board, channel)
        noisy = []
        for at, (row, group) in enumerate(zip(rows, self.groups.tolist(), strict=True)):
            own = self.source.stream(f"noise share of task {at}", board.rounds)
            noisy.append(noisy_message(self.plan, board.rounds, channel, row, group, own))
        if self._committee is None:
            return NoisySum(np.sum(noisy, axis=0), len(noisy))
        return self._committee.sum(board.rounds, board.head, dict(enumerate(noisy)))

    def start(self, board: Billboard) -> None:
        self.workers.start(board)

    def listen(self, board: Billboard, coins: Coins) -> None:
        self.workers.listen(board, coins)

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        return self.workers.finish(board, folder)

    def rejected(self) -> int:
        return self.workers.rejected()

    def save_state(self, folder: Path | None = None) -> SavedState:
        return self.workers.save_state(folder)

    def restore_state(self, saved: SavedState) -> None:
        self.workers.restore_state(saved)
