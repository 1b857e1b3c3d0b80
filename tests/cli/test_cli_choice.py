"""`cloister fit` with several methods: tasks vote, and the folder holds the choice and its whole price."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, contents, fit, ok, pupils, refused, seal
from cli_helpers import cloister as command

import cloister
from cloister import Billboard, Ledger, Plan
from cloister.app.predict import write_csv
from cloister.app.task_model import TaskModel
from cloister.privacy import tradeoff

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
    assert account.spent == pytest.approx(tradeoff.epsilon(account.history[0].mu, 1e-3))
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
    more = ("fit", "exam.csv", "--codebook", "book.toml", "-o", "more", *SEVERAL, "--ledger", "ledger")
    assert "the budget is 1.2" in refused(*more)
    assert json.loads(ok(*more, "--dry-run", "--json"))["ledger"]["runs"] == 0
    assert contents(vote).keys() == before.keys()


def test_a_choice_that_was_stripped_of_what_it_was_among(vote: Path) -> None:
    head = Path("run/head.txt").read_text().strip()
    shutil.rmtree("run/choice")
    guarantee = cloister.load("run").guarantee_  # of the chosen run alone
    Path("run/guarantee.json").write_text(guarantee.to_json())
    Path("run/guarantee.txt").write_text(f"{guarantee}\n")
    said = command("verify", "run")
    assert (said.exit_code, "choice/0/board is gone" in said.stdout) == (1, True)
    seal()  # hashes that nobody has kept can be computed anew
    ok("verify", "run")
    assert command("verify", "run", "--head", head).exit_code == 1


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
    place = Path(f"run/choice/{loser}/plan.toml")  # a cheaper plan than the one that was run
    paid = Plan.load(place)
    replace(paid, mechanism=paid.mechanism.scaled(0.01)).save(place)
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
            ["--method", "meta", "--method", "low-rank", "--trust", "silo"],
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
            "--epsilon must be > 0 and finite. ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--set", "depth=3"],
            "--set depth=3: there is no setting ",
        ),
        (
            ["--method", "meta", "--method", "low-rank", "--set", "meta.warmup=3"],
            "--set meta.warmup=3: there is ",
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
    assert (first.algorithm.algorithm.lam, second.algorithm.algorithm.lam) == (0.02, 2)
    assert len(first.rounds) == len(second.rounds) == 3 + 3 + 3 + 1  # after a search, before a question


# --- killed, and given again -----------------------------------------------------------------------------

DRAFT = Path(".run.unfinished")
TWO = ["--method", "mean-regularized", "--method", "low-rank", "--set", "rounds=3"]
FIT = ["fit", "exam.csv", "--codebook", "book.toml", "-o", "run", *TWO, "--ledger", "ledger"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.chdir(tmp_path)
    write_csv("exam.csv", pupils())
    Path("book.toml").write_text(BOOK)
    return Ledger.create("ledger", "schools", epsilon=1.2, delta=1e-3)


def cut_short(monkeypatch: pytest.MonkeyPatch, run: str, records: int) -> None:
    """Let the disk be full when so many releases of a run are posted."""
    write, board = os.write, DRAFT / "choice" / run / "board"

    def full(file: int, data: bytes) -> int:
        if board.exists() and board.stat().st_size and Billboard.recover(board).rounds == records:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        stopped = command(*FIT)
    assert stopped.exit_code == 1
    assert "there is no space left" in stopped.stderr


def boards() -> dict[str, Billboard]:
    return {path.parent.name: Billboard.recover(path) for path in DRAFT.glob("choice/*/board")}


@pytest.mark.parametrize(("run", "records"), [("0", 0), ("0", 3), ("1", 2), ("vote", 0), ("vote", 1)])
def test_a_vote_that_was_killed_goes_on_and_is_charged_once(
    table: Ledger, monkeypatch: pytest.MonkeyPatch, run: str, records: int
) -> None:
    cut_short(monkeypatch, run, records)
    assert not Path("run").exists()
    assert len(table.history) == 1
    posted = boards()
    assert posted[run].rounds == records
    cut_short(monkeypatch, run, records)  # nothing has changed
    said = command(*FIT)
    assert said.exit_code == 0, said.stderr
    assert "Going on with the unfinished vote" in said.stderr
    assert len(table.history) == 1
    for name, board in posted.items():  # what was posted is as it was
        assert Billboard.load(f"run/choice/{name}/board").before(board.rounds).head == board.head
    files = contents(Path())
    assert not [name for name in files if "kept" in name or "secret" in name or "election" in name]
    assert sorted(path.name for path in Path().iterdir()) == ["book.toml", "exam.csv", "ledger", "run"]
    ok("verify", "run", "--head", Path("run/head.txt").read_text().strip())


@pytest.mark.parametrize("begun", [FIT, FIT[:-2]], ids=["charged", "not charged"])
def test_a_vote_that_was_killed_at_its_end_is_put_in_place(
    table: Ledger, monkeypatch: pytest.MonkeyPatch, begun: list[str]
) -> None:
    rename = os.rename

    def fails(source: Path, target: Path) -> None:
        if str(source).endswith(".unfinished"):
            raise OSError(28, "No space left on device", str(target))
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", fails)
        assert "there is no space left" in refused(*begun)
    head, charges, before = (DRAFT / "head.txt").read_text(), table.history, contents(DRAFT)
    assert "is among other plans" in refused(*FIT, "--epsilon", "0.5")
    write_csv("exam.csv", pupils(seed=1))
    assert "has changed since the vote" in refused(*FIT)
    twice = pupils()
    write_csv("exam.csv", twice | {"age": 2 * twice["age"]})  # the same rows, once they are encoded
    Path("book.toml").write_text(BOOK.replace("[5, 20]", "[10, 40]"))
    assert "The codebook has changed since the vote" in refused(*FIT)
    write_csv("exam.csv", pupils())
    Path("book.toml").write_text(BOOK)
    assert (contents(DRAFT), table.history) == (before, charges)
    said = command(*FIT)
    assert said.exit_code == 0, said.stderr
    assert "was complete, but not yet in place. It is now; nothing was run." in " ".join(said.stderr.split())
    assert Path("run/head.txt").read_text() == head
    assert len(table.history) == 1
    assert not Path("run/election").exists()
    ok("verify", "run")
    Path("run/election").write_text("left by a process that was killed")
    assert "run is already there" in refused(*FIT)
    assert not Path("run/election").exists()


def test_a_finished_run_does_not_pass_for_a_vote_of_other_data(vote: Path) -> None:
    """The folder of a vote, where another one would work, is neither taken for it nor charged."""
    write_csv("exam.csv", pupils(seed=1))
    Path("run").rename(DRAFT)
    account = Ledger.create("other", "other schools", epsilon=1.2, delta=1e-3)
    again = ("fit", "exam.csv", "--codebook", "book.toml", "-o", "run", *SEVERAL, "--ledger", "other")
    assert "holds another run, which is not a vote, or not this one" in refused(*again)
    assert not Path("run").exists()
    assert account.history == ()


def test_only_the_same_vote_goes_on(table: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short(monkeypatch, "1", 1)
    before = contents(Path())
    assert "is among other plans" in refused(*FIT, "--epsilon", "0.5")
    assert "was begun with a ledger" in refused(*FIT[:-2])
    assert "holds an unfinished vote among several plans" in refused(*FIT[:6])
    write_csv("exam.csv", pupils(seed=1))
    assert "has changed since the vote" in refused(*FIT)
    write_csv("exam.csv", pupils())
    assert contents(Path()) == before
    text = (DRAFT / "election").read_text()
    (DRAFT / "election").write_text(text.replace('"key"', '"kez"'))
    assert "was edited: this vote cannot go on" in refused(*FIT)
    (DRAFT / "election").write_text(text)
    ok(*FIT)
    assert len(table.history) == 1


def test_a_vote_does_not_begin_where_another_run_is_unfinished(
    table: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, board = os.write, DRAFT / "board"

    def full(file: int, data: bytes) -> int:
        if board.exists() and board.stat().st_size and Billboard.recover(board).rounds == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        refused(*FIT[:6])
    before = contents(Path())
    assert "holds another run, which is not a vote" in refused(*FIT)
    assert contents(Path()) == before
    assert table.history == ()
