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


#: Folders whose tests run through the privacy core and are not meant for it. Its coverage is that of its own
#: tests: before Python 3.12 measuring the others as well would take half as long again.
NOT_OF_THE_CORE = {"algorithms", "audit", "cli", "datasets", "estimators", "learners", "papers", "tables"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage of the core by its own tests."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in NOT_OF_THE_CORE:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder with data files that are not part of the project; tests that need it skip without it."""
    folder = Path(os.environ.get("CLOISTER_DATA", _DEFAULT_DATA)).resolve()
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder}: set CLOISTER_DATA to run this test")
    return folder
