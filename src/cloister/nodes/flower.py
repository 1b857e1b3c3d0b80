"""The same run over Flower, for consortia that run it or FLARE already: two apps, by its public API alone.

Flower carries sealed questions and sealed answers, and whoever runs it is trusted with the rest: a SuperNode
runs whatever app its link hands it, so that who holds the link holds every node's machine; and a registered
node can make the curator wait, or end it, by what it sends below the level of messages. `NodeAgent` and the
operator's own service have neither trait.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloister.core.errors import MissingExtraError, SignatureError
from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.envelopes import SealedNode, new_reader, open_answer, seal_question
from cloister.nodes.identity import PublicIdentity
from cloister.nodes.messages import reply_room
from cloister.nodes.node import Node
from cloister.store.signatures import Operator

__all__ = ["FlowerTransport", "client_app", "server_app"]

#: Seconds between two looks for answers; until a node that has not answered is asked the same again, and one
#: that has failed at it; and for which a node that is new to the grid is asked who it is.
POLL, AGAIN, SOON, WHO = 0.25, 20.0, 1.0, 30.0
#: Under these names the bytes stand in a message.
_RECORD, _FIELD = "cloister", "bytes"


def server_app(folder: str | os.PathLike[str], types: Iterable[object] = ()) -> Any:
    """Return the ServerApp of a curator: it runs the plan of the operator's folder, or goes on with it.

    Parameters
    ----------
    folder : path
        The operator's folder, as ``cloister deploy init`` wrote it.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that the plan names.
    """
    try:
        from flwr.serverapp import ServerApp
    except ImportError as error:
        raise MissingExtraError("flwr", "flower", "cloister.nodes.flower.server_app") from error
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        made = Deployment(Path(folder))
        transport = FlowerTransport(grid, made.operator, made.keys, made.settings.reply, made.log)
        made.curate(transport, types)

    return app


def client_app(
    folder: str | os.PathLike[str] | Callable[[Mapping[str, Any]], str] | None = None,
    types: Iterable[object] = (),
) -> Any:
    """Return a ClientApp that answers from a node's folder, for networks that have SuperNodes already.

    Parameters
    ----------
    folder : path or callable, optional
        The node's folder, or a function that returns it from the SuperNode's settings (``node_config``); by
        default its setting ``folder``.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that an approved plan names.
    """
    try:
        from flwr.app import Message
        from flwr.clientapp import ClientApp
    except ImportError as error:
        raise MissingExtraError("flwr", "flower", "cloister.nodes.flower.client_app") from error
    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def answer(message: Any, context: Any) -> Any:
        told = context.node_config
        home = Path(folder(told) if callable(folder) else str(told["folder"] if folder is None else folder))
        sealed = SealedNode(Node(home, types))
        asked = message_body(message)
        found = sealed.answer(asked) if asked else sealed.name.encode()
        return Message(body(found or b""), reply_to=message)

    return app


class FlowerTransport:
    """The way to nodes over a grid of Flower.

    Nodes of the grid are asked for the names of their tasks. A name is believed of nobody: a question goes to
    all who claim its name, and an answer counts for the name whose key has signed it.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        What Flower hands to a ServerApp.
    operator : Operator
        Signs the questions.
    keys : mapping of str to str
        Each task's public keys, by its name on the roster.
    reply : int
        Bytes of the plan's largest reply.
    log : callable, optional
        Takes a sentence about every answer that is passed over. Private. By default a warning of the logger
        ``cloister.nodes``.
    """

    def __init__(
        self,
        grid: Any,
        operator: Operator,
        keys: Mapping[str, str],
        reply: int,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.grid, self.operator, self.reply, self._reader = grid, operator, reply, new_reader()
        self.keys = {name: PublicIdentity.from_text(text).signing for name, text in keys.items()}
        self.log = log or logging.getLogger("cloister.nodes").warning
        self.last_seen: dict[str, float] = {}
        self._names: dict[int, str] = {}

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        until = time.monotonic() + deadline
        sealed = {
            name: seal_question(self.operator, name, request, self._reader, reply_room(request, self.reply))
            for name, request in requests.items()
        }
        waiting, pending, due = set(requests), dict[str, int](), dict[int, float]()
        while waiting and time.monotonic() < until:
            self._push({name: sealed[name] for name in waiting}, pending, due, until)
            for node, data in self._pull(pending, due):
                name = self._names.get(node)
                if name is None:
                    self._names[node] = data.decode(errors="replace")
                    due[node] = 0.0
                elif name in waiting and (reply := self._opened(name, sealed[name], data)) is not None:
                    waiting.discard(name)
                    self.last_seen[name] = time.time()
                    yield name, reply
            if waiting:
                time.sleep(POLL)

    def _opened(self, name: str, sealed: bytes, answer: bytes) -> bytes | None:
        try:
            return open_answer(self.keys[name], self._reader, sealed, answer)
        except SignatureError as error:
            self.log(f"Node {name!r}: {error}")
            return None

    def _push(
        self, sealed: Mapping[str, bytes], pending: dict[str, int], due: dict[int, float], until: float
    ) -> None:
        """Ask the nodes that are there for what is wanted of them, and those that are new for their names."""
        from flwr.app import Message

        now = time.monotonic()
        wanted = {}
        for node in self.grid.get_node_ids():
            data = sealed.get(self._names[node]) if node in self._names else b""
            if data is not None and due.get(node, 0.0) <= now:
                wanted[node] = data
                due[node] = now + (AGAIN if data else WHO)
        ttl = max(until - now, 1.0)
        for node, data in wanted.items():
            message = Message(body(data), dst_node_id=node, message_type="query", ttl=ttl)
            for number in self.grid.push_messages([message]):
                if number:
                    pending[number] = node

    def _pull(self, pending: dict[str, int], due: dict[int, float]) -> Iterator[tuple[int, bytes]]:
        """Yield who was asked and what came back, each alone: what one sends spoils no other's."""
        for number, node in list(pending.items()):
            try:
                messages = list(self.grid.pull_messages([number]))
            except Exception as error:  # bytes that are no message of Flower
                self.log(f"A node sent what Flower cannot read: {type(error).__name__}. It does not count.")
                del pending[number]
                due[node] = time.monotonic() + SOON
                continue
            for message in messages:
                pending.pop(number, None)
                data = None if message.has_error() else message_body(message)
                if data is None:
                    due[node] = time.monotonic() + SOON
                    self.log(f"Node {self._names.get(node, '?')!r}: what came over Flower holds no answer.")
                else:
                    yield node, data


def body(data: bytes) -> Any:
    """Return the content of a message of Flower that holds these bytes, and nothing else."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_FIELD: data})})


def message_body(message: Any) -> bytes | None:
    """Return the bytes of a message; None if it is not made as ours are."""
    from flwr.app import ConfigRecord

    try:
        record = message.content[_RECORD]
        data = record[_FIELD] if isinstance(record, ConfigRecord) else None
    except (KeyError, TypeError, ValueError):
        return None
    return data if isinstance(data, bytes) else None
