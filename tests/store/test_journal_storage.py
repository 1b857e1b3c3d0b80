"""A journal, other processes, and disks that are full or may not be written."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace

import pytest
from journal_helpers import PLAN, TASKS, names

from cloister import Billboard, run
from cloister.errors import StorageError


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_was_forked_off_writes_nothing(tmp_path):
    """Two processes would append the same records twice, and nobody could read the board any more."""
    children = []

    def fork(posted):
        if posted.done == 2:
            children.append(os.fork())

    try:
        run(PLAN, TASKS, journal=tmp_path, progress=fork)
    except BaseException as error:
        if 0 in children:
            os._exit(7 if isinstance(error, StorageError) else 8)
        raise
    if 0 in children:
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    assert Billboard.load(tmp_path / "board").complete


def test_a_second_writer_is_told(begun):
    code = (
        "import sys, cloister.store.journal as j; from pathlib import Path\n"
        "with j._locked(Path(sys.argv[1]) / 'board'):\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(begun)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StorageError, match=r"Another process is writing .*\. Wait until it has ended"):
            run(PLAN, TASKS, journal=begun)
        other.kill()
    assert run(PLAN, TASKS, journal=begun).board.complete  # the lock went with its process


def test_a_journal_that_was_moved_away_is_not_written(begun, monkeypatch):
    """One who waited for the lock while the run ended must not write to a file that has no name any more."""

    def moved(file):
        begun.rename(begun.with_name("moved"))
        begun.mkdir()
        return True

    monkeypatch.setattr("cloister.store.journal.try_lock", moved)
    before = (begun / "board").read_bytes()
    with pytest.raises(StorageError, match="Another process"):
        run(PLAN, TASKS, journal=begun)
    assert (begun.with_name("moved") / "board").read_bytes() == before
    assert not names(begun)


def test_a_file_that_may_not_grow(tmp_path):
    """A real refusal of the operating system, at many sizes: told, nothing lost, and the run goes on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    whole = run(PLAN, TASKS, random_state=3)
    size = len(whole.board._bytes())
    for most in range(0, size, 211):
        folder = tmp_path / str(most)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(StorageError, match=r"may not grow any more\. Free some space; "):
                run(PLAN, TASKS, random_state=3, journal=folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert run(PLAN, TASKS, random_state=3, journal=folder).board.head == whole.board.head
        assert names(folder) == {"board", "plan.toml"}


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_or_read_only(small_disk):
    journal = small_disk / "journal"
    with pytest.raises(StorageError, match=r"no space left\. Free some space; then run the same again"):
        run(replace(PLAN, algorithm=replace(PLAN.algorithm, rounds=40)), TASKS, journal=journal)
    posted = Billboard.recover(journal / "board")
    assert 0 < posted.rounds < 40
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert Billboard.recover(journal / "board").head == posted.head
    with pytest.raises(StorageError, match=r"read-only\. Make it writable"):
        run(PLAN, TASKS, journal=journal)
    with pytest.raises(StorageError, match=r"read-only\. Make it writable; what was there is left"):
        posted.save(small_disk / "copy")
    subprocess.run(["mount", "-o", "remount,rw,size=1m", small_disk], check=True)
    done = run(replace(PLAN, algorithm=replace(PLAN.algorithm, rounds=40)), TASKS, journal=journal)
    assert done.board.before(posted.rounds).head == posted.head


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "there is no space left. Free some space; "),
        (errno.EDQUOT, "the disk quota is used up. Free some space; "),
        (errno.EROFS, "the file system is read-only. Make it writable; "),
        (errno.EACCES, "permission is denied. Make it writable; "),
        (errno.EIO, "input/output error. Mend that; "),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open", "ftruncate"])
def test_refusals_are_one_sentence(begun, monkeypatch, call, code, words):
    def fails(*arguments, **options):
        raise OSError(code, os.strerror(code))

    with (begun / "board").open("ab") as file:
        file.write(b"torn")
    monkeypatch.setattr(os, call, fails)
    folder = begun if call != "replace" else begun / "new"
    with pytest.raises(StorageError, match=re.escape(words)):
        run(PLAN, TASKS, journal=folder)
    monkeypatch.undo()
    assert Billboard.recover(begun / "board").rounds == 2
    assert run(PLAN, TASKS, journal=begun).board.complete
