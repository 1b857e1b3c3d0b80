"""`HttpTransport`: the curator's questions to nodes, and their answers, over the operator's service."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cloister.core.errors import ClusterError, SignatureError
from cloister.nodes.entry import KeyAuth, httpx
from cloister.nodes.envelopes import asked_size, new_reader, open_answer, seal_question
from cloister.nodes.identity import PublicIdentity
from cloister.nodes.limits import SparseLog
from cloister.nodes.messages import reply_room
from cloister.store.signatures import Operator

#: Seconds until the service, or a node whose answer does not count, is asked again: at first, and at most.
SHORTEST, LONGEST = 0.5, 20.0
#: Seconds that the service may answer later than it should.
LATE = 10.0


class HttpTransport:
    """The way to nodes over the operator's service: each is asked by a request of its own.

    A name belongs to the public keys that the operator has registered, and an answer counts for the name
    whose key has signed it; it is encrypted to a key that this object keeps in memory alone. Who has taken a
    question along into a crash is given it again, and an answer that does not count is asked for again: a
    node gives the same answer twice. Nobody waits for anybody else.

    Parameters
    ----------
    address : str
        ``host:port`` of the service, as nodes know it.
    reach : str
        ``host:port`` at which this machine reaches it.
    certificate : path
        The service's own certificate: no other is believed.
    operator : Operator
        Signs the questions.
    keys : mapping of str to str
        Each task's public keys, by its name on the roster.
    reply : int
        Bytes of the plan's largest reply.
    log : callable, optional
        Takes a sentence about every answer that is passed over. Private. By default a warning of the logger
        ``cloister.nodes``.

    Examples
    --------
    ``with HttpTransport(...) as transport: run(plan, roster, engine=RemoteNodes(transport, operator))``
    """

    def __init__(
        self,
        address: str,
        reach: str,
        certificate: Path,
        operator: Operator,
        keys: Mapping[str, str],
        reply: int,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.operator, self.reply, self._reader = operator, reply, new_reader()
        self.keys = {name: PublicIdentity.from_text(text).signing for name, text in keys.items()}
        self.log = SparseLog(log or logging.getLogger("cloister.nodes").warning)
        self._client = httpx.AsyncClient(
            base_url=f"https://{reach}",
            verify=only(certificate),
            auth=KeyAuth.of_operator(address, operator),
            limits=httpx.Limits(max_connections=len(keys) + 10),
            trust_env=False,
        )
        self._runner = asyncio.Runner()
        #: When each node has last answered, by the clock. Private: it tells who takes part.
        self.last_seen: dict[str, float] = {}

    def __enter__(self) -> HttpTransport:
        return self

    def __exit__(self, *exception: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def check(self) -> None:
        """Refuse to begin without the service, or with one that does not know this operator."""
        try:
            found = self._runner.run(self._client.get("/v1/nodes", timeout=10.0)).status_code
        except (httpx.HTTPError, OSError):
            raise ClusterError(
                f"The service at {self._client.base_url.netloc.decode()} does not answer. Start it first, "
                "and let it run: cloister deploy serve FOLDER."
            ) from None
        if found != 200:
            raise ClusterError(
                f"The service does not take this operator's key: it said {found}. Is it of another folder?"
            )

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        until = time.monotonic() + deadline
        found: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        tasks = self._runner.run(self._begin(requests, until, found))
        try:
            for _ in requests:
                name, reply = self._runner.run(_next(found, until))
                self.last_seen[name] = time.time()
                yield name, reply
        except TimeoutError:
            return
        finally:
            for error in self._runner.run(_ended(tasks)):
                self.log.note(f"A node could not be asked: {type(error).__name__}: {error}")

    async def _begin(
        self, requests: Mapping[str, bytes], until: float, found: asyncio.Queue[tuple[str, bytes]]
    ) -> list[asyncio.Task[None]]:
        return [
            asyncio.create_task(self._ask(name, request, until, found)) for name, request in requests.items()
        ]

    async def _ask(
        self, name: str, request: bytes, until: float, found: asyncio.Queue[tuple[str, bytes]]
    ) -> None:
        """Ask one node until it has answered or the time is over."""
        room, pause = reply_room(request, self.reply), SHORTEST
        sealed = seal_question(self.operator, name, request, self._reader, room)
        while (left := until - time.monotonic()) > 0:
            answer = await self._posted(name, sealed, left)
            if answer is not None:
                try:
                    reply = open_answer(self.keys[name], self._reader, sealed, answer)
                    return await found.put((name, reply))
                except SignatureError as error:
                    self.log.note(f"Node {name!r}: {error}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST)

    async def _posted(self, name: str, sealed: bytes, left: float) -> bytes | None:
        """Put a question to the service; return the answer, if there was one in time."""
        most, data = asked_size(sealed), bytearray()
        try:
            async with (
                asyncio.timeout(left + LATE),
                self._client.stream(
                    "POST",
                    f"/v1/ask/{quote(name, safe='')}",
                    content=sealed,
                    headers={"x-wait": f"{left:.3f}"},
                    timeout=httpx.Timeout(10.0, read=left + LATE, pool=None),
                ) as response,
            ):
                if response.status_code == 200:
                    async for part in response.aiter_raw():
                        data += part
                        if len(data) > most:
                            return None
                    return bytes(data)
                if response.status_code != 204:
                    self.log.note(f"The service did not take a question: it said {response.status_code}.")
        except (httpx.HTTPError, TimeoutError) as error:
            self.log.note(
                f"The service is away, or does not answer: {type(error).__name__}. It is waited for."
            )
        return None


def only(certificate: Path) -> ssl.SSLContext:
    """Return a context that believes this very certificate, and no other."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False  # it is this certificate, whatever name this machine reaches it by
    return context


async def _next(found: asyncio.Queue[Any], until: float) -> Any:
    async with asyncio.timeout(until - time.monotonic()):
        return await found.get()


async def _ended(tasks: list[asyncio.Task[None]]) -> list[Exception]:
    """End all tasks; return what went wrong in them."""
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [error for error in found if isinstance(error, Exception)]
