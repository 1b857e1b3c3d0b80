"""Tasks on more than one machine, or more of them than memory holds: actors of Ray, each with its shards."""

from __future__ import annotations

from cloister.cluster.engine import Cluster

__all__ = ["Cluster"]
