"""The operator and a node's owner set a run up by commands; what each types is what the runbook says."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_trial import SEED, deployed, small_plan, small_tasks
from typer.testing import CliRunner

from cloister import Codebook, Ledger, Plan, SharedPriorRegressor, Trust, Unit, run
from cloister.cli import app
from cloister.engines import Local
from cloister.errors import InputError, MissingExtraError
from cloister.nodes import NodeFolder
from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.deploy.processes import curator_command, service_command
from cloister.nodes.identity import CuratorAddress, Identity
from cloister.store.signatures import Operator, SignedRoster
from cloister.tables.column_types import Numeric


def cloister(*words: object, fails: bool = False, typed: str | None = None) -> str:
    said = CliRunner().invoke(app, [str(word) for word in words], input=typed)
    assert (said.exit_code != 0) == fails, said.output
    return said.output if fails else said.stdout


@pytest.fixture
def office(tmp_path: Path) -> Path:
    small_plan(2, rounds=2).save(tmp_path / "plan.toml")
    where = ["--address", "curator.example.org:9443", "--run", "exam-2026"]
    said = cloister("deploy", "init", tmp_path / "office", "--plan", tmp_path / "plan.toml", *where)
    assert "A round needs 2 of 2 nodes" in said
    return tmp_path / "office"


SOURCE = """
import numpy as np

def rows(at):
    kept = np.load('rows.npz')
    return kept[f'X{at}'], kept[f'y{at}']

