"""Parties of a run that do not keep to it, at the operator's service: registered nodes, and strangers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import httpx
from small_trial import node

from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.envelopes import answer_size


class Evil(threading.Thread):
    """A registered node that asks for questions as others do, and does something else with them."""

    def __init__(self, made: Deployment, name: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.agent, self.over, self.size = node(made, name), over, answer_size(made.settings.reply)

    def run(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(httpx.HTTPError), self.agent.connected() as client:
                while not self.over.is_set():
                    found = client.get("/v1/question", headers={"x-wait": "1"})
                    if found.status_code == 200:
                        self.answer(client, self.agent.sealed.answer(found.content), _path(found.content))

    def answer(self, client: httpx.Client, honest: bytes, path: str) -> None:
        """Do what this one does with a question."""
        self.over.wait(0.2)


class Silent(Evil):
    """Takes every question along, and never answers."""


class Garbage(Evil):
    """Answers with bytes that nobody can read, of the right size."""

    def answer(self, client, honest, path):
        client.put(path, content=b"\xff garbage" * (self.size // 9) + bytes(self.size % 9))
        self.over.wait(0.2)


class Large(Evil):
    """Answers with more than was asked for; first with too little."""

    def answer(self, client, honest, path):
        client.put(path, content=honest[:-1])
        client.put(path, content=honest + bytes(10**7))
        self.over.wait(0.2)


class Slow(Evil):
    """Sends its answer a byte at a time."""

    def answer(self, client, honest, path):
        def bytes_of():
            for at in range(len(honest)):
                if self.over.wait(0.3):
                    return
                yield honest[at : at + 1]

        with contextlib.suppress(Exception):  # it ends before all is said
            client.put(path, content=bytes_of(), headers={"content-length": str(len(honest))})


class Flood(Evil):
    """Asks and answers as fast as it can."""

    def answer(self, client, honest, path):
        until = time.monotonic() + 1.0
        while time.monotonic() < until and not self.over.is_set():
            client.get("/v1/question", headers={"x-wait": "0"})
            client.put(path, content=bytes(self.size))


def _path(question: bytes) -> str:
    import hashlib

    return f"/v1/answer/{hashlib.sha256(question).hexdigest()}"


class Strangers:
    """Connections from one address, without any key: half-open TLS, bytes that are none, and silence."""

    def __init__(self, made: Deployment, source: str = "127.0.0.2") -> None:
        host, _, port = made.settings.address.rpartition(":")
        self.to, self.source, self.held = (host, int(port)), source, []

    def come(self, many: int, first: bytes = b"") -> None:
        for _ in range(many):
            each = socket.socket()
            each.settimeout(2)
            self.held.append(each)
            with contextlib.suppress(OSError):
                each.bind((self.source, 0))
                each.connect(self.to)
                if first:
                    each.sendall(first)

    def leave(self) -> None:
        for each in self.held:
            each.close()
