"""Where tasks are computed on, and the functions that run a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister._lazy import imported
from cloister.engines.cluster import Cluster
from cloister.engines.devices import MultiDevice
from cloister.engines.local import Local
from cloister.engines.partitions import ClusterRuns, cluster_plans, run_clusters
from cloister.engines.remote_nodes import RemoteNodes
from cloister.engines.run import Run
from cloister.engines.sharded_tasks import Shards
from cloister.engines.task_stream import TaskStream

if TYPE_CHECKING:
    from cloister.engines.batched import Batched

__all__ = [
    "Batched",
    "Cluster",
    "ClusterRuns",
    "Local",
    "MultiDevice",
    "RemoteNodes",
    "Run",
    "Shards",
    "TaskStream",
    "cluster_plans",
    "run_clusters",
]

#: Imported when first used: they need packages that not everybody has.
_HOMES = {"Batched": "cloister.engines.batched"}


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
