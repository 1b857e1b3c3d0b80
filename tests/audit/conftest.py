"""Audits of fast tests search briefly for pairs of messages that move a sum too far."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _search(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow") is None:
        request.getfixturevalue("brief_search")
