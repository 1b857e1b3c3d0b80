"""Private multi-task learning.

Tasks say bounded things. The curator posts noisy sums on a public billboard. Tasks listen.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__version__ = "0.2.0.dev0"

#: Where each exported name lives; a module is imported when one of its names is first used.
_HOMES = {
    "algorithm": ["Algorithm", "Budget", "Wrapper"],
    "algorithms.adaptive": ["AdaptiveFedAvg"],
    "algorithms.allocation": ["Geometric", "Power"],
    "algorithms.averaging": ["Averaged"],
    "algorithms.baselines": ["l1_logistic", "lasso", "pooled_ridge", "ridge"],
    "algorithms.clustered": ["ClusteredMetaSGD"],
    "algorithms.covariance": ["GroupSparse", "LowRank", "ModelProtected"],
    "algorithms.decomposed": ["Decomposed", "EntrySparse", "SquaredNorm", "TaskSparse"],
    "algorithms.federated": [
        "Ditto",
        "FedAvg",
        "FedProx",
        "LocalOnly",
        "Personalized",
    ],
    "algorithms.finetuning": ["Choice", "FineTuning"],
    "algorithms.choose_at_home": ["Guarded"],
    "algorithms.independent": ["Independent"],
    "algorithms.mean": ["MeanRegularized"],
    "algorithms.messages": ["Increment", "Offset", "Position"],
    "algorithms.meta": ["FTMRL", "MetaSGD"],
    "algorithms.prior": ["SharedPrior"],
    "algorithms.relationship": ["Relationship", "dp_mtrl", "mtrl"],
    "algorithms.server": ["ServerAdam", "ServerAverage", "ServerMomentum"],
    "algorithms.structures": ["Joint", "Subspace", "Mean", "Support"],
    "algorithms.local_noise": ["LocalNoise"],
    "board.billboard": ["Billboard", "Release"],
    "channel": ["Absolute", "Channel", "Diagonal", "MeanAndOuter", "Outer", "Plain", "Relation", "Round"],
    "engines.batched": ["Batched"],
    "engines.check": ["check_algorithm"],
    "engines.clusters": ["ClusterRuns", "cluster_plans", "run_clusters"],
    "engines.local": ["Local"],
    "engines.public_only": ["PublicOnly"],
    "engines.run": ["Run", "adapt", "replay", "run"],
    "engines.devices": ["Several"],
    "errors": [
        "AlgorithmError",
        "BillboardError",
        "BudgetError",
        "CloisterError",
        "InputError",
        "LedgerError",
        "MissingExtraError",
        "PlanError",
        "PrivateDataError",
        "StorageError",
    ],
    "estimators.baselines": [
        "PooledClassifier",
        "PooledRegressor",
        "SingleTaskClassifier",
        "SingleTaskRegressor",
    ],
    "estimators.decomposed": ["DecomposedClassifier", "DecomposedRegressor"],
    "estimators.few_shot": ["FewShotClassifier", "FewShotModel"],
    "estimators.linear": [
        "GroupSparseClassifier",
        "GroupSparseRegressor",
        "LowRankClassifier",
        "LowRankRegressor",
        "MeanRegularizedClassifier",
        "MeanRegularizedRegressor",
    ],
    "estimators.loading": ["load"],
    "estimators.meta": ["MetaClassifier", "MetaRegressor"],
    "estimators.prior": ["SharedPriorClassifier", "SharedPriorRegressor"],
    "evaluation": ["Released", "evaluate"],
    "learners.linear.classification": ["Classification"],
    "learners.linear.convex": ["Convex"],
    "learners.descent": ["Descent", "Exact"],
    "learners.linear.losses": ["LeastSquares", "Logistic", "Softmax"],
    "learners.network.module": ["Module"],
    "learners.network.penalties": ["EWC", "SymmetrizedKL"],
    "learners.network.pixels": ["Unpack", "glyph_net"],
    "learners.quadratic": ["Quadratic"],
    "learners.linear.regression": ["Regression"],
    "plan": ["Plan"],
    "privacy.guarantee": ["Guarantee"],
    "privacy.laplace": ["Laplace"],
    "ledger": ["Ledger"],
    "privacy.mechanisms": ["Gaussian", "Silent"],
    "privacy.prefix": ["BLT", "Toeplitz", "Tree"],
    "privacy.sampling": ["Epochs", "Everyone", "FixedSize", "OnePass", "Poisson"],
    "privacy.wishart": ["Wishart"],
    "rows": ["Rows", "Target"],
    "sharing": ["Overlap", "overlap"],
    "tables.codebook": ["Codebook"],
    "tasks": ["Block", "Tasks"],
    "tune.voting": ["Ballot"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ["datasets", "metrics", "tune"]

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"cloister.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cloister' has no attribute {name!r}")
    value = getattr(_load(name), name)
    globals()[name] = value
    return value


def _load(name: str) -> ModuleType:
    """Import the home of a name; if that needs an extra which is not there, say which."""
    try:
        return importlib.import_module(f"cloister.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from cloister.errors import MissingExtraError

        raise MissingExtraError("torch", "torch", f"cloister.{name}") from error


def __dir__() -> list[str]:
    return __all__
