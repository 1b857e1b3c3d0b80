"""How a sum of messages becomes a release: noise and its price."""

from __future__ import annotations

from cloister.privacy.laplace import L2Laplace
from cloister.privacy.mechanisms import Gaussian, NoNoise
from cloister.privacy.prefix import BLT, Toeplitz, Tree
from cloister.privacy.wishart import Wishart

__all__ = ["BLT", "Gaussian", "L2Laplace", "NoNoise", "Toeplitz", "Tree", "Wishart"]
