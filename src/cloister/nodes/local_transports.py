"""Transports without a network: a folder that the curator and its nodes share, and one process.

*Folder*, for trials and copied media. Each node has a folder of its own in it, by its name. The curator puts
a file ``question`` there, and waits for ``answer-DIGEST``, where the digest is that of the question. Who may
write into a node's folder is who that node is: the file system's permissions are the only authentication.

*One process*, for tests: every byte is made and read as between machines.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cloister.nodes.node import Node
from cloister.store.files import make_folder, write_private

#: Seconds between two looks.
POLL = 0.05
#: A longer answer is not read.
LONGEST = 1 << 30


@dataclass(frozen=True)
class FolderTransport:
    """A link over a shared folder.

    Parameters
    ----------
    folder : path
        The folder. Each node's own is in it, and is made when it is first asked.
    """

    folder: str | os.PathLike[str]

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        until = time.monotonic() + deadline
        waiting = {name: self._put(name, request) for name, request in requests.items()}
        while waiting and time.monotonic() < until:
            for name, path in list(waiting.items()):
                if path.exists() and path.stat().st_size <= LONGEST:
                    reply = path.read_bytes()
                    del waiting[name]
                    yield name, reply
            time.sleep(POLL)

    def _put(self, name: str, request: bytes) -> Path:
        """Put a question in its place; return where its answer will be. An old answer to it is removed."""
        home = _place(self.folder, name)
        make_folder(home)
        for old in home.glob("answer-*"):
            old.unlink()
        write_private(home / "question", request)
        return _answer_path(home, request)


def answer_question(node: Node, folder: str | os.PathLike[str]) -> bool:
    """Answer the question that waits for a node in a shared folder; say whether there was one."""
    home = _place(folder, str(node.home.settings.task))
    try:
        request = (home / "question").read_bytes()
    except FileNotFoundError:
        return False
    path = _answer_path(home, request)
    if path.exists():
        return False
    write_private(path, node.answer(request))
    return True


def _place(folder: str | os.PathLike[str], name: str) -> Path:
    return Path(folder) / quote(name, safe="").replace(".", "%2E")


def _answer_path(home: Path, request: bytes) -> Path:
    return home / f"answer-{hashlib.sha256(request).hexdigest()[:32]}"


@dataclass(frozen=True)
class InProcess:
    """A link to nodes in this process, by their names.

    Examples
    --------
    ``run(plan, roster, engine=RemoteNodes(InProcess({"Elm": Node("elm"), ...}), operator))``
    """

    nodes: Mapping[str, Node]

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        for name, request in requests.items():
            if name in self.nodes:
                yield name, self.nodes[name].answer(request)
