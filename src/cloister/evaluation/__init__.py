"""How good models are: at home, or as numbers that may leave and are paid for."""

from __future__ import annotations

from cloister.evaluation.curves import Curve, Curves, PrivateCurve, over_rounds
from cloister.evaluation.scores import (
    SCORES,
    NoisyMeans,
    PrivateScore,
    ScorePrice,
    accuracy,
    default_score,
    evaluate,
    release_means,
    release_share,
    release_sum,
    scores_of,
    task_scores,
)

__all__ = [
    "SCORES",
    "Curve",
    "Curves",
    "NoisyMeans",
    "PrivateCurve",
    "PrivateScore",
    "ScorePrice",
    "accuracy",
    "default_score",
    "evaluate",
    "over_rounds",
    "release_means",
    "release_share",
    "release_sum",
    "scores_of",
    "task_scores",
]
