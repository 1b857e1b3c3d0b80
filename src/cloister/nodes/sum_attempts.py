"""The curator's side of sums that nodes may drop out of: a round's sum, in as many attempts as it takes.

What must not be lost is on disk before it is needed. The number of an attempt is before its first question: a
node answers none that is over. All that opens a sum is before anybody is asked to hand out a share: from
then on no other attempt can open one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloister.core.errors import InputError
from cloister.nodes.messages import SumStep
from cloister.privacy.noise_states import NoisySum
from cloister.secure.double_masking import Attempt, Collector, Step
from cloister.secure.exchange import Exchange
from cloister.secure.session import Session
from cloister.store.files import write_private

#: Seconds until nodes are asked again, after too few have answered.
PAUSE = 1.0
_FORMAT = "cloister attempt 1"
#: Asks tasks by their places, and returns what those say that answer before the deadline.
Ask = Callable[[Mapping[int, SumStep]], Mapping[int, bytes]]


@dataclass
class SumAttempts:
    """Attempts at the sums of a run.

    Parameters
    ----------
    session : Session
        Public.
    fewest : int
        How many messages a sum must have.
    path : Path, optional
        The file for what must not be lost; without one a run ends with its process.
    log : callable
        Takes a sentence about what was waited for. For the operator alone.
    """

    session: Session
    fewest: int
    path: Path | None
    log: Callable[[str], None]
    _state: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self._state = self.path.read_bytes()

    def opened(self, round: int, head: bytes, size: int, ask: Ask) -> NoisySum:
        """Return the sum of a round's messages of so many numbers; wait until there are enough."""
        number, exchange = self._kept(Attempt(self.session, round, head, 0), size)
        while exchange is None:
            attempt = Attempt(self.session, round, head, number)
            try:
                exchange = self._closed(attempt, size, ask)
            except InputError as error:
                self.log(f"Round {round}, attempt {number}: {error} Nothing was opened; it is tried again.")
                number += 1
                time.sleep(PAUSE)
        total = self._step(exchange, Step.OPENING, ask)
        assert total is not None
        return total

    def forget(self) -> None:
        """Remove the file: the run is over."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _closed(self, attempt: Attempt, size: int, ask: Ask) -> Exchange:
        """Return an attempt as far as it goes before a share is handed out."""
        self._keep(attempt)
        exchange = Exchange(Collector(attempt), size)
        for step in (Step.KEYS, Step.SHARES, Step.MESSAGE):
            self._step(exchange, step, ask)
        attempt.check_size(exchange.collector.alive, self.fewest, "Messages")
        self._step(exchange, Step.SURVIVORS, ask)
        self._keep(attempt, exchange.to_bytes())
        return exchange

    def _step(self, exchange: Exchange, step: Step, ask: Ask) -> NoisySum | None:
        """Ask for a step until there are enough: at its ends an attempt waits, between them it fails."""
        told: dict[int, bytes] = {}
        number, asked = exchange.collector.attempt.number, exchange.asked(step)
        while True:
            missing = [place for place in asked if place not in told]
            told |= ask({at: SumStep(number, step, exchange.shown(step, at)) for at in missing})
            try:
                return exchange.take(step, told)
            except InputError as error:
                if step not in (Step.KEYS, Step.OPENING) or set(told) >= set(asked):
                    raise
                self.log(f"Round {exchange.collector.attempt.round} waits at its {step}: {error}")
                time.sleep(PAUSE)

    def _about(self, attempt: Attempt) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "run": self.session.run,
            "roster": self.session.roster.hex(),
            "round": attempt.round,
            "head": attempt.head.hex(),
        }

    def _keep(self, attempt: Attempt, data: bytes = b"") -> None:
        text = json.dumps({**self._about(attempt), "number": attempt.number}).encode()
        self._state = text + b"\n" + data
        if self.path is not None:
            write_private(self.path, self._state)

    def _kept(self, first: Attempt, size: int) -> tuple[int, Exchange | None]:
        """Return the number of the next attempt at a sum, or the attempt that opens it."""
        text, _, data = self._state.partition(b"\n")
        try:
            about = json.loads(text or b"{}")
            number = about.pop("number", -1)
            if about and (about["format"] != _FORMAT or type(number) is not int):
                raise ValueError(number)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{self.path} was not written here. Restore it from a copy.") from None
        if about != self._about(first):
            return 0, None
        attempt = Attempt(self.session, first.round, first.head, number)
        return number + 1, Exchange.from_bytes(attempt, size, data) if data else None
