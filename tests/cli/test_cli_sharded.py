"""What `fit --engine ray` refuses, before a process of Ray is started."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import refused

from cloister.app.shards import TableFolder
from cloister.cluster.actor import Failure

pa = pytest.importorskip("pyarrow", reason="needs the extra table")
pq = pytest.importorskip("pyarrow.parquet")

FIT = ["fit", "pupils", "--codebook", "book.toml", "--engine", "ray", "-o", "out"]


@pytest.fixture
def pupils(work: Path) -> Path:
    """A folder of two files, for the codebook that is there."""
    folder = work / "pupils"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        columns = {
            "school": rng.integers(0, 40, 200).astype(str),
            "age": rng.uniform(0, 100, 200),
            "sex": rng.choice(["F", "M"], 200),
            "score": rng.uniform(0, 10, 200),
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def test_a_column_that_a_file_does_not_have(pupils: Path) -> None:
    file = pupils / "b.parquet"
    whole = pq.read_table(file)
    pq.write_table(whole.drop_columns(["age"]), file)
    assert refused(*FIT).startswith("Column 'age' must be in every file of pupils. b.parquet has none. ")
    pq.write_table(whole.drop_columns(["age"]), pupils / "a.parquet")
    assert refused(*FIT).startswith("pupils has no column 'age'. It has: school, sex, score.")


def test_rows_that_are_refused_are_found_by_a_command(pupils: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refusing(table: TableFolder):
        raise Failure("PrivateDataError", "", rows=True, shard=3).raised()
        yield

    monkeypatch.setattr(TableFolder, "at_hand", refusing)
    sentence = refused(*FIT)
    assert "`cloister codebook FILE --check book.toml`, for each FILE of pupils" in sentence
    assert "load()" not in sentence


def test_a_folder_instead_of_a_file(pupils: Path) -> None:
    files = "pupils is a folder. Name the file of a table, such as pupils/a.parquet; "
    assert refused("fit", "pupils", "--codebook", "book.toml").startswith(files)
    assert refused("codebook", "pupils", "--check", "book.toml").startswith(files)
    assert refused("codebook", "pupils", "--task", "school", "--target", "score").startswith(files)
