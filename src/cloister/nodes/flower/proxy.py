"""The proxy before Flower's link: lets registered nodes through, to the calls that a node needs.

Flower serves nodes, the operator and its executor on one port. This proxy stands before it with a
certificate of its own; the link listens on this machine alone. It is started by
``python -m cloister.nodes.flower.proxy FOLDER``. Connections are limited: so many from one address, and each
must send a request soon. Of those whom it turns away it reports few sentences to its operator, however many
come.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cloister.core.errors import MissingExtraError
from cloister.nodes.flower.deployment import Deployment


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


def logged_handshakes(refusals: Refusals) -> type[ssl.SSLObject]:
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


#: What a node needs. Registering is the operator's, and apps are not handed out: nodes run none.
CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    )
)
#: Seconds in which a request must have come in, and its answer; and in which its head must.
_PATIENCE, _HEAD = 30.0, 10.0
#: Connections at a time from one address, behind which several nodes may be; and in all.
_CONNECTIONS, _ALL = 200, 1000
#: So many senders are remembered before those that have been quiet are forgotten.
_SENDERS = 10_000


class Rate:
    """At most so many requests a second from each sender, and two seconds' worth at once.

    A sender is a key together with an address: keys are public, and who bears another's uses up its own.

    Examples
    --------
    >>> rate = Rate(2.0)
    >>> elm, stranger = ("elm's key", "192.0.2.1"), ("elm's key", "203.0.113.9")
    >>> [rate.allows(stranger, now=0.0) for _ in range(5)]
    [True, True, True, True, False]
    >>> rate.allows(elm, now=0.0), rate.allows(stranger, now=1.0)
    (True, True)
    """

    def __init__(self, a_second: float) -> None:
        self.a_second, self.burst = a_second, 2 * a_second
        self._left: dict[tuple[str, str], tuple[float, float]] = {}

    def allows(self, sender: tuple[str, str], now: float) -> bool:
        if len(self._left) >= _SENDERS and sender not in self._left:  # two seconds on, all is as if forgotten
            self._left = {who: kept for who, kept in self._left.items() if now - kept[1] < 2.0}
        left, then = self._left.get(sender, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.a_second)
        self._left[sender] = (left - 1 if left >= 1 else left, now)
        return left >= 1


def proxy(
    link: str,
    certificate: Path,
    keys: Mapping[str, str],
    largest: int,
    rate: float,
    refusals: Refusals,
    transport: Any = None,
) -> Any:
    """Return the proxy as an ASGI application.

    Parameters
    ----------
    link : str
        Address of Flower's link, ``https://127.0.0.1:port``.
    certificate : Path
        The authority that has signed the link's certificate.
    keys : mapping of str to str
        Public keys of the nodes that are registered, by their names.
    largest : int
        Bytes of the largest request.
    rate : float
        Requests a second from one node's key at one address.
    refusals : Refusals
        Tells the operator what is not passed on, or not taken by the link.
    transport : httpx.AsyncBaseTransport, optional
        In place of a connection to the link, for tests.
    """
    import httpx
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    known = {_flat(key): name for name, key in keys.items()}
    allowed = Rate(rate)
    context = ssl.create_default_context(cafile=str(certificate))
    client = httpx.AsyncClient(base_url=link, verify=context, timeout=_PATIENCE, transport=transport)

    def refuse(status: int, kind: str) -> Any:
        refusals.note(kind)
        return Response(status_code=status)

    async def forward(request: Any) -> Any:
        sender = _sender(request.headers)
        if sender not in known:
            return refuse(403, "A request bore no key of a registered node.")
        bears = f"A request with the key of node {known[sender]!r}"
        if request.url.path not in CALLS:
            return refuse(403, f"{bears} asked for what no node needs.")
        address = request.client.host if request.client else ""
        if not allowed.allows((sender, address), time.monotonic()):
            return refuse(429, f"{bears} came after too many others from its address.")
        try:
            async with asyncio.timeout(_PATIENCE):
                data = await _read(request, largest)
        except TimeoutError:
            return refuse(408, f"{bears} did not end in time.")
        if data is None:
            return refuse(413, f"{bears} was larger than {largest} bytes.")
        headers = {k: v for k, v in request.headers.items() if k == "content-type" or k.startswith("flwr-")}
        try:
            answer = await client.post(request.url.path, content=data, headers=headers)
        except httpx.HTTPError:
            return refuse(502, "Flower's link is away, or does not answer.")
        if answer.status_code >= 400:
            refusals.note(
                f"{bears} was refused by Flower's link with status {answer.status_code}: 400 is for garbage, "
                "401 for a wrong or old signature, 412 for a key that is not registered, or is there already."
            )
        kind = answer.headers.get("content-type")
        return Response(answer.content, answer.status_code, media_type=kind)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await client.aclose()

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])], lifespan=lifespan)


def serve(deployment: Deployment, watch: Any = None) -> None:
    """Serve the proxy of a deployment until the process is ended.

    Parameters
    ----------
    deployment : Deployment
        The operator's folder.
    watch : callable, optional
        Wraps the application; for tests that look at all traffic.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("flwr", "flower", "The proxy") from error

    settings, certificates = deployment.settings, deployment.folder / "certificates"
    refusals = Refusals(_log)
    app = proxy(
        f"https://127.0.0.1:{settings.link}",
        certificates / "inner-ca.crt",
        deployment.keys,
        settings.largest,
        settings.rate,
        refusals,
    )
    host, _, port = settings.listen.rpartition(":")

    def context(config: Any, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        made = make()
        made.sslobject_class = logged_handshakes(refusals)
        return made

    uvicorn.run(
        watch(app) if watch is not None else app,
        host=host,
        port=int(port),
        ssl_certfile=str(certificates / "proxy.crt"),
        ssl_keyfile=str(certificates / "proxy.key"),
        ssl_context_factory=context,
        log_level="error",
        access_log=False,
        server_header=False,
        http=connections(_CONNECTIONS, _HEAD, refusals),
        ws="none",
        proxy_headers=False,
        limit_concurrency=_ALL,
        timeout_keep_alive=30,
    )


def _log(sentence: str) -> None:
    """Print a line for the operator: this process may not write into the folder of the run."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {sentence}", file=sys.stderr, flush=True)


async def _read(request: Any, largest: int) -> bytes | None:
    """Read a request; None as soon as it is, or says that it is, too large."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > largest:
        return None
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > largest:
            return None
    return bytes(data)


def _sender(headers: Mapping[str, str]) -> str:
    """Return the public key that a request bears; the link checks that its owner has signed it."""
    try:
        return _flat(b64decode(headers.get("flwr-public-key", ""), validate=True).decode())
    except ValueError:
        return ""


def _flat(key: str) -> str:
    return "".join(key.split())


if __name__ == "__main__":
    serve(Deployment(Path(sys.argv[1])))
