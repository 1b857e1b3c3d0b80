"""What tasks say and do: one family of algorithms a module."""

from __future__ import annotations

from cloister.algorithms.adaptive import AdaptiveFedAvg
from cloister.algorithms.baselines import l1_logistic, lasso, pooled_ridge, ridge
from cloister.algorithms.bases import ClientAlgorithm, Independent
from cloister.algorithms.covariance import GeometricBudget, GroupSparse, LowRank, ModelProtected, PowerBudget
from cloister.algorithms.decomposed import Decomposed, EntrySparse, SquaredNorm, TaskSparse
from cloister.algorithms.federated import (
    Ditto,
    FedAvg,
    FedProx,
    FedRep,
    Increment,
    LocalOnly,
    Offset,
    Personalized,
    Position,
)
from cloister.algorithms.finetuning import CrossValidatedTuning, FineTuning
from cloister.algorithms.histograms import LocateRecords
from cloister.algorithms.local_noise import LocalNoise
from cloister.algorithms.locate import Locate
from cloister.algorithms.mean_regularized import MeanRegularized, ModelAveraging
from cloister.algorithms.meta import FTMRL, MetaSGD
from cloister.algorithms.mixture import ClusteredMetaSGD
from cloister.algorithms.prior.directions import Subspace, Support
from cloister.algorithms.prior.groups import GroupMeans
from cloister.algorithms.prior.mean import Joint, Mean
from cloister.algorithms.prior.pooled_prior import PooledPrior
from cloister.algorithms.prior.relevance import FeatureRelevance
from cloister.algorithms.prior.shared_prior import SharedPrior
from cloister.algorithms.scaffold import Scaffold
from cloister.algorithms.server import ServerAdam, ServerAdamW, ServerAverage, ServerMomentum
from cloister.algorithms.stacking import ChooseAtHome
from cloister.algorithms.staged import Rescaled
from cloister.core.findings import EarlierPrior
from cloister.core.roster import Groups
from cloister.plan.algorithm import Algorithm, Budget, Wrapper

__all__ = [
    "FTMRL",
    "AdaptiveFedAvg",
    "Algorithm",
    "Budget",
    "ChooseAtHome",
    "ClientAlgorithm",
    "ClusteredMetaSGD",
    "CrossValidatedTuning",
    "Decomposed",
    "Ditto",
    "EarlierPrior",
    "EntrySparse",
    "FeatureRelevance",
    "FedAvg",
    "FedProx",
    "FedRep",
    "FineTuning",
    "GeometricBudget",
    "GroupMeans",
    "GroupSparse",
    "Groups",
    "Increment",
    "Independent",
    "Joint",
    "LocalNoise",
    "LocalOnly",
    "Locate",
    "LocateRecords",
    "LowRank",
    "Mean",
    "MeanRegularized",
    "MetaSGD",
    "ModelAveraging",
    "ModelProtected",
    "Offset",
    "Personalized",
    "PooledPrior",
    "Position",
    "PowerBudget",
    "Rescaled",
    "Scaffold",
    "ServerAdam",
    "ServerAdamW",
    "ServerAverage",
    "ServerMomentum",
    "SharedPrior",
    "SquaredNorm",
    "Subspace",
    "Support",
    "TaskSparse",
    "Wrapper",
    "l1_logistic",
    "lasso",
    "pooled_ridge",
    "ridge",
]
