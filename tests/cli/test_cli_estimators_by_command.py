"""Folders that any estimator saves work with the commands that read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import cloister as cl
from cloister.app.predict import write_csv
from cloister.cli import app

BOUNDS = {"a": (0, 1), "b": (0, 1), "target": (0, 1)}
KINDS = ("SharedPrior", "LowRank", "GroupSparse", "MeanRegularized", "Decomposed", "Meta")
SEVERAL = ("SharedPrior", "MeanRegularized", "Meta")
ESTIMATORS = [
    *((f"{kind}Regressor", 0, {}) for kind in KINDS),
    *((f"{kind}Classifier", 2, {}) for kind in KINDS if kind not in SEVERAL),
    *((f"{kind}Classifier", 3, {}) for kind in SEVERAL),
    pytest.param("LowRankClassifier", 2, {"guard": True}, marks=pytest.mark.slow),
    pytest.param("DecomposedClassifier", 2, {"guard": True}, marks=pytest.mark.slow),
    ("MeanRegularizedClassifier", 3, {"guard": True}),
    ("MetaClassifier", 3, {"models": 2}),
    ("MetaRegressor", 0, {"lam": (0.02, 0.1)}),
]


@pytest.mark.parametrize(("name", "classes", "settings"), ESTIMATORS)
def test_verify_replay_predict_and_gain(name, classes, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, school = rng.uniform(0, 1, (96, 2)), np.repeat([f"s{i}" for i in range(12)], 8)
    table, y = {"school": school, "a": x[:, 0], "b": x[:, 1]}, x.mean(axis=1)
    if classes:
        y = np.array(["x", "y", "z"])[(y * classes).astype(int)]
    bounds = BOUNDS | ({"target": ["x", "y", "z"][:classes]} if classes else {})
    rounds = {} if name.startswith("SharedPrior") else {"rounds": 7}
    face = getattr(cl.estimators, name)("school", bounds=bounds, **rounds, **settings)
    face.fit(table, y).save("run")
    write_csv(tmp_path / "s1.csv", {k: v[8:16] for k, v in table.items()} | {"target": y[8:16]})
    for command in (
        ["verify", "run"],
        ["replay", "run", "s1.csv", "--task-name", "s1", "-o", "s1.json"],
        ["predict", "s1.csv", "--model", "s1.json"],
        ["predict", "run", "s1.csv"],
        ["gain", "run", "s1.csv", "--task-name", "s1", "--splits", "2"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output, result.exception)
    widen(Path("run"))
    refused = CliRunner().invoke(app, ["verify", "run"])
    assert refused.exit_code != 0
    assert "must give the plan's columns and classes" in " ".join(refused.output.split())


def widen(folder: Path) -> None:
    """Add a column to a folder's codebook."""
    book = cl.Codebook.load(folder / "codebook.toml")
    more = (*book.features, replace(book.features[0], name="c"))
    replace(book, features=more).save(folder / "codebook.toml")


@pytest.mark.parametrize("command", ["account", "audit"])
def test_a_plan_file_with_a_network_says_what_to_do_instead(command, tmp_path):
    learner = cl.learners.Module(torch.nn.Linear(2, 1))
    plan = cl.Plan(cl.algorithms.FedAvg(learner, cl.learners.Descent(0.1), rounds=2), n_tasks=10).calibrate(
        1.0
    )
    plan.save(tmp_path / "plan.toml")
    result = CliRunner().invoke(app, [command, str(tmp_path / "plan.toml")])
    assert result.exit_code != 0
    assert "A file cannot hold a Module" in " ".join(result.output.split())
