"""The public record: append-only, hash-chained, and any damaged file is refused."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest

import cloister.store.billboard as module
from cloister import Billboard
from cloister.errors import BillboardError, InputError
from cloister.store import Release


def small_board(rounds=2):
    board = Billboard.create({"m": np.zeros(2), "n": np.array(0)}, plan="p", capacity=2)
    for t in range(rounds):
        release = Release(np.arange(2.0) + t, noise=0.1, denominator=3.0, share=0.5, channel=0)
        board = board.post(release, {"m": np.full(2, t + 0.5), "n": np.array(t + 1)})
    return board


@pytest.fixture
def saved(tmp_path):
    return small_board(1).save(tmp_path / "board")


def test_posting_leaves_earlier_boards_as_they_were():
    first = Billboard.create({"m": np.zeros(2)}, plan="p", capacity=2)
    second = first.post(Release(np.ones(2), 0.1, 3.0), {"m": np.ones(2)})
    assert (first.rounds, second.rounds, second.complete) == (0, 1, False)
    assert first["m"].tolist() == [0, 0]
    assert "m" in first
    assert "q" not in first
    assert second.before(0).head == first.head
    assert second.before(1).head == second.head
    with pytest.raises(AttributeError):
        second.records = ()
    with pytest.raises(TypeError):
        second.records[-1].public["m"] = np.zeros(2)


def test_what_is_derived_is_computed_once_a_board():
    calls = []

    def total(power, board):
        calls.append(board.rounds)
        return float((board["mean"] ** power).sum())

    first = Billboard.create({"mean": np.full(2, 3.0)}, "p", 2)
    second = first.post(Release(np.ones(1), noise=1.0, denominator=1.0), {"mean": np.full(2, 5.0)})
    asked = [(first, 1), (first, 2), (second, 1), (first, 1), (second.before(0), 1), (second, 1)]
    assert [board.derive(total, power) for board, power in asked] == [6.0, 18.0, 10.0, 6.0, 6.0, 10.0]
    assert calls == [0, 0, 1, 0]  # a board that is cut back is a board of its own


def test_arrays_are_read_only_copies():
    mine, noisy = np.zeros(2), np.ones(2)
    board = Billboard.create({"m": mine}, plan="p", capacity=1)
    board = board.post(Release(noisy, 0.1, 3.0), {"m": mine})
    mine[:], noisy[:] = 9, 9
    assert board["m"].tolist() == [0, 0]
    assert board.releases[0].value.tolist() == [1, 1]
    for array in (board["m"], board.releases[0].value):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_the_hash_stands_for_everything():
    """A change anywhere, in a number, a name, a noise level, the plan or the order, changes the head."""
    release = Release(np.ones(2), 0.1, 3.0, 0.5, 0)

    def head(digest=0.0, name="m", release=release, plan="p", capacity=2, start=0.0):
        board = Billboard.create({name: np.full(2, start)}, plan, capacity)
        return board.post(release, {name: np.full(2, digest)}).head

    other = [
        Release(np.ones(2), *facts) for facts in ((0.2, 3.0), (0.1, 4.0), (0.1, 3.0, 0.4), (0.1, 3.0, 0.5, 1))
    ]
    heads = [
        head(),
        head(digest=1e-300),
        head(name="q"),
        head(plan="q"),
        head(capacity=3),
        head(start=-0.0),
        head(release=Release(np.array([1.0, np.nextafter(1, 2)]), 0.1, 3.0, 0.5, 0)),
        *(head(release=release) for release in other),
    ]
    assert len(set(heads)) == len(heads)
    assert head() == heads[0]


def test_round_trip_through_a_file(tmp_path):
    arrays = {
        "real": np.array([[1.5, -0.0, np.inf], [np.nan, 5e-324, 1e308]]),
        "whole": np.arange(3),
        "yes": np.array([True, False]),
        "single": np.float32([0.1]),
        "empty": np.zeros((0, 4)),
        "scalar": np.array(3.25),
        "big endian": np.arange(3, dtype=">f8"),
        "ünïcödé": np.zeros(1),
    }
    board = Billboard.create(arrays, "plan", 1).post(Release(np.ones(3), 0.5, 7.0, 1.0, 0), arrays)
    loaded = Billboard.load(board.save(tmp_path / "board"))
    assert (loaded.head, loaded.plan, loaded.capacity) == (board.head, "plan", 1)
    assert loaded.releases[0].facts() == board.releases[0].facts()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        assert not loaded[name].flags.writeable
    assert loaded.save(tmp_path / "again").read_bytes() == (tmp_path / "board").read_bytes()


def test_every_flipped_bit_is_found(saved, tmp_path):
    """Exhaustive: all eight bits of every byte; and what means something to a parser, in a header."""
    data = bytearray(saved.read_bytes())
    assert len(data) < 1500
    damaged, accepted = tmp_path / "damaged", []

    def attempt(at, value):
        damaged.unlink(missing_ok=True)  # some file systems sync a file that is written over
        damaged.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
        try:
            Billboard.load(damaged)
        except BillboardError:
            return
        accepted.append((at, value))

    for at, byte in enumerate(data):
        for bit in range(8):
            attempt(at, byte ^ (1 << bit))
    header = data.index(b'{"arrays"')
    for at in range(header, data.index(b'"plan"', header)):
        for value in set(b'"08-.,:[]{}eOVU<>| ') - {data[at]}:
            attempt(at, value)
    assert not accepted


def test_every_truncation_and_extension_is_found(saved, tmp_path):
    data = saved.read_bytes()
    damaged = tmp_path / "damaged"
    for size in range(len(data)):
        damaged.write_bytes(data[:size])
        with pytest.raises(BillboardError, match=r"truncated|unfinished|not a cloister billboard"):
            Billboard.load(damaged)
    for extra in (b"\0", b"\n", data, data[len(module.MAGIC) :], module.END):
        damaged.write_bytes(data + extra)
        with pytest.raises(BillboardError):
            Billboard.load(damaged)


def test_records_out_of_order_or_from_another_board_are_found(tmp_path):
    """Each record is whole; of one that follows another opening of the same plan only the chain tells."""
    board, other = small_board(), small_board(1)
    swapped = Billboard(board.plan, board.capacity, (board.records[0], board.records[2], board.records[1]))
    with pytest.raises(BillboardError, match="record 1 does not match"):
        Billboard.load(swapped.save(tmp_path / "board"))
    for plan, public in (("q", {}), ("p", {"m": np.ones(2), "n": np.array(0)})):
        mixed = Billboard(plan, 2, (Billboard.create(public, plan, 2).records[0], other.records[1]))
        with pytest.raises(BillboardError, match="record 1 does not match"):
            Billboard.load(mixed.save(tmp_path / "board"))


def test_a_board_cannot_outrun_its_plan(tmp_path):
    board = small_board()
    with pytest.raises(
        BillboardError, match=r"allows 2 releases: all are posted, and nothing more may leave"
    ):
        board.post(board.releases[0], {})
    over = board._append(board.releases[0], {})  # what a curator who goes round `post` would save
    with pytest.raises(BillboardError, match="holds more releases than its plan allows"):
        Billboard.load(over.save(tmp_path / "board"))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, step):
    path = small_board(1).save(tmp_path / "board")

    def fail(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space"):
        small_board(2).save(path)
    monkeypatch.undo()
    assert Billboard.load(path).rounds == 1
    assert os.listdir(tmp_path) == ["board"]


def test_no_pickle_goes_in_or_comes_out(tmp_path):
    with pytest.raises(BillboardError, match=r"numbers only\. Got dtype object"):
        Billboard.create({"m": np.array([{"a": 1}], dtype=object)}, "p", 1)
    with pytest.raises(BillboardError, match="numbers only"):
        Billboard.create({}, "p", 1).post(Release(np.array([print]), 0.1, 1.0), {})
    path = tmp_path / "board"
    path.write_bytes(pickle.dumps(Release(np.ones(1), 0.1, 1.0)))
    with pytest.raises(BillboardError, match="not a cloister billboard"):
        Billboard.load(path)
    assert not hasattr(module, "pickle")


def test_a_copy_is_verified_like_a_file():
    """A board inside something that is pickled travels as its file does: checked, and read-only again."""
    board = small_board()
    for twin in (copy.deepcopy(board), pickle.loads(pickle.dumps(board))):
        assert twin.head == board.head
        assert not twin["m"].flags.writeable
    with pytest.raises(BillboardError, match="was edited"):
        pickle.loads(pickle.dumps(board).replace(b'"noise":0.1', b'"noise":0.2'))


def test_it_prints_what_it_is(tmp_path):
    board = small_board(1)
    assert repr(board) == f"Billboard(1 of 2 releases, head {board.head.hex()[:12]})"


def test_what_is_whole_can_be_read(tmp_path):
    """Cut or changed anywhere, the records before are there; and the end says whether that was all."""
    board = small_board()
    data = board.save(tmp_path / "board").read_bytes()
    ends = [len(module.MAGIC)]
    for number in range(3):
        ends.append(ends[-1] + len(board.record_bytes(number)))
    assert data == b"".join([module.MAGIC, *map(board.record_bytes, range(3)), module.END])
    damaged = tmp_path / "damaged"
    for at in range(0, len(data), 7):
        whole = sum(end <= at for end in ends) - 1
        for spoilt in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]):
            damaged.write_bytes(spoilt)
            if whole < 1:
                with pytest.raises(BillboardError):
                    Billboard.recover(damaged)
            else:
                assert Billboard.recover(damaged).head == board.records[whole - 1].hash
                with pytest.raises(BillboardError, match=rf"what is whole.*: {whole} records?\."):
                    Billboard.load(damaged)
    assert Billboard.recover(tmp_path / "board").head == board.head


def test_a_kept_head_catches_hashes_that_were_computed_anew(tmp_path):
    board, path = small_board(), tmp_path / "board"
    forged = board.before(1).post(Release(np.zeros(2), 0.1, 3.0, 0.5), dict(board.records[2].public))
    forged.save(path)
    assert Billboard.load(path).head == forged.head
    for head in (board.head, board.head.hex(), board.head.hex().upper()):
        with pytest.raises(BillboardError, match="is whole, but its head is"):
            Billboard.load(path, head=head)
        assert Billboard.load(board.save(tmp_path / "right"), head=head).complete
    for bad in ("", "5f", "x" * 64, b"", b"0" * 31):
        with pytest.raises(InputError, match="must be 64 hexadecimal digits"):
            Billboard.load(path, head=bad)


# --- records that are sent one by one ---------------------------------------------------------------------


def posted(plan="p", capacity=3, rounds=3, noise="", seed=0):
    rng = np.random.default_rng(seed)
    board = Billboard.create({"mean": np.zeros(2)}, plan, capacity, noise)
    for _ in range(rounds):
        board = board.post(
            Release(rng.normal(size=2), noise=0.1, denominator=2.0), {"mean": rng.normal(size=2)}
        )
    return board


def test_a_board_can_be_sent_record_by_record():
    board = posted()
    elsewhere = Billboard.from_bytes(board.record_bytes(0))
    for number in range(1, 4):
        elsewhere = elsewhere.append_bytes(board.record_bytes(number))
    assert elsewhere.head == board.head
    assert elsewhere.complete
    assert not elsewhere.releases[2].value.flags.writeable
    with pytest.raises(BillboardError, match=r"The plan allows 3 releases, and all are posted"):
        elsewhere.append_bytes(board.record_bytes(3))


def test_a_record_that_was_changed_on_the_way_is_refused():
    """Every byte counts, and so do bytes that are missing or too many."""
    board = posted()
    before, record = board.before(1), board.record_bytes(2)
    assert before.append_bytes(record).rounds == 2
    for at in range(len(record)):
        with pytest.raises(BillboardError, match="These bytes are not record 2 of this board"):
            before.append_bytes(record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
    for other in (b"", record[:-1], record + b"x", record * 2):
        with pytest.raises(BillboardError, match="These bytes are not record 2 of this board"):
            before.append_bytes(other)
    with pytest.raises(BillboardError, match="These bytes are not record 0"):
        Billboard.from_bytes(board.record_bytes(1))


@pytest.mark.parametrize(
    "other",
    [
        lambda: posted(seed=1).record_bytes(2),  # of another history
        lambda: posted().record_bytes(1),  # a second time
        lambda: posted().record_bytes(3),  # too early
        lambda: posted(plan="q").record_bytes(2),
        lambda: posted(capacity=4).record_bytes(2),
        lambda: posted(noise="exact").record_bytes(2),
    ],
)
def test_a_record_of_another_board_is_refused(other):
    with pytest.raises(BillboardError, match="These bytes are not record 2 of this board"):
        posted().before(1).append_bytes(other())
