"""The processes of a deployment: how each is started, here and by the units of a machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cloister.core.errors import InputError
from cloister.nodes.flower.deployment import Deployment
from cloister.store.files import private_folder


def link_command(deployment: Deployment) -> list[str]:
    """Flower's link: on this machine alone, registered nodes alone, and its executor by a secret alone."""
    folder, port = deployment.folder, str(deployment.settings.link)
    certificates = folder / "certificates"
    return [
        script("flower-superlink"),
        *("--host", "127.0.0.1", "--port", port),
        *("--ssl-ca-certfile", str(certificates / "inner-ca.crt")),
        *("--ssl-certfile", str(certificates / "inner.crt")),
        *("--ssl-keyfile", str(certificates / "inner.key")),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(folder / "secrets" / "executor.secret")),
        "--enable-supernode-auth",
        *("--database", str(folder / "state" / "link.db")),
        "--disable-runtime-dependency-installation",
    ]


def executor_command(deployment: Deployment) -> list[str]:
    """Flower's executor, which starts the curator's app on this machine."""
    folder = deployment.folder
    return [
        script("flower-superexec"),
        *("--runtime-api-address", f"127.0.0.1:{deployment.settings.link}"),
        *("--root-certificates", str(folder / "certificates" / "inner-ca.crt")),
        *("--superexec-auth-secret-file", str(folder / "secrets" / "executor.secret")),
    ]


def proxy_command(deployment: Deployment) -> list[str]:
    return [sys.executable, "-m", "cloister.nodes.flower.proxy", str(deployment.folder)]


def forget_command(deployment: Deployment) -> list[str]:
    """Return how the link's database is deleted after the run; before its end it does nothing."""
    return [sys.executable, "-m", "cloister.nodes.deploy.processes", str(deployment.folder)]


def node_command(folder: Path, types: Sequence[str] = ()) -> list[str]:
    """Return how a node is started; ``types`` are classes that its plan names, as ``file.py:Class``."""
    return [
        script("cloister"),
        "node",
        "run",
        str(folder),
        *(word for name in types for word in ("--types", name)),
    ]


def settings(deployment: Deployment) -> dict[str, str]:
    """Return what the operator's processes have in their environment: a home of their own, no calls home."""
    return {
        "FLWR_HOME": str(deployment.folder / "state" / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def forget_traffic(deployment: Deployment) -> None:
    """Delete the link's database of a finished run; the link must have ended."""
    if deployment.finished:
        for path in deployment.state.glob("link.db*"):
            path.unlink(missing_ok=True)


def free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Processes:
    """Processes that are started together, and ended together: by their ids, with all that they started.

    Attributes
    ----------
    logs : Path
        A folder; what each prints goes into a file of it.
    running : dict
        Each by its name.
    """

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def at(cls, logs: Path) -> Iterator[Processes]:
        """Yield an empty set of processes; end those that were started on the way out."""
        found = cls(private_folder(logs))
        try:
            yield found
        finally:
            for name in list(found.running):
                found.end(name)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        with open(
            os.open(self.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
        ) as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path, **environment},
                start_new_session=True,
            )
        return self.running[name]

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a process and those that it has started; one that does not listen is killed."""
        process = self.running.pop(name)
        for attempt in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, attempt)
            except ProcessLookupError:
                break
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                continue
            if attempt is signal.SIGKILL:
                break

    def wait_for(self, name: str, port: int, seconds: float = 60.0) -> None:
        """Wait until a process listens on a port of this machine."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.running[name].poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise InputError(f"{name} did not start. Read {self.logs / name}.log, and try again.")


def script(name: str) -> str:
    """Return the path of a command that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)


if __name__ == "__main__":
    forget_traffic(Deployment(Path(sys.argv[1])))
