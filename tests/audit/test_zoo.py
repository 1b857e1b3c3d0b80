"""Planted bugs: each is convicted by the test that must, their plans without them by none."""

from __future__ import annotations

import json
import queue
import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cloister.audit.zoo as zoo_module
from cloister.audit.zoo import convict, planted, self_test, zoo
from cloister.audit.zoo.bug import examine
from cloister.cli import app
from mutants.__main__ import copy_tree, outcome, read_file

ROOT = Path(__file__).parents[2]
BUGS = {bug.name: bug for bug in zoo()}
PLANS = {bug.plan: bug.name for bug in zoo()}
BEYOND = {mutant.name: mutant for mutant in read_file(ROOT / "mutants" / "zoo.toml")}
#: One or two for every test that convicts, among them what an auditor that looked at less has acquitted.
TELLING = [
    "run-begins-without-noise",
    "noise-always-even",
    "one-round-is-quiet",
    "nonce-that-is-stuck",
    "key-from-the-clock",
    "coins-from-a-public-seed",
    "curator-posts-bare-sums",
    "last-of-eight-channels-too-small",
    "sum-before-clip",
    "sum-in-the-stated-noise",
    "stops-when-sums-are-small",
    "quiet-rounds-rounded-down",
]


@pytest.fixture
def _search():
    """Search as an audit does: what was found on a channel without a bug says nothing of one with it."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in TELLING else pytest.mark.slow) for n in BUGS]
)
def test_every_bug_is_convicted_by_the_test_that_must(name):
    trial = convict(BUGS[name])
    assert trial.caught, trial.reasons


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=PLANS.get)
def test_no_plan_is_convicted_without_its_bug(plan):
    """A false alarm has probability 1e-3 for each plan, at this seed none."""
    assert examine(plan).reasons == ()


def test_a_bug_is_taken_back():
    bug = BUGS["noise-at-two-thirds"]
    honest = vars(bug.owner)[bug.function]
    with planted(bug):
        assert vars(bug.owner)[bug.function] is not honest
    assert vars(bug.owner)[bug.function] is honest


def test_a_bug_that_nobody_convicts_fails_the_self_test():
    """So does one that is convicted by another test than the one that must."""
    bug = BUGS["noise-at-two-thirds"]
    harmless = replace(bug, instead=lambda honest, *given: honest(*given))
    elsewhere = replace(bug, convicted_by="isolation")
    found = self_test([harmless, elsewhere])
    assert not found.passed
    assert "0 of 2 planted bugs convicted" in str(found)
    assert "ACQUITTED: <lambda>." in str(found)
    assert "CONVICTED BY OTHER TESTS ALONE: noise-at-two-thirds." in str(found)


def test_the_command_says_what_was_convicted(monkeypatch):
    bug, module = BUGS["board-carries-a-count"], sys.modules["cloister.audit.zoo.self_test"]
    tried = cache(lambda name, seed: convict(BUGS[name], seed))  # once for both commands
    monkeypatch.setattr(module, "convict", lambda one, seed: replace(tried(one.name, seed), bug=one))
    monkeypatch.setattr(module, "examine", cache(examine))
    monkeypatch.setattr(zoo_module, "zoo", lambda: (bug,))
    said = CliRunner().invoke(app, ["audit", "--self-test"])
    assert (said.exit_code, "1 of 1 planted bugs convicted" in said.stdout) == (0, True)
    assert bug.name in said.stdout
    unseen = replace(bug, convicted_by="last bits")
    monkeypatch.setattr(zoo_module, "zoo", lambda: (unseen,))
    said = CliRunner().invoke(app, ["audit", "--self-test", "--json"])
    assert (said.exit_code, json.loads(said.stdout)["passed"]) == (1, False)


@pytest.mark.parametrize("arguments", [[], ["plan.toml", "--self-test"]])
def test_a_plan_or_the_self_test_is_asked_for(arguments):
    said = CliRunner().invoke(app, ["audit", *arguments])
    assert said.exit_code == 2
    assert "--self-test" in said.stderr


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    trees = queue.Queue()
    trees.put(copy_tree(tmp_path_factory.mktemp("tree")))
    return trees, count(10**9)


@pytest.mark.slow
@pytest.mark.parametrize("name", BEYOND)
def test_a_named_test_convicts_what_no_audit_sees(name, trees):
    assert outcome(BEYOND[name], *trees)[0] == "killed"


def test_the_page_counts_the_zoo():
    said = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    assert f"\n{len(BUGS)} of {len(BUGS)} planted bugs convicted" in said
    assert f"\n{len(PLANS)} of {len(PLANS)} plans without a bug acquitted" in said
