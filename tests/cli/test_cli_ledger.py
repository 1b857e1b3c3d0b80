"""`cloister ledger`: an operator's day, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cloister import Ledger, Plan
from cloister.algorithms import MeanRegularized
from cloister.cli import app
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.privacy.statement import percent, rounded_up
from cloister.sampling import OnePass


def cloister(*arguments: object):
    result = CliRunner().invoke(app, ["ledger", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*arguments: object) -> str:
    result = cloister(*arguments)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def read(*arguments: object) -> dict:
    result = cloister(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = cloister(*arguments)
    assert result.exit_code == 1, result.stdout
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.rstrip().endswith(".")
    return result.stderr


@pytest.fixture
def ledger(tmp_path):
    file = tmp_path / "exam.ledger"
    ok("create", file, "--epsilon", 2, "--tasks", 200)
    return file


@pytest.fixture
def plan(tmp_path):
    made = Plan(MeanRegularized(LeastSquares(3), rounds=5), n_tasks=200).calibrate(1.5)
    return made.save(tmp_path / "plan.toml")


def test_a_budget_is_spent_and_then_refuses(ledger, plan):
    assert "each may spend epsilon = 2 at delta = 0.0003536; neighbours: replace" in ok("show", ledger)
    before = read("show", ledger)
    booked = read("charge", ledger, plan, "--run", "night")
    assert booked["charge"]["plan"] == Plan.load(plan).fingerprint
    assert booked["spent"] == pytest.approx(1.5, rel=1e-3)
    assert "Run night was charged already, as number 0" in ok(
        "charge", ledger, plan, "--run", "night"
    )  # once
    assert "would bring these tasks to epsilon = 2.26 in all" in refused("charge", ledger, plan)
    after = read("show", ledger, "--group", 3)
    assert (before["runs"], after["runs"]) == (0, 1)
    assert before["head"] != after["head"] == booked["charge"]["hash"]
    account = Ledger.open(ledger)
    assert after["remaining"] == account.remaining
    assert after["group"] == {"tasks": 3, "spent": account.spent_by(3), "budget": account.budget_of(3)}
    together = account.balance.all_runs
    assert after["all_runs"]["spent"] == together.spent == pytest.approx(booked["charge"]["mu"])
    rate = f"at most {percent(together.detection())} over all runs that will ever be charged to it"
    assert rate in " ".join(ok("show", ledger).split())
    words = ok("show", ledger, "--group", 3)
    assert after["head"] in words
    assert (
        f"3 tasks of one owner {rounded_up(account.spent_by(3))} {rounded_up(account.budget_of(3))}" in words
    )


def test_the_history_lists_what_was_charged(ledger, plan):
    read("charge", ledger, plan, "--run", "night")
    (entry,) = read("history", ledger)["charges"]
    assert entry["events"][0]["count"] == 5
    assert (entry["number"], entry["run"], entry["relation"], entry["n_tasks"]) == (
        0,
        "night",
        "replace",
        200,
    )
    assert f"{entry['mu']:.4g}" in ok("history", ledger)
    assert entry["plan"][:8] in ok("history", ledger)


def test_several_populations(ledger, plan):
    made = read("create", ledger, "--epsilon", 1, "--tasks", 200, "--population", "wards", "--delta", 1e-4)
    assert (made["population"], made["delta"], made["spent"]) == ("wards", 1e-4, 0.0)
    assert "has accounts of: 'tasks', 'wards'" in refused("show", ledger)
    read("charge", ledger, plan, "--population", "tasks")
    assert [read("show", ledger, "--population", name)["runs"] for name in ("tasks", "wards")] == [1, 0]


def test_what_is_refused_is_one_sentence(ledger, plan, tmp_path):
    assert "already has an account of 'tasks'" in refused("create", ledger, "--epsilon", 9, "--tasks", 200)
    assert "There is no ledger file" in refused("show", tmp_path / "none")
    assert "no SQLite file" in refused("history", plan)
    assert "There is no plan file" in refused("charge", ledger, tmp_path / "none.toml")
    assert "at most 200" in refused("show", ledger, "--group", 201)
    assert "--epsilon must be above 0" in refused("create", tmp_path / "x", "--epsilon", 0, "--tasks", 20)
    assert "--tasks must be at least 1" in refused("create", tmp_path / "x", "--epsilon", 1, "--tasks", 0)
    assert "at most 1/20" in refused("create", tmp_path / "x", "--epsilon", 1, "--tasks", 20, "--delta", 0.1)
    assert not (tmp_path / "x").exists()
    for wrong, words in (
        (Plan(MeanRegularized(LeastSquares(3)), n_tasks=200), "calibrate"),
        (
            Plan(MeanRegularized(LeastSquares(3)), Gaussian(0.1), n_tasks=201),
            "of 200 tasks. Got a plan for 201",
        ),
        (Plan(MeanRegularized(LeastSquares(3)), Gaussian(9.0), OnePass(), n_tasks=200), "would bring"),
    ):
        assert words in refused("charge", ledger, wrong.save(tmp_path / "wrong.toml"))
    assert read("show", ledger)["runs"] == 0


def test_a_plan_that_does_not_hold_says_so(ledger, plan, tmp_path):
    leaky = replace(Plan.load(plan), caveats=("bounds were read from the data",))
    result = cloister("charge", ledger, leaky.save(tmp_path / "leaky.toml"))
    assert result.exit_code == 0
    assert "guarantee does not hold" in result.stderr
    floating = replace(Plan.load(plan), mechanism=Gaussian(0.1, exact=False))
    result = cloister("charge", ledger, floating.save(tmp_path / "floating.toml"))
    assert "guarantee is not proven to the last bit" in result.stderr
    told = ok("show", ledger)
    assert "THE PROMISE DOES NOT HOLD (void): of charge 0, bounds were read from the data." in told
    assert "The promise is not proven to the last bit: of charge 1, the noise is drawn in floating" in told
    assert " void " in ok("history", ledger)
    kept = read("history", ledger)["charges"]
    assert [doubt["grade"] for each in kept for doubt in each["doubts"]] == [
        "void",
        "not proven to the last bit",
    ]


def test_what_is_no_ledger_or_no_plan_is_said(tmp_path):
    assert "A ledger is a file, and" in refused("create", tmp_path, "--epsilon", 1, "--tasks", 9)
    Ledger.create(tmp_path / "exam.ledger", "tasks", epsilon=1.0, delta=1e-3)
    (tmp_path / "book.toml").write_text('task = "school"\n')
    assert "This is not a plan file" in refused("charge", tmp_path / "exam.ledger", tmp_path / "book.toml")
