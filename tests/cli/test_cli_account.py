"""`cloister account`: prices of sums and of plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import cloister, ok, refused

from cloister import Plan
from cloister.algorithms import SharedPrior
from cloister.learners.linear.regression import Regression
from cloister.mechanisms import Gaussian
from cloister.sampling import FixedSize


def test_noise_and_epsilon_are_inverse() -> None:
    for options in ([], ["--one-pass"], ["--rate", "0.1"], ["--fixed-size", "20"]):
        common = ["--tasks", "200", "--rounds", "10", "--delta", "1e-4", *options, "--json"]
        needed = {}
        for relation in ("replace", "zero_out"):
            asked = json.loads(ok("account", "--epsilon", "1", "--relation", relation, *common))
            first, second = asked["relations"]  # two prices of one and the same noise
            assert (first["relation"], first["noise_multiplier"]) == (relation, second["noise_multiplier"])
            assert second["epsilon"] == asked["guarantee"]["other_epsilon"]
            assert first["detection"] == asked["guarantee"]["detection"]["at_most"]
            needed[relation] = first["noise_multiplier"]
            noise = ["--noise-multiplier", repr(needed[relation])]
            given = json.loads(ok("account", *noise, "--relation", relation, *common))
            assert given["guarantee"]["epsilon"] == pytest.approx(1.0, rel=2e-4)
        assert needed["replace"] == pytest.approx(2 * needed["zero_out"], rel=1e-6)


def test_noise_is_found_for_a_risk(work: Path) -> None:
    said = json.loads(ok("account", "--detection", "0.1", "--tasks", "100", "--rounds", "5", "--json"))
    assert said["guarantee"]["detection"] == {"false_alarms": 0.05, "at_most": pytest.approx(0.1, rel=1e-3)}
    rates = ["--detection", "0.02", "--false-alarms", "0.01"]
    rare = json.loads(ok("account", *rates, "--tasks", "100", "--json"))["relations"][0]
    assert (rare["false_alarms"], rare["detection"]) == (0.01, pytest.approx(0.02, rel=1e-3))
    words = " ".join(ok("account", "run/plan.toml", "--detection", "0.2").split())
    assert "detect it in at most 20 % of cases" in words
    assert "--detection must be above --false-alarms" in refused(
        "account", "--detection", "0.01", "--tasks", "9"
    )
    sums = ["--tasks", "100", "--rounds", "5", "--json"]
    assert json.loads(ok("account", "--detection", "10%", *sums)) == said
    wrong = cloister("account", "--detection", "10", *sums)
    assert wrong.exit_code == 2
    assert "write 0.1 for 10 %." in wrong.stderr


def test_one_gaussian_sum_has_the_exact_price() -> None:
    from cloister.privacy import tradeoff

    said = json.loads(ok("account", "--noise-multiplier", "4", "--tasks", "100", "--delta", "1e-3", "--json"))
    by_relation = {row["relation"]: row["epsilon"] for row in said["relations"]}
    assert by_relation["zero_out"] == pytest.approx(tradeoff.epsilon(1 / 4, 1e-3), rel=1e-6)
    assert by_relation["replace"] == pytest.approx(tradeoff.epsilon(2 / 4, 1e-3), rel=1e-6)


def test_a_plan_file_is_priced(work: Path) -> None:
    said = " ".join(ok("account", "run/plan.toml").split())
    assert "The same noise has two prices" in said
    assert "joint differential privacy for each of the 40 tasks" in said
    epsilons = {
        r["relation"]: r["epsilon"] for r in json.loads(ok("account", "run/plan.toml", "--json"))["relations"]
    }
    guarantee = Plan.load("run/plan.toml").guarantee
    assert epsilons == {"replace": guarantee.epsilon, "zero_out": guarantee.other_epsilon}
    Plan(SharedPrior(Regression(3)), Gaussian(), n_tasks=50).save("open.toml")
    assert refused("account", "open.toml").startswith("open.toml has no noise level yet. ")
    priced = json.loads(ok("account", "open.toml", "--epsilon", "2", "--json"))
    assert priced["guarantee"]["epsilon"] == pytest.approx(2, rel=1e-3)


def test_account_refuses(work: Path) -> None:
    plan = Plan(SharedPrior(Regression(3)), Gaussian(1.0), FixedSize(10), n_tasks=50)
    text = plan.to_toml()
    assert "hidden = false" in text
    Path("hidden.toml").write_text(text.replace("hidden = false", "hidden = true"))
    assert refused("account", "hidden.toml").startswith("FixedSize cannot be hidden: ")
    sentence = refused("account", "--epsilon", 1, "--tasks", 99, "--fixed-size", 9, "--hidden")
    assert sentence.startswith("FixedSize cannot be hidden: ")
    assert "There is no plan file" in refused("account", "nowhere.toml")
    assert "not a plan file" in refused("account", "exam.csv")
    Path("odd.toml").write_text('type = "cloister/plan/1"\nalgorithm = 3\nn_tasks = 5\n')
    assert "algorithm must be of a subclass of Algorithm" in refused("account", "odd.toml")
    assert "above 0" in refused("account", "--epsilon", "0", "--tasks", "9")
    assert "above 0" in refused("account", "--noise-multiplier", "-1", "--tasks", "9")
    assert "--rounds" in refused("account", "--noise-multiplier", "1", "--tasks", "9", "--rounds", "0")
    for usage in (
        [],
        ["--epsilon", "1"],
        ["--epsilon", "1", "--noise-multiplier", "1", "--tasks", "9"],
        ["--epsilon", "1", "--detection", "0.1", "--tasks", "9"],
        ["run/plan.toml", "--epsilon", "1", "--detection", "0.1"],
        ["--epsilon", "1", "--tasks", "9", "--hidden"],
        ["--epsilon", "1", "--tasks", "9", "--rate", "0.1", "--one-pass"],
        ["run/plan.toml", "--tasks", "9"],
        ["run/plan.toml", "--relation", "zero_out"],
        ["--epsilon", "one", "--tasks", "9"],
    ):
        assert cloister("account", *usage).exit_code == 2


def test_what_a_plan_asks_tasks_for_is_listed(work: Path) -> None:
    Plan(SharedPrior(Regression(3)), n_tasks=200).calibrate(1.0).save("plan.toml")
    stages = json.loads(ok("account", "plan.toml", "--json"))["stages"]
    assert [stage["rounds"] for stage in stages][0::2] == [1, 1]
    assert sum(stage["share"] for stage in stages) == pytest.approx(1.0)
    printed = " ".join(ok("account", "plan.toml").split())
    for stage in stages:
        assert (
            f"{stage['about']} {stage['rounds']} {stage['numbers']} {100 * stage['share']:.1f} %" in printed
        )
    assert "what tasks are asked for" not in ok(
        "account", "--epsilon", "1", "--tasks", "200", "--rounds", "3"
    )
