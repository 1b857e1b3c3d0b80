"""A folder with data, a codebook and a finished run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_helpers import BOOK, ok, pupils

from cloister.app.predict import write_csv


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a codebook and a finished run; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("made")
    write_csv(folder / "exam.csv", pupils())
    (folder / "book.toml").write_text(BOOK)
    ok("fit", folder / "exam.csv", "--codebook", folder / "book.toml", "-o", folder / "run")
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
