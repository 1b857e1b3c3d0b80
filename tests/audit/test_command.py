"""``cloister audit`` and its page."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import pytest
from typer.testing import CliRunner

import cloister as cl
from cloister import Plan
from cloister.algorithms import Independent, MeanRegularized
from cloister.audit import audit
from cloister.audit.audit_page import render
from cloister.cli import app
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian, NoNoise
from cloister.report.run_page import read_audit


def cloister(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments), "--draws", "5000"])


@pytest.fixture
def plan(tmp_path):
    plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=200).calibrate(1.0)
    plan.save(tmp_path / "plan.toml")
    return plan


def test_an_honest_plan_is_acquitted(plan, tmp_path):
    """Noise is from the system: a false alarm has probability 1e-4."""
    page = tmp_path / "audit.html"
    result = cloister(tmp_path / "plan.toml", "-o", page, "--confidence", 0.9999)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("No contradiction found.")
    assert "epsilon <= 1 claimed" in result.stdout
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(src|href)=", text)
    assert text.count("<svg") == 4
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", text)
    for fact in ("MeanRegularized", plan.fingerprint, str(tmp_path / "plan.toml"), cl.__version__):
        assert fact in text
    for part in ("How to read this page", "Who is protected", "Not covered", "Technically"):
        assert part in text
    assert cloister(tmp_path / "plan.toml", "-o", page).exit_code == 1  # not written over


def test_json_is_strict(plan, tmp_path):
    result = cloister(tmp_path, "--json", "--confidence", 0.9999)  # a folder with a plan will do
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["verdict"] == "no contradiction found"
    assert found["audited"]["fingerprint"] == plan.fingerprint
    assert found["audited"]["algorithm"] == "MeanRegularized"
    assert found["measured_epsilon"] < found["claimed_epsilon"] <= 1
    assert found["isolation"]["holds"] is True
    (tmp_path / "audit.json").write_text(result.stdout, encoding="utf-8")
    assert read_audit(tmp_path / "audit.json", plan)["measured"] == found["measured_epsilon"]
    assert [game["delta"] for game in found["games"]] == [pytest.approx(plan.delta), 0.01, 0.1]


@pytest.mark.parametrize(
    ("mechanism", "algorithm", "sentence"),
    [
        (Gaussian(), MeanRegularized(LeastSquares(3)), "no noise level yet"),
        (NoNoise(), MeanRegularized(LeastSquares(3)), "claims nothing"),
        (Gaussian(), Independent(Regression(3)), "must have releases"),
    ],
)
def test_plans_without_a_claim_get_a_sentence(mechanism, algorithm, sentence, tmp_path):
    Plan(algorithm, mechanism, n_tasks=50).save(tmp_path / "plan.toml")
    result = cloister(tmp_path / "plan.toml")
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_plan_gets_a_sentence(plan, tmp_path):
    codebook = tmp_path / "codebook.toml"
    for text in ('target = "score"\n', '[columns.hours]\ntype = "number"\n', "type = 'Codebook'\n"):
        codebook.write_text(text, encoding="utf-8")
        result = cloister(codebook)
        assert result.exit_code == 1
        assert "is not a plan file" in result.stderr
        assert "plan.toml" in result.stderr
    codebook.write_bytes(b"\xff\xfe")
    assert "not text" in cloister(codebook).stderr
    assert "There is no plan file" in cloister(tmp_path / "nowhere.toml").stderr


def test_a_guarantee_that_does_not_hold_is_said_everywhere(plan, tmp_path):
    """A false alarm has probability 1e-4."""
    void = replace(plan, caveats=("bounds were read from the data",))
    void.save(tmp_path / "plan.toml")
    page = tmp_path / "audit.html"
    result = cloister(tmp_path, "-o", page, "--confidence", 0.9999)
    assert result.exit_code == 0
    verdict = "No contradiction found, but the guarantee does not hold: bounds were read from the data."
    assert " ".join(result.stdout.split()).startswith(verdict)
    text = page.read_text(encoding="utf-8")
    assert f'<h1 class="bad">{verdict}</h1>' in text
    assert "no guarantee</title>" in text
    document = json.loads(cloister(tmp_path, "--json", "--confidence", 0.9999).stdout)
    assert (document["verdict"], document["guarantee_holds"]) == ("no contradiction found", False)
    reasons = [doubt["reason"] for doubt in document["guarantee"]["doubts"]]
    assert reasons == ["bounds were read from the data"]
    broken = Plan(Mixing(LeastSquares(3), rounds=2), n_tasks=200, caveats=void.caveats).calibrate(1.0)
    found = audit(broken, draws=2000, random_state=0)
    for said in (str(found), render(broken, found)):
        assert "CONVICTED" in said
        assert "Apart from that, the guarantee does not hold: bounds were read from the data." in said


def test_bad_confidence_gets_a_sentence(plan, tmp_path):
    result = cloister(tmp_path / "plan.toml", "--confidence", 1)
    assert result.exit_code == 1
    assert "--confidence must be" in result.stderr


@dataclass(frozen=True)
class Mixing(MeanRegularized):
    """Models that are centred over all tasks at home."""

    def finish(self, states, block, board):
        models = super().finish(states, block, board)
        return {name: array - array.mean(axis=0) for name, array in models.items()}


def test_a_conviction_is_said_everywhere():
    """Of the models and of nothing else: a false alarm about noise is one in a thousand, at a seed none."""
    plan = Plan(Mixing(LeastSquares(3), rounds=2), n_tasks=200).calibrate(1.0)
    seen = []
    found = audit(
        plan, draws=2000, confidence=0.999, random_state=0, progress=lambda done, of: seen.append((done, of))
    )
    assert found.verdict.startswith("CONVICTED: one task's data moved")
    assert found.to_dict()["isolation"]["holds"] is False
    assert 'class="bad"' in render(plan, found)
    assert seen == sorted(seen)
    assert seen[-1] == (225, 225)


def test_a_seed_repeats_an_audit(plan, searched):
    first = audit(plan, draws=2000, random_state=5).to_dict()
    searched.clear()
    assert audit(plan, draws=2000, random_state=5).to_dict() == first
