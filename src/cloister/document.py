"""Frozen dataclasses as plain documents (for TOML and JSON) and back.

A document names only what `cloister` exports: reading one can build nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
from enum import Enum
from typing import Any

from cloister.errors import PlanError

__all__ = ["from_document", "to_document"]


def to_document(value: Any) -> Any:
    """Turn a tree of frozen dataclasses, tuples, enums and numbers into dicts, lists and numbers."""
    if hasattr(value, "to_document"):
        return value.to_document()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {"type": type(value).__name__} | {k: to_document(v) for k, v in fields if v is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_document(item) for item in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    raise PlanError(f"A plan is made of numbers, words and cloister's own types. Got {type(value).__name__}.")


def from_document(document: Any) -> Any:
    """Build the value a document describes."""
    if isinstance(document, list):
        return tuple(from_document(item) for item in document)
    if isinstance(document, (bool, int, float, str)):
        return document
    if not isinstance(document, dict):
        raise PlanError(f"A plan file holds numbers, words and types. Got {type(document).__name__}.")
    fields = {key: from_document(value) for key, value in document.items() if key != "type"}
    kind = str(document.get("type"))
    library = importlib.import_module("cloister")
    if kind not in library.__all__ or not dataclasses.is_dataclass(getattr(library, kind)):
        raise PlanError(f"A plan file names only what cloister exports. Got type = {kind!r}.")
    if kind == "Module":
        raise PlanError(
            "This plan's network cannot be rebuilt from a file. Price or audit it in Python: plan.guarantee, "
            "cloister.audit.audit(plan)."
        )
    try:
        return getattr(library, kind)(**fields)
    except TypeError as error:
        raise PlanError(f"{kind} cannot be built from this file: {error}.") from None
