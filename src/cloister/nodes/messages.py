"""What a curator asks a node and what it answers, as bytes: a JSON head and raw parts, and nothing else.

A frame is the length of its head (8 bytes, little-endian), the head, and the rest. Nothing in it can name
code, and nothing is taken from it before its size was checked. A reply that holds no message has the same
size whatever it says, and a refusal always the same bytes: why is for the node's own log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from cloister.core.arrays import Integers
from cloister.core.errors import InputError
from cloister.plan.plan import Plan
from cloister.secure.double_masking import Step
from cloister.secure.exchange import longest_said
from cloister.store.signatures import SIGNATURE, SignedRoster, check_run_name

#: No head is longer; one that claims to be is not read.
LONGEST_HEAD = 1 << 20
#: The size of every reply without a message; and what a message has around its numbers, at most.
SHORT, AROUND = 512, 1024


class RequestKind(StrEnum):
    """What a request is for. The words stand in frames."""

    ROUND = "round"  # its message of a round
    FINISH = "finish"  # to make its model from the finished board; nothing returns


class ReplyKind(StrEnum):
    """What a reply is. The words stand in frames."""

    MESSAGE = "message"  # one bounded row of whole numbers
    STEP = "step"  # what it says in a step of a secure sum
    DONE = "done"  # received, and there is nothing to send
    BEHIND = "behind"  # records are missing before those that were sent
    AHEAD = "ahead"  # the board is further here, as the operator's signature proves
    REFUSED = "refused"


@dataclass(frozen=True)
class SignedRecord:
    """A record of the board as it stands in a file, and the operator's signature under the head it makes."""

    record: bytes
    signature: bytes


@dataclass(frozen=True)
class SumStep:
    """What a node is asked in a sum that nodes may drop out of.

    Attributes
    ----------
    attempt : int
        Which attempt at the round's sum, from 0.
    step : Step
        Which step of it.
    shown : bytes
        What others have said before, as `cloister.secure.exchange` packs it.
    """

    attempt: int
    step: Step
    shown: bytes = b""


