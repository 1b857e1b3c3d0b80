"""Mixed-effects models by statsmodels, fitted to everybody's rows without any privacy: what to compare with.

Numbers are predicted by `MixedLM` with a random intercept for each task and, if asked, a random slope of
every column that takes more than ten values, all of them correlated, if these are three at most (more take
minutes); classes by a logistic model with random intercepts, `BinomialBayesMixedGLM` by variational Bayes. A
row is predicted with its own task's effects (the BLUP, or the posterior mean).
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from cloister import Tasks

Floats = NDArray[np.float64]
MOST_SLOPES = 3


def available() -> bool:
    """Say whether statsmodels is installed: the extra ``benchmarks``."""
    try:
        import statsmodels.regression.mixed_linear_model  # noqa: F401
    except ImportError:
        return False
    return True


def numbers(train: Tasks, test: Tasks, slopes: bool = False) -> Floats | None:
    """Predict the targets of the second part; None where the model does not converge, or has many slopes."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    X, asked, own, asked_own = _standardised(train, test)
    random = [0, *(j for j in range(1, X.shape[1]) if slopes and len(np.unique(X[:, j])) > 10)]
    if len(random) > 1 + MOST_SLOPES:
        return None
    middle, unit = train.y.mean(), train.y.std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = MixedLM((train.y - middle) / unit, X, groups=own, exog_re=X[:, random])
            fitted = model.fit(method="powell", maxiter=200)  # its gradients stop short on these tables
            effects = np.array([np.asarray(fitted.random_effects[k]) for k in range(len(train))])
        except (np.linalg.LinAlgError, ValueError):  # a singular covariance
            return None
    if not fitted.converged:
        return None
    score = asked @ np.asarray(fitted.fe_params) + (asked[:, random] * effects[asked_own]).sum(axis=1)
    return np.asarray(middle + unit * score)


def log_odds(train: Tasks, test: Tasks) -> Floats:
    """Predict the log-odds of class 1 for the rows of the second part."""
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    X, asked, own, asked_own = _standardised(train, test)
    member = csr_matrix((np.ones(len(own)), (np.arange(len(own)), own)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BinomialBayesMixedGLM(train.y, X, member, np.zeros(len(train), int), vcp_p=1, fe_p=3)
        fitted = model.fit_vb()
    return np.asarray(asked @ fitted.fe_mean + fitted.vc_mean[asked_own])


def _standardised(train: Tasks, test: Tasks) -> tuple[Floats, Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return an intercept and standardised columns that vary, for both parts, and whose row each is."""
    features, asked = train.X[:, 1:], test.X[:, 1:]
    unit = features.std(axis=0)
    vary = unit > 0
    parts = [(part[:, vary] - features.mean(axis=0)[vary]) / unit[vary] for part in (features, asked)]
    X, Z = (np.column_stack([np.ones(len(part)), part]) for part in parts)
    own = np.repeat(np.arange(len(train)), train.sizes)
    return X, Z, own, np.searchsorted(train.ids, np.repeat(test.ids, test.sizes))
