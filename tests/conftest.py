"""Fixtures that several tests share."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from cloister.audit.sensitivity import Furthest, furthest_on
from cloister.channel import Channel, Relation
from cloister.core.arrays import Floats

_DEFAULT_DATA = Path(__file__).parents[1] / "data"

# The same examples on every run: a failure is a change in the code, never the luck of the draw.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


#: They hold fixtures, and no examples to be tried.
collect_ignore_glob = ["*conftest.py"]
#: It is about networks from the first line on.
collect_ignore = [] if find_spec("torch") else ["estimators/test_few_shot.py"]


@pytest.fixture(scope="session")
def searched() -> dict[object, Furthest]:
    """What the auditor's search has found on each channel so far."""
    return {}


@pytest.fixture
def brief_search(monkeypatch: pytest.MonkeyPatch, searched: dict[object, Furthest]) -> None:
    """Let the auditor try the known worst pairs of messages, 363 under replace, and about as many more.

    A channel is searched once for all tests whose mechanism takes its sum in the same way: with a seed the
    search finds the same again.
    """

    def once(
        channel: Channel, relation: Relation, *, total: partial[Floats], tries: int, seed: int
    ) -> Furthest:
        key = channel, relation, total.func, total.args[0].exact, tries, seed
        if key not in searched:
            searched[key] = furthest_on(channel, relation, total=total, tries=tries, seed=seed)
        return searched[key]

    monkeypatch.setattr("cloister.audit.auditor._TRIES", 700)
    monkeypatch.setattr("cloister.audit.auditor.furthest_on", once)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder with data files that are not part of the project; tests that need it skip without it."""
    folder = Path(os.environ.get("CLOISTER_DATA", _DEFAULT_DATA)).resolve()
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder}: set CLOISTER_DATA to run this test")
    return folder