@dataclass(frozen=True)
class Request:
    """One question to one node.

    Attributes
    ----------
    kind : RequestKind
        What for.
    run : str
        The run's name.
    round : int
        Which round, from 0; the number of releases that the board has.
    first : int
        The number of the first record that is sent.
    records : tuple of SignedRecord
        Records that the node may not have: up to the last one of the board, or as many as fit.
    roster : SignedRoster, optional
        Sent with the first record.
    coins : str, optional
        In which rounds up to this one the node takes part, "0" or "1" each, where the curator draws it; None
        where nodes draw their own.
    asked : int
        How many nodes are asked in this round.
    step : SumStep, optional
        In a sum that nodes may drop out of.
    """

    kind: RequestKind
    run: str
    round: int
    first: int = 0
    records: tuple[SignedRecord, ...] = ()
    roster: SignedRoster | None = None
    coins: str | None = None
    asked: int = 0
    step: SumStep | None = None

    def to_bytes(self) -> bytes:
        roster = b"" if self.roster is None else self.roster.to_bytes()
        head = {
            "format": "cloister request 1",
            "ask": str(self.kind),
            "run": self.run,
            "round": self.round,
            "first": self.first,
            "records": [len(sent.record) for sent in self.records],
            "roster": len(roster),
            "coins": self.coins,
            "asked": self.asked,
        }
        parts = [roster, *(sent.record + sent.signature for sent in self.records)]
        if self.step is not None:  # nodes of earlier versions refuse a frame with more in it
            head["step"] = [self.step.attempt, str(self.step.step), len(self.step.shown)]
            parts.append(self.step.shown)
        return _frame(head, *parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        """Read a request; refuse bytes that are none."""
        try:
            head, at = _head(data, "cloister request 1")
            sizes, roster = [_count(size) for size in head["records"]], _count(head["roster"])
            attempt, step, shown = head.get("step") or (0, None, 0)
            if at + roster + sum(sizes) + SIGNATURE * len(sizes) + _count(shown) != len(data):
                raise ValueError(len(data))
            signed = SignedRoster.from_bytes(data[at : at + roster]) if roster else None
            at, records = at + roster, []
            for size in sizes:
                middle, end = at + size, at + size + SIGNATURE
                records.append(SignedRecord(data[at:middle], data[middle:end]))
                at = end
            coins = head["coins"]
            if coins is not None and set(coins) - {"0", "1"}:
                raise ValueError(coins)
            kind, run = RequestKind(head["ask"]), check_run_name(head["run"])
            numbers = _count(head["round"]), _count(head["first"])
            asked = _count(head.get("asked", 0))
            ask = None if step is None else SumStep(_count(attempt), Step(step), data[at:])
            return cls(kind, run, *numbers, tuple(records), signed, coins, asked, ask)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError("These bytes are no request of a curator.") from None


@dataclass(frozen=True, eq=False, repr=False)
class Reply:
    """One answer of one node.

    Attributes
    ----------
    kind : ReplyKind
        What it is.
    run : str
        The run's name.
    round : int
        Which round the message is for.
    head : str
        The head of the board that it was made for, in hexadecimal digits.
    records : int
        How many records the node holds.
    row : int64 array, optional
        The message, on the channel's grid. Private.
    signature : str
        The operator's, under the head and the number of records, where the node is ahead of the question.
    said : bytes
        What the node says in a step of a secure sum.
    """

    kind: ReplyKind
    run: str
    round: int
    head: str
    records: int
    row: Integers | None = None
    signature: str = ""
    said: bytes = b""

    def __repr__(self) -> str:
        return f"Reply({self.kind}, private)"

    def to_bytes(self) -> bytes:
        head = {
            "format": "cloister reply 1",
            "say": str(self.kind),
            "run": self.run,
            "round": self.round,
            "head": self.head,
            "records": self.records,
            "signature": self.signature,
        }
        if self.kind is ReplyKind.STEP:
            return _frame(head, self.said)
        if self.row is None:
            return _padded(head)
        return _frame(head, np.ascontiguousarray(self.row, dtype="<i8").tobytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Reply:
        """Read a reply; refuse bytes that are none. What it may say, the curator checks."""
        try:
            head, at = _head(data, "cloister reply 1")
            kind = ReplyKind(head["say"])
            row, said = None, data[at:] if kind is ReplyKind.STEP else b""
            if kind is ReplyKind.MESSAGE:
                row = np.frombuffer(data[at:], dtype="<i8").astype(np.int64, copy=False)
            elif kind is not ReplyKind.STEP and len(data) != SHORT:
                raise ValueError(len(data))
            numbers = _count(head["round"]), str(head["head"]), _count(head["records"])
            return cls(kind, str(head["run"]), *numbers, row, str(head["signature"]), said)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError("These bytes are no reply of a node.") from None


def reply_size(plan: Plan) -> int:
    """Return the bytes of a plan's longest reply, at most."""
    longest = 8 * plan.longest_message
    return max(longest, longest_said(Step.SHARES, plan.n_tasks) if plan.trust.stepwise else 0) + AROUND


def reply_room(request: bytes, longest: int) -> int:
    """Return the bytes that a reply to this question has room for: public, and the same whatever it says.

    That is the plan's longest reply, but in a step of a secure sum in which no message is sent.
    """
    head, _ = _head(request, "cloister request 1")
    step = Step(head["step"][1]) if "step" in head else Step.MESSAGE
    return longest if step is Step.MESSAGE else longest_said(step, _count(head["asked"])) + AROUND


def _frame(head: Mapping[str, Any], *parts: bytes) -> bytes:
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _padded(head: Mapping[str, Any]) -> bytes:
    """Return a frame without parts, of a size that does not depend on what it says."""
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode().ljust(SHORT - 8)
    assert len(text) == SHORT - 8
    return len(text).to_bytes(8, "little") + text


def _head(data: bytes, form: str) -> tuple[dict[str, Any], int]:
    """Return the head of a frame, and where it ends."""
    end = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or end > min(len(data), LONGEST_HEAD):
        raise ValueError(end)
    head = json.loads(data[8:end])
    if head["format"] != form:
        raise ValueError(head["format"])
    return head, end


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(value)
    return value


#: What a node says when it says nothing: the same bytes always.
REFUSAL = Reply(ReplyKind.REFUSED, "", 0, "", 0).to_bytes()
