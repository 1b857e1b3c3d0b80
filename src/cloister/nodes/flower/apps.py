"""The two apps of Flower: a curator's ServerApp, and a ClientApp for networks that have SuperNodes.

`simulate` runs the nodes of an operator's folder in Flower's simulation, as actors of Ray on this machine.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloister.cluster.engine import session
from cloister.core.errors import InputError, MissingExtraError, SignatureError
from cloister.engines.run import Run
from cloister.nodes import REFUSAL, Node
from cloister.nodes.flower.deployment import Deployment
from cloister.nodes.flower.transport import Identity, body, message_body, open_question, seal_answer
from cloister.store.signatures import public_key


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
    app = _flower("cloister.nodes.flower.server_app").ServerApp()

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
    flower = _flower("cloister.nodes.flower.client_app")
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


#: The question by which a simulated node is asked whose folder it answers from.
_WHO = "query.who"
#: Seconds in which all nodes must have said so, before anything is charged; or a round's, if these are more.
_PATIENCE = 120.0


def simulate(
    folder: str | os.PathLike[str], types: Iterable[object] = (), actors: int | None = None
) -> Run | None:
    """Run the plan of an operator's folder in Flower's simulation; None if the run is finished already.

    Curator, nodes, files, ledgers and every byte between them are as over a network: what differs is that
    Flower's simulation carries the messages, on this machine, without TLS and registered keys. For who has
    simulations of Flower already; `run` gives the same board in a small part of the time.

    Parameters
    ----------
    folder : path
        The operator's folder, with each node's folder in ``nodes``, as `cloister.nodes.deploy.trial.join`
        puts it.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that the plan names.
    actors : int, optional
        Processes that answer for the nodes; by default one for each core.

    Privacy
    -------
    One machine holds all nodes' rows. The run itself is the one between institutions, with its noise, checks
    and both ledgers.

    Examples
    --------
    ``simulate("trial")``
    """
    deployment, known = Deployment(Path(folder).resolve()), tuple(types)
    if deployment.finished:
        return None
    homes = [deployment.folder / "nodes" / name for name in deployment.keys]
    for home in homes:
        if not home.exists():
            raise InputError(f"A simulation needs every node's folder. There is no {home}. Make it there.")
    run_simulation, server_app = _simulation()
    server = server_app()
    done: list[Run | None] = []

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        patience = max(_PATIENCE, deployment.settings.deadline)
        done.append(deployment.curate(_Simulated(grid, deployment.keys, patience), known))

    count = actors or os.cpu_count() or 1
    resources = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    with session(None, count, 0), _quiet():
        run_simulation(server, _client_app(list(map(str, homes)), known), len(homes), "ray", resources)
    return done[0]


class _Simulated:
    """A simulation's grid, once all nodes are there and have said whose folders they answer from."""

    def __init__(self, grid: Any, keys: Mapping[str, str], patience: float) -> None:
        self.push_messages, self.pull_messages = grid.push_messages, grid.pull_messages
        self._nodes = _acquainted(grid, keys, patience)

    def get_nodes(self) -> list[Any]:
        return self._nodes


def _acquainted(grid: Any, keys: Mapping[str, str], patience: float) -> list[Any]:
    """Ask simulated nodes, which have no keys of Flower, for those of their folders until all are known.

    The simulation starts before all of them are there, and an actor may fail: who has not said is asked
    again.
    """
    from flwr.app import Message
    from flwr.proto.node_pb2 import NodeInfo

    known_keys: dict[int, bytes] = {}
    until = time.monotonic() + patience
    while True:
        known = {b" ".join(key.split()) for key in known_keys.values()}
        missing = [name for name, key in keys.items() if " ".join(key.split()).encode() not in known]
        if not missing:
            return [NodeInfo(node_id=number, public_key=key) for number, key in known_keys.items()]
        left = until - time.monotonic()
        if left <= 0 or len(known_keys) == len(keys):
            raise InputError(
                f"All {len(keys)} nodes of a simulation must say who they are before it begins, within "
                f"{patience:g} seconds. {len(missing)} did not, {missing[0]!r} among them, and nothing was "
                "charged. Look whether their folders have the keys of nodes.toml, and try again."
            )
        messages = [
            Message(body(b""), dst_node_id=number, message_type=_WHO)
            for number in sorted(set(grid.get_node_ids()) - set(known_keys))
        ]
        for each in grid.send_and_receive(messages, timeout=left) if messages else ():
            key = message_body(each) if each.has_content() else None
            if key is not None:
                known_keys[each.metadata.src_node_id] = key
        time.sleep(0.5)


def _client_app(homes: Sequence[str], types: tuple[object, ...]) -> Any:
    """Return the app of all simulated nodes: each answers from the folder of its number."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def mine(context: Any) -> Answering:
        return Answering(homes[int(context.node_config["partition-id"])], types)

    @app.query("who")  # type: ignore[untyped-decorator, unused-ignore]
    def who(message: Any, context: Any) -> Any:
        return Message(body(mine(context).identity.public.encode()), reply_to=message)

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def answer(message: Any, context: Any) -> Any:
        return Message(body(mine(context).answer(message_body(message) or b"")), reply_to=message)

    return app


def _simulation() -> tuple[Any, Any]:
    try:
        import ray  # noqa: F401
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation
        from flwr.supercore import telemetry
    except ImportError as error:
        raise MissingExtraError("flwr[simulation]", "simulation", "A simulation of Flower") from error
    telemetry.FLWR_TELEMETRY_ENABLED = "0"  # it is read when Flower is imported, which may have been before
    return run_simulation, ServerApp


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Flower say what fails, and nothing else."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
