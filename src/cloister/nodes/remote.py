"""`RemoteNodes`: an engine whose tasks are other parties' nodes: each is asked for one message a round."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from cloister.core.arrays import Integers, States, Words
from cloister.core.channel import Channel
from cloister.core.errors import BillboardError, InputError, PlanError, SignatureError
from cloister.core.roster import Roster
from cloister.engines.workers import AnyTasks, Coins, GridRows, Workers, check_sent, check_whole
from cloister.nodes.messages import (
    Reply,
    ReplyKind,
    Request,
    RequestKind,
    SignedRecord,
    SumStep,
    reply_size,
)
from cloister.nodes.noise_shares import session_of
from cloister.nodes.sum_attempts import PAUSE, SumAttempts
from cloister.plan.plan import Plan
from cloister.privacy.caveats import Caveat
from cloister.privacy.chacha_proposals import Sampler, on_processor
from cloister.privacy.noise_states import NoisySum
from cloister.privacy.randomness import SeededRandomness
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import SavedState
from cloister.store.records import synced_every
from cloister.store.signatures import Operator, SignedHead, SignedRoster

#: Records of at most so many bytes are sent at once, but one always is.
MOST_BYTES = 1 << 23
#: The part of a deadline that silent nodes are waited for as long as others may miss records.
PART = 8


class Transport(Protocol):
    """Carries bytes to the nodes and back: it knows who sent what, and understands nothing of it."""

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterable[tuple[str, bytes]]:
        """Send each named node its request; yield (name, reply) as replies come.

        Parameters
        ----------
        requests : mapping of str to bytes
            What each node is asked, by its task's name on the roster, as text.
        deadline : float
            Seconds from now until which replies are waited for. Then, or when all have replied, it ends.

        The name that is yielded is the one that the transport has authenticated. It may yield garbage, the
        same twice, and names that were not asked: the engine checks everything, and stops when it has all.
        """


@dataclass(frozen=True)
class RemoteNodes:
    """Nodes of other parties, who keep rows, seeds, states and models, and answer over a transport.

    Parameters
    ----------
    transport : Transport
        Carries requests to the nodes, and their replies back.
    operator : Operator
        Signs the roster and every record of the board; gives the run its name.
    deadline : float
        Seconds that every round waits for messages: public, and the same whoever is late.
    codebook : str
        SHA-256 of the codebook by which nodes make rows of tables; empty where plans take rows as they are.
    keys : mapping of str to str, optional
        The public keys of each task's node, by its name: they stand on the signed roster.
    log : callable, optional
        Takes a sentence about every message that does not count. Private: for the operator alone. By default
        a warning of the logger ``cloister.nodes``.
    attempts : path, optional
        The file in which sums that nodes may drop out of are kept as far as they are, for a run with a
        journal: beside that. Without one such a run ends with its process.

    Privacy
    -------
    Every message is checked exactly (whole numbers, their number, their norm on the grid), and lifted and
    summed here; if the plan's `trust` has nodes add the noise, nothing but its length can be checked. One
    that is malformed, of another round or board, from a node that was not asked, given twice and
    differently, or not there in time counts as zero; noise and price stay as they are. Where tasks are
    sampled independently, all are asked in all rounds: nodes draw their own coins, and send zeros if they
    have none. If the plan has a quorum, a round of which fewer messages count is not posted, and those
    that are missing are asked again, until there are enough; masked messages are waited for until all are
    there. The board says of how many each release is. That is public, and bears on no rows as long as no
    node is away because of its rows: whose rows fail sends zeros.

    Examples
    --------
    ``run(plan, Roster(["Elm", "Oak"]), engine=RemoteNodes(transport, Operator.load("exam.key", "exam")))``
    """

    transport: Transport
    operator: Operator
    deadline: float = 60.0
    codebook: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    log: Callable[[str], None] | None = None
    attempts: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.deadline < math.inf:
            raise PlanError(f"deadline must be seconds, above 0 and finite. Got {self.deadline!r}.")

    @property
    def remote(self) -> bool:
        return True

    def doubts_of(self, plan: Plan) -> tuple[Caveat, ...]:
        """None: no two tasks are computed on together."""
        return ()

    def noise_sampler(self) -> Sampler:
        return on_processor

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[Workers]:
        if not isinstance(tasks, Roster):
            raise InputError(
                "RemoteNodes is for tasks whose rows are at their nodes. Pass the Roster of their names."
            )
        check_whole(plan, apart=True)
        _check_plan(plan)
        keys = tuple(self.keys[str(name)] for name in tasks) if self.keys else ()
        if plan.trust.masked and not keys:
            raise InputError("Messages are masked by the keys of all nodes. Got none. Pass keys=.")
        signed = self.operator.sign_roster(plan.fingerprint, tasks, self.codebook, keys)
        log = self.log or logging.getLogger("cloister.nodes").warning
        sums = None
        if plan.trust.stepwise:
            sums = SumAttempts(session_of(plan, signed), plan.fewest, self.attempts, log)
        yield RemoteNodeWorkers(plan, signed, self.transport, self.operator, self.deadline, log, sums)

    def deliver(self, plan: Plan, board: Billboard, roster: Roster) -> None:
        """Send the board of a finished run to its nodes again, for those that were away at its end.

        They make their models from it at home. Nothing is charged, released or sent back.
        """
        plan.check(board)
        if not board.complete:
            raise InputError(
                f"The board holds {board.rounds} of {board.capacity} releases. Finish the run first."
            )
        with self.workers(plan, roster, np.zeros(0, dtype=np.uint64)) as workers:
            workers.finish(board)


@dataclass(eq=False)
class RemoteNodeWorkers:
    """All nodes of a run, on the curator's side: it has their names, the board, and their messages."""

    plan: Plan
    roster: SignedRoster
    transport: Transport
    operator: Operator
    deadline: float
    log: Callable[[str], None]
    sums: SumAttempts | None = None
    #: How many records each node is known to hold; signatures of the board's; who took part in which round.
    held: dict[str, int] = field(default_factory=dict, init=False)
    signatures: list[bytes] = field(default_factory=list, init=False)
    coins: list[Coins] = field(default_factory=list, init=False)
    zeros: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.longest = reply_size(self.plan)
        self.asked = len(self.roster.roster)
        self.places = {str(name): place for place, name in enumerate(self.roster.roster)}

    def start(self, board: Billboard) -> None:
        """Nodes start when they are first asked."""

    def listen(self, board: Billboard, coins: Coins) -> None:
        """Nodes listen when they are next asked: what they missed is sent with the question."""
        self.coins[board.rounds :] = [coins]

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> GridRows | NoisySum:
        """Ask until the plan's quorum has answered; then who is missing counts as zero.

        A sum of masked messages opens when everybody has.
        """
        self.listen(board, coins)
        if self.sums is not None:
            ask = partial(self._said, board)
            return self.sums.opened(board.rounds, board.head, channel.size, ask)
        sampled = [name for name, place in self.places.items() if not len(coins) or coins[place]]
        self.asked, needed, t = len(sampled), self.plan.fewest, board.rounds
        if self.asked < needed:
            raise PlanError(f"Round {t} asks {self.asked} tasks, fewer than the plan's quorum, {needed}.")
        rows: dict[str, Integers] = {}
        twice: set[str] = set()
        while True:
            self._fill(rows, twice, [name for name in sampled if name not in rows], board, channel)
            counted = [name for name in sampled if name in rows and name not in twice]
            missing = sorted(set(sampled) - set(counted))
            if len(counted) >= needed:
                break
            self.log(
                f"Round {t} waits: {len(counted)} of {self.asked} nodes have answered, and {needed} are "
                f"needed. Nothing is posted, and nothing more is charged. Missing: {', '.join(missing)}."
            )
            time.sleep(PAUSE)
        for name in missing:
            self.zeros += 1
            self.log(f"Round {t}: node {name!r} counts as zero.")
        values = np.array([rows[name] for name in counted], dtype=np.int64)
        if self.plan.trust.at_home:
            return NoisySum(values.view(np.uint64).sum(axis=0).view(np.int64), len(counted))
        values = values.reshape(len(counted), self.plan.width(channel))
        return GridRows(values, [self.places[name] for name in counted])

    def _said(self, board: Billboard, steps: Mapping[int, SumStep]) -> dict[int, bytes]:
        """Return what nodes say in a step of a sum before the deadline, by their places."""
        names, found = list(self.places), dict[int, bytes]()
        asked = {names[place]: step for place, step in steps.items()}
        for name, reply in self._replies(RequestKind.ROUND, list(asked), board, asked):
            if reply.kind is ReplyKind.STEP and reply.head == board.head.hex():
                found.setdefault(self.places[name], reply.said)
        return found

    def _fill(
        self,
        rows: dict[str, Integers],
        twice: set[str],
        names: list[str],
        board: Billboard,
        channel: Channel,
    ) -> None:
        """Ask nodes for their messages, until the deadline; note those that count, and who gave two."""
        for name, reply in self._replies(RequestKind.ROUND, names, board):
            row = self._row(name, reply, board, channel)
            if row is not None and not np.array_equal(rows.setdefault(name, row), row):
                twice.add(name)
                self.log(
                    f"Round {board.rounds}: node {name!r} gave two answers to one question; neither counts."
                )

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        """Let nodes make their models from the finished board, at home; nothing returns."""
        if self.sums is not None:
            self.sums.forget()
        names = list(self.places)
        done = {
            name
            for name, reply in self._replies(RequestKind.FINISH, names, board)
            if reply.kind is ReplyKind.DONE
        }
        for name in sorted(set(names) - done):
            self.log(f"Node {name!r} has not said that it has the finished board: deliver it again.")
        return {}

    def rejected(self) -> int:
        return self.zeros

    def save_state(self, folder: Path | None = None) -> SavedState:
        """States stay with the nodes."""
        return SavedState({}, self.zeros)

    def restore_state(self, saved: SavedState) -> None:
        self.zeros = saved.rejected

    def _replies(
        self,
        kind: RequestKind,
        names: list[str],
        board: Billboard,
        steps: Mapping[str, SumStep] = MappingProxyType({}),
    ) -> Iterator[tuple[str, Reply]]:
        """Ask nodes; yield replies to this question that came in time, from nodes that were asked.

        Who misses records is asked again, with them, when the others have replied, in the time that is left.
        As long as somebody may miss some, nobody is waited for longer than a part of it.
        """
        until, waiting = time.monotonic() + self.deadline, set(names)
        while waiting and (left := until - time.monotonic()) > 0:
            requests = {name: self._request(kind, name, board, steps.get(name)) for name in sorted(waiting)}
            open_, behind = set(waiting), set[str]()
            if not all(self._sent_all(name, board) for name in waiting):
                left = min(left, self.deadline / PART)
            pause = time.monotonic() + 0.99 * left
            for name, data in self.transport.ask(requests, left):
                reply = self._read(name, data, waiting, board, late=time.monotonic() > until)
                if reply is None:
                    continue
                if reply.kind is ReplyKind.AHEAD:
                    self._refuse_old_copy(name, reply, board)
                elif reply.kind is ReplyKind.BEHIND and self.held.get(name) != reply.records:
                    self.held[name] = min(reply.records, len(board.records))
                    behind.add(name)
                elif reply.kind is not ReplyKind.REFUSED:
                    self.held[name] = len(board.records)
                    yield name, reply
                open_.discard(name)
                if not open_:
                    break
            waiting = behind if time.monotonic() < pause else behind | open_

    def _sent_all(self, name: str, board: Billboard) -> bool:
        """Say whether a node is known to have all records that its next question does not bring."""
        return name in self.held and self._last(name, board) == len(board.records)

    def _last(self, name: str, board: Billboard) -> int:
        """Return up to which record a node's next question goes: as many as fit, one at least."""
        first, size = self.held.get(name, 0), 0
        for number in range(first, len(board.records)):
            size += len(board.record_bytes(number))
            if number > first and size > MOST_BYTES:
                return number
        return len(board.records)

    def _read(self, name: str, data: bytes, expected: set[str], board: Billboard, late: bool) -> Reply | None:
        """Return a reply to this question; of anything else, tell the operator."""
        where = f"Round {board.rounds}: "
        if name not in expected:
            known = "was not asked" if name in self.places else "is not on the roster"
            self.log(f"{where}a reply came from {name!r}, which {known}; it is passed over.")
            return None
        if late:
            self.log(f"{where}the reply of node {name!r} came after the deadline.")
            return None
        try:
            reply = Reply.from_bytes(data[: self.longest + 1])
        except InputError:
            self.log(f"{where}node {name!r} sent {len(data)} bytes that are no reply.")
            return None
        if reply.kind is ReplyKind.REFUSED:
            self.log(f"{where}node {name!r} refused; its own log says why.")
            return reply
        if (reply.run, reply.round) != (self.roster.run, board.rounds):
            self.log(f"{where}node {name!r} sent a reply to another question.")
            return None
        return reply

    def _refuse_old_copy(self, name: str, reply: Reply, board: Billboard) -> None:
        """Stop if this board is an old copy: a node shows a longer one that this very operator has signed.

        To go on would release messages a second time, with other noise, and fork the board.
        """
        try:
            head, signature = bytes.fromhex(reply.head), bytes.fromhex(reply.signature)
            signed = SignedHead(self.roster.run, self.roster.fingerprint, reply.records, head, signature)
            signed.verify(self.operator.public)
        except (ValueError, SignatureError):
            self.log(f"Round {board.rounds}: node {name!r} says it is ahead, and cannot prove it.")
            return
        if reply.records > len(board.records):
            raise BillboardError(
                f"Node {name!r} holds {reply.records} records of this board, signed by this operator, and "
                f"here are {len(board.records)}: this is an old copy. Go on from the newest one; a run that "
                "has lost it has ended, and another needs a name and a charge of its own."
            )

    def _row(self, name: str, reply: Reply, board: Billboard, channel: Channel) -> Integers | None:
        """Return the message of a reply if it is one that the channel allows, made for this board."""
        where = f"Round {board.rounds}: the message of node {name!r}"
        if reply.row is None or reply.head != board.head.hex():
            self.log(f"{where} is for another board.")
            return None
        if self.plan.trust.at_home:  # nobody can check what is under noise and masks, but how long it is
            if reply.row.shape == (channel.size,):
                return reply.row
            self.log(f"{where} is not allowed. It must have {channel.size} numbers. Got {reply.row.size}.")
            return None
        try:
            check_sent(self.plan, channel, reply.row[None])
        except InputError as error:
            self.log(f"{where} is not allowed. {error}")
            return None
        return reply.row

    def _request(self, kind: RequestKind, name: str, board: Billboard, step: SumStep | None = None) -> bytes:
        """Return a question, with the records that a node may not have, as far as they fit."""
        first = self.held.get(name, 0)
        records = [
            SignedRecord(board.record_bytes(number), self._signature(board, number))
            for number in range(first, self._last(name, board))
        ]
        coins = None
        if self.coins and not self.plan.sampling.independent:
            place = self.places[name]
            coins = "".join("1" if row[place] else "0" for row in self.coins)
        roster = self.roster if first == 0 else None
        run, t = self.roster.run, board.rounds
        sent = Request(kind, run, t, first, tuple(records), roster, coins, self.asked, step)
        return sent.to_bytes()

    def _signature(self, board: Billboard, number: int) -> bytes:
        for at in range(len(self.signatures), number + 1):
            head = self.operator.sign_head(self.roster.fingerprint, at + 1, board.records[at].hash)
            self.signatures.append(head.signature)
        return self.signatures[number]


def _check_plan(plan: Plan) -> None:
    """Refuse plans that cannot be asked for as they are priced, before anything is charged."""
    many = len(plan.rounds)
    smallest = plan.n_tasks if plan.sampling.independent else plan.sampling.denominator(plan.n_tasks, many)
    if many and (plan.quorum or 0) > smallest:
        raise PlanError(
            f"quorum must be at most what a round asks, {math.floor(smallest)} of {plan.n_tasks} tasks. Got "
            f"{plan.quorum}."
        )
    if plan.sampling.hidden and not plan.sampling.independent:
        raise PlanError("Sampling that is hidden must be drawn at the nodes, each its own coin. Use Poisson.")
    rounds = len(plan.rounds)
    if synced_every(rounds) > 1 and plan.mechanism.begin(plan.schedule, SeededRandomness(0)).rows:
        raise PlanError(
            f"Noise that is correlated over rounds is for at most 1000 rounds between nodes. Got {rounds}: "
            "sums of old rounds would have to be asked for again. Use fewer rounds, or Gaussian()."
        )
