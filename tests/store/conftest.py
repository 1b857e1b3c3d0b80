"""A journal that tests share."""

from __future__ import annotations

import pytest
from journal_helpers import PLAN, TASKS, Stopped, stop_after

from cloister import run


@pytest.fixture
def begun(tmp_path):
    """A journal of a run that was stopped after two of four releases."""
    with pytest.raises(Stopped):
        run(PLAN, TASKS, journal=tmp_path / "journal", progress=stop_after(2))
    return tmp_path / "journal"
