"""The operator and a node's owner set a run up by commands; what each types is what the runbook says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from flower_trial import SEED, deployed, small_plan, small_tasks
from typer.testing import CliRunner

from cloister import run
from cloister.cli import app
from cloister.engines import Local
from cloister.nodes.deploy.kit import add_node
from cloister.nodes.deploy.processes import executor_command, link_command, proxy_command
from cloister.nodes.flower.deployment import Deployment


def cloister(*words: str, fails: bool = False) -> str:
    said = CliRunner().invoke(app, [str(word) for word in words])
    assert (said.exit_code != 0) == fails, said.output
    return said.stderr if fails else said.stdout


@pytest.fixture
def office(tmp_path: Path) -> Path:
    small_plan(2, rounds=2).save(tmp_path / "plan.toml")
    where = ["--address", "curator.example.org:9443", "--run", "exam-2026"]
    cloister("deploy", "init", tmp_path / "office", "--plan", tmp_path / "plan.toml", *where)
    return tmp_path / "office"


def test_an_operator_and_an_owner_set_a_run_up(office: Path, tmp_path: Path, monkeypatch) -> None:
    key = Deployment(office).operator.public.hex()
    assert key in (office / "README.md").read_text()
    rows = small_tasks(2).only("school-0")
    np.savez(tmp_path / "rows.npz", X=rows.X, y=rows.y)
    (tmp_path / "source.py").write_text(
        "import numpy as np\ndef rows():\n    kept = np.load('rows.npz')\n    return kept['X'], kept['y']\n"
    )
    monkeypatch.chdir(tmp_path)
    owner = ["--operator", key, "--data", "source.py:rows", "--epsilon", "3", "--delta", "1e-2"]
    cloister("node", "init", "elm", "--task", "school-0", *owner)
    certificate = office / "certificates" / "trial-ca.crt"
    way = ["--address", "curator.example.org:9443", "--certificate", certificate]
    said = cloister("node", "link", "elm", *way)
    assert (tmp_path / "elm" / "link.pub").read_text().strip() in said
    assert "PRIVATE" not in said
    assert cloister("node", "link", "elm", *way) == said  # the key stays
    add_node(Deployment(office), "school-0", (tmp_path / "elm" / "link.pub").read_text())
    now = json.loads(cloister("deploy", "status", office, "--json"))
    assert (now["run"], now["rounds"], now["done"], now["spent"]) == ("exam-2026", 2, 0, 0)
    assert [node["name"] for node in now["nodes"]] == ["school-0"]


def test_units_and_proxies_are_closed(office: Path) -> None:
    for name in ("link", "proxy", "executor", "curator"):
        unit = (office / "systemd" / f"cloister-{name}.service").read_text()
        assert "$" not in unit
        assert "FLWR_TELEMETRY_ENABLED=0" in unit
        assert "FLWR_DISABLE_UPDATE_CHECK=1" in unit
        assert ("InaccessiblePaths=" in unit) == (name == "proxy")
    assert 'FLWR_DISABLE_UPDATE_CHECK: "1"' in (office / "compose.yaml").read_text()
    for text in (
        (office / "compose.yaml").read_text(),
        (office / "systemd" / "cloister-link.service").read_text(),
    ):
        words = re.findall(r"[\w./-]+", text)
        assert words[words.index("--host") + 1] == "127.0.0.1"
        assert words[words.index("--isolation") + 1] == "process"
        assert {"--superexec-auth-secret-file", "--enable-supernode-auth"} <= set(words)
        assert "--insecure" not in words
    compose = yaml.safe_load((office / "compose.yaml").read_text())["services"]
    commands = {name: service["command"] for name, service in compose.items()}
    assert commands.pop("curator") == ["cloister", "deploy", "start", str(office)]
    for name, made in (("link", link_command), ("proxy", proxy_command), ("executor", executor_command)):
        assert commands.pop(name)[1:] == made(Deployment(office))[1:]  # the first is where it is installed
        assert compose[name].get("network_mode") == (None if name == "link" else "service:link")
    assert not commands
    assert [service["ports"] for service in compose.values() if "ports" in service] == [["9443:9443"]]
    if shutil.which("systemd-analyze"):
        subprocess.run(["systemd-analyze", "verify", *office.glob("systemd/*.service")], check=True)
    assert "limit_req_zone $binary_remote_addr" in (office / "nginx.conf").read_text()
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    if Path(nginx).exists():
        subprocess.run([nginx, "-t", "-q", "-c", office / "nginx.conf"], check=True)


def test_a_trial_that_has_ended_is_shown_checked_and_not_started_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, plan, tasks = Path("trial"), small_plan(2, rounds=2), small_tasks(2)
    made = deployed(tmp_path / folder, plan, tasks)
    run(plan, tasks, random_state=SEED, engine=Local(block=1), journal=made.journal, ledger=made.ledger)
    (made.state / "finished.json").write_text("{}")
    monkeypatch.setattr("cloister.nodes.deploy.trial.start_all", lambda *_: pytest.fail("started"))
    said = cloister("deploy", "try", folder, "--nodes", "2", "--epsilon", "2")
    assert "school-0  ended" in said
    assert "school-1  ended" in cloister("deploy", "status", folder)
    command = re.search(r"cloister (verify .*)", " ".join(said.split()))
    assert command is not None
    assert "guarantee does NOT hold: " in cloister(*command[1].split())  # a seed, and nothing else
    started = " ".join(cloister("deploy", "start", folder).split())
    assert "Run trial is finished: nothing is started" in started
    assert "2 of 2 rounds" in started
    assert "--nodes must be 2" in cloister("deploy", "try", folder, "--nodes", "9", fails=True)
    assert "--epsilon must be 2" in cloister("deploy", "try", folder, "--epsilon", "1", fails=True)


def test_what_is_wrong_is_a_sentence(office: Path, tmp_path: Path) -> None:
    where = ["--plan", tmp_path / "plan.toml", "--run", "x", "--address"]
    assert "host:port" in cloister("deploy", "init", tmp_path / "new", *where, "nowhere", fails=True)
    assert "already there" in cloister("deploy", "init", office, *where, "a:1", fails=True)
    assert "deploy init" in cloister("deploy", "status", tmp_path / "none", fails=True)
    with (office / "nodes.toml").open("a") as file:
        file.write('[[node]]\nname = "Elm"\nkey = "x"\n')
    assert "link.pub" in cloister("deploy", "status", office, fails=True)
