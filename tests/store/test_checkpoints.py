"""States that a journal keeps: a run goes on from them to the same board, or without them if not its own."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import journal_helpers
import numpy as np
import pytest
from journal_helpers import TASKS, M, Stopped, make_tasks, stop_after

from cloister import Plan, run
from cloister.engines import Local, MultiDevice
from cloister.engines.local import LocalWorkers
from cloister.errors import InputError
from cloister.mechanisms import BLT
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import CheckpointFile
from cloister.store.records import synced_every

ROUNDS = 9
PLAN = replace(journal_helpers.PLAN, algorithm=replace(journal_helpers.PLAN.algorithm, rounds=ROUNDS))
WHOLE = run(PLAN, TASKS, random_state=3)


def begin(folder, rounds=5, plan=PLAN, tasks=TASKS, seed=3, **options):
    with pytest.raises(Stopped):
        run(
            plan,
            tasks,
            random_state=seed,
            journal=folder,
            progress=stop_after(rounds),
            **({"checkpoint": 0.0} | options),
        )
    return folder


@pytest.fixture(autouse=True)
def _as_often_as_asked_for(monkeypatch):
    monkeypatch.setattr("cloister.engines.checkpointed.SHARE", 0)


@pytest.fixture
def heard(monkeypatch):
    """The rounds whose local work was done again."""
    found, listen = [], LocalWorkers.listen

    def noted(self, board, coins):
        found.append(board.rounds)
        listen(self, board, coins)

    monkeypatch.setattr(LocalWorkers, "listen", noted)
    return found


def check_same(done, whole=WHOLE):
    assert done.board.head == whole.board.head
    assert done.private.rejected_messages == whole.private.rejected_messages
    for name, array in whole.private.models.items():
        np.testing.assert_array_equal(done.private.models[name], array)


def test_a_run_goes_on_from_the_last_checkpoint_to_the_same_board(heard, tmp_path):
    """Kept before the sixth round is collected: what is posted after that is heard again, and no more."""
    begin(tmp_path, rounds=5)
    assert (tmp_path / "states").stat().st_mode & 0o777 == 0o600
    check_same(run(PLAN, TASKS, random_state=3, journal=tmp_path))
    assert heard == [4]  # states are kept when the next round begins
    assert {path.name for path in tmp_path.iterdir()} == {"board", "plan.toml"}


def test_it_is_killed_again_and_again(heard, tmp_path):
    for rounds in range(1, ROUNDS):
        begin(tmp_path, rounds)
    check_same(run(PLAN, TASKS, random_state=3, journal=tmp_path, checkpoint=0))
    assert heard == list(range(ROUNDS - 1))


def test_a_message_that_was_not_finite_stays_counted(tmp_path):
    absurd = replace(TASKS, X=np.where(np.arange(len(TASKS.X))[:, None] == 3, 1e200, TASKS.X))
    with np.errstate(all="ignore"):
        whole = run(PLAN, absurd, random_state=3)
        assert whole.private.rejected_messages > 3
        begin(tmp_path, tasks=absurd)
        check_same(run(PLAN, absurd, random_state=3, journal=tmp_path), whole)


@pytest.mark.parametrize("second", [Local(threads=2), MultiDevice((Local(), Local()))], ids=repr)
def test_another_layout_takes_the_states(second, heard, tmp_path):
    begin(tmp_path)
    run(PLAN, TASKS, random_state=3, journal=tmp_path, engine=second)
    assert set(heard) == {4}


def test_noise_that_remembers_is_not_collected_from_later_states(heard, monkeypatch, tmp_path):
    """Synced after every third round; states are kept with the board, and never after it."""
    monkeypatch.setattr("cloister.store.records.SYNCS", 3)
    plan = Plan(PLAN.algorithm, BLT(0.5), n_tasks=M, delta=1e-2)
    assert synced_every(ROUNDS) == 3
    whole = run(plan, TASKS, random_state=3)
    begin(tmp_path, rounds=8, plan=plan)
    check_same(run(plan, TASKS, random_state=3, journal=tmp_path), whole)
    assert heard == []  # kept after six rounds; the seventh and the eighth are collected once more


def board_cut(folder):
    posted = Billboard.recover(folder / "board")
    with (folder / "board").open("r+b") as file:
        file.truncate(file.seek(0, 2) - len(posted.record_bytes(5)) - len(posted.record_bytes(4)) - 7)


def flipped(at):
    def flip(folder):
        data = bytearray((folder / "states").read_bytes())
        data[int(at * (len(data) - 1))] ^= 1
        (folder / "states").write_bytes(data)

    return flip


def of_another_key(folder):
    begin(folder.with_name("other"), seed=4)
    shutil.copy(folder.with_name("other") / "states", folder / "states")


def of_other_data(folder):
    """The same seed, hence the same key."""
    begin(folder.with_name("other"), tasks=make_tasks(1))
    shutil.copy(folder.with_name("other") / "states", folder / "states")


def of_another_plan(folder):
    """The same seed, data and states; only the board differs."""
    other = replace(PLAN, algorithm=replace(PLAN.algorithm, lam=0.2))
    begin(folder.with_name("other"), plan=other)
    shutil.copy(folder.with_name("other") / "states", folder / "states")


WRONG = {
    **{f"byte {at}": flipped(at) for at in (0, 0.03, 0.1, 0.2, 0.5, 0.97, 1)},
    "empty": lambda folder: (folder / "states").write_bytes(b""),
    "cut": lambda folder: (folder / "states").write_bytes((folder / "states").read_bytes()[:-1]),
    "longer": lambda folder: (folder / "states").write_bytes((folder / "states").read_bytes() + b"\0"),
    "gone": lambda folder: (folder / "states").unlink(),
    "another key": of_another_key,
    "other data": of_other_data,
    "another plan": of_another_plan,
    "newer than the board": board_cut,
}


@pytest.mark.parametrize("spoil", WRONG.values(), ids=WRONG)
def test_a_checkpoint_that_is_not_this_runs_is_passed_over(spoil, heard, tmp_path):
    folder = begin(tmp_path / "run")
    spoil(folder)
    posted = Billboard.recover(folder / "board").rounds
    check_same(run(PLAN, TASKS, random_state=3, journal=folder))
    assert heard == list(range(posted))


def test_a_run_goes_on_where_a_checkpoint_cannot_be_written(monkeypatch, tmp_path):
    """A full disk, a name that is taken, states that are no numbers: none of them stops a run."""
    usage = shutil.disk_usage
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=10))
        begin(tmp_path / "full")
    assert not (tmp_path / "full" / "states").exists()
    with monkeypatch.context() as patch:
        patch.setattr("cloister.store.checkpoints.write_file", raise_full)
        check_same(run(PLAN, TASKS, random_state=3, journal=tmp_path / "full", checkpoint=0))


def raise_full(*_, **__):
    raise OSError(28, "no space left")


def test_short_runs_keep_none_and_nobody_has_to(tmp_path):
    begin(tmp_path / "default", checkpoint=60.0)
    begin(tmp_path / "never", checkpoint=math.inf)
    for name in ("default", "never"):
        assert not (tmp_path / name / "states").exists()
    for wrong in (-1, math.nan, "often", True, None):
        with pytest.raises(InputError, match="checkpoint must be a number of seconds"):
            run(PLAN, TASKS, checkpoint=wrong)


def test_checkpoints_take_a_small_part_of_the_time(monkeypatch, tmp_path):
    """With a clock that says a write takes 3 seconds and a round 10, every sixth round keeps states."""
    now = [0.0]
    monkeypatch.setattr("cloister.engines.checkpointed.time.monotonic", lambda: now[0])
    monkeypatch.setattr("cloister.engines.checkpointed.SHARE", 20)
    kept, write = [], CheckpointFile.write

    def slow(self, saved, board):
        now[0] += 3
        kept.append(board.rounds)
        return write(self, saved, board)

    def progress(posted):
        now[0] += 10

    monkeypatch.setattr(CheckpointFile, "write", slow)
    plan = replace(PLAN, algorithm=replace(PLAN.algorithm, rounds=20))
    run(plan, TASKS, random_state=3, journal=tmp_path, progress=progress, checkpoint=5.0)
    assert kept == [1, 7, 13, 19]
