"""Nodes in Flower's simulation: the run that it would have been, for who has the extra."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from flower_trial import check_finished, deployed, small_plan, small_tasks
from flwr.serverapp import ServerApp
from flwr.supercore.task_identity import TaskIdentity

from cloister.errors import InputError, MissingExtraError
from cloister.nodes.flower import apps, simulate
from cloister.nodes.flower.transport import body


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


class Grid:
    """Nodes that come one after the other; of some the first answers, or all, are errors."""

    def __init__(self, keys, fail_once=(), fail=()):
        self.keys, self.failing, self.fail, self.looks = keys, set(fail_once), set(fail), 0
        self.push_messages = self.pull_messages = None

    def get_node_ids(self):
        self.looks += 1
        return list(range(self.looks))[: len(self.keys)]

    def send_and_receive(self, messages, *, timeout):
        assert timeout > 0
        for message in messages:
            number = message.metadata.dst_node_id
            failed = number in self.failing | self.fail
            self.failing.discard(number)
            yield SimpleNamespace(
                has_content=lambda failed=failed: not failed,
                content=body(self.keys[number].encode()),
                metadata=SimpleNamespace(src_node_id=number),
            )


def test_all_nodes_are_known_before_a_simulation_begins(monkeypatch):
    monkeypatch.setattr(apps.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)  # as Flower does before it calls an app
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    keys = {"elm": "key 0", "oak": "key 1", "yew": "key 2"}
    found = apps._Simulated(Grid(list(keys.values()), fail_once=[1]), keys, 60.0).get_nodes()
    assert {node.public_key.decode(): node.node_id for node in found} == {
        "key 0": 0,
        "key 1": 1,
        "key 2": 2,
    }
    for grid in (Grid(list(keys.values()), fail=[1]), Grid(["key 0", "another", "key 2"])):
        with pytest.raises(InputError, match=r"1 did not, 'oak' among them, and nothing was charged"):
            apps._Simulated(grid, keys, 0.3)


def test_a_simulation_whose_nodes_do_not_come_costs_nothing(tmp_path: Path, monkeypatch) -> None:
    made = deployed(tmp_path / "office", small_plan(2, rounds=1), small_tasks(2), deadline=0.1)

    def started(server, client, *others):
        server(Grid([]), None)

    monkeypatch.setattr(apps, "_PATIENCE", 0.1)
    monkeypatch.setattr(apps, "_simulation", lambda: (started, ServerApp))
    monkeypatch.setattr(apps, "session", lambda *words: nullcontext())
    with pytest.raises(InputError, match=r"All 2 nodes .* nothing was charged"):
        simulate(made.folder)
    assert not made.journal.exists()
    assert not made.ledger.history
    assert not list(made.folder.glob("nodes/*/runs/*"))
