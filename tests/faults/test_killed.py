"""SIGKILL at every point and at random times: a run goes on to the same board, and is charged once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killing.py")
ALL = 10_000
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forked children")


def kill_runs(tmp_path, kinds, noise, how, runs):
    """Return what was found of each kind; one process, which has imported everything once, does them all."""
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads must not fork
    command = [sys.executable, str(SCRIPT), str(tmp_path / "work"), noise, how, str(runs), *kinds]
    done = subprocess.run(command, env=os.environ | alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {kind: found[kind]["problems"] for kind in kinds} == {kind: [] for kind in kinds}
    return found.values()


@pytest.mark.parametrize(
    ("kinds", "noise"),
    [(("engine", "nodes", "node"), "seeded"), (("engine", "stream", "sums", "arrivals"), "secure")],
    ids=["seeded", "secure"],
)
def test_the_engine_and_nodes_go_on_from_any_point(kinds, noise, tmp_path):
    for found in kill_runs(tmp_path, kinds, noise, "points", 6):
        assert found["kills"] >= found["runs"] == 6


@pytest.mark.slow
def test_a_network_goes_on_from_any_point(tmp_path):
    pytest.importorskip("torch")
    (found,) = kill_runs(tmp_path, ["network"], "secure", "points", 3)
    assert found["kills"] >= found["runs"] == 3


def test_the_command_goes_on_from_any_point(tmp_path):
    (found,) = kill_runs(tmp_path, ["cli"], "secure", "points", 4)
    assert found["kills"] >= found["runs"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        ("engine", "seeded"),
        ("stream", "seeded"),
        ("stream", "secure"),
        ("sums", "secure"),
        ("arrivals", "seeded"),
        ("arrivals", "secure"),
        ("engine", "secure"),
        ("network", "secure"),
        ("cli", "secure"),
        ("nodes", "seeded"),
        ("node", "seeded"),
    ],
)
def test_every_point(kind, noise, tmp_path):
    (found,) = kill_runs(tmp_path, [kind], noise, "points", ALL)
    assert found["kills"] >= found["runs"] >= found["points"] > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "noise", "runs"), [("engine", "seeded", 80), ("engine", "secure", 80), ("cli", "secure", 60)]
)
def test_any_time(kind, noise, runs, tmp_path):
    (found,) = kill_runs(tmp_path, [kind], noise, "times", runs)
    assert found["runs"] == runs
    assert found["kills"] > runs // 2
