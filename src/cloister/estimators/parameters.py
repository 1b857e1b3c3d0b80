"""What kinds the estimators' common parameters must have, said in a sentence rather than a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from cloister.errors import InputError

__all__ = ["check_parameters"]


def check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse what is not a number where one is needed."""
    epsilon, delta, seed = (given.get(name) for name in ("epsilon", "delta", "random_state"))
    if "epsilon" in given and not isinstance(epsilon, Real):
        raise InputError(f"epsilon must be a number. Got {epsilon!r}.")
    if "delta" in given and delta != "auto" and not isinstance(delta, Real):
        raise InputError(f"delta must be a number or 'auto'. Got {delta!r}.")
    if seed is not None and not isinstance(seed, Integral):
        raise InputError(f"random_state must be an integer or None. Got {seed!r}.")
