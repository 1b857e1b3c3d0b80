"""What a test draws depends on a seed, never on a name: renaming or moving a test changes nothing.

Where a test gives no seed, what the operating system would draw comes from a stream that is restarted for
every test, and so are torch's own generator and hypothesis' choice of examples. The seed is what
``@pytest.mark.noise_seed(7)`` says of the test, its class or its module, else what ``--noise-seed`` says,
else 0. A test that fails under another one depends on the noise, and is marked. A fixture that several tests
share has a stream of its own, by its scope, the number of its parameter and the seed of its class or module:
it does not matter which test uses it first. Two such fixtures of one scope may draw the same. What is drawn
in another process is the operating system's own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import pytest

from cloister.app import vote
from cloister.nodes import node_folder
from cloister.privacy import randomness

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

#: Files without examples, and those that cannot be read without an optional package.
_TRITON = [
    "networks/card_noise.py",
    *(f"networks/{name}.py" for name in ("convolutions", "kernel_selection", "norm_kernel")),
]
_unreadable = () if importlib.util.find_spec("triton") else _TRITON
collect_ignore = ["conftest.py", "docs/gallery", *(f"src/cloister/{name}" for name in _unreadable)]

# The last bits of a product do not depend on where in memory its numbers are: some tests compare them.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


class _Keys:
    """What stands in for the modules `os` and `secrets`: the same bytes in the same place."""

    def __init__(self, *place: int | str) -> None:
        self.place = place
        self.numbers = itertools.count()

    def urandom(self, size: int) -> bytes:
        return hashlib.shake_256(repr((*self.place, next(self.numbers))).encode()).digest(size)

    token_bytes = urandom

    def randbits(self, bits: int) -> int:
        return int.from_bytes(self.urandom(-(-bits // 8))) >> -bits % 8


def _seed_of(node: pytest.Item | pytest.Collector) -> int:
    said = node.get_closest_marker("noise_seed")
    return said.args[0] if said else node.config.getoption("noise_seed")


@contextmanager
def _drawn_at(node: pytest.Item | pytest.Collector, *place: int | str) -> Generator[None]:
    seed = _seed_of(node)
    keys = _Keys(seed, *place)
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(()) if torch else nullcontext():
        for module, name in ((randomness, "os"), (vote, "secrets"), (node_folder, "secrets")):
            patch.setattr(module, name, keys)
        if torch:
            torch.manual_seed(_Keys(seed, *place, "torch").randbits(63))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--noise-seed", type=int, default=0, help="seed of what tests draw that say none")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have hypothesis choose its examples by the seed: by itself it takes a hash of the test and its name."""
    test = getattr(item, "obj", None)
    if hasattr(test, "hypothesis"):
        from hypothesis import seed

        seed(_seed_of(item))(getattr(test, "__func__", test))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Restart the stream for every test, and for the fixtures that it has for itself."""
    with _drawn_at(item, "test"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Set up a shared fixture from a stream of its own: who asks for it first depends on who runs beside."""
    if request.scope == "function":
        return (yield)
    with _drawn_at(request.node, request.scope, getattr(request, "param_index", 0)):
        return (yield)
