"""Where tasks are computed on, and the functions that run a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.core.errors import imported
from cloister.engines.devices import MultiDevice
from cloister.engines.local import Local
from cloister.engines.partitions import PartitionRuns, partition_plans, run_partition
from cloister.engines.run import Run
from cloister.engines.streams import TaskStream
from cloister.engines.workers import Shards

if TYPE_CHECKING:
    from cloister.cluster.engine import Cluster
    from cloister.networks.batched import Batched
    from cloister.nodes.remote import RemoteNodes

__all__ = [
    "Batched",
    "Cluster",
    "Local",
    "MultiDevice",
    "PartitionRuns",
    "RemoteNodes",
    "Run",
    "Shards",
    "TaskStream",
    "partition_plans",
    "run_partition",
]

#: Imported when first used: they live in rooms above, and need packages that not everybody has.
_HOMES = {
    "Batched": "cloister.networks.batched",
    "Cluster": "cloister.cluster.engine",
    "RemoteNodes": "cloister.nodes.remote",
}


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
