"""A session of Ray: one that is there already, a cluster at an address, or one of our own on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from cloister.engines.cluster.reach import check_answers
from cloister.errors import ClusterError, InputError, MissingExtraError

__all__ = ["session"]

#: Bytes of the store through which messages between processes go, where the cluster is our own.
STORE = 1 << 28
#: Seconds that a process of Ray that was told to end may take.
PATIENCE = 20.0
#: Attempts to start Ray on a busy machine.
STARTS = 3


@contextmanager
def session(address: str | None, cpus: float, cards: float) -> Iterator[Any]:
    """Yield the module `ray`, connected; what was connected here is shut down, what was before stays.

    What processes print is not sent here, and nothing is reported to Ray's makers. A session of our own has a
    token that nobody else knows, and what it writes is for this user alone.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # on this machine actors are the work
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "A cluster") from error
    if ray.is_initialized():
        _check_room(ray, cpus, cards)
        yield ray
        return
    with _own_token(ray) if address is None else nullcontext():
        _connect(ray, address, cpus, cards)
        try:
            _check_room(ray, cpus, cards)
            yield ray
        finally:
            _shut_down(ray)


def _connect(ray: Any, address: str | None, cpus: float, cards: float) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address is None:
            own: dict[str, Any] = {"num_cpus": max(1, int(-(-cpus // 1))), "object_store_memory": STORE}
            own |= {"num_gpus": int(-(-cards // 1))} if cards else {}
            _start(ray, own | quiet)
        else:
            check_answers(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"There must be a cluster of Ray at {address or 'this machine'} that can be reached. "
            f"Got {type(error).__name__}. Start one with `ray start --head`, and name its address."
        ) from error


def _start(ray: Any, options: dict[str, Any]) -> None:
    """Start Ray on this machine; again, where that is too busy for the half minute that Ray has for it."""
    for _ in range(STARTS):
        try:
            with _own_files():
                ray.init(address="local", include_dashboard=False, **options)
            return
        except Exception as error:
            if type(error) is not Exception or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    raise ClusterError(
        f"Ray did not start on this machine in {STARTS} attempts of half a minute. Wait until other work has "
        "ended, then do the same again."
    )


def _shut_down(ray: Any) -> None:
    """Disconnect; return when the processes have ended that were started here: Ray does not wait for all."""
    node = getattr(ray._private.worker, "_global_node", None)
    started = [one.process for kind in getattr(node, "all_processes", {}).values() for one in kind]
    ray.shutdown()
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


@contextmanager
def _own_files() -> Iterator[None]:
    """Let processes that start meanwhile write files for this user alone: Ray puts rows there.

    It does when its store is full, and by default everybody on the machine could read them.
    """
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


@contextmanager
def _own_token(ray: Any) -> Iterator[None]:
    """Let nobody into a session that starts meanwhile who does not have its token, a fresh one."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ |= dict(zip(names, ("token", secrets.token_hex(32)), strict=True))
    _read_token_again(ray)
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ |= before
        _read_token_again(ray)


def _read_token_again(ray: Any) -> None:
    """Let Ray forget the token that this process had before; versions without tokens know none."""
    loader = getattr(ray._raylet, "AuthenticationTokenLoader", None)
    if loader is not None:
        ray._raylet.Config.initialize("")
        loader.instance().reset_cache()


def _check_room(ray: Any, cpus: float, cards: float) -> None:
    """Refuse more actors than the cluster has room for: they would wait for ever."""
    found = ray.cluster_resources()
    for name, due in (("CPU", cpus), ("GPU", cards)):
        if found.get(name, 0.0) < due:
            raise InputError(
                f"The actors need {due:g} {name}(s), and the cluster has {found.get(name, 0.0):g}. Ask for "
                "fewer actors, or for less for each, or add machines."
            )
