"""An attempt at a sum in bytes: what a curator shows to a task at each step, and what the task says."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cloister.core.arrays import Integers, Words
from cloister.core.errors import InputError
from cloister.privacy.noise_states import NoisySum
from cloister.secure.double_masking import Attempt, Collector, Member, Opening, Step
from cloister.secure.primitives import KEY, TAG
from cloister.secure.session import Offer
from cloister.secure.shamir import SHARE

T = TypeVar("T")
#: Something of each of some tasks, by their places on the roster.
Table = Mapping[int, bytes]
#: Bytes that a signature has at most; that an entry of a table, and a table, have around what they hold.
_SIGNATURE, _ENTRY, _TABLE = 128, 8, 4


def packed(*tables: Table) -> bytes:
    """Return tables as bytes: of each how many entries, of each entry its place, length and bytes.

    Examples
    --------
    >>> unpacked(packed({3: b"three"}, {}), 2)
    [{3: b'three'}, {}]
    """
    parts = []
    for table in tables:
        parts.append(struct.pack("<I", len(table)))
        parts += [struct.pack("<II", place, len(value)) + value for place, value in table.items()]
    return b"".join(parts)


def unpacked(data: bytes, count: int) -> list[dict[int, bytes]]:
    """Read so many tables; refuse bytes that are not `packed`, or name a task twice."""
    tables, at = [], 0
    try:
        for _ in range(count):
            (entries,) = struct.unpack_from("<I", data, at)
            table, at = {}, at + _TABLE
            for _ in range(entries):
                place, size = struct.unpack_from("<II", data, at)
                value, at = data[at + _ENTRY : at + _ENTRY + size], at + _ENTRY + size
                if len(value) != size or place in table:
                    raise ValueError(place)
                table[place] = value
            tables.append(table)
        if at != len(data):
            raise ValueError(at)
    except (struct.error, ValueError):
        raise InputError("These bytes are not of a step of a secure sum.") from None
    return tables


def longest_said(step: Step, tasks: int) -> int:
    """Return how many bytes one of so many tasks says at most in a step that is not its message."""
    match step:
        case Step.SHARES:
            return _TABLE + tasks * (_ENTRY + 2 * SHARE + TAG)
        case Step.OPENING:
            return 2 * _TABLE + tasks * (_ENTRY + SHARE)
    return 4 + 2 * KEY + _SIGNATURE


#: How many tables are shown at each step: keys, sealed shares, survivors, signatures.
_SHOWN = {step: count for count, step in enumerate(Step)}


def said(member: Member, step: Step, shown: bytes, message: Callable[[], Integers]) -> bytes:
    """Return what a task says at a step; refuse whatever a `Member` refuses.

    `message` makes its message of the round: lifted, with its noise, and the same whenever it is called.
    """
    tables = unpacked(shown, _SHOWN[step])
    offers = [Offer.from_bytes(offer) for offer in tables[0].values()] if tables else []
    match step, tables[1:]:
        case Step.KEYS, _:
            return member.offer().to_bytes()
        case Step.SHARES, _:
            return packed(member.share(offers))
        case Step.MESSAGE, [boxes]:
            return member.mask(offers, boxes, message()).astype("<u8").tobytes()
        case Step.SURVIVORS, [boxes, alive]:
            return member.sign(offers, boxes, alive)
        case _, [boxes, alive, signatures]:
            opening = member.open(offers, boxes, alive, signatures)
            return packed(opening.seeds, opening.pairs)
    raise AssertionError(step)


@dataclass
class Exchange:
    """The curator's side of an attempt, step by step.

    Parameters
    ----------
    collector : Collector
        What has come so far.
    size : int
        How many numbers a message has.
    """

    collector: Collector
    size: int

    def asked(self, step: Step) -> list[int]:
        """Return the tasks that are asked at a step."""
        match step:
            case Step.KEYS:
                return list(range(self.collector.attempt.session.tasks))
            case Step.SHARES:
                return [offer.place for offer in self.collector.offers]
            case Step.MESSAGE:
                return list(self.collector.boxes)
        return self.collector.alive

    def shown(self, step: Step, place: int) -> bytes:
        """Return what one task is shown at a step."""
        found = self.collector
        offers = {offer.place: offer.to_bytes() for offer in found.offers}
        alive = dict.fromkeys(found.alive, b"")
        return packed(*(offers, found.boxes.get(place, {}), alive, found.signatures)[: _SHOWN[step]])

    def take(self, step: Step, replies: Table) -> NoisySum | None:
        """Take what tasks have said; pass over what is none of it, and refuse to go on with too few.

        Returns the sum when it is open.
        """
        match step:
            case Step.KEYS:
                offers = _each(replies, Offer.from_bytes)
                self.collector.take_offers(own for place, own in offers.items() if own.place == place)
            case Step.SHARES:
                self.collector.take_shares(_each(replies, lambda data: unpacked(data, 1)[0]))
            case Step.MESSAGE:
                self.collector.take_rows(_each(replies, self._row))
            case Step.SURVIVORS:
                self.collector.take_signatures(replies)
            case Step.OPENING:
                both = _each(replies, lambda data: unpacked(data, 2))
                return self.collector.take_openings(Opening(place, *two) for place, two in both.items())
        return None

    def _row(self, data: bytes) -> Words:
        if len(data) != 8 * self.size:
            raise InputError(f"A message must have {self.size} numbers. Got {len(data)} bytes.")
        return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)

    def to_bytes(self) -> bytes:
        """Return what must not be lost when survivors are asked to open the sum."""
        found = self.collector
        assert found.total is not None
        offers = {offer.place: offer.to_bytes() for offer in found.offers}
        boxes = {place: packed(held) for place, held in found.boxes.items()}
        alive = dict.fromkeys(found.alive, b"")
        return packed(offers, boxes, alive, found.signatures, {0: found.total.astype("<u8").tobytes()})

    @classmethod
    def from_bytes(cls, attempt: Attempt, size: int, data: bytes) -> Exchange:
        """Read what `to_bytes` wrote of an attempt."""
        offers, boxes, alive, signatures, total = unpacked(data, 5)
        found = cls(Collector(attempt, [Offer.from_bytes(own) for own in offers.values()]), size)
        found.collector.boxes = {place: unpacked(held, 1)[0] for place, held in boxes.items()}
        found.collector.alive, found.collector.signatures = list(alive), signatures
        found.collector.total = found._row(total.get(0, b""))
        return found


def _each(replies: Table, read: Callable[[bytes], T]) -> dict[int, T]:
    """Read what each task has said; whose bytes are none of it has said nothing."""
    found = {}
    for place, data in replies.items():
        try:
            found[place] = read(data)
        except InputError:
            continue
    return found
