"""The operator's folder of a run between institutions.

=================== ====================================================================================
deploy.toml         the run's name, addresses, deadline and limits
plan.toml           the plan, which every owner approves
nodes.toml          who takes part: names, public groups, public keys
roster.json         the same, signed, with the plan: what every owner approves
codebook.toml       how tables become rows; where plans take rows as they are, absent
operator.pub        the operator's public key
certificates/       what the service shows
secrets/            the operator's key; for the operator alone
state/              board and journal, ledger, private log
=================== ====================================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from cloister.core.document import fingerprint_of_file
from cloister.core.errors import InputError, StorageError
from cloister.core.roster import Roster
from cloister.engines.curator import Posted
from cloister.engines.run import Run, run
from cloister.ledger import Ledger
from cloister.nodes.http_transport import HttpTransport
from cloister.nodes.identity import PublicIdentity
from cloister.nodes.remote import RemoteNodes, Transport
from cloister.nodes.service import ServiceSettings
from cloister.plan.plan import Plan
from cloister.store.billboard import scan
from cloister.store.files import BINARY, append, bytes_of, private_folder, try_lock, write_file, write_private
from cloister.store.signatures import Operator, SignedRoster, public_key
from cloister.tables.codebook import Codebook
from cloister.tables.naming import Naming

#: Seconds that a curator waits for another one to end.
_PATIENCE = 10.0
#: A longer log is put aside, in place of the one that was put aside before.
_LONGEST_LOG = 1 << 24


class SeenTransport(Transport, Protocol):
    """A transport that knows when it has heard of whom."""

    last_seen: dict[str, float]


@dataclass(frozen=True)
class DeploymentSettings:
    """What ``deploy.toml`` says.

    Attributes
    ----------
    run : str
        The run's name; used once.
    address : str
        ``host:port`` of the service, as nodes reach it.
    listen : str
        ``host:port`` that the service listens on.
    rounds : int
        Releases of the plan.
    deadline : float
        Seconds that every round waits for messages: public.
    reply : int
        Bytes of the plan's largest reply: every answer with a message is made as long.
    seed : int, optional
        The seed of the noise, for tests and papers: nothing is promised then, and nodes must have agreed.
    """

    run: str
    address: str
    listen: str
    rounds: int = 0
    deadline: float = 60.0
    reply: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class Deployment:
    """The operator's folder, as ``cloister deploy init`` wrote it."""

    folder: Path

    @cached_property
    def settings(self) -> DeploymentSettings:
        document = _toml(self.folder / "deploy.toml")
        if "link" in document:
            raise InputError(
                f"{self.folder} is of an earlier version, whose nodes were reached over Flower. Finish its "
                "run with that version, or type cloister deploy init with a new folder and a new run."
            )
        try:
            return DeploymentSettings(**document)
        except TypeError:
            raise InputError(
                f"{self.folder}/deploy.toml must have the lines that cloister deploy init wrote. Restore it."
            ) from None

    def plan(self, types: Iterable[object] = ()) -> Plan:
        return Plan.load(self.folder / "plan.toml", types)

    @property
    def fingerprint(self) -> str:
        """The plan's, read without the types that it may name."""
        return fingerprint_of_file(self.folder / "plan.toml")

    @property
    def n_tasks(self) -> int:
        """How many nodes the plan is for."""
        return int(_toml(self.folder / "plan.toml")["n_tasks"])

    @property
    def naming(self) -> Naming:
        """What the codebook calls tasks, and which there are, if it says so."""
        path = self.folder / "codebook.toml"
        return Codebook.load(path).naming if path.exists() else Naming()

    @property
    def nodes(self) -> list[Mapping[str, Any]]:
        """Name, keys and group of each node, in the order of the file."""
        found = _toml(self.folder / "nodes.toml").get("node", [])
        keys = [PublicIdentity.from_text(str(node.get("key", ""))).text for node in found]
        if len(set(keys)) < len(keys):
            raise InputError("Every node must have keys of its own in nodes.toml. Got one twice.")
        return [{**node, "key": key} for node, key in zip(found, keys, strict=True)]

    @property
    def keys(self) -> dict[str, str]:
        """Each node's public keys, by its task's name."""
        return {str(node["name"]): node["key"] for node in self.nodes}

    @property
    def roster(self) -> Roster:
        nodes = self.nodes
        groups = [node["group"] for node in nodes if "group" in node]
        return Roster([node["name"] for node in nodes], groups or None)

    def sign_roster(self) -> SignedRoster:
        """Sign who takes part in the plan, all of the codebook's roster if it has one; keep it for owners."""
        self.naming.check(self.keys, "nodes.toml")
        operator, keys = self.operator, tuple(self.keys.values())
        signed = operator.sign_roster(self.fingerprint, self.roster, self.codebook, keys)
        write_file(self.folder / "roster.json", signed.to_bytes())
        return signed

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
    def certificate(self) -> Path:
        return self.folder / "certificates" / "server.crt"

    @property
    def reach(self) -> str:
        """Where this machine reaches the service."""
        host, _, port = self.settings.listen.rpartition(":")
        return f"{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"

    def service(self, tell: Callable[[str], None]) -> ServiceSettings:
        """Return what the service is started with; it reads no secret but its certificate's key."""
        told = self.settings
        return ServiceSettings(
            told.address,
            told.listen,
            public_key((self.folder / "operator.pub").read_text(encoding="ascii")),
            _Registered(self, tell),
            str(self.certificate),
            str(self.certificate.with_suffix(".key")),
        )

    def transport(self) -> HttpTransport:
        """Return the way to the nodes, to be entered; the service must run."""
        told = self.settings
        return HttpTransport(
            told.address, self.reach, self.certificate, self.operator, self.keys, told.reply, self.log
        )

    def curate(self, transport: SeenTransport, types: Iterable[object] = ()) -> Run | None:
        """Run the plan over the nodes, or go on with it; charged once, by the journal.

        None if the run is finished already: one that died on its last step has left nothing to do.
        """
        with self._lock() as file:
            until = time.monotonic() + _PATIENCE
            while not try_lock(file):
                if time.monotonic() > until:
                    raise StorageError(
                        f"Another curator is at work in {self.folder}. Wait for it, or end it."
                    )
                time.sleep(0.1)
            return None if self.finished else self._curate(transport, types)

    def _curate(self, transport: SeenTransport, types: Iterable[object]) -> Run:
        def note(posted: Posted) -> None:
            self._write("heard.json", transport.last_seen)

        keys, plan = self.keys, self.plan(types)
        told = self.settings.deadline, self.codebook, keys, self.log, self.state / "attempt"
        engine = RemoteNodes(transport, self.operator, *told)
        done = run(
            plan,
            self.roster,
            random_state=self.settings.seed,
            engine=engine,
            journal=self.journal,
            ledger=self.ledger,
            progress=note,
        )
        self._write("heard.json", transport.last_seen)
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
        path = self.state / "log"
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(sentence.split())}\n"
        if path.exists() and path.stat().st_size > _LONGEST_LOG:
            os.replace(path, path.with_name("log.old"))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
        try:
            append(file, line.encode(errors="replace"))
        finally:
            os.close(file)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        write_private(self.state / name, json.dumps(document).encode(), synced=False)


class _Registered:
    """The keys of ``nodes.toml`` as it is now; while it cannot be read, as it was."""

    def __init__(self, deployment: Deployment, tell: Callable[[str], None]) -> None:
        self.deployment, self.tell = deployment, tell
        self._keys: dict[str, str] = {}
        self._version: tuple[int, int] | None = None

    def __call__(self) -> Mapping[str, str]:
        found = (self.deployment.folder / "nodes.toml").stat()
        version = found.st_mtime_ns, found.st_size
        if version != self._version:
            self._version = version
            try:
                self._keys = self.deployment.keys
            except InputError as error:
                self.tell(f"nodes.toml cannot be read; those of before stay registered. {error}")
        return self._keys


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no {path}. Type cloister deploy init FOLDER first.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}. Mend that line.") from None
