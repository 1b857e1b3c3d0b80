"""What the proxy reports to its operator of those whom it turns away: few sentences, however many come."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

__all__ = ["Refusals", "telling_handshakes"]


class Refusals:
    """Says the first refusal of each kind at once, then one sentence a minute at most, with their number.

    Addresses and what was sent are not said: neither is needed to see that somebody tries.

    Parameters
    ----------
    tell : callable
        Takes a sentence. For the operator alone.
    every : float
        Seconds between two sentences of one kind, at least.

    Examples
    --------
    >>> refusals = Refusals(print, every=60.0)
    >>> for now in (0.0, 1.0, 2.0, 70.0):
    ...     refusals.note("A request bore no key of a registered node.", now)
    A request bore no key of a registered node.
    A request bore no key of a registered node. (2 more of this kind came since it was last said.)
    """

    def __init__(self, tell: Callable[[str], None], every: float = 60.0) -> None:
        self.tell, self.every = tell, every
        self._said: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def note(self, kind: str, now: float | None = None) -> None:
        """Count a refusal. Of kinds there must be few: they are remembered."""
        now = time.monotonic() if now is None else now
        if now - self._said.get(kind, -self.every) < self.every:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return
        more, self._said[kind] = self._unsaid.pop(kind, 0), now
        self.tell(f"{kind} ({more} more of this kind came since it was last said.)" if more else kind)


def telling_handshakes(refusals: Refusals) -> type[ssl.SSLObject]:
    """Return what an `ssl.SSLContext` makes of connections: one whose TLS fails is counted."""

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):  # more is to come
                raise
            except ssl.SSLError:
                refusals.note(
                    "TLS could not be agreed on: somebody does not believe our certificate, or speaks no TLS."
                )
                raise

    return Handshake
