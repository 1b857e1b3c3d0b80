"""Flower as the way between curator and nodes: it carries bytes, and is trusted with no more."""

from cloister.engines.flower.apps import client_app, server_app
from cloister.engines.flower.deployment import Deployment
from cloister.engines.flower.identity import Identity, Way
from cloister.engines.flower.link import FlowerLink
from cloister.engines.flower.resident import Resident
from cloister.engines.flower.simulation import simulate

__all__ = ["Deployment", "FlowerLink", "Identity", "Resident", "Way", "client_app", "server_app", "simulate"]
