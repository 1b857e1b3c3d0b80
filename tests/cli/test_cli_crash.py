"""``cloister fit`` that was cut short goes on; ``cloister verify --head`` sees a board that was made anew."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from cli_helpers import BOOK, cloister, contents, ok, pupils, rebuild, refused, seal

from cloister import Billboard, Ledger
from cloister.app.predict import write_csv
from cloister.store import Release
from cloister.store.files import try_lock
from cloister.store.secret import Secret

FIT = ["fit", "exam.csv", "--codebook", "book.toml", "-o", "run"]
DRAFT = Path(".run.unfinished")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_csv("exam.csv", pupils())
    Path("book.toml").write_text(BOOK)
    return tmp_path


def cut_short(monkeypatch: pytest.MonkeyPatch, records: int) -> str:
    """Let the disk be full when so many releases are posted."""
    write = os.write

    def full(file: int, data: bytes) -> int:
        board = DRAFT / "board"
        if board.exists() and board.stat().st_size and Billboard.recover(board).rounds == records:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        return refused(*FIT)


def test_the_same_command_goes_on(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = cut_short(monkeypatch, 2)
    assert sentence.endswith(
        "board cannot be written: there is no space left. Free some space; then run the same again: what is "
        "posted is whole, and nothing is spent twice."
    )
    assert not Path("run").exists()
    posted = Billboard.recover(DRAFT / "board")
    said = cloister(*FIT)
    assert said.exit_code == 0
    assert f"Going on with the unfinished run: 2 of {posted.capacity} releases" in " ".join(
        said.stderr.split()
    )
    board = Billboard.load("run/board")
    assert board.before(2).head == posted.head
    assert Path("run/head.txt").read_text().strip() in said.stdout
    assert {path.name for path in work.iterdir()} == {"exam.csv", "book.toml", "run"}
    assert "secret" not in contents(Path("run"))
    ok("verify", "run")


def test_only_the_same_command_goes_on(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short(monkeypatch, 2)
    before = contents(work)
    sentence = refused(*FIT, "--epsilon", "2")
    assert sentence.startswith(f"The unfinished run in {DRAFT.resolve()} is of another plan. ")
    assert "or remove that folder to give the unfinished run up: what it has spent stays spent." in sentence
    Path("book.toml").write_text(BOOK.replace("[5, 20]", "[5, 30]"))
    assert "how it is encoded, has changed" in refused(*FIT)
    Path("book.toml").write_text(BOOK)
    write_csv("exam.csv", pupils(seed=1))
    assert "has changed" in refused(*FIT)
    write_csv("exam.csv", pupils())
    with (DRAFT / "board").open("rb+") as file:
        assert try_lock(file.fileno())
        assert refused(*FIT).startswith(f"Another process is writing {DRAFT.resolve()}. ")
    assert contents(work) == before
    assert "has no codebook.toml" in refused("verify", str(DRAFT))
    ok(*FIT)


def test_the_head_shows_a_board_that_was_made_anew(work: Path) -> None:
    head = json.loads(ok(*FIT, "--json"))["head"]
    assert json.loads(ok("verify", "run", "--head", head, "--json"))["head"] == head
    rebuild(lambda release, digest: (Release(release.value, **release.facts()), digest))
    ok("verify", "run", "--head", head)  # nothing was changed
    board = Billboard.load("run/board")
    forged = Billboard.create(board.records[0].public, board.plan, board.capacity, board.noise)
    for record in reversed(board.records[1:]):  # any other board
        assert record.release is not None
        forged = forged.post(record.release, record.public)
    forged.save("run/board")
    said = cloister("verify", "run", "--head", head)
    assert said.exit_code == 1
    assert "NO the head is the one that was kept" in " ".join(said.stdout.split())
    assert cloister("verify", "run").exit_code == 1  # head.txt says it too
    seal()
    assert "NO the head is" not in " ".join(cloister("verify", "run").stdout.split())
    assert "NO the head is" in " ".join(cloister("verify", "run", "--head", head).stdout.split())
    assert refused("verify", "run", "--head", "5f").startswith("--head must be 64 hexadecimal digits. ")


def test_a_population_needs_a_ledger(work: Path) -> None:
    assert refused(*FIT, "--population", "schools").endswith("Add --ledger PLACE.")


def test_fit_charges_a_ledger_once(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Ledger.create("ledger", "schools", epsilon=1.5, delta=1e-3)
    FIT_CHARGED = [*FIT, "--ledger", "ledger", "--population", "schools"]
    monkeypatch.setattr(f"{__name__}.FIT", FIT_CHARGED)
    cut_short(monkeypatch, 2)
    assert len(account.history) == 1
    ok(*FIT_CHARGED)
    assert len(account.history) == 1
    sentence = refused(*FIT_CHARGED, "--force")
    assert "the budget is 1.5" in sentence
    assert {path.name for path in work.iterdir() if path.name[0] == "."} == set()
    ok("verify", "run")


@pytest.fixture
def not_in_place(work: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A run that is complete and charged for, and was killed before its folder had its name."""
    account = Ledger.create("ledger", "schools", epsilon=1.5, delta=1e-3)
    rename, write, keys = os.rename, Secret.write, {}

    def noted(secret: Secret, path: Path) -> None:
        keys[path.name] = secret.key
        write(secret, path)

    def fails(source: Path, target: Path) -> None:
        if str(source).endswith(".unfinished"):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", fails)
        patched.setattr(Secret, "write", noted)
        assert "the same again puts it in place" in refused(*FIT, "--ledger", "ledger")
    assert not (DRAFT / "secret").exists()
    assert keys["secret"] != keys["complete"]  # no noise comes from the key that is left
    return account


