"""Names that are imported when they are first used, because they need packages that not everybody has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from cloister.errors import MissingExtraError

__all__ = ["imported"]


def imported(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return what a package exports under a name; say which extra it needs if torch is not there."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "torch", f"{package}.{name}") from error
