"""Long streams: little memory, synced in batches, and everything else as in short runs."""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from cloister import Billboard, Plan, Tasks, replay, run
from cloister.algorithms import FTMRL, MeanRegularized
from cloister.channel import Channel
from cloister.core.channel import equal_rounds
from cloister.engines.local import Local
from cloister.errors import BillboardError
from cloister.learners import Convex, Descent, ExactSolver, LeastSquares
from cloister.mechanisms import Gaussian, NoNoise
from cloister.plan.algorithm import Algorithm
from cloister.sampling import OnePass, Poisson
from cloister.store.billboard import MAGIC
from cloister.store.records import END, HEADER, Record, synced_every


class Stopped(Exception):
    pass


def make_tasks(n, dim, seed=0, rows=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows * n, dim)) / dim**0.5
    return Tasks.from_arrays(X, X.sum(axis=1), np.repeat(np.arange(n), rows))


def make_plan(n, dim, rounds):
    stream = FTMRL(Convex(LeastSquares(dim)), ExactSolver(), rounds=rounds, lam_meta=10.0)
    return Plan(stream, Gaussian(), OnePass(), n_tasks=n).calibrate(epsilon=2.0)


def stop_after(rounds):
    def progress(posted):
        if posted.done == rounds:
            raise Stopped

    return progress


def test_a_long_stream_holds_a_few_records_and_syncs_now_and_then(tmp_path, monkeypatch):
    """800 rounds over 800 tasks, 50 numbers each; and a task that replays has its model."""
    monkeypatch.setattr("cloister.store.files.CACHE_BYTES", 1 << 15)
    monkeypatch.setattr("cloister.store.records.SYNCS", 200)
    plan, tasks = make_plan(800, 50, 800), make_tasks(800, 50)
    syncs, alive, sync = [], [], os.fsync
    others = sum(type(thing) is Record for thing in gc.get_objects())  # that other tests hold
    monkeypatch.setattr(os, "fsync", lambda file: syncs.append(file) or sync(file))

    def update(self, release, board):
        if (board.rounds + 1) % 200 == 0:
            alive.append(sum(type(thing) is Record for thing in gc.get_objects()))
        return heard(self, release, board)

    heard = FTMRL.update
    monkeypatch.setattr(FTMRL, "update", update)
    done = run(plan, tasks, random_state=0, journal=tmp_path)
    assert max(alive) - others < 100
    assert 200 <= len(syncs) < 220
    board = Billboard.load(tmp_path / "board")
    assert board.head == done.board.head
    private = done.private
    coins = private.coins[:, [717]]
    assert np.sum(coins) == 1
    model = replay(plan, board, tasks.select([717]), coins=coins, seeds=private.seeds[[717]])
    np.testing.assert_allclose(model["coef"][0], done.model(717)["coef"], rtol=1e-12)


def test_a_long_stream_is_the_same_without_a_journal(tmp_path, monkeypatch):
    plan, tasks = make_plan(60, 4, 30), make_tasks(60, 4)
    plain = run(plan, tasks, random_state=1)
    monkeypatch.setattr("cloister.store.files.CACHE_BYTES", 0)
    monkeypatch.setattr("cloister.store.records.SYNCS", 4)
    monkeypatch.setattr("cloister.store.model_store.LARGE", 0)
    kept = run(plan, tasks, random_state=1, journal=tmp_path)
    assert kept.board.records.stored == 31
    assert [r.hash for r in kept.board.records] == [r.hash for r in plain.board.records]
    np.testing.assert_array_equal(kept.private.models["coef"], plain.private.models["coef"])
    assert {path.name for path in tmp_path.iterdir()} == {"board", "plan.toml"}
    kept.private.models["coef"][3] = 0.0  # an array like any other
    assert not kept.model(3)["coef"].any()


@pytest.mark.parametrize("remote", [False, True])
def test_nobody_else_has_a_release_before_it_is_synced(remote, tmp_path, monkeypatch):
    """In a run that is synced now and then: neither who watches it, nor workers that are elsewhere."""
    monkeypatch.setattr("cloister.store.records.SYNCS", 5)
    synced, sync, seen = [0], os.fsync, []

    def recorded(file):
        sync(file)
        if os.path.samestat(os.fstat(file), (tmp_path / "board").stat()):
            synced.append(os.fstat(file).st_size)

    def look(rounds):
        seen.append(rounds)
        assert synced[-1] == (tmp_path / "board").stat().st_size
        assert Billboard.recover(tmp_path / "board").rounds == rounds

    class Elsewhere(Local):
        remote = True

        @contextmanager
        def workers(self, plan, tasks, seeds):
            with super().workers(plan, tasks, seeds) as workers:
                collect = workers.collect

                def looking(board, *given):
                    if board.rounds:
                        look(board.rounds)
                    return collect(board, *given)

                workers.collect = looking
                yield workers

    monkeypatch.setattr(os, "fsync", recorded)
    how = {"engine": Elsewhere()} if remote else {"progress": lambda posted: look(posted.done)}
    run(make_plan(22, 3, 22), make_tasks(22, 3), random_state=0, journal=tmp_path, **how)
    assert len(seen) > 20


