"""A run's journal: on disk before it is used, the same run or none, and what is refused is told."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from journal_helpers import PLAN, TASKS, M, Stopped, make_tasks, names, stop_after

import cloister.store.journal
from cloister import Billboard, Ledger, Plan, run
from cloister.algorithms import Independent
from cloister.engines.local import Local
from cloister.errors import BillboardError, BudgetError, InputError, PlanError, StorageError
from cloister.learners import Regression
from cloister.mechanisms import BLT, Gaussian, Toeplitz, Tree
from cloister.privacy.randomness import SeededRandomness
from cloister.store.records import END, HEADER
from cloister.store.secret import Secret, digest_of

# --- going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, Plan(Independent(Regression(3)), n_tasks=M)])
def test_a_journal_changes_nothing(plan, tmp_path):
    """Same board, same file, same models as without one; and nothing secret is left."""
    plain = run(plan, TASKS, random_state=3)
    kept = run(plan, TASKS, random_state=3, journal=tmp_path / "deep" / "journal")
    plain.board.save(tmp_path / "board")
    assert (tmp_path / "deep/journal/board").read_bytes() == (tmp_path / "board").read_bytes()
    for name, array in plain.private.models.items():
        np.testing.assert_array_equal(kept.private.models[name], array)
    assert names(tmp_path / "deep" / "journal") == {"board", "plan.toml"}
    assert Plan.load(tmp_path / "deep" / "journal" / "plan.toml") == plan


@pytest.mark.parametrize("rounds", [1, 3, 4])
def test_a_stopped_run_goes_on_to_the_same_board(rounds, tmp_path):
    whole = run(PLAN, TASKS, random_state=3)
    with pytest.raises(Stopped):
        run(PLAN, TASKS, random_state=3, journal=tmp_path, progress=stop_after(rounds))
    assert Billboard.recover(tmp_path / "board").rounds == rounds
    done = run(PLAN, TASKS, random_state=3, journal=tmp_path)
    assert done.board.head == whole.board.head
    np.testing.assert_array_equal(done.private.models["coef"], whole.private.models["coef"])
    assert done.private.rejected_messages == whole.private.rejected_messages


def test_every_release_is_on_disk_before_it_is_used(tmp_path, monkeypatch):
    """When a round is over its record is in the file, and the file has been synced since it grew."""
    synced = {}
    sync = os.fsync

    def recorded(file):
        sync(file)
        synced[os.fstat(file).st_ino] = os.fstat(file).st_size

    monkeypatch.setattr(os, "fsync", recorded)
    board = tmp_path / "board"

    def progress(posted):
        assert synced[board.stat().st_ino] == board.stat().st_size
        assert Billboard.recover(board).rounds == posted.done

    run(PLAN, TASKS, journal=tmp_path, progress=progress)
    assert synced[board.stat().st_ino] == board.stat().st_size


def test_each_release_is_written_once(tmp_path, monkeypatch):
    """The bytes written do not grow with what is posted already: no file is written anew each round."""
    written = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: written.append(len(data)) or write(file, data))
    run(PLAN, TASKS, journal=tmp_path)
    size = (tmp_path / "board").stat().st_size
    assert sum(written) < size + 2000  # plan and secret


def test_models_are_saved_before_the_secret_goes(tmp_path):
    def fails(done):
        raise Stopped

    with pytest.raises(Stopped):
        run(PLAN, TASKS, journal=tmp_path, save=fails)
    posted = (tmp_path / "board").read_bytes()
    assert posted.endswith(END)
    assert "secret" in names(tmp_path)
    saved = []
    again = run(PLAN, TASKS, journal=tmp_path, save=saved.append)
    assert (tmp_path / "board").read_bytes() == posted
    assert saved[0] is again
    assert names(tmp_path) == {"board", "plan.toml"}
    told = r"is complete and its secret is deleted.* write replay\(plan, .* Use another folder\."
    with pytest.raises(InputError, match=told):
        run(PLAN, TASKS, journal=tmp_path)


# --- the secret ------------------------------------------------------------------------------------------


def test_the_secret_is_for_its_owner_alone(begun):
    assert (begun / "secret").stat().st_mode & 0o777 == 0o600
    assert "Share it with nobody" in (begun / "secret").read_text()
    secret = Secret.read(begun / "secret")
    assert secret.key not in repr(secret)
    assert secret.key.encode() not in (begun / "board").read_bytes()
    assert bytes.fromhex(secret.key) not in (begun / "board").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_a_folder_that_somebody_else_can_write_to_is_no_place_for_a_secret(tmp_path):
    """Who can put a secret there chooses the noise."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(0o700)
    for planted in (folder, tmp_path / "link"):
        with pytest.raises(StorageError, match="must be a folder of your own"):
            run(PLAN, TASKS, journal=planted)
        assert not list(planted.iterdir())
    run(PLAN, TASKS, journal=tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_a_digest_stands_for_all_data_and_needs_the_key():
    key = bytes(32)
    others = [
        replace(TASKS, X=np.nextafter(TASKS.X, 1)),
        replace(TASKS, y=-TASKS.y),
        replace(TASKS, weight=2 * TASKS.weight),
        replace(TASKS, ids=np.char.add(TASKS.ids, "x")),
        replace(TASKS, X=TASKS.X.astype(np.float32)),
    ]
    digests = {digest_of(tasks, key) for tasks in [TASKS, *others]}
    assert len(digests) == len(others) + 1
    assert digest_of(make_tasks(), key) == digest_of(TASKS, key) != digest_of(TASKS, bytes([1]) * 32)


def test_only_the_same_run_goes_on(begun):
    before = (begun / "board").read_bytes()
    with pytest.raises(InputError, match=r"The data.* has changed .*nothing is paid for releases of other"):
        run(PLAN, make_tasks(1), journal=begun)
    with pytest.raises(PlanError, match=r"is of another plan\. Run it with the same settings, or remove"):
        run(replace(PLAN, mechanism=Gaussian(0.6)), TASKS, journal=begun)
    with pytest.raises(InputError, match=r"was begun without a seed\."):
        run(PLAN, TASKS, journal=begun, random_state=1)
    assert (begun / "board").read_bytes() == before
    (begun / "secret").unlink()
    with pytest.raises(BillboardError, match=r"The secret .* is gone.* stays readable"):
        run(PLAN, TASKS, journal=begun)
    assert Billboard.recover(begun / "board").rounds == 2


def test_a_folder_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / "plan.toml").write_text("mine")
    with pytest.raises(InputError, match="is not a journal"):
        run(PLAN, TASKS, journal=tmp_path)
    assert names(tmp_path) == {"plan.toml"}


