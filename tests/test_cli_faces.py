"""Folders that any face saves work with the commands that read them."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from cloister import LowRankRegressor, MeanRegularizedRegressor
from cloister.cli import app
from cloister.tables import write_csv

BOUNDS = {"a": (0, 1), "b": (0, 1), "target": (0, 1)}


@pytest.mark.parametrize("face", [LowRankRegressor, MeanRegularizedRegressor])
def test_verify_replay_predict_and_gain(face, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, school = rng.uniform(0, 1, (300, 2)), np.repeat([f"s{i}" for i in range(30)], 10)
    table = {"school": school, "a": x[:, 0], "b": x[:, 1]}
    face("school", bounds=BOUNDS, rounds=3).fit(table, x.mean(axis=1)).save("run")
    write_csv(
        tmp_path / "s1.csv", {k: v[10:20] for k, v in table.items()} | {"target": x[10:20].mean(axis=1)}
    )
    for command in (
        ["verify", "run"],
        ["replay", "run", "s1.csv", "--task-name", "s1", "-o", "s1.json"],
        ["predict", "s1.csv", "--model", "s1.json"],
        ["predict", "run", "s1.csv"],
        ["gain", "run", "s1.csv", "--task-name", "s1"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output, result.exception)