def test_short_runs_are_synced_after_every_release():
    assert [synced_every(rounds) for rounds in (0, 1, 1000, 1001, 100_000)] == [1, 1, 1, 2, 100]


# --- a power cut between two syncs -----------------------------------------------------------------------


@pytest.fixture
def cut(tmp_path, monkeypatch):
    """A journal that was stopped after 13 of 22 records, of which 10 are synced; and how it would end."""
    monkeypatch.setattr("cloister.store.records.SYNCS", 5)
    plan, tasks = make_plan(22, 3, 22), make_tasks(22, 3)
    assert synced_every(22) == 5
    with pytest.raises(Stopped):
        run(plan, tasks, journal=tmp_path / "cut", progress=stop_after(13))
    shutil.copytree(tmp_path / "cut", tmp_path / "whole")
    run(plan, tasks, journal=tmp_path / "whole")
    return plan, tasks, tmp_path / "cut", (tmp_path / "whole" / "board").read_bytes()


def bounds_of(path):
    board = Billboard.recover(path)
    sizes = [len(board.record_bytes(number)) for number in range(len(board.records))]
    return [len(MAGIC), *(len(MAGIC) + np.cumsum(sizes)).tolist()]


def test_what_was_not_synced_may_be_lost_in_any_way(cut):
    """Of three records that were written but not synced any bytes may be missing: they come again."""
    plan, tasks, folder, whole = cut
    data = (folder / "board").read_bytes()
    bounds = bounds_of(folder / "board")
    synced, (first, second, third) = bounds[11], bounds[12:15]
    rng = np.random.default_rng(0)
    tails = [b"", bytes(len(data) - synced), data[synced:first], data[synced : third - 1], data[synced:]]
    tails += [bytes(first - synced) + data[first:]]  # the first is lost, those after it are whole
    tails += [data[synced : first + 60] + bytes(100) + data[first + 160 :]]  # a hole in the second
    tails += [data[synced : second - 32] + bytes(32) + data[second:]]  # only its hash is lost
    for _ in range(12):
        tail = bytearray(data[synced:])
        for at in rng.integers(0, len(tail), 2):
            tail[at : at + int(rng.integers(1, 300))] = b""
        tails.append(bytes(tail))
    for number, tail in enumerate(tails):
        copy = folder.with_name(f"copy{number}")
        shutil.copytree(folder, copy)
        (copy / "board").write_bytes(data[:synced] + tail)
        run(plan, tasks, journal=copy)
        assert (copy / "board").read_bytes() == whole


def test_what_was_synced_is_not_made_again(cut):
    """An edit before the last sync is refused; so is one in a record after which more were synced."""
    plan, tasks, folder, whole = cut
    data, bounds = (folder / "board").read_bytes(), bounds_of(folder / "board")
    complete = whole.removesuffix(END)
    for good, at in (
        *((data, bounds[number] + 250) for number in (0, 3, 10)),
        (complete, bounds[12] + 250),
        (whole, whole.rindex(HEADER) + 250),
    ):
        edited = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        (folder / "board").write_bytes(edited)
        with pytest.raises(BillboardError, match=r"was edited: record \d+ does not match|truncated"):
            run(plan, tasks, journal=folder)
        assert (folder / "board").read_bytes() == edited
        (folder / "board").write_bytes(data)


def test_only_the_last_line_can_be_torn_when_all_is_posted(cut):
    plan, tasks, folder, whole = cut
    secret, complete = (folder / "secret").read_bytes(), whole.removesuffix(END)
    for tail in (b"", END[:7], bytes(len(END)), bytes(5)):
        (folder / "board").write_bytes(complete + tail)
        run(plan, tasks, journal=folder)
        assert (folder / "board").read_bytes() == whole
        (folder / "secret").write_bytes(secret)
    board = Billboard.load(folder / "board")
    more = board._append(board.releases[0], board.records[1].public)._bytes().removesuffix(END)
    (folder / "board").write_bytes(more)
    with pytest.raises(BillboardError, match="holds more releases than its plan allows"):
        run(plan, tasks, journal=folder)
    assert (folder / "board").read_bytes() == more


