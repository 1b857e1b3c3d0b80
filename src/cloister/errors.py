"""Everything cloister raises on purpose."""

from __future__ import annotations

from cloister.core.errors import (
    AlgorithmError,
    BillboardError,
    BudgetError,
    CloisterError,
    ClusterError,
    InputError,
    LedgerError,
    MissingExtraError,
    MissingTypeError,
    PlanError,
    PrivateDataError,
    SignatureError,
    StorageError,
)

__all__ = [
    "AlgorithmError",
    "BillboardError",
    "BudgetError",
    "CloisterError",
    "ClusterError",
    "InputError",
    "LedgerError",
    "MissingExtraError",
    "MissingTypeError",
    "PlanError",
    "PrivateDataError",
    "SignatureError",
    "StorageError",
]
