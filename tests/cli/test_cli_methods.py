"""`cloister fit --method`: every method, its settings, who takes part and with what noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import TASKS, contents, fit, ok, pupils, refused
from cli_helpers import cloister as command

import cloister
from cloister import Ledger, Plan, Trust
from cloister.app.predict import write_csv
from cloister.cli.methods import Method, kind_of, settings_of
from cloister.mechanisms import L2Laplace, Toeplitz
from cloister.sampling import OnePass, Poisson

FAST = {
    Method.low_rank: ["--set", "rounds=3"],
    Method.group_sparse: ["--set", "rounds=3"],
    Method.decomposed: ["--set", "rounds=3"],
    Method.mean_regularized: ["--set", "rounds=3"],
    Method.meta: ["--set", "rounds=3"],
}


@pytest.mark.parametrize("method", Method)
def test_every_method_runs_and_is_verified(work: Path, method: Method) -> None:
    said = ok(*fit("--method", method, *FAST.get(method, ())))
    assert "Who is protected" in said
    assert ("could not find the targets" in said or "Targets were found" in said) == (
        method != Method.single_task
    )
    ok("verify", "run")
    model = cloister.load("run")
    name = method.replace("-", " ").title().replace(" ", "")
    assert type(model).__name__ == f"{name}Regressor"
    assert len(model.task_ids_) == TASKS
    assert model.guarantee_.epsilon == (0 if method == Method.single_task else pytest.approx(1, rel=1e-3))
    classes = cloister.Codebook.from_mapping({"x": (0, 1), "y": ["no", "yes"]}, ["x"], "y")
    assert kind_of(method, classes).__name__ == f"{name}Classifier"


def test_settings_are_the_estimators_own(work: Path) -> None:
    ok(*fit("--method", "low-rank", "--set", "rounds=4", "--set", "lam=0.1,1", "--set", "guard=true"))
    model = cloister.load("run")
    assert (model.rounds, model.lam, model.guard) == (4, [0.1, 1], True)
    assert len(model.plan_.rounds) == 3 + 3 + 4 + 1  # the search, these, and how far to rely on them
    ok(*fit("--set", "structure=mean"))
    assert cloister.load("run").structure == "mean"
    ok(*fit("--set", "varying=intercept,age"))
    assert cloister.load("run").varying == ["intercept", "age"]


def test_who_takes_part_and_the_noise_are_the_plans_and_the_estimators(work: Path) -> None:
    ok(
        *fit(
            "--method",
            "meta",
            "--rate",
            "0.5",
            "--hidden",
            "--relation",
            "zero_out",
            "--mechanism",
            "laplace",
        )
    )
    plan, model = Plan.load("run/plan.toml"), cloister.load("run")
    assert plan.sampling == model.sampling == Poisson(0.5, hidden=True)
    assert isinstance(plan.mechanism, L2Laplace)
    assert model.mechanism == plan.mechanism
    assert plan.relation == model.relation == "zero_out"
    ok("verify", "run")
    ok(*fit("--method", "mean-regularized", "--one-pass", "--mechanism", "toeplitz"))
    plan = Plan.load("run/plan.toml")
    assert (plan.sampling, type(plan.mechanism)) == (OnePass(), Toeplitz)
    table = {"school": ["000"], "age": [12.0], "sex": ["F"]}
    assert np.isfinite(cloister.load("run").predict(table)).all()


def test_whom_tasks_trust_is_the_plans_and_the_estimators(work: Path) -> None:
    write_csv("exam.csv", pupils(12))  # every two tasks agree on masks in every round
    secure = ("--trust", "secure-sum", "--dropouts", "2", "--colluders", "3", "--curator-noise")
    said = " ".join(ok(*fit(*secure, "--epsilon", "8")).split())
    plan, model = Plan.load("run/plan.toml"), cloister.load("run")
    assert plan.trust == model.trust == Trust.secure_sum(2, 3, curator_noise=True)
    assert model.plan(plan.n_tasks).fingerprint == plan.fingerprint
    assert "any 3 other tasks" in said
    assert "or all other tasks together, without the curator" in said
    ok("verify", "run")
    for text in (said, Path("run/guarantee.txt").read_text()):
        assert "whoever operates it holds all rows and could see every message" in text
    assert "settles --trust itself" in refused(*fit("--trust", "silo", "--plan", "run"))
    assert "--curator-noise itself" in refused(*fit(*secure, "--plan", "run"))
    assert "takes no --trust" in refused(*fit("--trust", "silo", "--method", "single-task"))


def test_a_dry_run_prints_the_price_and_leaves_nothing(work: Path) -> None:
    Ledger.create("ledger", "schools", epsilon=0.1, delta=1e-3)  # too little, and not looked at
    before = contents(work)
    options = ["--method", "low-rank", "--epsilon", "2", "--ledger", "ledger", "--dry-run"]
    said = ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "run", *options)
    assert "joint differential privacy for each of the 40 tasks" in " ".join(said.split())
    assert "Forecast, from public numbers alone" in said
    assert "Wrote" not in said
    document = json.loads(ok("fit", "exam.csv", "--codebook", "book.toml", *options, "--json"))
    assert document["guarantee"]["epsilon"] == pytest.approx(2, rel=1e-3)
    assert "folder" not in document
    assert contents(work) == before
    assert sorted(path.name for path in work.iterdir()) == ["book.toml", "exam.csv", "ledger", "run"]


def test_a_run_at_a_risk(work: Path) -> None:
    ok(*fit("--detection", "0.1", "--method", "meta", "--set", "rounds=3"))
    model = cloister.load("run")
    assert model.guarantee_.detection() == pytest.approx(0.1, abs=1e-4)
    assert model.epsilon == model.guarantee_.epsilon
    ok("verify", "run")


def test_a_folder_stands_for_its_plan(work: Path) -> None:
    assert ok("account", "run") == ok("account", "run/plan.toml")
    ok("fit", "exam.csv", "--codebook", "book.toml", "--plan", "run", "-o", "again")
    assert Path("again/plan.toml").read_bytes() == Path("run/plan.toml").read_bytes()
    assert refused("account", ".").startswith("There is no plan file plan.toml. ")
    ok("ledger", "create", "ledger", "--epsilon", "2", "--tasks", TASKS)
    ok("ledger", "charge", "ledger", "run")


WRONG = [
    (["--set", "rank=3"], "--set rank=3: there is no setting 'rank': low-rank has accelerated, averaged, "),
    (["--set", "rounds"], "--set must read NAME=VALUE, such as --set rounds=30. Got 'rounds'."),
    (["--set", "rounds="], "--set must read NAME=VALUE, "),
    (["--set", "=3"], "--set must read NAME=VALUE, "),
    (["--set", "rounds=many"], "--set rounds=many: the value must be a whole number."),
    (["--set", "rounds=2.5"], "--set rounds=2.5: the value must be a whole number."),
    (["--set", "rounds=3,4"], "--set rounds=3,4: the value must be a whole number."),
    (["--set", "rounds=2000000"], "--set rounds=2000000: the value must be at most 1000000, "),
    (["--set", "rounds=0"], "rounds must be"),
    (["--set", "guard=maybe"], "--set guard=maybe: the value must be true or false."),
    (["--set", "guard=1"], "--set guard=1: the value must be true or false."),
    (["--set", "lam=high"], "--set lam=high: the value must be a number or several with commas "),
    (["--set", "lam=-1"], "lam must be"),
    (["--set", "lam=nan"], "lam must be"),
    (["--set", "lr=fast"], "lr must be a number or 'auto'. Got 'fast'."),
    (["--set", "clip=0"], "clip must be"),
    (["--set", "epsilon=1"], "--set epsilon=1: there is no setting 'epsilon': "),
    (
        ["--set", "meta.rounds=3"],
        "--set meta.rounds=3: 'meta' is not a method of this command. It has: low-rank.",
    ),
    (["--groups", "sex"], "low-rank takes no --groups. Leave it out."),
    (["--start-from", "run"], "low-rank takes no --start-from. Leave it out."),
    (["--rate", "0"], "--rate must be in (0, 1]. Got 0.0. Use neither --rate nor --fixed-size if all "),
    (["--rate", "nan"], "--rate must be in (0, 1]. Got nan. "),
    (["--fixed-size", "41"], "--fixed-size must be at most the number of tasks, 40. Got 41. "),
    (["--fixed-size", "0"], "--fixed-size must be a whole number >= 1. Got 0. "),
    (["--fixed-size", "4", "--hidden"], "FixedSize cannot be hidden: "),
    (["--mechanism", "tree"], "Correlated noise needs one channel and equal shares in all rounds. "),
    (["--method", "group-sparse", "--mechanism", "wishart"], "Wishart noise is for sums of outer products, "),
    (["--method", "shared-prior", "--rate", "0.5"], "shared-prior takes no --rate. Leave it out."),
    (["--method", "shared-prior", "--mechanism", "laplace"], "shared-prior takes no --mechanism. "),
    (["--method", "shared-prior", "--set", "varying=3"], "--set varying=3: the value must be a word or "),
    (["--method", "shared-prior", "--set", "structure=mode"], "structure must be one of 'auto', 'joint', "),
    (["--method", "single-task", "--epsilon", "2"], "single-task takes no --epsilon. Leave it out."),
    (
        ["--method", "single-task", "--set", "rounds=2"],
        "--set rounds=2: there is no setting 'rounds': single-task has none.",
    ),
    (["--method", "meta", "--set", "tail=2"], "tail must be"),
    (
        ["--detection", "0.04"],
        "--detection must be above --false-alarms, which guessing reaches, and both between 0 and 1. Got "
        "0.04 and 0.05. Use --detection 0.1, --false-alarms 0.05.",
    ),
    (["--detection", "1"], "--detection must be above --false-alarms, "),
    (["--detection", "nan"], "--detection must be above --false-alarms, "),
    (["--detection", "0.1", "--false-alarms", "0"], "--detection must be above --false-alarms, "),
    (["--method", "single-task", "--detection", "0.1"], "single-task takes no --detection. "),
    (["--plan", "run", "--detection", "0.1"], "run settles --detection itself: "),
    (["--plan", "nowhere"], "There is no plan file nowhere. "),
    (["--plan", "run", "--method", "meta"], "run settles --method itself: "),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG, ids=[" ".join(options) for options, _ in WRONG])
def test_wrong_options_are_refused_and_nothing_is_charged(
    work: Path, options: list[str], sentence: str
) -> None:
    account = Ledger.create("ledger", "schools", epsilon=9, delta=1e-3)
    before = contents(work)
    chosen = [] if "--method" in options or "--plan" in options else ["--method", "low-rank"]
    assert refused(*fit(*chosen, *options, "--ledger", "ledger")).startswith(sentence)
    assert contents(work) == before
    assert account.history == ()
    assert not list(work.glob(".*"))


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "magic"],
        ["--mechanism", "magic"],
        ["--rate", "often"],
        ["--method", "low-rank", "--rate", "0.1", "--one-pass"],
        ["--method", "low-rank", "--hidden"],
        ["--detection", "0.1", "--epsilon", "1"],
        ["--false-alarms", "0.1"],
    ],
)
def test_words_that_are_no_options(work: Path, options: list[str]) -> None:
    before = contents(work)
    assert command(*fit(*options)).exit_code == 2
    assert contents(work) == before


def test_the_docs_list_every_method_and_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    book = cloister.Codebook.from_mapping({"x": (0, 1), "y": (0, 1)}, ["x"], "y")
    for method in Method:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{method}` ")]
        assert set(settings_of(kind_of(method, book))) == {
            word.strip("`").partition("=")[0] for word in line.split("|")[3].split() if word.startswith("`")
        }
