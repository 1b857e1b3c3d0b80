"""Methods by name: the estimator that a word stands for, and the settings that it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from inspect import signature
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from cloister.core.errors import InputError

if TYPE_CHECKING:
    from cloister.estimators.base import MultiTaskEstimator
    from cloister.tables.codebook import Codebook

#: Parameters of estimators that are not settings: they have options or files of their own.
_ELSEWHERE = {
    *("task", "bounds", "ledger", "random_state"),
    *("epsilon", "delta", "relation", "start_from", "groups", "sampling", "mechanism", "trust", "unit"),
}
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    Sequence: "several with commas between them",
}


class Method(StrEnum):
    """How tasks learn together: a pair of estimators each, one for numbers and one for classes."""

    shared_prior = "shared-prior"
    low_rank = "low-rank"
    group_sparse = "group-sparse"
    decomposed = "decomposed"
    mean_regularized = "mean-regularized"
    meta = "meta"
    single_task = "single-task"


def kind_of(method: Method, book: Codebook) -> type[MultiTaskEstimator]:
    """Return a method's estimator for the codebook's target."""
    from cloister import estimators

    ending = "Regressor" if book.classes is None else "Classifier"
    kind: type[MultiTaskEstimator] = getattr(estimators, method.value.title().replace("-", "") + ending)
    return kind


def settings_of(kind: type[MultiTaskEstimator]) -> dict[str, Any]:
    """Return the type of each setting that an estimator has."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in signature(kind).parameters if name not in _ELSEWHERE}


def settings_for(
    kinds: Mapping[Method, type[MultiTaskEstimator]], assignments: Iterable[str]
) -> dict[Method, dict[str, Any]]:
    """Return the settings of each method from `NAME=VALUE` and `METHOD.NAME=VALUE`; refuse unknown ones.

    A name without a method is for every method that has it.
    """
    known = {method: settings_of(kind) for method, kind in kinds.items()}
    found: dict[Method, dict[str, Any]] = {method: {} for method in kinds}
    for assignment in assignments:
        whose, name, text = _parts(assignment)
        asked = [method for method in kinds if whose in ("", method)]
        if not asked:
            raise InputError(
                f"--set {assignment}: {whose!r} is not a method of this command. It has: {', '.join(kinds)}."
            )
        having = [method for method in asked if name in known[method]]
        if not having:
            lists = "; ".join(f"{m} has {', '.join(sorted(known[m])) or 'none'}" for m in asked)
            raise InputError(f"--set {assignment}: there is no setting {name!r}: {lists}.")
        for method in having:
            found[method][name] = _value(assignment, text, known[method][name])
    return found


def _parts(assignment: str) -> tuple[str, str, str]:
    place, equals, text = assignment.partition("=")
    whose, _, name = place.strip().rpartition(".")
    if not equals or not name or not text.strip():
        raise InputError(f"--set must read NAME=VALUE, such as --set rounds=30. Got {assignment!r}.")
    return whose, name, text.strip()


def _value(assignment: str, text: str, hint: Any) -> Any:
    from cloister.plan.plan_file import LARGEST

    kinds = [get_origin(kind) or kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    values = [_read(part.strip()) for part in text.split(",")]
    alike = all(type(value) in kinds or (type(value) is int and float in kinds) for value in values)
    if not alike or (len(values) > 1 and Sequence not in kinds):
        words = " or ".join(_WORDS[kind] for kind in kinds)
        raise InputError(f"--set {assignment}: the value must be {words}.")
    if int in kinds and values[0] > LARGEST:
        raise InputError(f"--set {assignment}: the value must be at most {LARGEST}, as in a plan file.")
    return tuple(values) if len(values) > 1 else values[0]


def _read(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
