"""All tasks of a run and their curator in one process, step by step as between machines."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from cloister.core.arrays import Integers
from cloister.privacy.noise_states import NoisySum
from cloister.privacy.trust import SecureSum
from cloister.secure import all_or_wait, double_masking
from cloister.secure.primitives import identity
from cloister.secure.session import Session, ShortMemory, Signer

T = TypeVar("T")


class Step(StrEnum):
    """The messages of one attempt at a sum that tasks may drop out of."""

    KEYS = "keys"
    SHARES = "shares"
    MESSAGE = "message"
    SURVIVORS = "survivors"
    OPENING = "opening"


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
    members: list[all_or_wait.Member] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, run: str, plan: str, trust: SecureSum, tasks: int) -> Committee:
        """Draw keys for so many tasks."""
        signers = [Signer(place, os.urandom(32), os.urandom(32)) for place in range(tasks)]
        session = Session(run, plan, trust, tuple(identity(signer.identity) for signer in signers))
        return cls(session, signers, [ShortMemory() for _ in signers])

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
        if not self.session.trust.dropouts:
            rows = {m.signer.place: m.mask(round, head, messages[m.signer.place]) for m in self._joined()}
            return NoisySum(all_or_wait.opened(self.session, rows), len(rows))
        tried = double_masking.Attempt(self.session, round, head, attempt)
        return self._attempt(tried, messages, {} if missing is None else missing)

    def _joined(self) -> list[all_or_wait.Member]:
        """Return all tasks after they have seen each other's keys, once a run."""
        if not self.members:
            both = zip(self.signers, self.memories, strict=True)
            self.members = [all_or_wait.Member(self.session, signer, memory) for signer, memory in both]
            offers = [member.offer() for member in self.members]
            for member in self.members:
                member.join(offers)
        return self.members

    def _attempt(
        self,
        attempt: double_masking.Attempt,
        messages: Mapping[int, Integers],
        missing: Mapping[Step, Collection[int]],
    ) -> NoisySum:
        gone: set[int] = set()
        both = zip(self.signers, self.memories, strict=True)
        members = {s.place: double_masking.Member(attempt, s, memory) for s, memory in both}
        curator = double_masking.Collector(attempt)

        def there(step: Step, asked: Collection[int]) -> list[int]:
            gone.update(missing.get(step, ()))
            return [place for place in asked if place not in gone]

        offers = curator.take_offers([members[i].offer() for i in there(Step.KEYS, members)])
        asked = there(Step.SHARES, [offer.place for offer in offers])
        boxes = curator.take_shares({i: members[i].share(offers) for i in asked})
        asked = there(Step.MESSAGE, boxes)
        alive = curator.take_rows({i: members[i].mask(offers, boxes[i], messages[i]) for i in asked})
        asked = there(Step.SURVIVORS, alive)
        signed = curator.take_signatures({i: members[i].sign(offers, boxes[i], alive) for i in asked})
        asked = there(Step.OPENING, alive)
        return curator.take_openings([members[i].open(offers, boxes[i], alive, signed) for i in asked])
