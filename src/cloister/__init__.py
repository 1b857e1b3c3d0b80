"""Private multi-task learning.

Tasks say bounded things. The curator posts noisy sums on a public billboard. Tasks listen.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cloister._version import __version__

if TYPE_CHECKING:
    from cloister.app.load import load
    from cloister.core.errors import CloisterError
    from cloister.core.tasks import Tasks
    from cloister.engines.check import check_algorithm
    from cloister.engines.run import adapt, replay, run
    from cloister.estimators.prior import SharedPriorClassifier, SharedPriorRegressor
    from cloister.evaluation.scores import evaluate
    from cloister.ledger import Ledger
    from cloister.plan.plan import Plan
    from cloister.privacy.guarantee import Guarantee
    from cloister.privacy.trust import Trust
    from cloister.privacy.unit import Unit
    from cloister.store.billboard import Billboard
    from cloister.tables.codebook import Codebook

#: Where each exported name lives; a module is imported when one of its names is first used.
_HOMES = {
    "Billboard": "store.billboard",
    "CloisterError": "core.errors",
    "Codebook": "tables.codebook",
    "Guarantee": "privacy.guarantee",
    "Ledger": "ledger",
    "Plan": "plan.plan",
    "SharedPriorClassifier": "estimators.prior",
    "SharedPriorRegressor": "estimators.prior",
    "Tasks": "core.tasks",
    "Trust": "privacy.trust",
    "Unit": "privacy.unit",
    "adapt": "engines.run",
    "check_algorithm": "engines.check",
    "evaluate": "evaluation.scores",
    "load": "app.load",
    "replay": "engines.run",
    "run": "engines.run",
}

__all__ = [
    "Billboard",
    "CloisterError",
    "Codebook",
    "Guarantee",
    "Ledger",
    "Plan",
    "SharedPriorClassifier",
    "SharedPriorRegressor",
    "Tasks",
    "Trust",
    "Unit",
    "__version__",
    "adapt",
    "algorithms",
    "audit",
    "check_algorithm",
    "datasets",
    "engines",
    "estimators",
    "evaluate",
    "learners",
    "load",
    "mechanisms",
    "metrics",
    "replay",
    "run",
    "sampling",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"cloister.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    try:  # a module, such as cloister.channel
        return importlib.import_module(f"cloister.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"cloister.{name}":
            raise
        raise AttributeError(f"module 'cloister' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return __all__
