"""`FlowerTransport`: the curator's questions to nodes, and their answers, as messages of Flower."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloister.engines.flower.envelope import new_reader, open_answer, seal_question
from cloister.engines.flower.identity import read_public_key
from cloister.errors import SignatureError
from cloister.store.signatures import Operator

__all__ = ["FlowerTransport", "body", "message_body"]

#: Seconds between two looks for answers; and until a node that has not answered is asked the same again.
POLL, AGAIN = 0.25, 20.0
#: Under these names the bytes stand in a message.
_RECORD, _FIELD = "cloister", "bytes"


class _Due:
    """When each node is asked, and asked again: at once, then after longer and longer times."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._wait: dict[str, float] = {}

    def now(self, name: str) -> bool:
        return time.monotonic() >= self._at.get(name, 0.0)

    def asked(self, name: str) -> None:
        wait = self._wait.get(name, AGAIN)
        self._at[name], self._wait[name] = time.monotonic() + wait, 2 * wait

    def away(self, name: str) -> None:
        """Look for a node that is not there again in a second."""
        self._at[name] = time.monotonic() + 1.0

    def forged(self, name: str) -> None:
        """Ask again soon: somebody else was faster than the node, or it is not itself."""
        self._at[name] = time.monotonic() + self._wait.get(name, AGAIN) / 40


class FlowerTransport:
    """The way to nodes over a grid of Flower.

    A name belongs to a public key, which the operator has registered, and an answer counts for the name whose
    key has signed it; it is encrypted to a key that this object keeps in memory alone. Who is away is asked
    when it is back, and who has taken a question along into a crash is asked again: a node gives the same
    answer twice.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        What Flower hands to a ServerApp.
    operator : Operator
        Signs the questions.
    keys : mapping of str to str
        Each task's public key, by its name on the roster.
    log : callable, optional
        Takes a sentence about every answer that is passed over. Private. By default a warning of the logger
        ``cloister.flower``.
    """

    def __init__(
        self, grid: Any, operator: Operator, keys: Mapping[str, str], log: Callable[[str], None] | None = None
    ) -> None:
        self.grid, self.operator, self._reader = grid, operator, new_reader()
        self.keys = {name: read_public_key(text) for name, text in keys.items()}
        self._names = {" ".join(text.split()): name for name, text in keys.items()}
        self.log = log or logging.getLogger("cloister.flower").warning
        #: When each node has last answered, by the clock. Private: it tells who takes part.
        self.last_seen: dict[str, float] = {}

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        until = time.monotonic() + deadline
        sealed = {
            name: seal_question(self.operator, name, request, self._reader)
            for name, request in requests.items()
        }
        waiting, due = set(requests), _Due()
        pending: dict[str, str] = {}
        while waiting and time.monotonic() < until:
            self._push({name: sealed[name] for name in waiting if due.now(name)}, due, pending, until)
            for name, answer in self._pull(pending):
                try:
                    reply = open_answer(self.keys[name], self._reader, sealed[name], answer)
                except SignatureError as error:
                    self.log(f"Node {name!r}: {error}")
                    due.forged(name)
                    continue
                waiting.discard(name)
                self.last_seen[name] = time.time()
                yield name, reply
            if waiting:
                time.sleep(POLL)

    def _push(self, sealed: Mapping[str, bytes], due: _Due, pending: dict[str, str], until: float) -> None:
        """Ask those of these nodes that are there."""
        from flwr.app import Message

        if not sealed:
            return
        ids = self._ids()
        found = sorted(name for name in sealed if name in ids)
        ttl = max(until - time.monotonic(), 1.0)
        messages = [
            Message(body(sealed[name]), dst_node_id=ids[name], message_type="query", ttl=ttl)
            for name in found
        ]
        for name, number in zip(found, self.grid.push_messages(messages) if messages else (), strict=True):
            if number:
                pending[number] = name
                due.asked(name)
        for name in set(sealed) - set(found):
            due.away(name)

    def _ids(self) -> dict[str, int]:
        """Return who is there, by the key that was registered."""
        nodes = {
            " ".join(node.public_key.decode(errors="replace").split()): node.node_id
            for node in self.grid.get_nodes()
        }
        return {self._names[key]: number for key, number in nodes.items() if key in self._names}

    def _pull(self, pending: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        """Yield who was asked and what came back; nothing of what a reply says of itself is believed."""
        if not pending:
            return
        for message in self.grid.pull_messages(list(pending)):
            name = pending.pop(message.metadata.reply_to_message_id, None)
            if name is None:
                continue
            if message.has_error():
                self.log(f"Node {name!r}: Flower brought an error, {message.error.code}, and no answer.")
                continue
            data = message_body(message)
            if data is None:
                self.log(f"Node {name!r}: a message came that holds no answer.")
                continue
            yield name, data


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
