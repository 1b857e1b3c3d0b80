"""A node: one task of a roster at home, with its rows, state and model; it answers a curator in bytes."""

from cloister.engines.node.home import NodeFolder, Settings
from cloister.engines.node.in_process import InProcess
from cloister.engines.node.node import Node
from cloister.engines.node.wire import REFUSAL, Ask, Reply, Request, Say

__all__ = ["REFUSAL", "Ask", "InProcess", "Node", "NodeFolder", "Reply", "Request", "Say", "Settings"]
