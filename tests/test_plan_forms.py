"""Plans of before stages, in which searches stood around algorithms: read, with the same fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pytest
import tomli_w

from cloister import Plan
from cloister.algorithms import (
    ChooseAtHome,
    LocalNoise,
    Locate,
    LowRank,
    MeanRegularized,
    Rescaled,
    SharedPrior,
)
from cloister.core.document import FEATURES, TARGETS, fingerprint_of_file, flattened, nested
from cloister.errors import PlanError
from cloister.learners import LeastSquares, Regression

LOW_RANK = LowRank(LeastSquares(3), rounds=2)
SEARCHES = [Locate(), Locate((1, 2), 0.5, 2.0), Locate((2,)), Locate((1,), targets=False)]
ALGORITHMS = [
    *(SharedPrior(Regression(3), locate=search) for search in SEARCHES),
    *(ChooseAtHome(LOW_RANK, Regression(3), asks=0.1, locate=search) for search in SEARCHES),
    *(Rescaled(MeanRegularized(LeastSquares(3)), search) for search in SEARCHES),
    LocalNoise(Rescaled(MeanRegularized(LeastSquares(3)), Locate()), 2.0),
]


def ids(algorithm: object) -> str:
    return f"{type(algorithm).__name__} {getattr(algorithm, 'locate', '')}"


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=ids)
def test_both_forms_are_one_plan(algorithm, tmp_path):
    plan = Plan(algorithm, n_tasks=60).calibrate(2.0)
    old = nested(plan.to_dict())
    assert "locate" not in tomli_w.dumps(old).replace("located", "")
    assert flattened(old) == plan.to_dict()
    path = tmp_path / "plan.toml"
    path.write_text(tomli_w.dumps(old))
    read = Plan.load(path)
    assert read == plan
    assert read.fingerprint == plan.fingerprint == fingerprint_of_file(path)
    assert read.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()  # as it was made then


def test_a_plan_without_a_search_is_as_it_was():
    document = Plan(SharedPrior(Regression(3)), n_tasks=60).to_dict()
    assert nested(document) == flattened(document) == document


@dataclass(frozen=True)
class Own(MeanRegularized):
    """Somebody's algorithm that has a search of its own."""

    locate: Locate | None = None


def test_no_two_plans_have_one_fingerprint():
    """Searches by the algorithm itself, around it, and of somebody's own; with and without parts."""
    mean, own = MeanRegularized(LeastSquares(3)), Own(LeastSquares(3))
    searches = [*SEARCHES, Locate((1, 2), 0.5), Locate((1, 2), reach=2.0)]
    algorithms = [*(Rescaled(inside, search) for inside in (mean, own) for search in searches), mean, own]
    algorithms += [*(replace(own, locate=search) for search in searches), LocalNoise(own, 2.0)]
    algorithms += [LocalNoise(Rescaled(own, search), 2.0) for search in searches]
    algorithms += [Rescaled(LocalNoise(own, 2.0), search) for search in searches]
    algorithms += [SharedPrior(Regression(3), locate=search) for search in (None, *searches)]
    prints = {Plan(algorithm, n_tasks=60).fingerprint for algorithm in algorithms}
    assert len(prints) == len(algorithms)
    with pytest.raises(PlanError, match="searches by itself"):
        Rescaled(SharedPrior(Regression(3)), Locate())


def test_what_this_version_cannot_mean_is_refused():
    inside = Plan(SharedPrior(Regression(3)), n_tasks=60).to_dict()["algorithm"]
    features = {"type": FEATURES, "algorithm": inside, "columns": [1], "intercept": 0.5}
    with pytest.raises(PlanError, match="same intercept"):
        flattened({"type": TARGETS, "algorithm": features, "intercept": 0.6})
    twice = {"type": TARGETS, "algorithm": {"type": TARGETS, "algorithm": inside}}
    with pytest.raises(PlanError, match="search"):
        Plan.from_dict(Plan(LOW_RANK, n_tasks=60).to_dict() | {"algorithm": twice})


@pytest.mark.parametrize("text", ["", "type = 3", "algorithm = 'x'\n[", "algorithm = [[[1]]]"])
def test_a_file_that_is_no_plan_has_no_fingerprint_of_one(text, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    assert fingerprint_of_file(path) != Plan(LOW_RANK, n_tasks=60).fingerprint
    assert fingerprint_of_file(tmp_path / "none.toml") == ""
