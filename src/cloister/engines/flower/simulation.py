"""`simulate`: the nodes of an operator's folder in Flower's simulation, as actors of Ray on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloister.engines.cluster.session import session
from cloister.engines.flower.apps import Answering
from cloister.engines.flower.deployment import Deployment
from cloister.engines.flower.link import body, message_body
from cloister.engines.run import Run
from cloister.errors import InputError, MissingExtraError

__all__ = ["simulate"]

#: The question by which a simulated node is asked whose folder it answers from.
_WHO = "query.who"


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
        The operator's folder, with each node's folder in ``nodes``, as `cloister.deploy.trial.join` puts it.
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
    run_simulation, server_app = _flower()
    server = server_app()
    done: list[Run | None] = []

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        done.append(deployment.curate(_Simulated(grid, len(homes)), known))

    count = actors or os.cpu_count() or 1
    resources = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    with session(None, count, 0), _quiet():
        run_simulation(server, _client_app(list(map(str, homes)), known), len(homes), "ray", resources)
    return done[0]


class _Simulated:
    """A simulation's grid. Its nodes have no keys, so that each is asked once for that of its folder."""

    def __init__(self, grid: Any, count: int) -> None:
        self.grid, self.count = grid, count
        self.push_messages, self.pull_messages = grid.push_messages, grid.pull_messages
        self._nodes: list[Any] = []

    def get_nodes(self) -> list[Any]:
        from flwr.app import Message
        from flwr.proto.node_pb2 import NodeInfo

        numbers = sorted(self.grid.get_node_ids())
        if len(numbers) == self.count and not self._nodes:  # it starts before all of them are there
            asked = [Message(body(b""), dst_node_id=each, message_type=_WHO) for each in numbers]
            self._nodes = [
                NodeInfo(node_id=said.metadata.src_node_id, public_key=message_body(said) or b"")
                for said in self.grid.send_and_receive(asked)
                if said.has_content()
            ]
        return self._nodes


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


def _flower() -> tuple[Any, Any]:
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
