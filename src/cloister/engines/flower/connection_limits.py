"""Limits on the proxy's connections: so many from one address, and each must send a request soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from cloister.engines.flower.refusals import Refusals

__all__ = ["connections"]


def connections(most: int, patience: float, refusals: Refusals) -> type[asyncio.Protocol]:
    """Return the protocol of connections to uvicorn that strangers cannot hold open.

    TLS is agreed on before a connection comes here, for which asyncio gives it a minute.

    Parameters
    ----------
    most : int
        Connections at a time from one address; more are closed at once.
    patience : float
        Seconds from a connection's beginning, or from a request's first byte, until the head of a request is
        there.
    refusals : Refusals
        Tells the operator of those who are sent away.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    held: Counter[str] = Counter()

    class Connection(H11Protocol):  # type: ignore[misc, unused-ignore]
        _address = ""
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            held[self._address] += 1
            if held[self._address] > most:
                refusals.note(f"An address had more than {most} connections.")
                transport.abort()
            else:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            held[self._address] -= 1
            if not held[self._address]:
                del held[self._address]
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            if self._timer is None and (before is None or before.response_complete):
                self._wait()
            super().data_received(data)
            if self.cycle is not before:
                self._stop()

        def handle_events(self) -> None:
            room, before = self.limit_concurrency, self.cycle
            full = room is not None and max(len(self.connections), len(self.tasks)) >= room
            super().handle_events()
            if full and self.cycle is not before:  # answered with 503; uvicorn says so in a warning alone
                refusals.note(f"A request came while {room} connections were open in all.")

        def send_400_response(self, msg: str) -> None:
            refusals.note("Bytes came that are no request of HTTP.")
            super().send_400_response(msg)

        def _wait(self) -> None:
            self._timer = self.loop.call_later(patience, self._leave)

        def _leave(self) -> None:
            refusals.note(f"A connection asked for nothing within {patience:g} seconds.")
            self.transport.abort()

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Connection
