"""The same run over Flower, on its public API alone; for who has the extra."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_trial import check_finished, deployed, node, small_plan, small_tasks

pytest.importorskip("flwr", reason="needs the extra flower")
from cloister.nodes.flower import FlowerTransport, body, client_app, message_body, server_app
from cloister.nodes.messages import Request, RequestKind


class Grid:
    """What Flower's grid does, for nodes that answer at once; of some the first answer is broken."""

    def __init__(self, answering, broken=()):
        self.answering, self.broken, self.waiting = answering, dict(broken), {}

    def get_node_ids(self):
        return list(self.answering)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message-{len(self.waiting)}"
            self.waiting[number] = message.metadata.dst_node_id, message_body(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        for number in numbers:
            at, asked = self.waiting[number]
            answer = self.answering[at](asked)
            if asked and at in self.broken:
                answer = self.broken.pop(at)
            if isinstance(answer, Exception):
                raise answer
            yield _Message(body(answer))


class _Message:
    def __init__(self, content):
        self.content = content

    def has_error(self):
        return False


@pytest.fixture
def flower(monkeypatch):
    """Let messages be made outside of an app, as tests must: the one name of Flower's that is not public."""
    try:
        from flwr.supercore.task_identity import TaskIdentity as task
    except ImportError:  # earlier versions do not ask
        return
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(task, name, 1, raising=False)


def test_answers_count_for_the_name_whose_key_has_signed_them(tmp_path, flower, monkeypatch):
    """One node claims another's name, and one breaks what Flower reads; neither silences anybody."""
    for name in ("AGAIN", "SOON", "POLL"):
        monkeypatch.setattr(f"cloister.nodes.flower.{name}", 0.1)
    made = deployed(tmp_path / "office", small_plan(3, rounds=1), small_tasks(3))
    sealed = [node(made, name).sealed for name in made.keys]

    def answers(own, name=None):
        return lambda asked: own.answer(asked) or b"no" if asked else (name or own.name).encode()

    said = []
    grid = Grid(
        {
            1: answers(sealed[0]),
            2: answers(sealed[1]),
            3: answers(sealed[2], "school-0"),
            4: answers(sealed[2], "nobody"),
        },
        broken={1: ValueError("no message"), 2: b"garbage"},
    )
    transport = FlowerTransport(grid, made.operator, made.keys, made.settings.reply, said.append)
    asked = dict.fromkeys(("school-0", "school-1"), Request(RequestKind.ROUND, "unknown", 0).to_bytes())
    found = dict(transport.ask(asked, deadline=60.0))
    assert sorted(found) == ["school-0", "school-1"]  # both refuse, in their own name
    assert sorted(transport.last_seen) == ["school-0", "school-1"]
    assert any("what Flower cannot read: ValueError" in sentence for sentence in said)
    assert any("Node 'school-1': An answer came" in sentence for sentence in said)
    assert any("Node 'school-0': An answer came" in sentence for sentence in said)


@pytest.mark.slow
def test_a_run_over_flower_is_that_of_one_machine(tmp_path: Path, monkeypatch) -> None:
    """In Flower's own simulation: three virtual nodes, each with a folder of its own."""
    pytest.importorskip("ray", reason="needs Flower's simulation")
    from flwr.simulation import run_simulation

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    plan, tasks = small_plan(3, rounds=2, quorum=3), small_tasks(3)
    made = deployed(tmp_path / "office", plan, tasks, deadline=300.0)
    homes = [str(made.folder / "nodes" / name) for name in tasks.ids.tolist()]
    client = client_app(lambda settings: homes[int(settings["partition-id"])])
    backend = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    run_simulation(server_app(made.folder), client, 3, "ray", backend)
    check_finished(made, plan, tasks)


def test_apps_are_apps_of_flower(tmp_path):
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    assert isinstance(server_app(tmp_path), ServerApp)
    assert isinstance(client_app(tmp_path), ClientApp)

    class Empty:
        content = body(b"x")

    assert message_body(Empty()) == b"x"
    Empty.content = {}
    assert message_body(Empty()) is None
