"""A session of Ray: one that is there already, a cluster at an address, or one of our own on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloister.errors import InputError, MissingExtraError

__all__ = ["session"]

#: Bytes of the store through which messages between processes go, where the cluster is our own.
STORE = 1 << 28


@contextmanager
def session(address: str | None, cpus: float, cards: float) -> Iterator[Any]:
    """Yield the module `ray`, connected; what was connected here is shut down, what was before stays.

    What processes print is not sent here, and nothing is reported to Ray's makers.
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
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address is None:
            own: dict[str, Any] = {"num_cpus": max(1, int(-(-cpus // 1))), "object_store_memory": STORE}
            own |= {"num_gpus": int(-(-cards // 1))} if cards else {}
            ray.init(address="local", include_dashboard=False, **own, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"There must be a cluster of Ray at {address or 'this machine'} that can be reached. "
            f"Got {type(error).__name__}. Start one with `ray start --head`, and name its address."
        ) from error
    try:
        _check_room(ray, cpus, cards)
        yield ray
    finally:
        ray.shutdown()


def _check_room(ray: Any, cpus: float, cards: float) -> None:
    """Refuse more actors than the cluster has room for: they would wait for ever."""
    found = ray.cluster_resources()
    for name, due in (("CPU", cpus), ("GPU", cards)):
        if found.get(name, 0.0) < due:
            raise InputError(
                f"The actors need {due:g} {name}(s), and the cluster has {found.get(name, 0.0):g}. Ask for "
                "fewer actors, or for less for each, or add machines."
            )
