"""Everything cloister raises on purpose.

::

    CloisterError
    ├── InputError(ValueError)          data, bounds or parameters that cannot be used
    │   └── PrivateDataError            rows outside what is publicly said of them; for the operator alone
    ├── PlanError(ValueError)           a plan that cannot be priced, run or read
    │   ├── BudgetError                 the budget does not allow this release
    │   └── MissingTypeError            a plan names a class or network of somebody's own, which is not here
    ├── BillboardError                  a board that is truncated, edited, or does not match its plan
    ├── LedgerError                     a ledger that cannot be opened, read, trusted or written
    ├── SignatureError                  what the operator of a run has not signed
    ├── StorageError(OSError)           a file that cannot be written, or that another process is writing
    ├── ClusterError                    actors of a cluster that are lost again and again; a run can go on
    ├── AlgorithmError                  an algorithm broke its contract; names the function and the task
    └── MissingExtraError(ImportError)  an optional dependency is not installed

Each message is one sentence or two: what, the rule, what was found, what to do. A name that needs a package
which not everybody has is imported when it is first used (`imported`), and its absence is such a sentence.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sized
from typing import Any

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
    "imported",
]


class CloisterError(Exception):
    """Base of every error that cloister raises on purpose."""


class InputError(CloisterError, ValueError):
    """Data, bounds or parameters that cannot be used."""


class PrivateDataError(InputError):
    """Rows that do not fit what is publicly said about them.

    Raised before anything is charged, where one operator holds all rows. It tells something about a task, so
    that it is for the operator alone; where tasks are apart, it stays with the task (`cloister.nodes`).
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(f"{sentence} For the operator alone: this tells something about a task's rows.")


class PlanError(CloisterError, ValueError):
    """A plan that cannot be priced, run or read."""


class BudgetError(PlanError):
    """The budget does not allow this release; nothing has left any task."""


class MissingTypeError(PlanError):
    """A file names a class or describes a network of somebody's own, which was not handed over."""


class BillboardError(CloisterError):
    """A billboard that is truncated, edited, full, or does not match its plan."""


class LedgerError(CloisterError):
    """A ledger that cannot be opened, read, trusted or written; nothing has left any task."""


class SignatureError(CloisterError):
    """A roster, record or head that the operator of a run has not signed."""


class StorageError(CloisterError, OSError):
    """A file that cannot be written, or that another process is writing; what was whole stays whole."""


class ClusterError(CloisterError):
    """Actors of a cluster that are lost again and again, or do not answer; a run with a journal can go on."""


class AlgorithmError(CloisterError):
    """An algorithm broke its contract."""


class MissingExtraError(CloisterError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}. Install it with: pip install 'cloister[{extra}]', "
            f"or in a clone of cloister: pip install '.[{extra}]'"
        )


def check_one_owner(owners: Sized, what: str, instead: str) -> None:
    """Refuse to pickle, or to copy, what holds the models of more than one task: the rule for all that does.

    One file with everyone's models is a leak waiting for its accident. What is public, what is not fitted
    yet and what is one task's own is pickled like anything else.
    """
    if len(owners) > 1:
        raise InputError(f"{what} holds every task's model, so it is not pickled whole. {instead}")


def imported(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return what a package exports under a name; say which extra it needs if torch is not there."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "networks", f"{package}.{name}") from error


for _kind in [kind for kind in globals().values() if isinstance(kind, type) and kind.__module__ == __name__]:
    _kind.__module__ = "cloister.errors"  # where a user finds it
