"""Private files are their owner's alone, and nothing that somebody made beforehand is trusted with them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, ok, pupils, refused

from cloister import SharedPriorRegressor
from cloister.app.predict import write_csv
from cloister.errors import StorageError
from cloister.store.files import private_folder
from cloister.store.journal import FolderJournal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes and owners are those of POSIX")

FIT = ["fit", "exam.csv", "--codebook", "book.toml", "-o", "run"]
DRAFT = Path(".run.unfinished")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_csv("exam.csv", pupils(tasks=10))
    Path("book.toml").write_text(BOOK)
    return tmp_path


@pytest.fixture(params=[0o000, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_what_commands_write_for_one_task_is_its_owners_alone(work: Path, umask: None) -> None:
    ok(*FIT)
    own = {k: v[pupils(tasks=10)["school"] == "003"] for k, v in pupils(tasks=10).items()}
    write_csv("own.csv", own)
    ok("replay", "run", "own.csv", "--task-name", "003", "-o", "own.json")
    ok("predict", "run", "own.csv", "-o", "predicted.csv")
    assert mode("run") == mode("run/models") == 0o700
    files = [*Path("run/models").iterdir(), "own.json", "predicted.csv", "own.csv"]
    assert len(files) == 14  # with the index
    assert {mode(path) for path in files} == {0o600}


def test_an_exported_model_replaces_a_link_and_does_not_follow_it(work: Path, umask: None) -> None:
    school = np.repeat(["a", "b", "c"], 4)
    bounds = {"x": (0, 1), "y": (0, 1)}
    model = SharedPriorRegressor("school", bounds=bounds, random_state=0)
    model.fit({"school": school, "x": np.linspace(0, 1, 12)}, np.linspace(0, 1, 12))
    Path("elsewhere").write_text("as it was")
    os.symlink("elsewhere", "own.json")
    model.export("a", "own.json")
    assert mode("own.json") == 0o600
    assert not Path("own.json").is_symlink()
    assert Path("elsewhere").read_text() == "as it was"


@pytest.mark.parametrize("place", [DRAFT, DRAFT / "models"], ids=str)
@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_that_somebody_made_beforehand_gets_no_model(
    work: Path, monkeypatch: pytest.MonkeyPatch, place: Path, kind: str
) -> None:
    def plant() -> None:
        if kind == "link":
            (work / "seen by all").mkdir()
            os.symlink(work / "seen by all", place)
        else:
            place.mkdir()
            place.chmod(0o777)

    if place == DRAFT:
        plant()
    else:  # while the run is under way
        finish = FolderJournal.finish
        monkeypatch.setattr(FolderJournal, "finish", lambda self: (plant(), finish(self))[1])
    assert "must be a folder of your own that nobody else can write to" in refused(*FIT)
    assert list(work.glob("**/models/*.json")) == []
    assert list(work.glob("seen by all/*")) == []
    assert not Path("run").exists()


def test_a_link_is_no_place_for_a_run(work: Path) -> None:
    Path("elsewhere").mkdir()
    os.symlink("elsewhere", "run")
    assert refused(*FIT).startswith("run is a link, and private files do not go where one leads.")


def test_an_own_folder_that_others_can_only_read_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755)
    private_folder(folder)
    assert mode(folder) == 0o700
    folder.chmod(0o730)
    with pytest.raises(StorageError, match="nobody else can write to"):
        private_folder(folder)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = private_folder(tmp_path / "folder")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StorageError, match=r"Got a link, somebody else's, or an open one\."):
        private_folder(folder)