# --- the ledger ------------------------------------------------------------------------------------------


def test_a_run_is_charged_once_however_often_it_goes_on(tmp_path):
    ledger = Ledger(epsilon=10.0, delta=1e-2)
    for rounds in (1, 1, 3):
        with pytest.raises(Stopped):
            run(PLAN, TASKS, ledger=ledger, journal=tmp_path, progress=stop_after(rounds))
    with pytest.raises(InputError, match=r"was begun with a ledger\. Name it again"):
        run(PLAN, TASKS, journal=tmp_path)
    run(PLAN, TASKS, ledger=ledger, journal=tmp_path)
    assert len(ledger.history) == 1
    for folder in ("a", "b"):  # two runs, even from one seed, are two charges
        run(PLAN, TASKS, ledger=ledger, journal=tmp_path / folder, random_state=3)
    assert len(ledger.history) == 3


def test_a_run_that_is_not_allowed_leaves_nothing(tmp_path):
    with pytest.raises(BudgetError):
        run(PLAN, TASKS, ledger=Ledger(epsilon=0.1, delta=1e-2), journal=tmp_path / "journal")
    assert not names(tmp_path)


def test_another_ledger_does_not_end_a_run_that_is_under_way(begun, tmp_path):
    """Refused, it is there as it was, and goes on to the board that it would have had."""
    copy = Path(shutil.copytree(begun, tmp_path / "copy"))
    expected = run(PLAN, TASKS, journal=copy).board
    before = {name: (begun / name).read_bytes() for name in names(begun)}
    with pytest.raises(BudgetError):
        run(PLAN, TASKS, ledger=Ledger(epsilon=0.1, delta=1e-2), journal=begun)
    assert {name: (begun / name).read_bytes() for name in names(begun)} == before
    assert "secret" in before
    assert run(PLAN, TASKS, journal=begun).board.head == expected.head


@pytest.mark.parametrize(
    ("older", "named"),
    [({}, "0.1"), ({"version": "0.2"}, "0.2"), ({"version": "0.2.0"}, "0.2.0")],
    ids=["0.1", "0.2", "0.2.0"],
)
def test_a_run_of_an_older_version_is_neither_finished_nor_charged(begun, older, named):
    """Noise was drawn, or bound to sums, in other ways: a round made again would be a second release."""
    document = json.loads((begun / "secret").read_text())
    assert document.pop("version") == "0.2.0/2"
    document |= older
    (begun / "secret").write_text(json.dumps(document))
    before = {name: (begun / name).read_bytes() for name in names(begun)}
    ledger = Ledger(epsilon=10.0, delta=1e-2)
    with pytest.raises(BillboardError, match=f"by cloister {named}, and that version alone can"):
        run(PLAN, TASKS, journal=begun, ledger=ledger)
    assert {name: (begun / name).read_bytes() for name in names(begun)} == before
    assert not ledger.history


