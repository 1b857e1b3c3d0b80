"""Boards share their records, large ones leave them in a file; what can be read is the same."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from cloister import Billboard
from cloister.errors import BillboardError
from cloister.store import Release
from cloister.store import billboard as module
from cloister.store.records import Record, chained, encode

ROUNDS = 40


def long_board(rounds=ROUNDS):
    board = Billboard.create({"m": np.zeros(5)}, plan="p", capacity=ROUNDS)
    for t in range(rounds):
        board = post(board, t)
    return board


def post(board, number):
    release = Release(np.full(5, number + 0.25), noise=0.1, denominator=3.0, share=1 / ROUNDS)
    return board.post(release, {"m": np.full(5, number, dtype=np.float32)})


def looks(board):
    """Everything that can be read of a board."""
    records = [(r.hash, {k: v.tobytes() for k, v in r.public.items()}) for r in board.records]
    releases = [(r.value.tobytes(), r.facts()) for r in board.releases]
    return records, releases, board.head, [board.before(t).head for t in range(board.rounds)]


@pytest.fixture
def tight(monkeypatch):
    """Room for two records in memory at most."""
    monkeypatch.setattr("cloister.store.files.CACHE_BYTES", 0)


@pytest.fixture
def saved(tmp_path):
    return long_board().save(tmp_path / "board")


def test_forks_do_not_see_each_other():
    """Two boards are posted on one old board, over and over, hashed early or late: each is its own."""
    board = long_board(3)
    alone = [post(long_board(3), number).head for number in (7, 8, 9)]
    forks = [post(board, number) for number in (7, 8, 9)]
    assert [fork.head for fork in reversed(forks)] == alone[::-1]
    assert [fork["m"][0] for fork in forks] == [7, 8, 9]
    deeper = [post(fork, 20) for fork in forks] + [post(forks[0], 21)]
    assert len({fork.head for fork in deeper}) == 4
    assert [fork.releases[3].value[0] for fork in deeper] == [7.25, 8.25, 9.25, 7.25]
    assert looks(board) == looks(long_board(3))
    assert {len(fork.records) for fork in forks} == {5}


def test_boards_posted_by_many_threads_are_all_whole():
    board, found = long_board(3), {}
    posting = [
        threading.Thread(target=lambda n=n: found.__setitem__(n, [post(board, n) for _ in range(30)]))
        for n in range(8)
    ]
    for thread in posting:
        thread.start()
    for thread in posting:
        thread.join()
    for number, boards in found.items():
        assert {fork.head for fork in boards} == {post(long_board(3), number).head}


def test_a_board_of_a_large_file_reads_like_any_other(saved, tight):
    whole, lazy = long_board(), Billboard.load(saved)
    assert lazy.records.stored == len(whole.records) == ROUNDS + 1
    assert looks(lazy) == looks(whole)
    assert looks(lazy.before(9)) == looks(whole.before(9))
    assert [record.hash for record in lazy.records[5:9]] == [record.hash for record in whole.records[5:9]]
    assert lazy.releases[-1].value.tolist() == whole.releases[-1].value.tolist()
    assert [r.value[0] for r in lazy.releases[3:5]] == [3.25, 4.25]
    with pytest.raises(IndexError):
        lazy.releases[ROUNDS]
    for array in (lazy["m"], lazy.releases[2].value):
        assert not array.flags.writeable
    assert lazy.save(saved.with_name("again")).read_bytes() == saved.read_bytes()
    assert Billboard.recover(saved).head == whole.head


def test_forks_of_a_large_board(saved, tight):
    lazy, whole = Billboard.load(saved), long_board()
    for at in (ROUNDS // 2, ROUNDS - 1):
        for number in (50, 51):
            fork = post(lazy.before(at), number)
            assert looks(fork) == looks(post(whole.before(at), number))
    assert looks(lazy) == looks(whole)


def test_a_fork_is_not_taken_for_what_is_in_the_file(saved, tight):
    fork = post(Billboard.load(saved).before(9), 50)
    fork.mark_stored(saved, saved.stat().st_size)
    assert looks(fork) == looks(post(long_board().before(9), 50))


def test_old_records_are_not_held(saved, tight):
    def alive():
        gc.collect()
        return sum(type(thing) is Record for thing in gc.get_objects())

    gc.freeze()  # what is there is not looked at
    try:
        board = Billboard.load(saved)
        assert alive() <= 3
        assert sum(record.public["m"][0] for record in board.records) == sum(range(ROUNDS))
        assert alive() <= 3
    finally:
        gc.unfreeze()


def test_a_small_file_is_held_and_closed(saved):
    board = Billboard.load(saved)
    saved.unlink()
    assert board.records.stored == 0
    assert looks(board) == looks(long_board())


def test_a_large_file_outlives_its_name(saved, tight):
    board = Billboard.load(saved)
    long_board(2).save(saved)  # another file under the same name
    assert looks(board) == looks(long_board())
    saved.unlink()
    assert looks(board) == looks(long_board())


def test_an_edit_is_found_in_any_record(saved, tight):
    """While reading, with the record's number; and, in a board that was read before, when it is looked at."""
    data, board = saved.read_bytes(), Billboard.load(saved)
    sizes = [len(board.record_bytes(number)) for number in range(len(board.records))]
    ends = len(module.MAGIC) + np.cumsum(sizes)
    for number, end in enumerate(ends):
        at = int(end) - 40  # in the last array
        edited = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        board = Billboard.load(saved)
        with saved.open("r+b") as file:  # the same file, behind the board's back
            file.write(edited)
        with pytest.raises(BillboardError, match=f"record {number} does not match its hash"):
            Billboard.load(saved)
        if number:
            assert Billboard.recover(saved).rounds == number - 1
        if number < ROUNDS - 2:  # the last ones are held
            with pytest.raises(BillboardError, match=f"changed after it was read: record {number} does not"):
                _ = board.records[number]
        with saved.open("r+b") as file:
            file.write(data)


@pytest.mark.parametrize("more", [b'"x":1,', b" "])
def test_a_header_that_no_board_writes_is_refused(more, tmp_path):
    """Its hash is right, but there would be two files for one board."""
    header, (payload,) = encode({"plan": "p", "capacity": 1}, 0, None, {"m": np.zeros(2)})
    for text, good in ((header, True), (header[:1] + more + header[1:], False)):
        record = len(text).to_bytes(8, "little") + text + payload.tobytes() + chained(b"", text, payload)
        (tmp_path / "board").write_bytes(module.MAGIC + record + module.END)
        if good:
            assert Billboard.load(tmp_path / "board").rounds == 0
        else:
            with pytest.raises(BillboardError, match="record 0 does not match"):
                Billboard.load(tmp_path / "board")


def test_only_the_first_record_has_no_release(tmp_path):
    board = long_board(2)
    missing = board._append(None, {"m": np.zeros(5)})
    with pytest.raises(BillboardError, match="record 3 does not match"):
        Billboard.load(missing.save(tmp_path / "board"))
