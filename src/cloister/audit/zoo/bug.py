"""A planted bug: a function of the library, what takes its place, and which test must convict it.

Bugs are planted in this process and taken back; nothing of them is left in a cache. What takes a function's
place gets the honest one before all arguments: an honest release, say, is one call away.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cached_property
from typing import Any
from unittest import mock

from cloister.audit.auditor import audit
from cloister.audit.verdict import Audit
from cloister.plan.plan import Plan

#: Games in an audit of a bug, and how often an honest plan is acquitted: no bug is convicted by chance.
_GAMES, _CONFIDENCE = 20_000, 0.999


@dataclass(frozen=True)
class Bug:
    """A mistake in one function.

    Parameters
    ----------
    owner : module or class
        Where the function is looked up.
    function : str
        Its name: of a function, a method, or a property.
    instead : callable
        What is called in its place, with the honest one before all arguments.
    convicted_by : str
        The test that must convict it, by its name in `Audit.breaches`.
    plan : callable
        Makes the plan that is audited, while the bug is in place.
    """

    owner: Any
    function: str
    instead: Callable[..., Any]
    convicted_by: str
    plan: Callable[[], Plan]

    @property
    def name(self) -> str:
        return self.instead.__name__.replace("_", "-")

    @property
    def breaks(self) -> str:
        """What is wrong with it in place, in words."""
        return inspect.getdoc(self.instead) or ""


def bug(
    owner: Any, function: str, convicted_by: str, plan: Callable[[], Plan]
) -> Callable[[Callable[..., Any]], Bug]:
    """Make a bug of the function that is decorated: its name, and its docstring, are the bug's."""
    return lambda instead: Bug(owner, function, instead, convicted_by, plan)


@dataclass(frozen=True)
class Trial:
    """The tests that convict a plan with a bug, and why."""

    bug: Bug
    convicting: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def caught(self) -> bool:
        """Whether the test that must convict the bug does."""
        return self.bug.convicted_by in self.convicting


def convict(bug: Bug, seed: int = 0) -> Trial:
    """Audit a plan with a bug in place."""
    with planted(bug):
        breaches = list(examine(bug.plan, seed).breaches())
    convicting = tuple(dict.fromkeys(name for name, _ in breaches))
    return Trial(bug, convicting, tuple(reason for _, reason in breaches))


def examine(plan: Callable[[], Plan], seed: int = 0) -> Audit:
    """Audit a plan as it is."""
    return audit(plan(), draws=_GAMES, confidence=_CONFIDENCE, random_state=seed)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Put a bug in the place of its function, and take it back."""
    found = inspect.getattr_static(bug.owner, bug.function)
    honest = found
    if isinstance(found, property):
        honest = found.fget
    elif isinstance(found, cached_property):
        honest = found.func

    def instead(*given: Any, **named: Any) -> Any:
        return bug.instead(honest, *given, **named)

    _forget()
    try:
        put = instead if honest is found else property(instead)
        with mock.patch.object(bug.owner, bug.function, put):
            yield
    finally:
        _forget()


def _forget() -> None:
    """Clear what the library remembers of earlier calls."""
    for name, module in list(sys.modules.items()):
        if name.startswith("cloister."):
            for value in vars(module).values():
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()
