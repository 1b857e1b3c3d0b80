"""`NodeAgent`: a node that stays, and answers a curator over Flower; nothing is sent to it to run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloister.core.errors import InputError, MissingExtraError
from cloister.nodes.flower.apps import Answering
from cloister.nodes.flower.transport import CuratorAddress, body, message_body
from cloister.store.files import write_private

#: Seconds between two looks for a question, at least and at most; in between, a part of the time since the
#: last one, or between the last two: many nodes that look often would leave their link no time.
SHORTEST, LONGEST_WAIT, PART = 0.2, 1.0, 8
#: Seconds within which the link hears from a node; that the parts of a question are waited for; and the bytes
#: of the largest one that is read.
HEARTBEAT, COMING, LARGEST = 10.0, 60.0, 1 << 26


class NodeAgent:
    """A node's own process: it asks the link for questions, and answers them from its folder.

    In place of Flower's SuperNode, which fetches an app from its link and runs it: here nothing runs but what
    the owner of the node has installed, what goes wrong is told at home alone, and no port is open.

    Parameters
    ----------
    folder : path
        A node's folder, with ``link.key`` and ``link.toml``.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that an approved plan names.

    Examples
    --------
    ``NodeAgent("elm").serve()``
    """

    def __init__(self, folder: str | os.PathLike[str], types: Iterable[object] = ()) -> None:
        self.folder = Path(folder)
        self.curator = CuratorAddress.load(folder)
        self.answering = Answering(folder, types)
        self.log = self.answering.node.home.log
        self._number = 0
        self._asked = self._gap = float("inf")

    def serve(self) -> None:
        """Answer until the process is ended; a link that is away, or sends garbage, is tried again."""
        while True:
            try:
                with self._connected() as link:
                    while True:
                        self.step(link)
                        quiet = max(self._gap, time.monotonic() - self._asked)
                        time.sleep(min(max(quiet / PART, SHORTEST), LONGEST_WAIT))
            except MissingExtraError:
                raise
            except Exception as error:  # whatever a link sends must not end the node
                self._note(away=True)
                self.log(
                    f"The link is away, refuses this node, or sent garbage: {type(error).__name__}: {error}"
                )
                time.sleep(LONGEST_WAIT)

    def step(self, link: Any) -> bool:
        """Answer one question if there is any; return whether there was."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.node_pb2 import Node

        node = Node(node_id=self._number)
        found = link.PullMessages(PullMessagesRequest(node=node))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            now = time.monotonic()
            self._gap, self._asked = max(now - self._asked, 0.0), now
            self._exchange(link, node, proto, tree)
        return bool(found.messages_list)

    def _exchange(self, link: Any, node: Any, proto: Any, tree: Any) -> None:
        """Take one question, answer it, and hand the answer over."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PushObjectRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        number, run = proto.metadata.message_id, proto.metadata.run_id
        parts = self._objects(link, node, run, tree)
        if parts is None:  # the curator has not sent all of it, and will ask again
            return
        question = inflate_object_from_contents(number, parts)
        question.metadata.__dict__["_message_id"] = number
        link.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=number)
        )
        answer = Message(body(self.answering.answer(message_body(question) or b"")), reply_to=question)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        parts = {key: part.deflate() for key, part in get_all_nested_objects(answer).items()}
        sent = link.PushMessages(
            PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[get_object_tree(answer)],
                clientapp_runtime_list=[0.0],  # how long it took is nobody's business
            )
        )
        for key in sent.objects_to_push:
            link.PushObject(
                PushObjectRequest(
                    node=node,
                    run_id=run,
                    session_id=sent.session_id,
                    object_id=key,
                    object_content=parts[key],
                )
            )

    def _objects(self, link: Any, node: Any, run: int, tree: Any) -> dict[str, bytes] | None:
        """Fetch the parts of a message, all or none; refuse more, or larger ones, than a question has."""
        from flwr.proto.message_pb2 import PullObjectRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        found: dict[str, bytes] = {}
        until = time.monotonic() + COMING
        for part in iterate_object_tree(tree):
            while not (
                got := link.PullObject(PullObjectRequest(node=node, run_id=run, object_id=part.object_id))
            ).object_available:
                if not got.object_found or time.monotonic() > until:  # its curator has ended
                    return None
                time.sleep(SHORTEST)
            found[part.object_id] = got.object_content
            if len(found) > 16 or sum(map(len, found.values())) > LARGEST:
                raise InputError("A question came that is larger than any is. It is passed over.")
        return found

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Connect, and be known to the link as the node whose key this is."""
        try:
            from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
            from flwr.supernode.fleet_http_client import FleetHttpClient
            from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
        except ImportError as error:
            raise MissingExtraError("flwr", "flower", "A node's way to its curator") from error
        key = self.answering.identity.key
        signs = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        trusted = Path(self.curator.certificate).read_bytes()
        with FleetHttpClient.from_server_address(
            self.curator.address, False, trusted, [version, signs]
        ) as link:
            link._client.follow_redirects = False  # or a curator could send requests into the owner's network
            self._activate(link)
            over = threading.Event()
            beats = threading.Thread(target=self._beat, args=(link, over), daemon=True)
            beats.start()
            try:
                yield link
            finally:
                over.set()
                beats.join()

    def _beat(self, link: Any, over: threading.Event) -> None:
        """Tell the link that this node is there, also while it computes."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
        from flwr.proto.node_pb2 import Node

        beat = SendNodeHeartbeatRequest(node=Node(node_id=self._number), heartbeat_interval=HEARTBEAT)
        while not over.is_set():
            try:
                link.SendNodeHeartbeat(beat)
                self._note(away=False)
            except Exception:
                pass  # who looks for questions will notice
            over.wait(HEARTBEAT / 2)

    def _activate(self, link: Any) -> None:
        """Tell the link that this node is there; after a crash it may still think so, and know the number."""
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest

        kept = self.folder / "link.number"
        asks = ActivateNodeRequest(
            public_key=self.answering.identity.public.encode(), heartbeat_interval=HEARTBEAT
        )
        try:
            self._number = link.ActivateNode(asks).node_id
            write_private(kept, str(self._number).encode())
        except httpx.HTTPStatusError:
            if not kept.exists():
                raise
            self._number = int(kept.read_text(encoding="ascii"))

    def _note(self, away: bool) -> None:
        """Leave a sign of life in the folder, for who looks after the node."""
        alive = {"time": time.time(), "pid": os.getpid(), "link": "away" if away else "here"}
        write_private(self.folder / "alive.json", json.dumps(alive).encode(), synced=False)
