"""`cloister fit` with several methods: tasks vote, and the folder holds the choice and its whole price."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, contents, fit, ok, pupils, refused
from cli_helpers import cloister as command

import cloister
from cloister import Ledger, Plan
from cloister.privacy import gaussian_dp
from cloister.tables.files import write_csv
from cloister.tables.model import TaskModel

SEVERAL = ["--method", "shared-prior", "--method", "meta", "--method", "single-task", "--set", "rounds=3"]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chosen")
    write_csv(folder / "exam.csv", pupils())
    (folder / "book.toml").write_text(BOOK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Ledger.create("ledger", "schools", epsilon=1.2, delta=1e-3)
        said = ok(
            *("fit", "exam.csv", "--codebook", "book.toml", "-o", "run", *SEVERAL, "--ledger", "ledger")
        )
    (folder / "said.txt").write_text(said)
    return folder


@pytest.fixture
def vote(chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(chosen, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tasks_choose_among_methods_and_the_whole_is_priced(vote: Path) -> None:
    said = " ".join(Path("said.txt").read_text().split())
    assert "votes, with noise" in said
    assert "All of shared-prior, meta, single-task are run on 70%" in said
    account = Ledger.open("ledger")
    assert len(account.history) == 1
    model = cloister.load("run")
    assert model.guarantee_.epsilon == pytest.approx(1, rel=1e-3)
    assert model.guarantee_.epsilon > model.plan_.guarantee.epsilon
    assert account.spent == pytest.approx(gaussian_dp.epsilon(account.history[0].mu, 1e-3))
    assert json.loads(Path("run/guarantee.json").read_text())["epsilon"] == model.guarantee_.epsilon
    checked = json.loads(ok("verify", "run", "--head", Path("run/head.txt").read_text().strip(), "--json"))
    assert checked["guarantee"]["epsilon"] == model.guarantee_.epsilon
    assert "the vote has chosen this run among several" in {each["check"] for each in checked["checks"]}
    ok("predict", "run", "exam.csv")
    ok("replay", "run", "exam.csv", "--task-name", "003", "-o", "mine.json")
    again, file = TaskModel.load("mine.json"), TaskModel.load("run/models/003.json")
    np.testing.assert_allclose(again.weights, file.weights, rtol=1e-9)
    model.save("copy")
    ok("verify", "copy")
    assert contents(Path("copy")).keys() == contents(Path("run")).keys()
    before = contents(vote)
    more = refused("fit", "exam.csv", "--codebook", "book.toml", "-o", "more", *SEVERAL, "--ledger", "ledger")
    assert "the budget is 1.2" in more
    assert contents(vote).keys() == before.keys()


def test_a_forged_choice_does_not_pass(vote: Path) -> None:
    def fails(check: str) -> None:
        result = command("verify", "run", "--head", head, "--json")
        assert result.exit_code == 1
        bad = {each["check"] for each in json.loads(result.stdout)["checks"] if each["ok"] is False}
        assert check in bad
        assert "the guarantee is what plan and board give" in bad or "head" in check
        shutil.rmtree("run")
        shutil.copytree("kept", "run")

    shutil.copytree("run", "kept")
    head = Path("run/head.txt").read_text().strip()
    winner = next(
        n for n in range(3) if Path(f"run/choice/{n}/board").read_bytes() == Path("run/board").read_bytes()
    )
    loser = next(n for n in (0, 1) if n != winner)
    for name in ("plan.toml", "board"):  # another run takes the chosen one's place
        shutil.copy(f"run/choice/{loser}/{name}", f"run/{name}")
    fails("the vote has chosen this run among several")
    shutil.rmtree("run/choice")  # as if there had been no choice: the price says otherwise
    fails("the guarantee is what plan and board give")
    for name in ("plan.toml", "board"):  # a run that was paid for is passed over
        shutil.copy(f"run/choice/2/{name}", f"run/choice/{loser}/{name}")
    fails("the guarantee is what plan and board give")
    Path("run/choice/vote/board").unlink()
    fails("the vote has chosen this run among several")
    data = bytearray(Path(f"run/choice/{loser}/board").read_bytes())
    data[len(data) // 2] ^= 1
    Path(f"run/choice/{loser}/board").write_bytes(data)
    fails("the vote has chosen this run among several")


def test_the_plan_of_a_chosen_run_is_not_its_price(vote: Path) -> None:
    assert refused("account", "run").startswith(
        "run was chosen among several runs, and costs more than its plan"
    )
    ok("account", "run/plan.toml")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--method", "meta", "--method", "meta"], "--method meta was given twice. "),
        (
            ["--method", "meta", "--method", "low-rank", "--rate", "0.5"],
            "Estimators are compared with every task ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--mechanism", "tree"],
            "Estimators are compared with every ",
        ),
        (
            ["--method", "shared-prior", "--method", "meta", "--groups", "sex"],
            "Estimators are compared with ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--detection", "0.1"],
            "Several methods are compared at an epsilon: ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--epsilon", "inf"],
            "epsilon must be > 0 and finite. ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--set", "depth=3"],
            "--set depth=3: there is no setting ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--set", "meta.guard=true"],
            "--set meta.guard=true: there is ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--start-from", "run"],
            "meta, low-rank takes no --start-from. ",
        ),
    ],
)
def test_wrong_comparisons_are_refused(work: Path, options: list[str], sentence: str) -> None:
    account = Ledger.create("ledger", "schools", epsilon=9, delta=1e-3)
    before = contents(work)
    assert refused(*fit(*options, "--ledger", "ledger")).startswith(sentence)
    assert contents(work) == before
    assert account.history == ()


def test_settings_of_one_method_among_several(work: Path) -> None:
    options = ["--method", "meta", "--method", "low-rank", "--set", "rounds=3", "--set", "low-rank.lam=2"]
    ok(*fit(*options))
    first, second = Plan.load("run/choice/0/plan.toml"), Plan.load("run/choice/1/plan.toml")
    assert (first.algorithm.lam, second.algorithm.lam) == (0.02, 2)
    assert len(first.rounds) == len(second.rounds) == 3
