"""`NodeAgent`: a node that stays, and answers a curator over the operator's service; nothing sent is run."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cloister.core.errors import InputError
from cloister.nodes.entry import KeyAuth, httpx
from cloister.nodes.envelopes import SealedNode
from cloister.nodes.identity import CuratorAddress
from cloister.nodes.limits import SparseLog
from cloister.nodes.node import Node
from cloister.nodes.service import LARGEST_QUESTION, WAIT
from cloister.store.files import write_private

#: Seconds between two tries, at first and at most; and in which one thing must come over the network.
SHORTEST, LONGEST_PAUSE, PATIENCE = 1.0, 10.0, 60.0
#: A question that takes longer is not waited for, whatever its size.
SLOWEST = 1800.0


class NodeAgent:
    """A node's own process: it asks the operator's service for questions, and answers them from its folder.

    Nothing runs but what the owner of the node has installed, what goes wrong is told at home alone, no port
    is open, and no redirect is followed.

    Parameters
    ----------
    folder : path
        A node's folder, with ``link.key``, ``agree.key`` and ``link.toml``.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that an approved plan names.
    say : callable, optional
        Takes a sentence when the service is found, or lost.

    Examples
    --------
    ``NodeAgent("elm").serve()``
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        types: Iterable[object] = (),
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.folder, self.say = Path(folder), say
        self.curator = CuratorAddress.load(folder)
        self.sealed = SealedNode(Node(folder, types))
        self.log = SparseLog(self.sealed.node.home.log, every=600.0)
        self._here: bool | None = None

    def serve(self) -> None:
        """Answer until the process is ended; a service that is away, or sends garbage, is tried again."""
        pause = SHORTEST
        while True:
            try:
                with self.connected() as client:
                    self.step(client, wait=0.0)
                    while True:
                        pause = SHORTEST if self.step(client) else min(2 * pause, LONGEST_PAUSE)
                        if pause > SHORTEST:
                            time.sleep(pause)
            except Exception as error:  # whatever the other side sends must not end the node
                self._note(here=False)
                self.log.note(_trouble(error))
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def connected(self) -> httpx.Client:
        """Return a connection that is opened when it is used, and on which this node signs requests."""
        return httpx.Client(
            base_url=f"https://{self.curator.address}",
            verify=ssl.create_default_context(cafile=self.curator.certificate),
            auth=KeyAuth.of_node(self.curator.address, self.sealed.name, self.sealed.identity),
            timeout=httpx.Timeout(PATIENCE, read=WAIT + PATIENCE),
            follow_redirects=False,  # or a curator could send requests into the owner's network
        )

    def step(self, client: httpx.Client, wait: float = WAIT) -> bool:
        """Answer one question if one comes within so many seconds; return whether all went well."""
        status, question = self._question(client, wait)
        if status == 204:
            self._note(here=True)
            return True
        if status != 200:
            raise InputError(_REFUSED.get(status, f"The service answered with status {status}."))
        self._note(here=True)
        answer = self.sealed.answer(question)
        if answer is None:
            return False
        digest = hashlib.sha256(question).hexdigest()
        done = client.put(f"/v1/answer/{digest}", content=answer).status_code
        if done == 409:  # the question was withdrawn meanwhile; it comes again if it is still open
            return True
        if done != 204:
            self.log.note(f"The service has not taken an answer: it said {done}.")
        return done == 204

    def _question(self, client: httpx.Client, wait: float) -> tuple[int, bytes]:
        """Ask for a question; return the status and what came, if it is not larger than any question."""
        until, data = time.monotonic() + SLOWEST, bytearray()
        with client.stream("GET", "/v1/question", headers={"x-wait": str(wait)}) as response:
            if response.status_code == 200:
                for part in response.iter_raw():
                    data += part
                    if len(data) > LARGEST_QUESTION or time.monotonic() > until:
                        raise InputError("A question came that is larger or slower than any is.")
            return response.status_code, bytes(data)

    def _note(self, here: bool) -> None:
        """Leave a sign of life in the folder, for who looks after the node; say it when it changes."""
        alive = {"time": time.time(), "pid": os.getpid(), "link": "here" if here else "away"}
        try:
            write_private(self.folder / "alive.json", json.dumps(alive).encode(), synced=False)
        except Exception as error:  # a full disk must not end the node
            self.log.note(f"alive.json cannot be written: {type(error).__name__}.")
        if here != self._here:
            self._here = here
            state = "is connected to" if here else "waits for"
            self.say(f"Task {self.sealed.name!r} {state} {self.curator.address}.")


_REFUSED = {
    401: "The operator's service does not know this node's key yet. Send link.pub to the operator again, and "
    "compare its fingerprint; the name must be the same on both sides.",
    429: "The operator's service says that too many requests came from here. Is another copy of this node "
    "running?",
}


def _trouble(error: Exception) -> str:
    """Say what went wrong between a node and the service, without addresses of elsewhere."""
    if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            "The service showed a certificate that this node does not believe, and nothing was sent: "
            f"{' '.join(str(error).split())}. Look at the address and the certificate in link.toml, and at "
            "the clock."
        )
    if isinstance(error, httpx.HTTPError):
        return f"The operator's service is away, or does not answer: {type(error).__name__}."
    if isinstance(error, InputError):
        return str(error)
    return f"The service sent what nobody can read: {type(error).__name__}."
