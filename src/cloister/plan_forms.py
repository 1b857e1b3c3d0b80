"""The older form of plan documents, in which a search was an algorithm around another one.

`Plan` reads both forms. A fingerprint is that of the older one where there is one, so that boards, journals
and ledgers of before go with plans that are written now.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from cloister.errors import PlanError

TARGETS, FEATURES = "cloister/located/2", "cloister/located-features/2"
LOCATE, RESCALED = "cloister/locate/1", "cloister/rescaled/1"
#: Algorithms that search by themselves; around all others there is `Rescaled`.
SEARCHING = ("cloister/shared-prior/3", "cloister/choose-at-home/1")
#: What a document of the older form leaves out has this value.
REACH = 2 * 3**0.5


def fingerprint(document: Mapping[str, Any]) -> str:
    """Return a hash of a plan's document, of either form."""
    return hashlib.sha256(tomli_w.dumps(nested(flattened(document))).encode()).hexdigest()


def fingerprint_of_file(path: Path) -> str:
    """Return the hash of the plan in a file, without building it; empty if there is none."""
    try:
        return fingerprint(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, PlanError):
        return ""


def nested(document: Any) -> Any:
    """Return a document in the older form.

    Examples
    --------
    >>> search = {"type": LOCATE, "columns": [], "reach": REACH, "targets": True}
    >>> nested({"type": "cloister/shared-prior/3", "locate": search})
    {'type': 'cloister/located/2', 'algorithm': {'type': 'cloister/shared-prior/3'}}
    """
    if isinstance(document, list):
        return [nested(item) for item in document]
    if not isinstance(document, Mapping):
        return document
    found = {name: nested(item) for name, item in document.items()}
    search = found.get("locate")
    if not isinstance(search, dict) or search.get("type") != LOCATE:
        return found
    del found["locate"]
    inside = found["algorithm"] if found["type"] == RESCALED else found
    constant = {"intercept": search["intercept"]} if "intercept" in search else {}
    if search["columns"]:
        columns = {"columns": search["columns"]} | constant | {"reach": search["reach"]}
        inside = {"type": FEATURES, "algorithm": inside} | columns
    return {"type": TARGETS, "algorithm": inside} | constant if search["targets"] else inside


def flattened(document: Any) -> Any:
    """Return a document without searches around algorithms, which have them in a field.

    Examples
    --------
    >>> flattened({"type": TARGETS, "algorithm": {"type": "cloister/shared-prior/3"}})["locate"]["targets"]
    True
    """
    if isinstance(document, list):
        return [flattened(item) for item in document]
    if not isinstance(document, Mapping):
        return document
    if document.get("type") not in (TARGETS, FEATURES):
        return {name: flattened(item) for name, item in document.items()}
    search: dict[str, Any] = {"type": LOCATE, "columns": [], "reach": REACH, "targets": False}
    inside: Any = document
    for kind in (TARGETS, FEATURES):  # targets are always searched for first
        if not isinstance(inside, Mapping) or inside.get("type") != kind:
            continue
        given = {name: item for name, item in inside.items() if name not in ("type", "algorithm")}
        if search["targets"] and given.get("intercept") != search.get("intercept"):
            raise PlanError(f"{TARGETS} and {FEATURES} must have the same intercept in a plan file.")
        search |= given
        search["targets"] = search["targets"] or kind == TARGETS
        inside = inside.get("algorithm")
    inside = flattened(inside)
    if isinstance(inside, dict) and inside.get("type") in SEARCHING and "locate" not in inside:
        return inside | {"locate": search}
    return {"type": RESCALED, "algorithm": inside, "locate": search}
