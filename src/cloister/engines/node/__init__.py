"""A node: one task of a roster at home, with its rows, state and model; it answers a curator in bytes."""

from cloister.engines.node.home import NodeFolder, Settings
from cloister.engines.node.in_process import InProcess
from cloister.engines.node.node import Node
from cloister.engines.node.wire import REFUSAL, Reply, ReplyKind, Request, RequestKind

__all__ = [
    "REFUSAL",
    "InProcess",
    "Node",
    "NodeFolder",
    "Reply",
    "ReplyKind",
    "Request",
    "RequestKind",
    "Settings",
]
