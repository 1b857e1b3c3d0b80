"""What a task fits at home: convex losses and Bayesian models in NumPy, networks in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister._lazy import imported
from cloister.learners.adam import Adam, AdamW
from cloister.learners.descent import Descent, ExactSolver, Nesterov
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.convex import Convex
from cloister.learners.linear.losses import LeastSquares, Logistic, Softmax
from cloister.learners.linear.regression import Regression
from cloister.learners.quadratic import Quadratic
from cloister.learners.schedules import Cosine, WarmUp

if TYPE_CHECKING:
    from cloister.learners.network.module import Module
    from cloister.learners.network.penalties import EWC, SymmetrizedKL
    from cloister.learners.network.pixels import Unpack, glyph_net
    from cloister.learners.network.public_features import PublicFeatures

__all__ = [
    "EWC",
    "Adam",
    "AdamW",
    "Classification",
    "Convex",
    "Cosine",
    "Descent",
    "ExactSolver",
    "LeastSquares",
    "Logistic",
    "Module",
    "Nesterov",
    "PublicFeatures",
    "Quadratic",
    "Regression",
    "Softmax",
    "SymmetrizedKL",
    "Unpack",
    "WarmUp",
    "glyph_net",
]

#: Imported when first used: they need packages that not everybody has.
_HOMES = {
    "PublicFeatures": "cloister.learners.network.public_features",
    "Module": "cloister.learners.network.module",
    "EWC": "cloister.learners.network.penalties",
    "SymmetrizedKL": "cloister.learners.network.penalties",
    "Unpack": "cloister.learners.network.pixels",
    "glyph_net": "cloister.learners.network.pixels",
}


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
