"""Flower as the way between curator and nodes: it carries bytes, and is trusted with no more."""

from cloister.engines.flower.apps import client_app, server_app
from cloister.engines.flower.deployment import Deployment
from cloister.engines.flower.identity import CuratorAddress, Identity
from cloister.engines.flower.link import FlowerTransport
from cloister.engines.flower.resident import NodeAgent
from cloister.engines.flower.simulation import simulate

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
