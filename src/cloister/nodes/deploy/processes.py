"""Processes that are started together, and end together, however the one that has started them ends."""

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
from cloister.store.files import private_folder


def service_command(folder: Path) -> list[str]:
    """Return how the operator's service is started."""
    return [script("cloister"), "deploy", "serve", str(folder)]


def curator_command(folder: Path) -> list[str]:
    """Return how the curator is started."""
    return [script("cloister"), "deploy", "start", str(folder)]


def node_command(folder: Path, types: Sequence[str] = ()) -> list[str]:
    """Return how a node is started; ``types`` are classes that its plan names, as ``file.py:Class``."""
    return [
        script("cloister"),
        "node",
        "run",
        str(folder),
        *(word for name in types for word in ("--types", name)),
    ]


#: What processes that share a machine have in their environment.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


#: Ends the processes whose ids it is told, when nobody tells it anything any more: its standard input ends
#: with the process that has started it, by whatever signal that ends.
_WATCH = """
import os, signal, sys, time
ids = set()
for line in sys.stdin:
    (ids.add if line[0] == "+" else ids.discard)(int(line[1:]))
for how in (signal.SIGTERM, signal.SIGKILL):
    for number in list(ids):
        try:
            os.killpg(number, how)
        except OSError:
            ids.discard(number)
    until = time.monotonic() + 5.0
    while ids and time.monotonic() < until:
        time.sleep(0.1)
        for number in list(ids):
            try:
                os.killpg(number, 0)
            except OSError:
                ids.discard(number)
"""


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
    watch: subprocess.Popen[str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def at(cls, logs: Path) -> Iterator[Processes]:
        """Yield an empty set of processes; end those that were started on the way out.

        Should this process be ended on the way, by any signal or by the terminal that is closed, a small
        second one ends them.
        """
        command = [sys.executable, "-I", "-S", "-c", _WATCH]
        watch = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        found = cls(private_folder(logs), watch)
        try:
            yield found
        finally:
            for name in reversed(list(found.running)):
                found.end(name)
            watch.communicate()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] = ONE_THREAD
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
        self._tell("+", self.running[name])
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
        self._tell("-", process)

    def _tell(self, what: str, process: subprocess.Popen[bytes]) -> None:
        assert self.watch.stdin is not None
        self.watch.stdin.write(f"{what}{process.pid}\n")
        self.watch.stdin.flush()

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
