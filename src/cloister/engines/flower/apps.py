"""The two apps of Flower: a curator's ServerApp, and a ClientApp for networks that have SuperNodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cloister.engines.flower.deployment import Deployment
from cloister.engines.flower.envelope import open_question, seal_answer
from cloister.engines.flower.identity import Identity
from cloister.engines.flower.link import body, message_body
from cloister.engines.node import REFUSAL, Node
from cloister.errors import MissingExtraError, SignatureError
from cloister.store.signatures import public_key

__all__ = ["Answering", "client_app", "server_app"]


class Answering:
    """A node that answers sealed questions with sealed answers.

    Parameters
    ----------
    folder : path
        The node's folder.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that an approved plan names.
    """

    def __init__(self, folder: str | os.PathLike[str], types: Iterable[object] = ()) -> None:
        self.node = Node(folder, types)
        self.name = str(self.node.home.settings.task)
        self.operator = public_key(self.node.home.settings.operator)
        self.identity = Identity.load(folder)

    def answer(self, sealed: bytes) -> bytes:
        """Answer a question; to one that the operator has not signed, a refusal that bears no signature."""
        try:
            request = open_question(self.operator, self.name, sealed)
        except SignatureError as error:
            self.node.home.log(str(error))
            return REFUSAL
        return seal_answer(self.identity.key, sealed, self.node.answer(request))


def server_app(folder: str | os.PathLike[str], types: Iterable[object] = ()) -> Any:
    """Return the ServerApp of a curator: it runs the plan of the operator's folder, or goes on with it.

    Parameters
    ----------
    folder : path
        The operator's folder, as ``cloister deploy init`` wrote it.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that the plan names.
    """
    app = _flower("cloister.engines.flower.server_app").ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        Deployment(Path(folder)).curate(grid, types)

    return app


def client_app(folder: str | os.PathLike[str] | None = None, types: Iterable[object] = ()) -> Any:
    """Return a ClientApp that answers from a node's folder, for networks that have SuperNodes already.

    A SuperNode runs whatever app its link hands it: who holds the link holds the machine. `NodeAgent` answers
    the same questions and runs nothing but what its owner has installed.

    Parameters
    ----------
    folder : path, optional
        The node's folder; by default the SuperNode's own setting ``folder``.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that an approved plan names.
    """
    flower = _flower("cloister.engines.flower.client_app")
    from flwr.app import Message

    app = flower.ClientApp()

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def answer(message: Any, context: Any) -> Any:
        home = context.node_config["folder"] if folder is None else folder
        return Message(
            body(Answering(str(home), types).answer(message_body(message) or b"")), reply_to=message
        )

    return app


def _flower(purpose: str) -> Any:
    try:
        import flwr.clientapp
        import flwr.serverapp
    except ImportError as error:
        raise MissingExtraError("flwr", "flower", purpose) from error

    class Both:
        ServerApp, ClientApp = flwr.serverapp.ServerApp, flwr.clientapp.ClientApp

    return Both
