"""What a board says of all tasks is read off it once, and never while a file is written."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Plan, SharedPriorRegressor, Tasks, run
from cloister.algorithms import SharedPrior
from cloister.algorithms.prior.shared_prior import PriorFindings
from cloister.app.folder import read_public, write_run
from cloister.app.result import TableRun
from cloister.app.run_findings import RunFindings
from cloister.learners import Regression
from cloister.tables.codebook import Codebook

BOOK = Codebook.from_mapping({"x": (0, 1), "y": (0, 1)}, ["x"], "y")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which questions are put to the algorithm."""
    noted: list[str] = []
    solve, read = SharedPrior.model_without_data, PriorFindings.population.fget

    def model_without_data(algorithm, board):
        noted.append("model")
        return solve(algorithm, board)

    def population(findings):
        noted.append("population")
        return read(findings)

    monkeypatch.setattr(SharedPrior, "model_without_data", model_without_data)
    monkeypatch.setattr(PriorFindings, "population", property(population))
    return noted


def finished() -> TableRun:
    rng = np.random.default_rng(0)
    x, school = rng.uniform(size=200), np.repeat(np.arange(40), 5)
    tasks = Tasks.from_arrays(BOOK.encode({"x": x}), BOOK.encode_target(x), school)
    plan = Plan(SharedPrior(Regression(BOOK.width)), n_tasks=40).calibrate(8.0)
    return TableRun.of(run(plan, tasks, random_state=0), BOOK)


def test_each_part_is_computed_once(calls):
    result = finished()
    first = result.findings.priors, result.findings.new_tasks, str(result.summary())
    calls.clear()
    assert (result.findings.priors, result.findings.new_tasks, str(result.summary())) == first
    assert calls == []


def test_writing_a_folder_computes_nothing(calls, tmp_path):
    result = finished()
    models = list(result.task_models())
    result.plan.save(tmp_path / "plan.toml")
    result.board.save(tmp_path / "board")
    calls.clear()
    write_run(tmp_path, result, models)
    assert calls == []
    again = read_public(tmp_path)
    assert again.findings.priors == result.findings.priors


def test_a_summary_after_a_saved_fit_costs_nothing(calls, tmp_path):
    rng = np.random.default_rng(0)
    x, school = rng.uniform(size=200), np.repeat(np.arange(40), 5)
    model = SharedPriorRegressor(epsilon=8.0, bounds={0: (0, 1), "y": (0, 1)}, random_state=0)
    model.fit(x[:, None], x, tasks=school).save(tmp_path / "run")
    calls.clear()
    assert len(model.summary().coefficients) == 2
    assert calls == []


def test_without_a_codebook_there_is_neither_a_place_nor_a_prior():
    result = finished()
    findings = RunFindings(result.plan, result.board)
    assert findings.location is None
    assert findings.priors == {}
    assert findings.summary(result.guarantee).coefficients == ()
