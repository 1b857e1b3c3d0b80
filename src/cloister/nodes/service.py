"""The operator's service: carries sealed questions to nodes, and their sealed answers back; nothing else.

Four calls, each of a registered key alone:

====================== ======== ==========================================================================
``POST /v1/ask/NAME``  operator puts a question to a node; returns its answer, or 204 when time is over
``GET /v1/nodes``      operator says who was seen, and when
``GET /v1/question``   a node   returns its question as soon as there is one, or 204 after a while
``PUT /v1/answer/ID``  a node   gives the answer to the question with this hash
====================== ======== ==========================================================================

A question is held as long as the operator's request is; an answer, until it has gone out with that. Of each
node there is one of each at most, and no file. Nothing is started here, and nothing that comes is run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.core.errors import MissingExtraError
from cloister.nodes.entry import OPERATOR, Gate
from cloister.nodes.envelopes import asked_size
from cloister.nodes.limits import Listener, Rate, SparseLog

#: Bytes of the largest question.
LARGEST_QUESTION = 1 << 26
#: Seconds that a node's request waits for a question; the longest that the operator's waits for an answer;
#: and that a connection of a known sender may be quiet between two requests.
WAIT, LONGEST, IDLE = 25.0, 7 * 86400.0, 100.0
#: Seconds in which a body must be there, and bytes a second that it may take longer for.
BODY, SLOWEST = 30.0, 100_000
#: Seconds in which a connection must have asked for something, with a known key.
PATIENCE = 10.0
#: Requests a second of one node; and of one address without a known key.
OF_NODE, OF_STRANGER = 40.0, 10.0


@dataclass(eq=False)
class _Question:
    """A question that waits for its answer."""

    body: bytes
    answer: asyncio.Future[bytes]

    @property
    def id(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


@dataclass(eq=False)
class Mailbox:
    """What the service holds for one node."""

    question: _Question | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    upload: bytearray = field(default_factory=bytearray)
    here: int = 0
    seen: float | None = None

    def put(self, question: _Question) -> None:
        """Hold a question in place of an earlier one."""
        self.take(self.question)
        self.question = question
        self.arrived.set()

    def take(self, question: _Question | None) -> None:
        """Let go of a question, if it is the one that is held."""
        if question is not None and self.question is question:
            question.answer.cancel()
            self.question = None
            self.arrived.clear()


class Service:
    """The service as an ASGI application.

    Parameters
    ----------
    gate : Gate
        Says who sends a request.
    log : SparseLog
        Tells the operator what is refused. Neither addresses nor what was sent are said.
    listener : Listener, optional
        Where connections come from; told of those that have asked.
    """

    def __init__(self, gate: Gate, log: SparseLog, listener: Listener | None = None) -> None:
        self.gate, self.log, self.listener = gate, log, listener
        self.boxes: dict[str, Mailbox] = {}
        self.strangers = Rate(OF_STRANGER, burst=20 * OF_STRANGER)
        self.nodes = Rate(OF_NODE, burst=2 * OF_NODE)

    def app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        def route(path: str, method: str, call: Callable[[Any, str], Awaitable[Any]], operator: bool) -> Any:
            async def checked(request: Any) -> Any:
                return await self._checked(request, call, operator)

            return Route(path, checked, methods=[method])

        routes = [
            route("/v1/ask/{name:path}", "POST", self.ask, True),
            route("/v1/nodes", "GET", self.status, True),
            route("/v1/question", "GET", self.question, False),
            route("/v1/answer/{id}", "PUT", self.answer, False),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        sweeps = asyncio.create_task(self._sweep())
        yield
        sweeps.cancel()

    async def _sweep(self) -> None:
        while self.listener is not None:
            self.listener.sweep()
            await asyncio.sleep(1.0)

    async def _checked(self, request: Any, call: Callable[[Any, str], Awaitable[Any]], operator: bool) -> Any:
        """Let a request through if its sender's key is registered, and for this call."""
        from starlette.responses import Response

        client = (request.client.host, request.client.port) if request.client else ("", 0)
        who = self.gate.sender(request.headers.get("authorization", ""))
        if self.listener is not None:
            self.listener.asks(client, known=who is not None)
        if who is None:
            if not self.strangers.allows(client[0], time.monotonic()):
                return self._refused(429, "Too many requests without a registered key came from an address.")
            if request.headers.get("authorization", "cloister") != "cloister":
                self.log.note("A request bore a signature that no registered key has made for it.")
            return Response(status_code=401, headers=self.gate.challenge())
        try:
            if operator != (who == OPERATOR):
                return self._refused(403, f"{_bears(who)} asked for what is not for it.")
            if who != OPERATOR and not self.nodes.allows(who, time.monotonic()):
                return self._refused(429, f"{_bears(who)} came after too many others.")
            return await call(request, who)
        finally:
            if self.listener is not None:
                self.listener.over(client, IDLE)

    async def ask(self, request: Any, who: str) -> Any:
        """Hold a question for a node until it has answered, the time is over, or the operator has gone."""
        from starlette.responses import Response

        name = request.path_params["name"]
        registered = self.gate.keys()
        if name not in registered:
            return self._refused(404, "The operator asked a node that is not in nodes.toml.")
        body = await self._read(request, LARGEST_QUESTION)
        if body is None:
            return self._refused(413, f"The operator's question was larger than {LARGEST_QUESTION} bytes.")
        box = self.boxes.setdefault(name, Mailbox())
        question = _Question(body, asyncio.get_running_loop().create_future())
        box.put(question)
        gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(request))
        until: set[asyncio.Future[Any]] = {gone, question.answer}
        try:
            await asyncio.wait(until, timeout=_wait(request, LONGEST), return_when=asyncio.FIRST_COMPLETED)
            if question.answer.done() and not question.answer.cancelled():
                return Response(question.answer.result(), media_type="application/octet-stream")
            return Response(status_code=204)
        finally:
            gone.cancel()
            box.take(question)

    async def status(self, request: Any, who: str) -> Any:
        """Return of each node whether it waits for a question now, and how many seconds ago it was seen."""
        from starlette.responses import JSONResponse

        now, known = time.monotonic(), self.gate.keys()
        boxes = {name: box for name, box in self.boxes.items() if name in known}
        return JSONResponse(
            {
                name: {"here": box.here > 0, "seen": None if box.seen is None else now - box.seen}
                for name, box in boxes.items()
            }
        )

    async def question(self, request: Any, who: str) -> Any:
        """Return a node's question when there is one."""
        from starlette.responses import Response

        box = self.boxes.setdefault(who, Mailbox())
        box.seen, box.here = time.monotonic(), box.here + 1
        try:
            await asyncio.wait_for(box.arrived.wait(), _wait(request, WAIT))
        except TimeoutError:
            return Response(status_code=204)
        finally:
            box.here, box.seen = box.here - 1, time.monotonic()
        if box.question is None:  # withdrawn meanwhile
            return Response(status_code=204)
        return Response(box.question.body, media_type="application/octet-stream")

    async def answer(self, request: Any, who: str) -> Any:
        """Take a node's answer to the question that it was given."""
        from starlette.responses import Response

        box = self.boxes.setdefault(who, Mailbox())
        box.seen, asked = time.monotonic(), box.question
        if asked is None or asked.id != request.path_params["id"]:
            return Response(status_code=409)
        size = asked_size(asked.body)
        if request.headers.get("content-length") != str(size):
            return self._refused(413, f"{_bears(who)} was an answer that has not the bytes that are due.")
        box.upload.clear()  # of an earlier one that is still coming: it counts no more
        box.upload = mine = bytearray()
        body = await self._read(request, size, mine)
        if body is None or box.upload is not mine:
            return self._refused(408, f"{_bears(who)} was an answer that did not come in time.")
        if box.question is not asked or asked.answer.done():
            return Response(status_code=409)
        asked.answer.set_result(body)
        box.arrived.clear()
        return Response(status_code=204)

    async def _read(self, request: Any, most: int, data: bytearray | None = None) -> bytes | None:
        """Read a body; None as soon as it is too large, or takes too long."""
        data = bytearray() if data is None else data
        from starlette.requests import ClientDisconnect

        try:
            async with asyncio.timeout(BODY + most / SLOWEST):
                async for part in request.stream():
                    data += part
                    if len(data) > most:
                        return None
        except (TimeoutError, ClientDisconnect):
            return None
        return bytes(data)

    def _refused(self, status: int, kind: str) -> Any:
        from starlette.responses import Response

        self.log.note(kind)
        return Response(status_code=status, headers={"connection": "close"})


