"""What is said to be on disk is: a file's bytes, and the name under which its folder has them."""

from __future__ import annotations

import os

import numpy as np
import pytest

import cloister as cl
from cloister.store.files import make_folder, sync_tree, write_file


@pytest.fixture
def events(monkeypatch):
    """The order in which inodes are synced, names replaced and names removed."""
    seen = []
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def synced(file):
        seen.append(("sync", os.fstat(file).st_ino))
        fsync(file)

    def replaced(source, target, **more):
        seen.append(("replace", os.fspath(target)))
        replace(source, target, **more)

    def unlinked(path, **more):
        seen.append(("unlink", os.fspath(path)))
        unlink(path, **more)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "unlink", unlinked)
    return seen


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path, events):
    path = write_file(tmp_path / "plan.toml", b"type")
    assert events == [
        ("sync", path.stat().st_ino),
        ("replace", str(path)),
        ("sync", tmp_path.stat().st_ino),
    ]


def test_new_folders_are_synced_into_those_above(tmp_path, events):
    make_folder(tmp_path / "a" / "b")
    assert events == [("sync", tmp_path.stat().st_ino), ("sync", (tmp_path / "a").stat().st_ino)]


def test_a_tree_is_synced_whole(tmp_path, events):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one").write_bytes(b"1")
    sync_tree(tmp_path)
    every = [tmp_path, *tmp_path.rglob("*")]
    assert sorted(events) == sorted(("sync", path.stat().st_ino) for path in every)


def test_the_key_of_a_finished_run_is_gone_from_disk(tmp_path, events):
    """A key that came back with the power could take the noise off the board."""
    tasks = cl.Tasks.from_list([np.ones((3, 1))] * 20, [np.ones(3)] * 20)
    plan = cl.Plan(
        cl.algorithms.MeanRegularized(cl.learners.LeastSquares(1), rounds=3), n_tasks=20
    ).calibrate(1.0)
    cl.run(plan, tasks, journal=tmp_path / "run")
    removed = events.index(("unlink", str(tmp_path / "run" / "secret")))
    assert ("sync", (tmp_path / "run").stat().st_ino) in events[removed:]
    assert not list(tmp_path.rglob("secret*"))