def zero(): return rows(0)
def one(): return rows(1)
"""


def _owners(office: Path, tmp_path: Path, budget: tuple[str, ...]) -> None:
    """Two owners make nodes, and the operator adds them."""
    tasks, key = small_tasks(2), (office / "operator.pub").read_text().strip()
    parts = [tasks.only(name) for name in tasks.ids]
    np.savez(
        tmp_path / "rows.npz",
        **{f"X{k}": p.X for k, p in enumerate(parts)},
        **{f"y{k}": p.y for k, p in enumerate(parts)},
    )
    (tmp_path / "source.py").write_text(SOURCE)
    for place, (node, what) in enumerate((("elm", "zero"), ("oak", "one"))):
        owner = ["--operator", key, "--data", f"source.py:{what}", *budget]
        cloister("node", "init", node, "--task", f"school-{place}", *owner)
        certificate = office / "certificates" / "trial-ca.crt"
        way = ["--address", "curator.example.org:9443", "--certificate", certificate]
        said = cloister("node", "link", node, *way)
        assert (tmp_path / node / "link.pub").read_text().strip() in said
        assert "PRIVATE" not in said
        assert cloister("node", "link", node, *way) == said  # the keys stay
        own = re.search(r"([0-9a-f]{4} ){7}[0-9a-f]{4}", said)
        added = cloister("deploy", "add", office, f"school-{place}", f"{node}/link.pub")
        assert own is not None
        assert own[0] in added  # both sides read the same to each other
        assert "already" in cloister(
            "deploy", "add", office, f"school-{place}", f"{node}/link.pub", fails=True
        )


def test_operator_and_owners_agree_on_plan_and_roster_together(office, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    runbook = (office / "README.md").read_text()
    budget = re.search(r"--epsilon \S+ --delta \S+?(?=[`\n])", runbook)
    assert budget is not None  # what the runbook says is enough
    with monkeypatch.context() as patch:  # types that a plan names are for those who run it
        patch.setattr(Plan, "load", lambda *_: pytest.fail("read"))
        _owners(office, tmp_path, tuple(shlex.split(budget[0])))
    now = json.loads(cloister("deploy", "status", office, "--json"))
    assert (now["run"], now["rounds"], now["done"], now["spent"]) == ("exam-2026", 2, 0, 0)
    assert [(node["name"], node["link"]) for node in now["nodes"]] == [
        ("school-0", "unknown"),
        ("school-1", "unknown"),
    ]
    kept = (office / "nodes.toml").read_text()
    (office / "nodes.toml").write_text(kept.rpartition("[[node]]")[0])
    assert "1 of 2 nodes are there: nothing is signed" in cloister("deploy", "roster", office, fails=True)
    (office / "nodes.toml").write_text(kept)
    assert "Signed" in cloister("deploy", "roster", office)

    approve = ["node", "approve", "elm", office / "plan.toml"]
    assert "agrees to plan and roster together" in cloister(*approve, "--yes", fails=True)
    roster = ["--roster", office / "roster.json"]
    other = ["node", "approve", "elm", tmp_path / "plan.toml", *roster, "--yes"]
    assert "of this plan" in " ".join(cloister(*other, fails=True).split())  # it has no quorum
    asked = " ".join(cloister(*approve, *roster, typed="n\n", fails=True).split())
    assert "at least 2 of the tasks that it asks have answered" in asked
    for name in ("school-0", "school-1"):
        assert re.search(rf"{name} ([0-9a-f]{{4}} ){{7}}[0-9a-f]{{4}}", asked)
    signed = SignedRoster.from_bytes((office / "roster.json").read_bytes())
    false = replace(signed, keys=(signed.keys[1], signed.keys[0]))
    operator = Operator.load(office / "secrets" / "operator.key", "exam-2026")
    false = operator.sign_roster(signed.plan, signed.roster, keys=false.keys)
    (tmp_path / "false.json").write_bytes(false.to_bytes())
    swapped = [*approve, "--roster", tmp_path / "false.json", "--yes"]
    assert "Somebody else's stand there" in " ".join(cloister(*swapped, fails=True).split())
    (tmp_path / "false.json").write_bytes(replace(signed, signature=bytes(64)).to_bytes())
    assert "not signed by the operator" in " ".join(cloister(*swapped, fails=True).split())
    cloister(*approve, *roster, "--yes")
    assert NodeFolder(tmp_path / "elm").approval(signed.plan).roster == signed.fingerprint


def test_a_budget_that_is_too_small_says_which_is_not(office, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _owners(office, tmp_path, ("--epsilon", "2", "--delta", "1e-3"))
    cloister("deploy", "roster", office)
    told = cloister(
        "node", "approve", "elm", office / "plan.toml", "--roster", office / "roster.json", fails=True
    )
    said = " ".join(told.split())
    assert "does NOT allow it" in said
    assert "at delta = 0.001" in said
    assert "Take part" not in said  # it is not asked
    cure = re.search(r"new node in another folder with (--epsilon \S+ --delta \S+)\.", said)
    assert cure is not None
    key = (office / "operator.pub").read_text().strip()
    owner = ["--operator", key, "--data", "source.py:zero", *cure[1].split()]
    cloister("node", "init", "elm-2", "--task", "school-0", *owner)
    assert "will be after one run" in " ".join(
        cloister("node", "approve", "elm-2", office / "plan.toml", typed="n\n", fails=True).split()
    )


def test_what_deploy_init_writes_is_closed(office, tmp_path) -> None:
    for name, command in (("service", service_command), ("curator", curator_command)):
        unit = (office / "systemd" / f"cloister-{name}.service").read_text()
        assert "$" not in unit
        assert f"ExecStart={shlex.join(command(office))}\n" in unit
        assert "LimitNOFILE=65536" in unit
        assert ("InaccessiblePaths=" in unit) == (name == "service")
        assert ("ReadWritePaths=" in unit) == (name == "curator")
    compose = yaml.safe_load((office / "compose.yaml").read_text())["services"]
    assert {name: each["command"] for name, each in compose.items()} == {
        "service": ["cloister", "deploy", "serve", str(office)],
        "curator": ["cloister", "deploy", "start", str(office)],
    }
    assert [each["ports"] for each in compose.values() if "ports" in each] == [["9443:9443"]]
    if shutil.which("systemd-analyze"):
        subprocess.run(["systemd-analyze", "verify", *office.glob("systemd/*.service")], check=True)
    made = deployed(tmp_path / "trial", small_plan(2, rounds=2), small_tasks(2))
    for folder in (office, made.folder):
        for path in folder.rglob("*"):
            hidden = path.suffix == ".key" or path.name in ("key", "ledger", "rows.npz")
            assert not hidden or stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.raises(InputError, match="already there"):
        deployed(tmp_path / "trial", small_plan(2, rounds=2), small_tasks(2))
    assert Plan.load(office / "plan.toml").quorum == 2


def test_a_trial_that_has_ended_is_shown_checked_and_not_started_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, plan, tasks = Path("trial"), small_plan(2, rounds=2, quorum=1), small_tasks(2)
    made = deployed(tmp_path / folder, plan, tasks)
    run(plan, tasks, random_state=SEED, engine=Local(block=1), journal=made.journal, ledger=made.ledger)
    monkeypatch.setattr("cloister.nodes.deploy.trial.start_all", lambda *_: pytest.fail("started"))
    said = cloister("deploy", "try", folder, "--nodes", "2", "--epsilon", "2")
    assert "school-0  ended" in said
    assert "school-1  ended" in cloister("deploy", "status", folder)
    command = re.search(r"cloister (verify .*)", " ".join(said.split()))
    assert command is not None
    checked = cloister(*command[1].split())
    assert "guarantee does NOT hold: " in checked  # a seed, and nothing else
    assert "each release is of 2 tasks at least" in " ".join(checked.split())
    started = " ".join(cloister("deploy", "start", folder).split())
    assert "Run trial is finished: nothing is started" in started
    assert "2 of 2 rounds" in started
    assert "--nodes must be 2" in cloister("deploy", "try", folder, "--nodes", "9", fails=True)
    assert "--epsilon must be 2" in cloister("deploy", "try", folder, "--epsilon", "1", fails=True)


def test_what_is_wrong_is_a_sentence(office: Path, tmp_path: Path, monkeypatch) -> None:
    where = ["--plan", tmp_path / "plan.toml", "--run", "x", "--address"]
    assert "host:port" in cloister("deploy", "init", tmp_path / "new", *where, "nowhere", fails=True)
    assert "already there" in cloister("deploy", "init", office, *where, "a:1", fails=True)
    assert "at most n_tasks" in cloister(
        "deploy", "init", tmp_path / "n", *where, "a:1", "--quorum", 3, fails=True
    )
    assert "deploy init" in cloister("deploy", "status", tmp_path / "none", fails=True)
    made = deployed(tmp_path / "trial", small_plan(2, rounds=2), small_tasks(2))
    said = " ".join(cloister("deploy", "start", made.folder, fails=True).split())
    assert "does not answer. Start it first, and let it run: cloister deploy serve" in said
    with (office / "nodes.toml").open("a") as file:
        file.write('[[node]]\nname = "Elm"\nkey = "x"\n')
    assert "link.pub" in cloister("deploy", "status", office, fails=True)
    with (office / "deploy.toml").open("a") as file:
        file.write("link = 8000\n")
    assert "earlier version" in cloister("deploy", "status", office, fails=True)
    with pytest.raises(InputError, match="address"):
        CuratorAddress.load(tmp_path)
    with pytest.raises(InputError, match=r"link\.key and agree\.key"):
        Identity.load(tmp_path)
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "cloister.nodes.entry")
    with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[nodes\]'"):
        importlib.import_module("cloister.nodes.entry")


def test_a_codebook_that_the_plan_is_not_for_is_refused_before_anything_is_written(tmp_path) -> None:
    book = Codebook.from_mapping({"age": (5, 20), "score": (0, 50)}, ["age"], "score")
    plan = SharedPriorRegressor(epsilon=2.0, bounds=book).plan(4)
    plan.save(tmp_path / "plan.toml")
    wider = Codebook.from_mapping(
        {"age": (5, 20), "sex": ["F", "M"], "score": (0, 50)}, ["age", "sex"], "score"
    )
    wider.save(tmp_path / "wider.toml")
    book.save(tmp_path / "exam.toml")
    where = ["--address", "curator.example.org:9443", "--run", "exam-2026", "--plan", tmp_path / "plan.toml"]
    refused = cloister(
        "deploy", "init", tmp_path / "office", *where, "--codebook", tmp_path / "wider.toml", fails=True
    )
    assert "must give the plan's columns and classes" in " ".join(refused.split())
    assert not (tmp_path / "office").exists()
    cloister("deploy", "init", tmp_path / "office", *where, "--codebook", tmp_path / "exam.toml")
    assert (tmp_path / "office" / "codebook.toml").read_bytes() == (tmp_path / "exam.toml").read_bytes()


@pytest.mark.parametrize(
    ("trust", "sentence"),
    [(Trust.secure_sum(), "every round waits for all"), (Trust.secure_sum(1), "as long as 4 are there")],
)
def test_the_runbook_of_a_secure_sum_says_what_is_different(trust, sentence, tmp_path) -> None:
    replace(small_plan(5, rounds=2), trust=trust).save(tmp_path / "plan.toml")
    where = ["--address", "curator.example.org:9443", "--run", "exam-2026"]
    cloister("deploy", "init", tmp_path / "office", "--plan", tmp_path / "plan.toml", *where)
    runbook = (tmp_path / "office" / "README.md").read_text()
    assert sentence in runbook
    assert "runs/exam-2026/sums" in runbook
    assert "$" not in runbook.replace("${", "")


def test_a_plan_by_record_asks_for_accounts_by_record(tmp_path: Path) -> None:
    book = Codebook((Numeric("x", 0.0, 1.0),), Numeric("y", 0.0, 1.0), task="ward")
    model = SharedPriorRegressor("ward", epsilon=1.0, bounds=book, unit=Unit.record(4000))
    model.plan(3).save(tmp_path / "plan.toml")
    where = ["--address", "curator.example.org:9443", "--run", "wards-2026"]
    cloister("deploy", "init", tmp_path / "office", "--plan", tmp_path / "plan.toml", *where)
    assert "--unit record" in (tmp_path / "office" / "README.md").read_text()
    assert Ledger.open(tmp_path / "office" / "state" / "ledger").unit == "record"


def test_an_office_takes_one_of_several_targets_and_only_who_is_on_the_roster(tmp_path: Path) -> None:
    towns, columns = '["Elm", "Oak", "Ash"]', "[features.x]\nbounds = [0, 1]\n"
    targets = "".join(f'[[target]]\nname = "{name}"\nbounds = [0, 1]\n' for name in ("y", "z"))
    (tmp_path / "book.toml").write_text(f'task = "town"\nroster = {towns}\n{targets}{columns}')
    book = ["--codebook", tmp_path / "book.toml"]
    cloister("plan", *book, "--target", "z", "-o", tmp_path / "plan.toml")
    start = ["deploy", "init", tmp_path / "office", "--plan", tmp_path / "plan.toml", *book]
    start += ["--address", "localhost:9443", "--run", "one"]
    assert "several" in cloister(*start, fails=True)
    cloister(*start, "--target", "z")
    assert Codebook.load(tmp_path / "office" / "codebook.toml").target.name == "z"
    (tmp_path / "link.pub").write_text(Identity.create(tmp_path).public)
    stranger = ["deploy", "add", tmp_path / "office", "elm", tmp_path / "link.pub"]
    assert "did you mean 'Elm'?" in cloister(*stranger, fails=True)
    cloister(*stranger[:3], "Elm", tmp_path / "link.pub")
    nodes = tmp_path / "office" / "nodes.toml"  # which people edit by hand, too
    nodes.write_text(nodes.read_text().replace('"Elm"', '"Elms"'))
    with pytest.raises(InputError, match=r"Every task of nodes\.toml must be on .* Got 'Elms'"):
        Deployment(tmp_path / "office").sign_roster()
    nodes.write_text(nodes.read_text().replace('"Elms"', '"Elm"'))
    with pytest.raises(InputError, match="2 of 3 have none: 'Ash', 'Oak'"):
        Deployment(tmp_path / "office").sign_roster()
    assert "codebook's roster, 3" in cloister("plan", *book, "--target", "z", "--tasks", 4, fails=True)
    (tmp_path / "book.toml").write_text((tmp_path / "book.toml").read_text().replace(', "Ash"', ""))
    start[2] = tmp_path / "other"
    assert "must name the plan's 3 tasks" in cloister(*start, "--target", "z", fails=True)
