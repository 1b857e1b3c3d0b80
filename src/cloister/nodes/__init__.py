"""A node: one task of a roster at home, with its rows, state and model; it answers a curator in bytes."""

from cloister.nodes.local_transports import InProcess
from cloister.nodes.messages import REFUSAL, Reply, ReplyKind, Request, RequestKind
from cloister.nodes.node import Node
from cloister.nodes.node_folder import NodeFolder, NodeSettings

__all__ = [
    "REFUSAL",
    "InProcess",
    "Node",
    "NodeFolder",
    "NodeSettings",
    "Reply",
    "ReplyKind",
    "Request",
    "RequestKind",
]