# --- posted rounds are listened to ------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Local):
    """Notes in which rounds tasks are asked to speak, and in which to listen."""

    asked: list = field(default_factory=list)

    @contextmanager
    def workers(self, plan, tasks, seeds):
        with super().workers(plan, tasks, seeds) as found:
            collect, listen = found.collect, found.listen
            found.collect = lambda board, channel, coins: (
                self.asked.append(("collect", board.rounds)) or collect(board, channel, coins)
            )
            found.listen = lambda board, coins: (
                self.asked.append(("listen", board.rounds)) or listen(board, coins)
            )
            yield found


NOISES = [Gaussian(1.0), Toeplitz(1.0), Toeplitz(1.0, bands=3), Tree(1.0), Tree(1.0, honaker=True), BLT(1.0)]
NOISES += [Toeplitz(1.0, exact=False), Tree(1.0, exact=False), BLT(1.0, exact=False)]


@pytest.mark.parametrize("mechanism", NOISES, ids=repr)
def test_posted_rounds_are_listened_to_and_nobody_speaks_twice(mechanism, tmp_path):
    """Stopped after every round in turn, a run goes on to the same board; what noise remembers is kept."""
    plan = Plan(replace(PLAN.algorithm, rounds=11), mechanism, n_tasks=M, delta=1e-2)
    whole = run(plan, TASKS, random_state=3)
    for rounds in range(1, 11):
        with pytest.raises(Stopped):
            run(plan, TASKS, random_state=3, journal=tmp_path, progress=stop_after(rounds))
    if mechanism != Gaussian(1.0):
        assert (tmp_path / "sums").stat().st_mode & 0o777 == 0o600
    counting = Counting()
    done = run(plan, TASKS, random_state=3, journal=tmp_path, engine=counting)
    assert counting.asked == [("listen", t) for t in range(10)] + [("collect", 10)]
    assert done.board.head == whole.board.head
    np.testing.assert_array_equal(done.private.models["coef"], whole.private.models["coef"])
    assert names(tmp_path) == {"board", "plan.toml"}


@pytest.mark.parametrize("mechanism", [Toeplitz(1.0, bands=4), Tree(1.0), BLT(1.0)], ids=repr)
def test_what_noise_remembers_is_overwritten_and_survives_any_tear(mechanism, tmp_path):
    """A file of one size, of which the cells of the last write may be torn, and no others."""
    plan = Plan(replace(PLAN.algorithm, rounds=40), mechanism, n_tasks=M, delta=1e-2)
    whole = run(plan, TASKS, random_state=3)
    sizes, previous = [], {}
    folder = tmp_path / "run"

    def progress(posted):
        sizes.append((folder / "sums").stat().st_size)
        if posted.done == 21:
            previous["sums"] = (folder / "sums").read_bytes()
            previous["board"] = (folder / "board").read_bytes()
        if posted.done == 22:
            raise Stopped

    with pytest.raises(Stopped):
        run(plan, TASKS, random_state=3, journal=folder, progress=progress)
    rows = plan.mechanism.begin(plan.schedule, SeededRandomness(0)).rows
    assert sizes[-1] <= 2 * rows * (8 + 32 + 3 * 8)
    new, old = (folder / "sums").read_bytes(), previous["sums"].ljust(sizes[-1], b"\0")
    differs = [at for at in range(len(new)) if new[at] != old[at]]
    assert differs
    rng = np.random.default_rng(0)
    for number in range(6):  # the write of round 22 arrived in part or whole, its record did not
        copy = Path(shutil.copytree(folder, tmp_path / f"copy{number}"))
        torn = bytearray(old)
        for at in differs:
            torn[at] = rng.choice([old[at], new[at], 0])
        (copy / "sums").write_bytes(torn if number else new)  # once it arrived whole
        (copy / "board").write_bytes(previous["board"])
        assert run(plan, TASKS, random_state=3, journal=copy).board.head == whole.board.head
    for every in (1, 64):  # all bytes, or the last number of each cell and no more
        edited = bytes(byte ^ (at % every == every - 1) for at, byte in enumerate(new))
        (folder / "sums").write_bytes(edited)
        with pytest.raises(BillboardError, match=r"sums is gone or was edited: this run cannot go on\."):
            run(plan, TASKS, random_state=3, journal=folder)
    (folder / "sums").unlink()
    with pytest.raises(BillboardError, match=r"sums is gone or was edited"):
        run(plan, TASKS, random_state=3, journal=folder)
    assert "secret" in names(folder)