def test_nothing_is_written_behind_an_unsynced_last_record(cut, monkeypatch):
    """The last line says that all is there: every record is synced before it is written."""
    plan, tasks, folder, _ = cut
    calls, write, sync = [], os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda file, data: calls.append(bytes(data)[-17:]) or write(file, data))
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("sync") or sync(file))
    run(plan, tasks, journal=folder)
    last = calls.index(END)
    assert calls[last - 1] == calls[last + 1] == "sync"
    assert calls[:last].count("sync") == 4  # when it was opened again, and after records 15, 20 and 22


# --- blocks ----------------------------------------------------------------------------------------------


def test_blocks_without_a_coin_are_left_alone(monkeypatch):
    monkeypatch.setattr("cloister.core.tasks.BLOCK_ELEMENTS", 20)
    monkeypatch.setattr("cloister.core.tasks.PADDED_ELEMENTS", 0)
    plan, tasks = make_plan(30, 4, 30), make_tasks(30, 4)
    assert len(tasks.layout()) == 15
    asked = []
    send = FTMRL.send

    def counted(self, states, block, board):
        asked.append(len(block))
        return send(self, states, block, board)

    monkeypatch.setattr(FTMRL, "send", counted)
    run(plan, tasks, random_state=0)
    assert asked[-30:] == [1] * 30  # those before were a trial, on made-up rows


def test_states_of_some_rows_are_put_in_place(monkeypatch):
    """Whatever the blocks, and whether a round takes some or all of one, states and models are the same."""
    algorithm = MeanRegularized(LeastSquares(3), rounds=12, steps=2)
    tasks = make_tasks(9, 3)
    for rate in (0.2, 0.7, 1.0):
        plan = Plan(algorithm, Gaussian(1.0), Poisson(rate), n_tasks=9)
        one = run(plan, tasks, random_state=4)
        monkeypatch.setattr("cloister.core.tasks.BLOCK_ELEMENTS", 7)
        two = run(plan, tasks, random_state=4, engine=Local(threads=1))
        monkeypatch.undo()
        np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], rtol=1e-9)


@dataclass(frozen=True)
class Borrows(Algorithm):
    """Its states are sometimes the tasks' own rows, not copies: a careless engine would change those."""

    def schedule(self, n_tasks, budget):
        return equal_rounds(12, [Channel(1)])

    def channel(self, board):
        return Channel(1)

    def start(self):
        return {"m": np.zeros(1)}

    def init(self, block, board):
        return {"y": block.y}

    def send(self, states, block, board):
        return np.zeros((len(block), 1)), {"y": block.y if board.rounds % 3 == 2 else states["y"] + 1.0}

    def update(self, release, board):
        return {"m": release.value}

    def finish(self, states, block, board):
        return states


@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_states_that_are_not_ours_are_not_changed(rate):
    tasks = make_tasks(3, 2, rows=64)  # of a width, so that blocks are views
    plan = Plan(Borrows(), NoNoise(), Poisson(rate), n_tasks=3)
    before = tasks.y.copy()
    done = run(plan, tasks, random_state=0)
    np.testing.assert_array_equal(tasks.y, before)
    coins, expected = np.asarray(done.private.coins), before.reshape(3, 64).copy()
    assert coins.all(axis=1).any() or rate < 0.5
    for t, row in enumerate(coins):
        expected[row] = before.reshape(3, 64)[row] if t % 3 == 2 else expected[row] + 1.0
    np.testing.assert_array_equal(done.private.models["y"], expected)


def test_a_block_has_room_for_what_its_tasks_say():
    """One row a task, but many numbers: a block of models must fit into memory as well as its rows do."""
    tasks = Tasks.from_arrays(np.zeros((100, 1)), np.zeros(100), np.arange(100))
    assert len(tasks.layout()) == 1
    assert [len(index) for index in tasks.layout(1 << 16)] == [16] * 6 + [4]


def test_the_stream_may_be_long_before_it_begins():
    """A plan of 100,000 rounds is priced, and opens its board, without data."""
    stream = FTMRL(Convex(LeastSquares(2)), Descent(lr=0.1, steps=1), rounds=100_000)
    plan = Plan(stream, Gaussian(), OnePass(), n_tasks=100_000).calibrate(epsilon=1.0)
    assert 0.99 < plan.guarantee.epsilon <= 1.0
    assert plan.create_board().capacity == 100_000
    assert Plan.from_toml(plan.to_toml()) == plan
