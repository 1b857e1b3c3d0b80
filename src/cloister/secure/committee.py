"""All tasks of a run and their curator in one process, step by step as between machines."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cloister.core.arrays import Integers, Words
from cloister.privacy.noise_states import NoisySum
from cloister.privacy.trust import SecureSum
from cloister.secure import all_or_wait, double_masking
from cloister.secure.double_masking import Step
from cloister.secure.exchange import Exchange, said, unpacked
from cloister.secure.primitives import identity
from cloister.secure.session import Session, ShortMemory, Signer


@dataclass
class Seen:
    """What a curator has of one attempt at a sum, as far as it went."""

    collector: double_masking.Collector
    rows: dict[int, Words] = field(default_factory=dict, repr=False)
    openings: list[double_masking.Opening] = field(default_factory=list, repr=False)

    def note(self, step: Step, told: Mapping[int, bytes]) -> None:
        """Keep the masked messages, and the shares that were handed out."""
        if step is Step.MESSAGE:
            self.rows = {place: np.frombuffer(data, dtype=np.uint64) for place, data in told.items()}
        if step is Step.OPENING:
            self.openings = [double_masking.Opening(at, *unpacked(data, 2)) for at, data in told.items()]


@dataclass
class Committee:
    """Tasks with keys of this process; their memories end with it.

    Examples
    --------
    >>> import numpy as np
    >>> committee = Committee.of("run", "plan", SecureSum(dropouts=1), 5)
    >>> messages = {place: np.array([place, 10]) for place in range(5)}
    >>> total = committee.sum(0, b"head", messages, missing={Step.MESSAGE: [4]})
    >>> total.values.tolist(), total.shares
    ([6, 40], 4)
    """

    session: Session
    signers: list[Signer] = field(repr=False)
    memories: list[ShortMemory] = field(repr=False)
    seen: list[Seen] | None = field(default=None, repr=False)
    members: list[all_or_wait.Member] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(
        cls, run: str, plan: str, trust: SecureSum, tasks: int, seen: list[Seen] | None = None
    ) -> Committee:
        """Draw keys for so many tasks; what their curator sees is put into a list, if there is one."""
        signers = [Signer(place, os.urandom(32), os.urandom(32)) for place in range(tasks)]
        session = Session(run, plan, trust, tuple(identity(signer.identity) for signer in signers))
        return cls(session, signers, [ShortMemory() for _ in signers], seen)

    def sum(
        self,
        round: int,
        head: bytes,
        messages: Mapping[int, Integers],
        missing: Mapping[Step, Collection[int]] | None = None,
        attempt: int = 0,
    ) -> NoisySum:
        """Return the sum of a round's messages, noise included, as it opens.

        `missing` says from which step on tasks do not answer, where they may drop out.
        """
        seen = Seen(double_masking.Collector(double_masking.Attempt(self.session, round, head, attempt)))
        if self.seen is not None:
            self.seen.append(seen)
        if self.session.trust.dropouts:
            return self._attempt(seen, messages, {} if missing is None else missing)
        places = range(self.session.tasks)
        both = zip(places, self.joined(), strict=True)
        seen.rows = {place: member.mask(round, head, messages[place]) for place, member in both}
        return NoisySum(all_or_wait.opened(self.session, seen.rows), len(seen.rows))

    def joined(self) -> list[all_or_wait.Member]:
        """Return all tasks after they have seen each other's keys, once a run."""
        if not self.members:
            both = zip(self.signers, self.memories, strict=True)
            self.members = [all_or_wait.Member(self.session, signer, memory) for signer, memory in both]
            offers = [member.offer() for member in self.members]
            for member in self.members:
                member.join(offers)
        return self.members

    def member(self, attempt: double_masking.Attempt, place: int) -> double_masking.Member:
        """Return a task in an attempt, as after a crash: of before it has its secrets and its memory."""
        return double_masking.Member(attempt, self.signers[place], self.memories[place])

    def _attempt(
        self, seen: Seen, messages: Mapping[int, Integers], missing: Mapping[Step, Collection[int]]
    ) -> NoisySum:
        gone: set[int] = set()
        size = len(next(iter(messages.values())))
        exchange = Exchange(seen.collector, size)
        members = {place: self.member(seen.collector.attempt, place) for place in range(self.session.tasks)}
        total = None
        for step in Step:
            gone.update(missing.get(step, ()))
            told = {
                place: said(
                    members[place], step, exchange.shown(step, place), partial(messages.__getitem__, place)
                )
                for place in exchange.asked(step)
                if place not in gone
            }
            seen.note(step, told)
            total = exchange.take(step, told)
        assert total is not None
        return total
