"""Fixtures that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

_DEFAULT_DATA = Path(__file__).parents[1] / "data"

# The same examples on every run: a failure is a change in the code, never the luck of the draw.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


#: They hold fixtures, and no examples to be tried.
collect_ignore_glob = ["*conftest.py"]


@pytest.fixture
def brief_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the auditor try the known worst pairs of messages, 363 under replace, and about as many more."""
    monkeypatch.setattr("cloister.audit.auditor._TRIES", 700)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder with data files that are not part of the project; tests that need it skip without it."""
    folder = Path(os.environ.get("CLOISTER_DATA", _DEFAULT_DATA)).resolve()
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder}: set CLOISTER_DATA to run this test")
    return folder