def test_a_run_that_was_killed_at_its_end_is_put_in_place(not_in_place: Ledger) -> None:
    head = (DRAFT / "head.txt").read_text()
    said = cloister(*FIT, "--ledger", "ledger")
    assert said.exit_code == 0, said.stderr
    assert "was complete, but not yet in place. It is now; nothing was run." in " ".join(said.stderr.split())
    assert Path("run/head.txt").read_text() == head
    assert len(not_in_place.history) == 1
    assert not Path("run/complete").exists()
    ok("verify", "run")
    Path("run/complete").write_text("left by a process that was killed")
    assert "run is already there" in refused(*FIT)
    assert not Path("run/complete").exists()


def test_a_complete_run_is_put_in_place_for_its_own_data_alone(not_in_place: Ledger) -> None:
    before, charged = contents(DRAFT), [*FIT, "--ledger", "ledger"]
    assert "is of another plan" in refused(*charged, "--epsilon", "0.5")
    assert "was begun with a ledger" in refused(*FIT)
    write_csv("exam.csv", pupils(seed=1))
    assert "The data, or how it is encoded, has changed" in refused(*charged)
    twice = pupils()
    write_csv("exam.csv", twice | {"age": 2 * twice["age"]})  # the same rows, once they are encoded
    Path("book.toml").write_text(BOOK.replace("[5, 20]", "[10, 40]"))
    assert "The codebook has changed since the run" in refused(*charged)
    write_csv("exam.csv", pupils())
    Path("book.toml").write_text(BOOK)
    small = Ledger.create("small", "schools", epsilon=0.5, delta=1e-3)
    assert "the budget is 0.5" in refused(*FIT, "--ledger", "small")
    (DRAFT / "complete").rename("elsewhere")
    assert "nothing there says of which data" in refused(*charged)
    Path("elsewhere").rename(DRAFT / "complete")
    assert (contents(DRAFT), len(not_in_place.history), len(small.history)) == (before, 1, 0)
    other = Ledger.create("other", "schools", epsilon=1.5, delta=1e-3)
    ok(*FIT, "--ledger", "other")  # what was not charged to it is charged now
    assert len(other.history) == 1
