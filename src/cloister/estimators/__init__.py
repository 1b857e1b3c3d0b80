"""scikit-learn estimators: a table, a task column, a fitted model for each task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.core.errors import imported
from cloister.estimators.baselines import (
    PooledClassifier,
    PooledRegressor,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from cloister.estimators.linear import (
    DecomposedClassifier,
    DecomposedRegressor,
    GroupSparseClassifier,
    GroupSparseRegressor,
    LowRankClassifier,
    LowRankRegressor,
    MeanRegularizedClassifier,
    MeanRegularizedRegressor,
)
from cloister.estimators.meta import MetaClassifier, MetaRegressor
from cloister.estimators.prior import SharedPriorClassifier, SharedPriorRegressor
from cloister.estimators.several import SeveralOutcomes

if TYPE_CHECKING:
    from cloister.estimators.few_shot import FewShotClassifier, FewShotModel

__all__ = [
    "DecomposedClassifier",
    "DecomposedRegressor",
    "FewShotClassifier",
    "FewShotModel",
    "GroupSparseClassifier",
    "GroupSparseRegressor",
    "LowRankClassifier",
    "LowRankRegressor",
    "MeanRegularizedClassifier",
    "MeanRegularizedRegressor",
    "MetaClassifier",
    "MetaRegressor",
    "PooledClassifier",
    "PooledRegressor",
    "SeveralOutcomes",
    "SharedPriorClassifier",
    "SharedPriorRegressor",
    "SingleTaskClassifier",
    "SingleTaskRegressor",
]

#: Imported when first used: they need packages that not everybody has.
_HOMES = {"FewShotClassifier": "cloister.estimators.few_shot", "FewShotModel": "cloister.estimators.few_shot"}


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
