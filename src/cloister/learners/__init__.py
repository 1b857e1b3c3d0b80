"""What a task fits at home: convex losses and Bayesian models in NumPy, networks in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.core.errors import imported
from cloister.core.named_inputs import pad_sequences
from cloister.learners.descent import Adam, AdamW, Cosine, Descent, ExactSolver, Nesterov, WarmUp
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.convex import Convex
from cloister.learners.linear.counts import CountRegression
from cloister.learners.linear.losses import LeastSquares, Logistic, PoissonLoss, Softmax
from cloister.learners.linear.ordered import OrderedClassification, OrderedLoss
from cloister.learners.linear.regression import Regression
from cloister.learners.penalties import Quadratic

if TYPE_CHECKING:
    from cloister.networks.fix_network import fix_network
    from cloister.networks.module import Module
    from cloister.networks.network_penalties import EWC, SymmetrizedKL
    from cloister.networks.public_features import PublicFeatures, Unpack, glyph_net

__all__ = [
    "EWC",
    "Adam",
    "AdamW",
    "Classification",
    "Convex",
    "Cosine",
    "CountRegression",
    "Descent",
    "ExactSolver",
    "LeastSquares",
    "Logistic",
    "Module",
    "Nesterov",
    "OrderedClassification",
    "OrderedLoss",
    "PoissonLoss",
    "PublicFeatures",
    "Quadratic",
    "Regression",
    "Softmax",
    "SymmetrizedKL",
    "Unpack",
    "WarmUp",
    "fix_network",
    "glyph_net",
    "pad_sequences",
]

#: Imported when first used: they need packages that not everybody has.
_HOMES = {
    "PublicFeatures": "cloister.networks.public_features",
    "Module": "cloister.networks.module",
    "EWC": "cloister.networks.network_penalties",
    "SymmetrizedKL": "cloister.networks.network_penalties",
    "Unpack": "cloister.networks.public_features",
    "fix_network": "cloister.networks.fix_network",
    "glyph_net": "cloister.networks.public_features",
}


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
