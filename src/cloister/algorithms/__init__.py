"""What tasks say and do: one family of algorithms a module."""

from __future__ import annotations

from cloister.algorithm import Algorithm, Budget, Wrapper
from cloister.algorithms.adaptive import AdaptiveFedAvg
from cloister.algorithms.allocation import GeometricBudget, PowerBudget
from cloister.algorithms.averaging import ModelAveraging
from cloister.algorithms.baselines import l1_logistic, lasso, pooled_ridge, ridge
from cloister.algorithms.choose_at_home import ChooseAtHome
from cloister.algorithms.clustered import ClusteredMetaSGD
from cloister.algorithms.covariance import GroupSparse, LowRank, ModelProtected
from cloister.algorithms.decomposed import Decomposed, EntrySparse, SquaredNorm, TaskSparse
from cloister.algorithms.federated import (
    Ditto,
    FedAvg,
    FedProx,
    Increment,
    LocalOnly,
    Offset,
    Personalized,
    Position,
)
from cloister.algorithms.fedrep import FedRep
from cloister.algorithms.finetuning import CrossValidatedTuning, FineTuning
from cloister.algorithms.independent import Independent
from cloister.algorithms.local_noise import LocalNoise
from cloister.algorithms.located import Located
from cloister.algorithms.located_features import LocatedFeatures
from cloister.algorithms.mean import MeanRegularized
from cloister.algorithms.meta import FTMRL, MetaSGD
from cloister.algorithms.nested import Nested
from cloister.algorithms.prior import SharedPrior
from cloister.algorithms.relationship import Relationship, dp_mtrl, mtrl
from cloister.algorithms.server import ServerAdam, ServerAdamW, ServerAverage, ServerMomentum
from cloister.algorithms.structures import FeatureRelevance, Joint, Mean, Subspace, Support
from cloister.earlier import EarlierPrior
from cloister.groups import Groups

__all__ = [
    "FTMRL",
    "AdaptiveFedAvg",
    "Algorithm",
    "Budget",
    "ChooseAtHome",
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
    "GroupSparse",
    "Groups",
    "Increment",
    "Independent",
    "Joint",
    "LocalNoise",
    "LocalOnly",
    "Located",
    "LocatedFeatures",
    "LowRank",
    "Mean",
    "MeanRegularized",
    "MetaSGD",
    "ModelAveraging",
    "ModelProtected",
    "Nested",
    "Offset",
    "Personalized",
    "Position",
    "PowerBudget",
    "Relationship",
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
    "dp_mtrl",
    "l1_logistic",
    "lasso",
    "mtrl",
    "pooled_ridge",
    "ridge",
]
