"""Plan files: what a text must be before a plan is built from it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloister.core.document import type_id
from cloister.core.errors import CloisterError, PlanError

#: No plan file may ask for more rounds, parameters or steps.
LARGEST = 1_000_000


def text_of(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlanError(f"{path} is not a plan file: it is not text.") from None


def parsed(text: str) -> dict[str, Any]:
    """Return the document in a plan file; refuse one that asks for so much that reading it would not end."""
    document = tomllib.loads(text)
    _refuse_huge(document.get("algorithm"))
    return document


@contextmanager
def unreadable_files_refused() -> Iterator[None]:
    """Say of whatever a file makes the reading fail with that it is no plan file."""
    try:
        yield
    except CloisterError:
        raise
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise PlanError(f"This is not a plan file: {error}.") from None


def check_document(document: Mapping[str, Any], kind: type) -> None:
    """Refuse a document of something else than a plan, or of a plan of cloister 0.1."""
    found, due = document.get("type"), type_id(kind)
    if found == "Plan":
        raise PlanError(
            "This plan was written by cloister 0.1: use that version to check or replay its board. "
            "Ledgers of 0.1 are read and charged as ever."
        )
    if not str(found).startswith(due.rpartition("/")[0] + "/"):
        raise PlanError(
            f"This is not a plan file: it does not begin with type = {due!r}. Name the plan.toml of a run."
        )


def _refuse_huge(value: Any) -> None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _refuse_huge(item)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise PlanError(f"A whole number of an algorithm must be at most {LARGEST} in a plan file.")
