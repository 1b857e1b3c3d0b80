"""Numbers that searches, priors and stacking choose by stand in one place, and say where they are from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cloister.algorithms
from benchmarks import ablation
from cloister.algorithms.constants import STAGES
from cloister.core.origin import told
from cloister.learners.linear.home_constants import HOME

ROOT = Path(cloister.algorithms.__file__).parent
LINEAR = ROOT.parent / "learners" / "linear"
#: Modules of learners that only solve, and choose nothing.
SOLVERS = {"convex", "home_constants", "likelihood", "losses", "newton", "ridge", "softmax"}
MODULES = [
    *sorted((ROOT / "prior").glob("*.py")),
    ROOT / "locate.py",
    ROOT / "histograms.py",
    ROOT / "blends.py",
    ROOT / "stacking.py",
    *(
        path
        for path in sorted((ROOT.parent / "learners" / "linear").glob("*.py"))
        if path.stem not in SOLVERS
    ),
]
#: Numbers of formulas, and what only guards against a division by zero or a logarithm of it.
FORMULAS, GUARDS = {0, 1, 2, 0.5, 3, 4}, (1e-6, 1e12)
#: Whoever needs another finds one that can go.
MOST_TUNED = 63


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_there_are_no_other_numbers(module):
    found = [
        f"{module.name}:{node.lineno}: {node.value}"
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
        if node.value not in FORMULAS and GUARDS[0] < abs(node.value) < GUARDS[1]
    ]
    assert not found


def test_each_number_says_where_it_is_from():
    numbers = [one for stage in (*STAGES, *HOME) for one in told(stage)]
    for name, _, origin in numbers:
        assert set(origin) in ({"derived"}, {"tuned", "by"}), name
        assert all(len(words) > 3 for words in origin.values()), name
    assert sum("tuned" in origin for *_, origin in numbers) <= MOST_TUNED


def test_a_tuned_number_names_what_measures_it():
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    lines = [line for path in benchmarks.glob("*.py") for line in path.read_text().splitlines()]
    known = {line.split('"')[1] for line in lines if line.startswith("NAME = ")}
    for stage in (*STAGES, *HOME):
        for name, _, origin in told(stage):
            for by in origin.get("by", "harm").split(", "):
                assert by in known or (benchmarks.parent / by).is_file(), name


def test_what_is_ablated_is_tuned_and_known_by_its_sentence():
    sentences = ablation.origins()
    assert set(ablation.NEUTRAL) <= set(sentences)
    assert len(set(sentences.values())) == len(sentences)
