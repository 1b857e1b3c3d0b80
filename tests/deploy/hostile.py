"""Parties of a run that do not keep to it, over the wire: a curator, nodes, and strangers at the door.

``python hostile.py FOLDER old|liar`` is a node that is registered, and answers as one should not.
"""

from __future__ import annotations

import ssl
import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
from flower_trial import small_plan

from cloister import run
from cloister.core.channel import GRID
from cloister.engines import RemoteNodes
from cloister.nodes import Reply, Request, RequestKind
from cloister.nodes.deploy.kit import make_authority
from cloister.nodes.flower import Deployment, FlowerTransport, NodeAgent
from cloister.nodes.flower.transport import Identity

#: A plan of another price than the one that owners approve; and another one that they approve as well.
DEAR, BRIEF = {"n_tasks": 4, "rounds": 1, "epsilon": 4.0}, {"n_tasks": 4, "rounds": 1}
#: The file of the curator's app, in place of the one that ``deploy init`` writes.
APP = """
import sys
from pathlib import Path

sys.path.insert(0, {here!r})
from flwr.serverapp import ServerApp
from hostile import curate
from cloister.nodes.flower import client_app

server, client = ServerApp(), client_app()


@server.main()
def main(grid, context):
    curate(Path({folder!r}), grid)
"""


class Half:
    """A link to some nodes; questions may be spoiled on the way."""

    def __init__(self, link, names, spoiled=lambda request: request):
        self.link, self.names, self.spoiled = link, names, spoiled

    def ask(self, requests, deadline):
        asked = {name: self.spoiled(request) for name, request in requests.items() if name in self.names}
        return self.link.ask(asked, deadline)


def unsigned(data: bytes) -> bytes:
    """Return a question whose records bear no signature."""
    request = Request.from_bytes(data)
    return replace(
        request, records=tuple(replace(each, signature=bytes(64)) for each in request.records)
    ).to_bytes()


def curate(folder: Path, grid) -> None:
    """Ask for a plan that nobody approved, show a board without signatures, and two boards; then be good."""
    made = Deployment(folder)
    link, names = FlowerTransport(grid, made.operator, made.keys, made.log), list(made.keys)

    def asks(plan, name, seed, link):
        engine = RemoteNodes(link, replace(made.operator, run=name), 60.0, log=made.log)
        run(plan, made.roster, random_state=seed, engine=engine)

    if not made.journal.exists():
        asks(small_plan(**DEAR), "dear", 1, link)
        asks(small_plan(**BRIEF), "unsigned", 2, Half(link, names, unsigned))
        asks(small_plan(**BRIEF), "forked", 3, Half(link, names[:2]))
        asks(small_plan(**BRIEF), "forked", 4, Half(link, names[2:]))
    made.curate(grid)


def lie(request: bytes, honest: bytes) -> bytes:
    """Answer the second round with garbage, and the third with a message one step of the grid too long."""
    asked = Request.from_bytes(request)
    if asked.run == "trial" and asked.kind is RequestKind.ROUND and asked.round == 1:
        return b"garbage" * 20
    if asked.run == "trial" and asked.kind is RequestKind.ROUND and asked.round == 2:
        reply = Reply.from_bytes(honest)
        row = np.zeros_like(reply.row)
        row[0] = GRID + 1
        return replace(reply, row=row).to_bytes()
    return honest


def liar(folder: str) -> NodeAgent:
    found = NodeAgent(folder)
    honest = found.answering.node.answer
    found.answering.node.answer = lambda request: lie(request, honest(request))
    return found


def old(folder: str) -> NodeAgent:
    """A node that once sends the answer that it gave before; asked again, it answers."""
    found = NodeAgent(folder)
    honest, given, again = found.answering.answer, [], []

    def answer(sealed: bytes) -> bytes:
        said = honest(sealed)
        if len(given) == 3 and not again:
            again.append(given[-1])
            return given[-1]
        given.append(said)
        return said

    found.answering.answer = answer
    return found


#: How each of a stranger's ways ends at the door: by the status, or at home.
ENDS: dict[str, object] = {
    "no key": 403,
    "a stranger's key": 403,
    "another's key": 401,
    "another's questions": 401,
    "an old message again": 401,
    "a megabyte": 413,
    "a gigabyte": 413,
    "garbage": 400,
    "the operator's calls": 403,
    "another authority": "not believed",
}


def attack(made: Deployment, folder: Path) -> dict[str, object]:
    """Try the door in every way that a stranger has; return how each ended."""
    (folder / "stranger").mkdir()
    stranger = Identity.create(folder / "stranger")
    elm, oak = (Identity.load(made.folder / "nodes" / f"school-{k}") for k in (0, 1))
    door, call = f"https://{made.settings.address}", "/v1/fleet/pull-messages"
    asks = _question(made.folder / "nodes" / "school-0")
    make_authority(folder, "other")
    trusted, other = (
        ssl.create_default_context(cafile=str(path))
        for path in (made.folder / "certificates" / "trial-ca.crt", folder / "other.crt")
    )

    def sent(headers, content=b"", path=call):
        try:
            return client.post(path, content=content, headers=headers).status_code
        except httpx.HTTPError:  # the door may close before all is there
            return 413

    with httpx.Client(base_url=door, verify=trusted) as client:
        found: dict[str, object] = {
            "no key": sent({}),
            "a stranger's key": sent(_bears(stranger)),
            "another's key": sent(_bears(elm) | _signed(stranger), asks),
            "another's questions": sent(_bears(oak) | _signed(oak), asks),
            "an old message again": sent(_bears(elm) | _signed(elm, "2020-01-01T00:00:00+00:00"), asks),
            "a megabyte": sent(_bears(elm), b"\0" * 10**6),
            "a gigabyte": sent(_bears(elm), (b"\0" * (1 << 20) for _ in range(1024))),
            "garbage": sent(_bears(elm) | _signed(elm), b"garbage" * 20),
            "the operator's calls": sent(_bears(elm), path="/v1/control/list-nodes"),
        }
        try:
            httpx.post(door + call, verify=other)
        except httpx.ConnectError:
            found["another authority"] = "not believed"
    return found


def _question(folder: Path) -> bytes:
    """Return what a node sends when it looks for questions."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node

    return PullMessagesRequest(
        node=Node(node_id=int((folder / "link.number").read_text()))
    ).SerializeToString()


def _bears(identity: Identity) -> dict[str, str]:
    return {"flwr-public-key": b64encode(identity.public.encode()).decode()}


def _signed(identity: Identity, stamp: str = "") -> dict[str, str]:
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import sign_message
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    stamp = stamp or now().isoformat()
    signature = b64encode(sign_message(identity.key, stamp.encode())).decode()
    told = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
    return told | {
        "flwr-timestamp": stamp,
        "flwr-signature": signature,
        "content-type": "application/protobuf",
    }


if __name__ == "__main__":
    {"old": old, "liar": liar}[sys.argv[2]](sys.argv[1]).serve()
