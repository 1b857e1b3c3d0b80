"""The operator's folder of a run between institutions, and the operator's side of Flower's link.

=================== ====================================================================================
deploy.toml         the run's name, addresses, deadline and limits
plan.toml           the plan, which every owner approves
nodes.toml          who takes part: names, public groups, public keys
codebook.toml       how tables become rows; where plans take rows as they are, absent
certificates/       what the proxy and the link show; ``inner`` ones are for this machine alone
secrets/            the operator's key, the executor's secret; for the operator alone
app/                what Flower runs here; nothing in it is secret, and nothing of it runs at a node
state/              board and journal, ledger, the link's database, private log
=================== ====================================================================================

Over the link, on this machine, the operator registers nodes' keys and starts runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cloister.core.errors import InputError, MissingExtraError, StorageError
from cloister.core.roster import Roster
from cloister.engines.curator import Posted
from cloister.engines.run import Run, run
from cloister.ledger import Ledger
from cloister.nodes.flower.transport import FlowerTransport, read_public_key
from cloister.nodes.remote import RemoteNodes
from cloister.plan.plan import Plan
from cloister.store.billboard import scan
from cloister.store.files import BINARY, append, bytes_of, private_folder, try_lock, write_private
from cloister.store.signatures import Operator

#: Seconds that a curator waits for another one to end.
_PATIENCE = 10.0


@dataclass(frozen=True)
class DeploymentSettings:
    """What ``deploy.toml`` says.

    Attributes
    ----------
    run : str
        The run's name; used once.
    address : str
        ``host:port`` of the proxy, as nodes reach it.
    listen : str
        ``host:port`` that the proxy listens on.
    link : int
        The port of Flower's link, on this machine alone.
    rounds : int
        Releases of the plan.
    deadline : float
        Seconds that every round waits for messages: public.
    largest : int
        Bytes of the largest request that the proxy lets through.
    rate : float
        Requests a second that the proxy takes from one node.
    seed : int, optional
        The seed of the noise, for tests and papers: nothing is promised then, and nodes must have agreed.
    """

    run: str
    address: str
    listen: str
    link: int
    rounds: int = 0
    deadline: float = 60.0
    largest: int = 1 << 20
    rate: float = 40.0
    seed: int | None = None


@dataclass(frozen=True)
class Deployment:
    """The operator's folder, as ``cloister deploy init`` wrote it."""

    folder: Path

    @cached_property
    def settings(self) -> DeploymentSettings:
        try:
            return DeploymentSettings(**_toml(self.folder / "deploy.toml"))
        except TypeError:
            raise InputError(
                f"{self.folder}/deploy.toml must have the lines that cloister deploy init wrote. Restore it."
            ) from None

    def plan(self, types: Iterable[object] = ()) -> Plan:
        return Plan.load(self.folder / "plan.toml", types)

    @cached_property
    def nodes(self) -> list[Mapping[str, Any]]:
        """Name, key and group of each node, in the order of the file."""
        found = _toml(self.folder / "nodes.toml").get("node", [])
        for node in found:
            read_public_key(str(node.get("key", "")))
        if len({node["key"] for node in found}) < len(found):
            raise InputError("Every node must have a key of its own in nodes.toml. Got one twice.")
        return list(found)

    @property
    def keys(self) -> dict[str, str]:
        """Each node's public key, by its task's name."""
        return {str(node["name"]): str(node["key"]) for node in self.nodes}

    @property
    def roster(self) -> Roster:
        groups = [node["group"] for node in self.nodes if "group" in node]
        return Roster([node["name"] for node in self.nodes], groups or None)

    @property
    def operator(self) -> Operator:
        return Operator.load(self.folder / "secrets" / "operator.key", self.settings.run)

    @property
    def codebook(self) -> str:
        """SHA-256 of the codebook, by which tables become rows; empty where there is none."""
        path = self.folder / "codebook.toml"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    @property
    def state(self) -> Path:
        return private_folder(self.folder / "state")

    @property
    def journal(self) -> Path:
        return self.state / "journal"

    @property
    def ledger(self) -> Ledger:
        found: Ledger = Ledger.open(self.state / "ledger")
        return found

    @property
    def finished(self) -> bool:
        """Whether the board is complete, and the journal's secret gone: nothing is left to do."""
        path = self.journal / "board"
        if (self.journal / "secret").exists() or not path.exists():
            return False
        return scan(bytes_of(path), path).problem is None

    @property
    def curated(self) -> bool:
        """Whether a curator is at work on this machine."""
        with self._lock() as file:
            return not try_lock(file)

    def curate(self, grid: Any, types: Iterable[object] = ()) -> Run | None:
        """Run the plan over the nodes of a grid of Flower, or go on with it; charged once, by the journal.

        None if the run is finished already: one that died on its last step has left nothing to do.
        """
        with self._lock() as file:
            until = time.monotonic() + _PATIENCE
            while not try_lock(file):  # somebody may be looking whether it is free
                if time.monotonic() > until:
                    raise StorageError(
                        f"Another curator is at work in {self.folder}. Wait for it, or end it."
                    )
                time.sleep(0.1)
            os.pwrite(file, b"%d\n" % os.getpid(), 0)
            return None if self.finished else self._curate(grid, types)

    def _curate(self, grid: Any, types: Iterable[object]) -> Run:
        transport = FlowerTransport(grid, self.operator, self.keys, self.log)
        began = time.time()

        def note(posted: Posted) -> None:
            progress = {"done": posted.done, "rounds": posted.total, "began": began}
            self._write("rounds.json", progress)
            self._write("heard.json", transport.last_seen)

        engine = RemoteNodes(transport, self.operator, self.settings.deadline, self.codebook, self.log)
        done = run(
            self.plan(types),
            self.roster,
            random_state=self.settings.seed,
            engine=engine,
            journal=self.journal,
            ledger=self.ledger,
            progress=note,
        )
        self._write("heard.json", transport.last_seen)
        self._write("finished.json", {"head": done.board.head.hex()})
        return done

    @contextmanager
    def _lock(self) -> Iterator[int]:
        file = os.open(self.state / "curator.lock", os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    def log(self, sentence: str) -> None:
        """Add a line to the operator's private log."""
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(sentence.split())}\n"
        file = os.open(self.state / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
        try:
            append(file, line.encode(errors="replace"))
        finally:
            os.close(file)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        write_private(self.state / name, json.dumps(document).encode(), synced=False)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no {path}. Type cloister deploy init FOLDER first.") from None
    except ValueError as error:
        raise InputError(f"{path} cannot be read as TOML: {error}. Mend that line.") from None


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
