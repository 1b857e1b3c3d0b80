"""The operator's kit: a folder to run a plan between institutions, and a trial of it on one machine."""

from cloister.nodes.deploy.kit import add_node, create

__all__ = ["add_node", "create"]
