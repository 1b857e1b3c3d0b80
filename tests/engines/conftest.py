"""Folders of nodes, that tests of them share."""

from __future__ import annotations

import pytest
from node_helpers import copied, here, make_nodes


@pytest.fixture
def unsynced(monkeypatch):
    """Leave power cuts to tests/faults: what these tests write need not survive one."""
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Folders of nodes whose owners have approved the plan."""
    folder = tmp_path_factory.mktemp("nodes")
    make_nodes(folder)
    return folder


@pytest.fixture
def nodes(template, tmp_path):
    return copied(template, tmp_path / "nodes")


@pytest.fixture(scope="module")
def alone():
    return here()
