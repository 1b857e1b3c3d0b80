"""Flower as the way between curator and nodes: it carries bytes, and is trusted with no more."""

from cloister.nodes.flower.agent import NodeAgent
from cloister.nodes.flower.apps import client_app, server_app, simulate
from cloister.nodes.flower.deployment import Deployment
from cloister.nodes.flower.transport import CuratorAddress, FlowerTransport, Identity

__all__ = [
    "CuratorAddress",
    "Deployment",
    "FlowerTransport",
    "Identity",
    "NodeAgent",
    "client_app",
    "server_app",
    "simulate",
]
