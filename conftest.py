"""Every test draws the same randomness on every run: a failure is a change in the code, never bad luck.

Where a test gives no seed, what the operating system would draw is a hash of the test's name and of how much
was drawn before. What is drawn in another process is the operating system's own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from cloister.privacy import randomness
from cloister.tune import grid

#: Files without examples, and those that cannot be read without an optional package.
_TRITON = [
    "engines/card_noise.py",
    *(f"learners/network/{name}.py" for name in ("convolutions", "kernels", "products", "trusted")),
]
_unreadable = () if importlib.util.find_spec("triton") else _TRITON
collect_ignore = ["conftest.py", "docs/gallery", *(f"src/cloister/{name}" for name in _unreadable)]

# The last bits of a product do not depend on where in memory its numbers are: some tests compare them.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


class _Keys:
    """What stands in for the modules `os` and `secrets`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers = itertools.count()

    def urandom(self, size: int) -> bytes:
        return hashlib.shake_256(f"{self.name} {next(self.numbers)}".encode()).digest(size)

    def randbits(self, bits: int) -> int:
        return int.from_bytes(self.urandom(-(-bits // 8))) >> -bits % 8


@contextmanager
def _drawn_by(name: str) -> Generator[None]:
    keys = _Keys(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "os", keys)
        patch.setattr(grid, "secrets", keys)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Draw by the test's own name, in whichever order and process it runs."""
    with _drawn_by(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Draw by the fixture's name: which test is the first to want it depends on who runs beside it."""
    with _drawn_by(f"{request.node.nodeid} {fixturedef.argname} {getattr(request, 'param_index', 0)}"):
        return (yield)
