"""Real databases for the ledger: a fresh SQLite file, and a PostgreSQL server that the tests start."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_NOBODY = 65534


def _programs(home: Path) -> Path:
    """Folder with PostgreSQL's programs: Debian's, or those of the package pgserver."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent
    found = find_spec("pgserver")
    if found is None or found.origin is None:
        pytest.skip("no PostgreSQL server: install the package pgserver, or Debian's postgresql")
    package = Path(found.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall" / "bin"
    for name in ("pgserver/pginstall", "pgserver.libs"):  # the user below may not reach the environment
        if (package.parent / name).is_dir():
            shutil.copytree(package.parent / name, home / name)
    return home / "pgserver" / "pginstall" / "bin"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Path]:
    """Start a server on a socket in a folder of its own; root, whom PostgreSQL refuses, becomes nobody."""
    home = Path(tempfile.mkdtemp(prefix="cloister-pg-"))
    root = os.geteuid() == 0
    user: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if root else {}
    try:
        programs = _programs(home)
        home.chmod(0o755)
        (home / "server").mkdir()
        if root:
            os.chown(home / "server", _NOBODY, _NOBODY)
        with (home / "log").open("wb") as log:
            calls: dict[str, Any] = {"cwd": home / "server", "stdout": log, "stderr": log, **user}
            data = str(home / "server" / "data")
            initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
            subprocess.run(initdb, check=True, **calls)
            options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home / 'server'}"]
            server = subprocess.Popen([programs / "postgres", "-D", data, *options], **calls)
        try:
            _wait(programs, home / "server", server)
            yield home / "server"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing here is kept
            server.wait(timeout=60)
    finally:
        shutil.rmtree(home)


def _wait(programs: Path, home: Path, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        ready = subprocess.run([programs / "pg_isready", "-q", "-h", home], check=False)
        if ready.returncode == 0 and server.poll() is None:
            return
        time.sleep(0.1)
    pytest.fail((home.parent / "log").read_text())


@pytest.fixture(scope="session")
def new_database(postgres: Path) -> Callable[[], str]:
    """Return a function that makes an empty database and returns its URL."""
    import psycopg

    numbers = itertools.count()

    def make() -> str:
        name = f"ledger{next(numbers)}"
        with psycopg.connect(host=str(postgres), user="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={postgres}"

    return make


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a place for a new ledger: an SQLite file, then an empty PostgreSQL database."""
    if request.param == "sqlite":
        return str(tmp_path / "tasks.ledger")
    url: str = request.getfixturevalue("new_database")()
    return url