def test_a_journal_is_opened_once(begun, monkeypatch):
    opened, scans = [], []
    scan = cloister.store.journal.scan
    monkeypatch.setattr(cloister.store.journal, "scan", lambda *given: scans.append(1) or scan(*given))
    run(PLAN, TASKS, journal=begun, resumed=lambda board: opened.append(board.rounds))
    assert (opened, scans) == ([2], [1])
    run(PLAN, TASKS, journal=begun.with_name("new"), resumed=opened.append)
    assert opened == [2]


# --- damage ----------------------------------------------------------------------------------------------


def test_a_torn_record_is_cut_off_and_comes_out_the_same(begun, tmp_path):
    """Cut anywhere, or with zeros where bytes did not arrive: what was whole stays, the rest comes again."""
    secret, plan = ((begun / name).read_bytes() for name in ("secret", "plan.toml"))
    whole = run(PLAN, TASKS, journal=begun)
    data = (begun / "board").read_bytes()
    starts = [found.start() - 8 for found in re.finditer(re.escape(HEADER), data)]
    tails = [data[:at] for at in (*range(0, starts[2], 97), starts[2], starts[2] + 7, starts[3] - 1)]
    tails += [data[: starts[2]] + bytes(fill) for fill in (1, 8, 31, 500)]
    tails += [data[: starts[3] - 32] + bytes(32), data[: starts[2] + 100] + bytes(300), data[:-1]]
    for number, tail in enumerate(tails):
        folder = tmp_path / f"torn{number}"
        folder.mkdir()
        for name, content in (("secret", secret), ("plan.toml", plan), ("board", tail)):
            (folder / name).write_bytes(content)
        assert run(PLAN, TASKS, journal=folder).board.head == whole.board.head
        assert (folder / "board").read_bytes() == data


@dataclass(frozen=True)
class OneUnitOff(Local):
    """Another device: every sum comes out larger, by one unit of the grid in its first number."""

    @contextmanager
    def workers(self, plan, tasks, seeds):
        with super().workers(plan, tasks, seeds) as found:
            collect = found.collect
            found.collect = lambda *given: collect(*given) + np.eye(1, 3, dtype=np.int64)[0]
            yield found


def test_an_old_copy_that_goes_on_elsewhere_shows_no_bare_difference(begun, tmp_path):
    """Two releases of one round, of sums one unit apart: all three numbers move, and not by that unit.

    Noise has a deviation of 2 * 10^6 units: two draws of one of three numbers agree within 10 with
    probability below 1e-5.
    """
    copy = Path(shutil.copytree(begun, tmp_path / "copy"))
    one = run(PLAN, TASKS, journal=begun).board
    other = run(PLAN, TASKS, journal=copy, engine=OneUnitOff()).board
    step = PLAN.algorithm.channel(one).steps
    assert (one.releases[2].noise > 2 * 10**6 * step).all()
    np.testing.assert_array_equal(one.releases[1].value, other.releases[1].value)
    assert (np.abs(one.releases[2].value - other.releases[2].value) > 10 * step).all()


def test_an_edited_record_is_refused_and_what_is_whole_stays_readable(begun):
    data = (begun / "board").read_bytes()
    second = [found.start() for found in re.finditer(re.escape(HEADER), data)][1]
    edits = {
        "value": data[: second + 300] + bytes([data[second + 300] ^ 1]) + data[second + 301 :],
        "length": data[: second - 3] + b"\x01" + data[second - 2 :],
        "shape": data.replace(b"[3]", b"[9]").replace(b"[9]", b"[3]", 1),
        "last hash": data[:-1] + bytes([data[-1] ^ 1]),
    }
    for edited in edits.values():
        assert edited != data
        (begun / "board").write_bytes(edited)
        with pytest.raises(BillboardError, match=r"edited|truncated in record 1"):
            run(PLAN, TASKS, journal=begun)
        assert (begun / "board").read_bytes() == edited
        with pytest.raises(BillboardError, match=r"recover reads what is whole.*: [12] records?\b"):
            Billboard.load(begun / "board")
        assert Billboard.recover(begun / "board").rounds == (1 if edited is edits["last hash"] else 0)


def test_a_board_that_does_not_follow_from_its_plan_is_refused(begun):
    """Whoever can compute hashes anew still cannot post a digest that nobody can follow."""
    board = Billboard.recover(begun / "board")
    forged = board.before(0).post(board.releases[0], {"mean": np.ones(3)})
    (begun / "board").write_bytes(forged._bytes().removesuffix(END))
    with pytest.raises(BillboardError, match="was not computed"):
        run(PLAN, TASKS, journal=begun)


def test_an_edited_secret_is_refused(begun):
    document = json.loads((begun / "secret").read_text())
    for key in ("", "00", "x" * 64, None, 7):
        (begun / "secret").write_text(json.dumps(document | {"key": key}))
        with pytest.raises(BillboardError, match="was edited"):
            run(PLAN, TASKS, journal=begun)
