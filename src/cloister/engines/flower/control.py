"""The operator's side of Flower's link, on this machine: registers nodes' keys, and starts runs."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloister.engines.flower.deployment import Deployment
from cloister.errors import InputError, MissingExtraError

__all__ = ["Control"]


class Control:
    """A connection to the link of a deployment; `Control.of` opens one."""

    def __init__(self, client: Any, deployment: Deployment) -> None:
        self.client, self.deployment = client, deployment

    @classmethod
    @contextmanager
    def of(cls, deployment: Deployment) -> Iterator[Control]:
        """Connect to the link, which must run on this machine."""
        try:
            from flwr.supercore.control import ControlHttpClient
            from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
        except ImportError as error:
            raise MissingExtraError("flwr", "flower", "cloister deploy") from error
        address = f"127.0.0.1:{deployment.settings.link}"
        trusted = (deployment.folder / "certificates" / "inner-ca.crt").read_bytes()
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        with ControlHttpClient.from_server_address(address, False, trusted, [version]) as client:
            yield cls(client, deployment)

    def nodes(self) -> dict[str, Any]:
        """Return what the link knows of each node, by its name, which its registered key decides."""
        from flwr.proto.control_pb2 import ListNodesRequest

        names = {"".join(key.split()): name for name, key in self.deployment.keys.items()}
        found = {
            "".join(each.public_key.decode().split()): each
            for each in self.client.ListNodes(ListNodesRequest()).nodes_info
        }
        return {names[key]: each for key, each in found.items() if key in names}

    def register(self) -> list[str]:
        """Register the keys of all nodes of ``nodes.toml`` that are new; return their names."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        known = self.nodes()
        new = [name for name in self.deployment.keys if name not in known]
        for name in new:
            self.client.RegisterNode(RegisterNodeRequest(public_key=self.deployment.keys[name].encode()))
        return new

    def start(self) -> int:
        """Start the curator; it goes on from its journal. Return the number that Flower gives this start."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.fab_pb2 import Fab

        with warnings.catch_warnings():  # of packages that Flower uses
            warnings.simplefilter("ignore", DeprecationWarning)
            content = build_fab_from_disk(self.deployment.folder / "app")
        request = StartRunRequest(fab=Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content))
        started = self.client.StartRun(request)
        if not started.HasField("run_id"):
            raise InputError("Flower has not started the run. See the link's log in the folder state.")
        return int(started.run_id)

    def stop(self, run: int) -> None:
        """Tell Flower that a start has ended; it would notice later."""
        from flwr.proto.control_pb2 import StopRunRequest

        self.client.StopRun(StopRunRequest(run_id=run))

    def over(self, run: int) -> bool:
        """Say whether a start has ended, well or not; the board says which."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        return run not in found or found[run].status.status == "finished"
