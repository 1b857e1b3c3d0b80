"""A folder of Parquet files in shards: the same tasks, whole, wherever their rows were."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra table")
pq = pytest.importorskip("pyarrow.parquet")

from cloister.app.parquet import ParquetFolder  # noqa: E402
from cloister.app.shards import ParquetShards, TableFolder  # noqa: E402
from cloister.core.tasks import Tasks  # noqa: E402
from cloister.engines.workers import ShardError  # noqa: E402
from cloister.errors import InputError, PrivateDataError  # noqa: E402
from cloister.store.secret import digest_of  # noqa: E402
from cloister.tables.codebook import Codebook  # noqa: E402

BOUNDS = {"age": (0, 100), "sex": ["F", "M"], "score": (0, 10)}
BOOK = Codebook.from_mapping(BOUNDS, ["age", "sex"], target="score", task="school")


def make_columns(rows=900, schools=40):
    rng = np.random.default_rng(0)
    return {
        "school": rng.integers(0, schools, rows),
        "age": rng.uniform(0, 100, rows),
        "sex": rng.choice(["F", "M"], rows),
        "score": rng.uniform(0, 10, rows),
        "unused": rng.uniform(size=rows),
    }


COLUMNS = make_columns()
NAMES = COLUMNS["school"].astype(str)
WHOLE = Tasks.from_arrays(BOOK.encode(COLUMNS), BOOK.encode_target(COLUMNS["score"]), NAMES)


@pytest.fixture
def source(tmp_path):
    """Seven files; the rows of each school are in most of them."""
    folder = tmp_path / "pupils"
    folder.mkdir()
    for number, at in enumerate(np.array_split(np.arange(900), 7)):
        part = {name: column[at] for name, column in COLUMNS.items()}
        pq.write_table(pa.table(part), folder / f"part-{number}.parquet")
    return folder


def same(shards):
    assert shards.roster == WHOLE.roster
    assert sorted(np.concatenate(shards.positions)) == list(range(len(WHOLE)))
    for number, at in enumerate(shards.positions):
        found, due = shards.part(number).load(), WHOLE.select(at)
        for name in ("ids", "X", "y", "weight", "offsets"):
            np.testing.assert_array_equal(getattr(found, name), getattr(due, name))


@pytest.mark.parametrize(("buckets", "groups"), [(1, 1), (5, 3), (200, 20)])
def test_no_task_is_split(source, tmp_path, buckets, groups, monkeypatch):
    monkeypatch.setattr("cloister.app.parquet.BATCH", 50)
    monkeypatch.setattr("cloister.app.parquet.TOGETHER", 20)
    shards = ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=buckets, shares=groups)
    same(shards)
    assert ParquetFolder(source).task_names("school").tolist() == [*WHOLE.roster]
    assert (tmp_path / "shards").stat().st_mode & 0o077 == 0


def test_folders_may_be_columns(tmp_path):
    """As Hive, Spark, polars and DuckDB write them: here one folder for each sex."""
    for sex in ("F", "M"):
        at = COLUMNS["sex"] == sex
        (tmp_path / "pupils" / f"sex={sex}").mkdir(parents=True)
        part = {name: column[at] for name, column in COLUMNS.items() if name != "sex"}
        pq.write_table(pa.table(part), tmp_path / "pupils" / f"sex={sex}" / "0.parquet")
    order = np.argsort(COLUMNS["sex"], kind="stable")
    shards = ParquetShards.split(tmp_path / "pupils", BOOK, tmp_path / "shards", buckets=3)
    X, y = BOOK.encode(COLUMNS)[order], BOOK.encode_target(COLUMNS["score"])[order]
    whole = Tasks.from_arrays(X, y, NAMES[order])
    for number, at in enumerate(shards.positions):
        np.testing.assert_array_equal(shards.part(number).load().X, whole.select(at).X)


def test_labels_of_tasks_are_read_with_their_names(source, tmp_path):
    """Each task is in one group, whatever file its rows are in; one in two is refused, without a value."""
    for path in source.iterdir():
        table = pq.read_table(path)
        district = pa.array([f"d{school % 3}" for school in table["school"].to_pylist()])
        pq.write_table(table.append_column("district", district), path)
    shards = ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5, groups="district", shares=3)
    assert shards.roster.names == WHOLE.roster.names
    assert [*shards.roster.groups] == [f"d{int(school) % 3}" for school in shards.roster]
    assert ParquetFolder(source).task_labels("school", "district") == dict(
        zip(shards.roster, shards.roster.groups, strict=True)
    )
    plain = ParquetShards.split(source, BOOK, tmp_path / "plain", buckets=5)
    assert digest_of(plain, b"k" * 32) != digest_of(shards, b"k" * 32)
    for number in range(5):
        np.testing.assert_array_equal(shards.part(number).load().X, plain.part(number).load().X)
    pq.write_table(pq.read_table(path).set_column(5, "district", pa.array(["d7"] * len(table))), path)
    with pytest.raises(ShardError, match="'district' of pupils must have one public label") as refused:
        ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5, groups="district")
    assert "d7" not in str(refused.value)


def test_shards_are_taken_as_they_are_until_a_file_changes(source, tmp_path):
    one = ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5)
    stamp = (tmp_path / "shards" / "shards.json").stat().st_mtime_ns
    two = ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5, shares=3)
    assert (tmp_path / "shards" / "shards.json").stat().st_mtime_ns == stamp
    assert digest_of(one, b"k" * 32) == digest_of(two, b"k" * 32)
    other = ParquetShards.split(source, BOOK, tmp_path / "other", buckets=9, shares=3)
    assert other.fingerprint == one.fingerprint  # however rows are dealt out
    changed = COLUMNS | {"age": COLUMNS["age"] / 2}
    pq.write_table(pa.table({k: v[:100] for k, v in changed.items()}), source / "part-0.parquet")
    assert ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5).fingerprint != one.fingerprint


def test_a_shard_that_was_changed_is_not_read(source, tmp_path):
    shards = ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5)
    file = next((tmp_path / "shards" / "00003").iterdir())
    pq.write_table(pq.read_table(file).slice(1), file)  # a row less, in a file that is whole
    with pytest.raises(ShardError, match="Make the shards anew"):
        shards.part(3).load()
    file.unlink()
    with pytest.raises(ShardError, match="Make the shards anew"):
        shards.part(3).load()


def make_folder(path, *files):
    path.mkdir()
    for name, columns in zip("ab", files, strict=True):
        pq.write_table(pa.table(columns), path / f"{name}.parquet")
    return path


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_types_that_go_together_are_one(tmp_path, order):
    """Whole ages in one file, and categories of pandas; the rows are those of tables of one type."""
    columns = {name: column[:80] for name, column in COLUMNS.items()}
    columns["age"] = np.floor(columns["age"]) + np.repeat([0.0, 0.5], 40)
    first = {name: column[:40] for name, column in columns.items()} | {"unused": ["x"] * 40}
    first |= {"age": pa.array(first["age"]).cast(pa.int64())}
    first |= {"sex": pa.array(first["sex"]).dictionary_encode()}
    last = {name: column[40:] for name, column in columns.items()}
    files = [first, last]
    folder = make_folder(tmp_path / "pupils", *(files[at] for at in order))
    shards = ParquetShards.split(folder, BOOK, tmp_path / "shards", buckets=3)
    at = np.arange(80).reshape(2, 40)[list(order)].ravel()
    X, y = BOOK.encode(columns)[at], BOOK.encode_target(columns["score"])[at]
    whole = Tasks.from_arrays(X, y, columns["school"][at].astype(str))
    for number, position in enumerate(shards.positions):
        np.testing.assert_array_equal(shards.part(number).load().X, whole.select(position).X)
    assert "unused" not in ParquetFolder(folder).own_rows(str(NAMES[0]), "school", ["school"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda file: file | {"age": ["old"] * 900},
            "'age' .* double in a.parquet and string in b",
        ),
        (lambda file: {k: v for k, v in file.items() if k != "age"}, "'age' .* b.parquet has none"),
    ],
)
def test_a_column_of_two_types_or_in_some_files_is_named(tmp_path, change, sentence):
    folder = make_folder(tmp_path / "pupils", COLUMNS, change(COLUMNS))
    with pytest.raises(ShardError, match=sentence):
        ParquetShards.split(folder, BOOK, tmp_path / "shards")
    assert len(ParquetFolder(folder).task_names("school")) == len(WHOLE)


def test_a_task_that_is_listed_twice_is_refused(source, tmp_path):
    ParquetShards.split(source, BOOK, tmp_path / "shards", buckets=5)
    path = tmp_path / "shards" / "roster.parquet"
    listed = pq.read_table(path)
    pq.write_table(pa.concat_tables([listed, listed.slice(0, 1)]), path)
    with pytest.raises(InputError, match="Each task may be in a run once"):
        _ = ParquetShards.open(tmp_path / "shards", BOOK).roster


def test_a_file_that_cannot_be_read_is_named(source, tmp_path):
    wrong = source / "part-3.parquet"
    wrong.write_bytes(wrong.read_bytes()[:-200] + b"x" * 200)
    with pytest.raises(ShardError, match=r"part-3.parquet is not a readable Parquet file"):
        ParquetShards.split(source, BOOK, tmp_path / "shards")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"must hold .parquet files"):
        ParquetShards.split(tmp_path / "empty", BOOK, tmp_path / "shards")


@pytest.mark.parametrize(
    ("column", "cells", "sentence"),
    [
        ("school", np.where(np.arange(900) == 3, "7 ", NAMES), "spelled in one way"),
        ("school", [None, *NAMES[1:]], "must have an entry in every row"),
        ("score", None, "has no column 'score'"),
    ],
)
def test_what_is_wrong_with_names_is_said(tmp_path, column, cells, sentence):
    columns = COLUMNS | {"school": NAMES, column: cells}
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), tmp_path / "one.parquet")
    with pytest.raises(InputError, match=sentence):
        ParquetShards.split(tmp_path / "one.parquet", BOOK, tmp_path / "shards")


def test_what_is_wrong_with_a_row_is_for_the_operator_alone(tmp_path):
    pq.write_table(pa.table(COLUMNS | {"sex": ["X"] * 900}), tmp_path / "one.parquet")
    shards = ParquetShards.split(tmp_path / "one.parquet", BOOK, tmp_path / "shards", buckets=2)
    with pytest.raises(PrivateDataError):
        shards.part(0).load()


def test_a_folder_of_somebody_elses_is_left_as_it_is(source, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="left as it is"):
        ParquetShards.split(source, BOOK, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_file_that_changes_while_it_is_dealt_out_is_refused(source, tmp_path, monkeypatch):
    """What the journal answers for is what was read."""
    batches = ParquetFolder.batches

    def changed(self, file, columns):
        yield from batches(self, file, columns)
        if file == 3:
            pq.write_table(pa.table(COLUMNS).slice(5, 10), self.files[file])

    monkeypatch.setattr(ParquetFolder, "batches", changed)
    with pytest.raises(ShardError, match=r"part-3.parquet has changed"):
        ParquetShards.split(source, BOOK, tmp_path / "shards")


class Here:
    """In place of a cluster: all is done in this process."""

    actors = 1
    each = staticmethod(map)
    connected = staticmethod(nullcontext)


def test_a_copy_of_rows_does_not_stay_behind_a_refused_command(source, tmp_path):
    notes = []
    place = tmp_path / "exam"
    table = TableFolder(source, BOOK, note=notes.append, cluster=Here(), shards=3, folder=place)
    shards, unfinished = tmp_path / ".exam.shards", tmp_path / ".exam.unfinished"

    def refused():
        with pytest.raises(FileExistsError), table.at_hand():
            (shards / "shards.json").touch(exist_ok=False)  # they are there, and a command is refused

    refused()
    assert not shards.exists()
    unfinished.mkdir()  # a run that was begun and goes on from its shards
    refused()
    assert shards.exists()
    assert "a copy of all rows" in notes[0]
    with table.at_hand():
        pass
    assert not shards.exists()
    unfinished.rmdir()
    shards.mkdir()
    (shards / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="left as it is"), table.at_hand():
        pass
    assert (shards / "thesis.txt").exists()
