r"""Sums of all tasks, or none: pairwise masks, and one message a round.

Once a run each task offers a key. Any two then share a secret, from which a mask follows for every round: the
task that stands first on the roster adds it, the other subtracts it. The sum over all tasks is rid of masks,
and any other sum, or one message by itself, is uniform to who does not have the keys. There is nothing to
open, no set of survivors to lie about, and asked again a task says the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from cloister.core.arrays import Integers, Words
from cloister.core.errors import InputError
from cloister.secure.primitives import agreed, derived, mask, public_key
from cloister.secure.session import Memory, Offer, Session, Signer, check_offers, commit, offers_digest, once


@dataclass
class Member:
    """One task in the sums of a run.

    Parameters
    ----------
    session : Session
        Public.
    signer : Signer
        The task's secrets.
    memory : Memory
        What it has committed itself to.

    Notes
    -----
    Keys are HKDF-SHA256's without salt, of `encoded("cloister secure sum 1", purpose, ...)`: each part after
    its length in 8 bytes, little-endian, numbers and names as text. A mask is ChaCha20's key stream from
    counter 0 under a nonce of zeros, in words of 64 bits, little-endian.

    Examples
    --------
    Test vectors for another implementation, of three tasks:

    >>> from cloister.privacy.trust import SecureSum
    >>> from cloister.secure.primitives import identity
    >>> from cloister.secure.session import Session, ShortMemory, Signer
    >>> signers = [Signer(i, identity=bytes([i]) * 32, secret=bytes([16 + i]) * 32) for i in range(3)]
    >>> session = Session("vectors", "plan", SecureSum(), tuple(identity(s.identity) for s in signers))
    >>> session.setup.hex()
    'b5a59950b09d5930bbcc5dbcb759191cadd5d8a7b0efd65c0d7dfe3b9b82cb77'
    >>> members = [Member(session, signer, ShortMemory()) for signer in signers]
    >>> offers = [member.offer() for member in members]
    >>> offers[0].pair.hex()
    '91b0f048c574f845b11c41d1be6bc8f68842a72cfffd48112a0b5a0723281851'
    >>> for member in members:
    ...     member.join(offers)
    ...     print(member.mask(round=0, head=bytes(32), message=np.array([1, -2])).tolist())
    [4978547792974519297, 14931850672710089639]
    [14528173025261791923, 16796961323415561605]
    [17386767329182792015, 5164676151293451982]
    """

    session: Session
    signer: Signer
    memory: Memory
    keys: bytes = field(default=b"", init=False)
    agreements: dict[int, bytes] = field(default_factory=dict, init=False, repr=False)

    def offer(self) -> Offer:
        """Return the task's keys of this run."""
        setup = self.session.setup
        pair, box = (public_key(self._private(name)) for name in ("pair", "box"))
        return Offer.make(self.signer, setup, pair, box)

    def join(self, offers: Iterable[Offer]) -> None:
        """Take in the keys of all tasks; refuse any that are not signed, and other keys later."""
        listed = list(offers)
        check_offers(self.session, self.session.setup, listed, self.offer(), self.session.tasks)
        keys = offers_digest(self.session.setup, listed)
        once(self.memory, "keys", keys, "Other keys were shown in this run. Nothing is answered any more.")
        others = {offer.place: offer.pair for offer in listed if offer.place != self.signer.place}
        self.agreements = agreed(self._private("pair"), others)
        self.keys = keys

    def mask(self, round: int, head: bytes, message: Integers) -> Words:
        """Return a round's message under masks: the same bytes whenever it is asked for.

        `message` is lifted and has the task's share of noise.
        """
        if not self.agreements:
            raise InputError("A task masks its message when it has everybody's keys. Show them first.")
        commit(self.memory, round, head, message)
        about = self.session.context(round, head, 0), self.keys
        return masked(message, self.signer.place, self.agreements, *about)

    def _private(self, name: str) -> bytes:
        return derived(self.signer.secret, name, self.session.setup)


def masked(message: Integers, place: int, agreements: Mapping[int, bytes], *about: bytes) -> Words:
    """Return a message plus the masks of its pairs: added by the first of two, subtracted by the second."""
    total = np.array(message, dtype=np.int64).view(np.uint64)
    for other, secret in agreements.items():
        first, second = sorted((place, other))
        one = mask(derived(secret, "pair mask", *about, first, second), total.size)
        if place == first:
            total += one
        else:
            total -= one
    return total


def opened(session: Session, rows: Mapping[int, Words]) -> Integers:
    """Return the sum of all tasks' messages; refuse to add fewer."""
    if set(rows) != set(range(session.tasks)):
        missing = sorted(set(range(session.tasks)) - set(rows))
        raise InputError(
            f"A sum opens when all {session.tasks} tasks have answered. Got {len(rows)}: wait for "
            f"{', '.join(map(str, missing[:5]))}."
        )
    total = np.zeros(len(rows[0]), dtype=np.uint64)
    for row in rows.values():
        total += row
    return total.view(np.int64)