def _bears(who: str) -> str:
    return "A request of the operator" if who == OPERATOR else f"A request with the key of node {who!r}"


def _wait(request: Any, most: float) -> float:
    """Return how many seconds a request says that it waits, up to so many, which is the default."""
    try:
        wait = float(request.headers.get("x-wait", most))
    except ValueError:
        return most
    return wait if 0 <= wait <= most else most  # also of what is no number


async def _gone(request: Any) -> None:
    """Return when whoever sent a request has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class ServiceSettings:
    """What the service is started with; none of it is secret but the certificate's key.

    Attributes
    ----------
    address, listen : str
        ``host:port`` as nodes know it, and where to listen.
    operator : bytes
        The operator's public key.
    keys : callable
        Returns the public keys of the nodes that are registered now, by their names.
    certificate, key : str
        Files of the certificate and its key.
    """

    address: str
    listen: str
    operator: bytes
    keys: Callable[[], Mapping[str, str]]
    certificate: str
    key: str


def serve(settings: ServiceSettings, tell: Callable[[str], None], watch: Any = None) -> None:
    """Serve until the process is ended.

    Parameters
    ----------
    settings : ServiceSettings
        What is served, and where.
    tell : callable
        Takes a sentence about what is refused; for the operator alone.
    watch : callable, optional
        Wraps the application; for tests that look at all traffic.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("starlette and uvicorn", "nodes", "The operator's service") from error

    log, count = SparseLog(tell), len(settings.keys())
    host, _, port = settings.listen.rpartition(":")
    most = descriptors() - 200
    each = min(4 * count + 64, most // 2)
    listener = Listener(host.strip("[]"), int(port), each=each, most=most, patience=PATIENCE, log=log)
    gate = Gate(settings.address, settings.operator, settings.keys)
    app = Service(gate, log, listener).app()
    config = uvicorn.Config(
        app if watch is None else watch(app),
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
        backlog=128,  # so many are accepted in one turn, and may be too many for that long
        loop="asyncio",
        http="h11",
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(IDLE),
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


def descriptors() -> int:
    """Allow this process as many files and connections as it may ask for, up to 65,536; return how many."""
    if sys.platform == "win32":
        return 512
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
