"""Bounds on what others can make a process of ours do: lines of a log, requests a second, connections.

Python's servers hand a connection on when its TLS is agreed on, which takes as long as the other side likes.
`Listener` counts connections when they are accepted, and ends those that ask for nothing soon.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

Address = tuple[str, int]


#: So many kinds of sentences are remembered.
_KINDS = 1000


class SparseLog:
    """Says the first sentence of each kind at once, then one a minute at most, with how many there were.

    Parameters
    ----------
    tell : callable
        Takes a sentence.
    every : float
        Seconds between two sentences of one kind, at least.

    Examples
    --------
    >>> log = SparseLog(print, every=60.0)
    >>> for now in (0.0, 1.0, 2.0, 70.0):
    ...     log.note("A request bore no key of a registered node.", now)
    A request bore no key of a registered node.
    A request bore no key of a registered node. (2 more of this kind came since it was last said.)
    """

    def __init__(self, tell: Callable[[str], None], every: float = 60.0) -> None:
        self.tell, self.every = tell, every
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def note(self, kind: str, now: float | None = None) -> None:
        """Count an event. Of kinds there should be few: they are remembered."""
        now = time.monotonic() if now is None else now
        if len(self._said) > _KINDS:
            self._said.clear()
            self._unsaid.clear()
        if now - self._said.get(kind, -self.every) < self.every:
            self._unsaid[kind] += 1
            return
        more, self._said[kind] = self._unsaid.pop(kind, 0), now
        self.tell(f"{kind} ({more} more of this kind came since it was last said.)" if more else kind)


#: So many senders are remembered before those that have been quiet are forgotten.
_SENDERS = 10_000


class Rate:
    """At most so many requests a second from each sender, and a burst of some more.

    Examples
    --------
    >>> rate = Rate(2.0, burst=4)
    >>> [rate.allows("192.0.2.1", now=0.0) for _ in range(5)]
    [True, True, True, True, False]
    >>> rate.allows("203.0.113.9", now=0.0), rate.allows("192.0.2.1", now=1.0)
    (True, True)
    """

    def __init__(self, a_second: float, burst: float) -> None:
        self.a_second, self.burst = a_second, burst
        self._left: dict[str, tuple[float, float]] = {}

    def allows(self, sender: str, now: float) -> bool:
        if len(self._left) >= _SENDERS and sender not in self._left:  # who is full again is as if forgotten
            full = self.burst / self.a_second
            self._left = {who: kept for who, kept in self._left.items() if now - kept[1] < full}
        left, then = self._left.get(sender, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.a_second)
        self._left[sender] = (left - 1 if left >= 1 else left, now)
        return left >= 1


class Connection(socket.socket):
    """A connection that was accepted; it is ended when its time is over, which requests put off."""

    address: Address
    #: When it is ended, by the clock that only goes forward; and whether its sender is known.
    until: float
    known = False
    asked = False
    gone: Callable[[Connection], None]

    def cut(self) -> None:
        """End it; its transport notices."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.gone(self)
        super().close()


class Listener(socket.socket):
    """A listening socket that counts connections when it accepts them.

    An address, and all together, have so many. When there is no room, the connection of that address that has
    waited longest without a known sender is ended for the new one; if all senders are known, the new one is.
    So who asks for nothing shuts nobody out, and who is known is never sent away.

    Parameters
    ----------
    host, port : str, int
        Where to listen.
    each, most : int
        Connections at a time from one address, and in all.
    patience : float
        Seconds from the beginning of a connection in which a known sender must have asked for something.
    log : SparseLog
        Tells the operator of those who are sent away.
    """

    def __init__(
        self, host: str, port: int, *, each: int, most: int, patience: float, log: SparseLog
    ) -> None:
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((host, port))
        self.each, self.most, self.patience, self.log = each, most, patience, log
        self._held: dict[Address, Connection] = {}  # in the order in which they came
        self._count: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        raw, where = super().accept()
        made = Connection(raw.family, raw.type, raw.proto, fileno=raw.detach())
        made.address, made.gone = where[:2], self._forget
        made.until = time.monotonic() + self.patience
        self._held[made.address] = made
        self._count[made.address[0]] += 1
        if not self._has_room(made):
            made.close()
            raise ConnectionAbortedError
        return made, where

    def _has_room(self, new: Connection) -> bool:
        host, crowded = new.address[0], ""
        if self._count[host] > self.each:
            crowded = f"One address had more than {self.each} connections"
            waiting = (c for c in self._held.values() if not c.known and c.address[0] == host)
        elif len(self._held) > self.most:
            crowded = f"More than {self.most} connections were open in all"
            waiting = (c for c in self._held.values() if not c.known)
        else:
            return True
        self.log.note(f"{crowded}: the one that had asked for nothing for longest was ended.")
        oldest = next(waiting, new)
        if oldest is new:
            return False
        self._forget(oldest)
        oldest.cut()
        return True

    def _forget(self, connection: Connection) -> None:
        """Note that a connection is gone; of one that is forgotten already, nothing."""
        if self._held.get(connection.address) is not connection:
            return
        del self._held[connection.address]
        self._count[connection.address[0]] -= 1
        if not self._count[connection.address[0]]:
            del self._count[connection.address[0]]
        if not connection.asked:
            self.log.note(
                "A connection asked for nothing: TLS could not be agreed on, or it was slow, or left."
            )

    def asks(self, where: Address, known: bool) -> None:
        """Note that a request came; a known sender's connection is kept until `over`."""
        if (found := self._held.get(where)) is not None:
            found.asked = True
            if known:
                found.known, found.until = True, float("inf")

    def over(self, where: Address, idle: float) -> None:
        """Note that a request of a known sender was answered: the next must come within so many seconds."""
        if (found := self._held.get(where)) is not None and found.known:
            found.until = time.monotonic() + idle

    def sweep(self) -> None:
        """End the connections whose time is over."""
        now = time.monotonic()
        for connection in [each for each in self._held.values() if each.until < now]:
            connection.cut()
