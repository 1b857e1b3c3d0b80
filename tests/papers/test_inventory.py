"""Everything in the papers is run by something that exists, or the page says why nothing runs it."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from cloister import Plan, Tasks, run
from cloister.algorithms import Independent
from cloister.audit.museum import museum
from cloister.learners import Regression
from cloister.mechanisms import NoNoise
from harness.sources import ROOT
from papers.figure import figures, folders
from papers.inventory import INVENTORY

EXHIBITS = {exhibit.name for exhibit in museum()}
FIGURES = figures()


def exists(how: str) -> bool:
    if how.startswith("tests/"):
        path, _, name = how.partition("::")
        return f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
    if how.startswith("cloister."):
        home, _, name = how.rpartition(".")
        return hasattr(importlib.import_module(home), name)
    return how in FIGURES or how in EXHIBITS


@pytest.mark.parametrize("item", INVENTORY, ids=lambda item: f"{item.paper} {item.name}")
def test_each_has_a_command_or_a_reason(item):
    assert item.how or item.note
    assert [how for how in item.how if not exists(how)] == []


def test_every_paper_and_every_figure_is_listed():
    assert {item.paper for item in INVENTORY} == set(folders())
    listed = {how for item in INVENTORY for how in item.how}
    assert set(FIGURES) - listed == set()
    assert len({(item.paper, item.name) for item in INVENTORY}) == len(INVENTORY)


def test_no_number_is_left_out():
    """Figures, tables and theorems of each paper are counted through: none is skipped."""
    most = {
        "mpmtl": {"Figure": 12, "Theorem": 16},
        "mpmtl_first": {"Figure": 8, "Theorem": 6},
        "dpmtl": {"Theorem": 3},
    }
    for paper, kinds in most.items():
        names = " ".join(item.name for item in INVENTORY if item.paper == paper)
        for kind, last in kinds.items():
            for number in range(1, last + 1):
                spans = any(
                    f"{kind}s {a} to {b}" in names
                    for a in range(1, number + 1)
                    for b in range(number, last + 1)
                )
                assert spans or f"{kind} {number}" in names, (paper, kind, number)


def test_learning_alone_says_nothing():
    """Claim 1: tasks that learn alone have no round, and a task's model does not depend on others' data."""
    rng = np.random.default_rng(0)
    X, y, task = rng.normal(size=(40, 2)), rng.normal(size=40), np.arange(40) % 4
    plan = Plan(Independent(Regression(2, intercept=False)), NoNoise(), n_tasks=4)
    assert not plan.rounds
    other = np.where(task == 0, -y, y)
    models = [
        run(plan, Tasks.from_arrays(X, t, task), random_state=0).private.models["coef"] for t in (y, other)
    ]
    assert (models[0][1:] == models[1][1:]).all()
    assert not np.allclose(models[0][0], models[1][0])
