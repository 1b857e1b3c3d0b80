"""Models of all tasks: put together in memory or in a file, and in Parquet, one file a shard."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.errors import InputError
from cloister.store.model_store import ModelFile, ModelStore, read_models

pytest.importorskip("pyarrow")


@pytest.mark.parametrize("large", [0, 1 << 28], ids=["in a file", "in memory"])
def test_rows_come_back_in_the_order_of_the_tasks(tmp_path, monkeypatch, large):
    monkeypatch.setattr("cloister.store.model_store.LARGE", large)
    store, rng = ModelStore(7, tmp_path), np.random.default_rng(0)
    coef, scale = rng.normal(size=(7, 3, 2)), rng.normal(size=7)
    for index in (np.array([6, 0, 2]), np.array([1, 3]), np.array([5, 4])):
        store.put(index, {"coef": coef[index], "scale": scale[index]})
    found = store.arrays()
    np.testing.assert_array_equal(found["coef"], coef)
    np.testing.assert_array_equal(found["scale"], scale)
    found["coef"][0] = 0.0  # a change of what was read stays in memory
    np.testing.assert_array_equal(store.arrays()["coef"][1:], coef[1:])
    assert not list(tmp_path.iterdir())  # the file has no name


def test_models_of_fewer_shards_than_before(tmp_path):
    """Killed with three shards and gone on with two: a task has one model."""
    for number in range(3):
        ModelFile(tmp_path, number).write(np.array([f"t{number}"]), {"coef": np.zeros((1, 2))})
    (tmp_path / "shard-00001.77.draft").touch()
    ModelFile.tidy(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-00000.parquet", "shard-00001.parquet"]


def test_models_of_a_shard_in_a_file(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.array([f"t{i:04d}" for i in rng.permutation(3000)])
    models = {
        "coef": rng.normal(size=(3000, 4)),
        "covariance": rng.normal(size=(3000, 4, 4)),
        "noise": rng.random(3000),
    }
    file = ModelFile(tmp_path / "models", 7)
    file.write(ids, models)
    assert file.path.stat().st_mode & 0o077 == 0
    found, arrays = read_models(file.path, np.array(["t0005", "t2999", "nobody"]))
    assert found.tolist() == ["t0005", "t2999"]
    for name, array in models.items():
        due = array[[np.flatnonzero(ids == task)[0] for task in found]]
        np.testing.assert_array_equal(arrays[name], due)
    assert len(read_models(file.path)[0]) == 3000
    file.path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="not a file of models"):
        read_models(file.path)
