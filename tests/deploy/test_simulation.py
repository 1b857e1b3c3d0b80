"""Nodes in Flower's simulation: the run that it would have been, for who has the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flower_trial import check_finished, deployed, small_plan, small_tasks

from cloister.engines.flower import simulate
from cloister.errors import InputError, MissingExtraError


@pytest.mark.slow
def test_a_simulation_is_the_run_of_one_machine(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("ray", reason="needs the extra simulation")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # earlier versions warn of it
    plan, tasks = small_plan(6, rounds=3), small_tasks(6)
    made = deployed(tmp_path / "office", plan, tasks, deadline=300.0)
    done = simulate(made.folder, actors=2)
    assert done is not None
    check_finished(made, plan, tasks, done.board.head.hex())
    assert not (made.state / "log").exists()  # every message counted
    assert simulate(made.folder) is None


def test_what_a_simulation_lacks_is_a_sentence(tmp_path: Path, monkeypatch) -> None:
    made = deployed(tmp_path / "office", small_plan(2, rounds=1), small_tasks(2))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[simulation\]'"):
            simulate(made.folder)
    (made.folder / "nodes" / "school-1").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="needs every node's folder"):
        simulate(made.folder)
