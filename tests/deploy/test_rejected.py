"""What a run refuses over the wire is told to its operator in a sentence, and does no harm; slow."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import hostile
import pytest
from flower_trial import SEED, deployed, small_plan, small_tasks
from typer.testing import CliRunner

from cloister import Ledger, run
from cloister.cli import app
from cloister.engines import RemoteNodes
from cloister.nodes import InProcess, Node, NodeFolder, Request
from cloister.nodes.deploy.processes import Processes
from cloister.nodes.deploy.supervisor import curate
from cloister.nodes.deploy.trial import start_all

pytestmark = pytest.mark.slow

DOOR = {
    "no key": "A request bore no key of a registered node.",
    "another's key, an old message": "of node 'school-0' was refused by Flower's link with status 401",
    "a gigabyte": "with the key of node 'school-0' was larger than",
    "another's questions": "of node 'school-1' was refused by Flower's link with status 401",
    "garbage": "of node 'school-0' was refused by Flower's link with status 400",
    "the operator's calls": "with the key of node 'school-0' asked for what no node needs.",
    "another authority": "TLS could not be agreed on",
}
OPERATOR = {
    "another price, no signature": "node 'school-3' refused; its own log says why.",
    "an old message again": "Node 'school-1': An answer came that the node's key has not signed",
    "garbage": "Round 1: node 'school-2' sent 140 bytes that are no reply.",
    "a step too long": "Round 2: the message of node 'school-2' is not allowed. Row 0 is longer",
}


class Without:
    """Nodes in this process, of which one is not heard in some rounds."""

    def __init__(self, nodes, name, rounds):
        self.nodes, self.away = nodes, {(name, t) for t in rounds}

    def ask(self, requests, deadline):
        asked = {
            name: request
            for name, request in requests.items()
            if (name, Request.from_bytes(request).round) not in self.away
        }
        return InProcess(self.nodes).ask(asked, deadline)


def cloister(*words: object) -> tuple[int, str]:
    said = CliRunner().invoke(app, [str(word) for word in words])
    return said.exit_code, said.stdout


def test_what_is_refused_is_told_and_does_no_harm(tmp_path: Path) -> None:
    plan, tasks = small_plan(4, rounds=5), small_tasks(4)
    made = deployed(tmp_path / "office", plan, tasks)
    for name in tasks.ids:
        home = NodeFolder(made.folder / "nodes" / name)
        (home.folder / "ledger").unlink()
        Ledger.create(home.folder / "ledger", str(name), epsilon=50.0, delta=1e-1)
        home.approve(small_plan(**hostile.BRIEF), tasks.only(name), trial=True)
    alike = shutil.copytree(made.folder / "nodes", tmp_path / "alike")
    here = str(Path(hostile.__file__).parent)
    (made.folder / "app" / "curator" / "apps.py").write_text(
        hostile.APP.format(here=here, folder=str(made.folder))
    )
    ended: dict[str, object] = {}

    def look(now) -> None:
        if now.done >= 1 and not ended:
            ended.update(hostile.attack(made, tmp_path))

    with Processes.at(made.state / "logs") as processes:
        start_all(made, processes)
        for name, kind in (("school-1", "old"), ("school-2", "liar")):
            processes.end(f"node-{name}")
            command = [sys.executable, hostile.__file__, str(made.folder / "nodes" / name), kind]
            processes.start(f"node-{name}", command, {})
        now = curate(made, look, every=0.2)

    assert ended == hostile.ENDS
    door, office = (made.state / "logs" / "proxy.log").read_text(), (made.state / "log").read_text()
    for what, sentence in DOOR.items():
        assert sentence in door, what
    for what, sentence in OPERATOR.items():
        assert sentence in office, what
    assert len(door.splitlines()) < 20
    at_home = (made.folder / "nodes" / "school-3" / "log").read_text()
    assert "has not approved the plan" in at_home
    assert "not signed" in at_home

    nodes = {name: Node(alike / name) for name in tasks.ids.tolist()}
    engine = RemoteNodes(Without(nodes, "school-2", (1, 2)), made.operator, log=lambda line: None)
    alone = run(plan, made.roster, random_state=SEED, engine=engine)
    assert now.head == alone.board.head.hex()
    assert made.ledger.spent == pytest.approx(plan.guarantee.epsilon)
    for name in tasks.ids:
        runs = [charge.run.split()[0] for charge in NodeFolder(made.folder / "nodes" / name).ledger.history]
        assert runs == ["forked", "trial"]  # what was refused cost nothing

    (tmp_path / "operator.pub").write_text(made.operator.public.hex())
    for name in tasks.ids:
        for kind in ("forked", "trial"):
            code, head = cloister("node", "status", made.folder / "nodes" / name, "--run", kind, "--json")
            assert code == 0
            (tmp_path / f"{name}-{kind}.json").write_text(head)

    def compared(kind: str, one: int, other: int) -> int:
        files = [tmp_path / f"school-{k}-{kind}.json" for k in (one, other)]
        return cloister("node", "compare", *files, "--operator", tmp_path / "operator.pub")[0]

    assert [compared("forked", 0, other) for other in (1, 2, 3)] == [0, 3, 3]
    assert [compared("trial", 0, other) for other in (1, 2, 3)] == [0, 0, 0]
