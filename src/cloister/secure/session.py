"""What everybody in a run agrees on, keys that tasks offer for it, and what a task remembers for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cloister.core.arrays import Integers
from cloister.core.errors import InputError, SignatureError
from cloister.privacy.trust import SecureSum
from cloister.secure.primitives import KEY, check_signature, digest, encoded, identity, signed


@dataclass(frozen=True)
class Session:
    """The public frame of a run's sums: whoever has another one has other masks, and nothing opens.

    Parameters
    ----------
    run, plan : str
        The run's name, and the plan's fingerprint.
    trust : SecureSum
        How many tasks may drop out, and collude.
    identities : tuple of bytes
        The key of each task by which its signatures are checked, in the order of the roster.
    verify : callable
        Refuses a signature: takes key, signature, statement, and what to call it. By default of Ed25519.
    """

    run: str
    plan: str
    trust: SecureSum
    identities: tuple[bytes, ...]
    verify: Callable[[bytes, bytes, bytes, str], None] = field(
        default=check_signature, compare=False, repr=False
    )

    @property
    def tasks(self) -> int:
        return len(self.identities)

    @property
    def fewest(self) -> int:
        """How many tasks must be in a sum."""
        return self.trust.fewest(self.tasks)

    @property
    def threshold(self) -> int:
        """How many must help to open it."""
        return self.trust.threshold(self.tasks)

    @property
    def roster(self) -> bytes:
        return digest("roster", *self.identities)

    def context(self, round: int, head: bytes, attempt: int) -> bytes:
        """Return a hash of all that one attempt at one round's sum is about."""
        trust = self.trust.dropouts, self.trust.colluders
        return digest("attempt", self.run, self.plan, self.roster, *trust, round, head, attempt)

    def check_signed(self, place: int, signature: bytes, statement: bytes, what: str) -> None:
        """Refuse what the task of this place has not signed."""
        if not 0 <= place < self.tasks:
            raise InputError(f"A task must be one of {self.tasks} on the roster. Got place {place}.")
        self.verify(self.identities[place], signature, statement, what)

    @property
    def setup(self) -> bytes:
        """The context of keys that serve a whole run."""
        return self.context(-1, b"", 0)


@dataclass(frozen=True)
class Signer:
    """A task's own secrets: the key it signs with, and one of this run that all others follow from."""

    place: int
    identity: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    signing: Callable[[bytes, bytes], bytes] = field(default=signed, repr=False)

    def sign(self, *statement: bytes | str | int) -> bytes:
        return self.signing(self.identity, encoded(*statement))

    @property
    def public(self) -> bytes:
        return identity(self.identity)


@dataclass(frozen=True)
class Offer:
    """Public keys that a task offers for a context, signed; signatures of the same keys may differ.

    Attributes
    ----------
    place : int
        Its position on the roster.
    pair : bytes
        X25519: what pairs of tasks make their masks of.
    box : bytes
        X25519: what shares are sealed with.
    signature : bytes
        By the task's key on the roster.
    """

    place: int
    pair: bytes
    box: bytes
    signature: bytes = field(compare=False)

    @classmethod
    def make(cls, signer: Signer, context: bytes, pair: bytes, box: bytes) -> Offer:
        return cls(signer.place, pair, box, signer.sign("offer", context, signer.place, pair, box))

    def check(self, session: Session, context: bytes) -> None:
        """Refuse keys that the task of this place has not signed for this context."""
        if not 0 <= self.place < session.tasks or {len(self.pair), len(self.box)} != {KEY}:
            raise InputError("Keys must be those of a task on the roster, 32 bytes each.")
        statement = encoded("offer", context, self.place, self.pair, self.box)
        session.check_signed(self.place, self.signature, statement, f"Task {self.place}'s key")

    @property
    def keys(self) -> bytes:
        """Whose they are, and both keys."""
        return self.place.to_bytes(4, "little") + self.pair + self.box

    def to_bytes(self) -> bytes:
        return self.keys + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Offer:
        """Read what `to_bytes` wrote; whose it is, `check` says."""
        if len(data) <= 4 + 2 * KEY:
            raise InputError("These bytes are no keys of a task.")
        place, pair, box = data[:4], data[4 : 4 + KEY], data[4 + KEY : 4 + 2 * KEY]
        return cls(int.from_bytes(place, "little"), pair, box, data[4 + 2 * KEY :])


def check_offers(session: Session, context: bytes, offers: Iterable[Offer], own: Offer, least: int) -> None:
    """Refuse keys that are not those of different tasks, signed, one's own among them."""
    listed = sorted(offers, key=lambda offer: offer.place)
    if own not in listed:
        raise SignatureError("The keys that are shown do not have this task's own. Nothing is answered.")
    if len({offer.place for offer in listed}) < len(listed) or len(listed) < least:
        raise InputError(f"Keys must be of {least} different tasks or more. Got {len(listed)}.")
    keys = [key for offer in listed for key in (offer.pair, offer.box)]
    if len(set(keys)) < len(keys):
        raise InputError("Two of the keys that are shown are the same. Nothing is answered.")
    for offer in listed:
        if offer != own:
            offer.check(session, context)


def offers_digest(context: bytes, offers: Iterable[Offer]) -> bytes:
    """Return a hash of all keys that are shown in a context."""
    return digest("keys", context, *sorted(offer.keys for offer in offers))


class Memory(Protocol):
    """What a task has committed itself to; what is written is on disk when `write` returns."""

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name."""

    def write(self, name: str, value: bytes) -> None:
        """Keep it."""


@dataclass
class ShortMemory:
    """A memory that ends with its process: for tests, and for tasks of one machine."""

    values: dict[str, bytes] = field(default_factory=dict, repr=False)

    def read(self, name: str) -> bytes | None:
        return self.values.get(name)

    def write(self, name: str, value: bytes) -> None:
        self.values[name] = value


def once(memory: Memory, name: str, value: bytes, refusal: str) -> None:
    """Commit to a value; refuse another one than was committed to."""
    known = memory.read(name)
    if known is None:
        memory.write(name, value)
    elif known != value:
        raise InputError(refusal)


def commit(memory: Memory, round: int, head: bytes, message: Integers) -> None:
    """Commit to a round's board and message, noise included; refuse a second one of either.

    Two openings of one round would differ by what one task said, or average its noise out.
    """
    once(memory, f"{round} head", head, f"Round {round} was answered on another board.")
    told = digest("message", np.ascontiguousarray(message, dtype="<i8").tobytes())
    once(memory, f"{round} message", told, f"Another message was sent in round {round}.")
