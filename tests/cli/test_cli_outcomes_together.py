"""``cloister fit`` for a codebook of several targets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import cloister, ok, refused

import cloister as cl
import cloister.app.fit as cloister_fit
from cloister.app.folder import write_manifest
from cloister.app.predict import write_csv
from cloister.engines.curator import Curator
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.statement import percent, rounded_up
from cloister.tables.table_files import read_table

BOOK = """
task = "school"
[[target]]
name = "score"
bounds = [0, 50]
[[target]]
name = "passed"
classes = ["no", "yes"]
[features.age]
bounds = [5, 20]
"""
FIT = ("fit", "pupils.csv", "--codebook", "book.toml", "-o", "run")


@pytest.fixture(autouse=True)
def pupils(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    school, age = np.repeat(np.arange(40), 8), rng.uniform(6, 18, 320)
    score = np.clip(2 * age + rng.normal(0, 3, 320), 0, 50)
    passed = np.where(score > 24, "yes", "no")
    write_csv("pupils.csv", {"school": school, "age": age, "score": score, "passed": passed})
    Path("book.toml").write_text(BOOK)


def test_one_budget_a_folder_for_each_and_all_predictions_in_one_table() -> None:
    ok(
        "ledger",
        "create",
        "ledger",
        "--population",
        "pupils",
        "--tasks",
        40,
        "--epsilon",
        1,
        "--delta",
        0.0025,
    )
    dry = json.loads(ok(*FIT, "--ledger", "ledger", "--dry-run", "--json"))["ledger"]
    assert (dry["runs"], dry["spent"]) == (1, 0)
    told = json.loads(ok(*FIT, "--ledger", "ledger", "--share", "score=3", "--json"))
    assert 0.99 < told["guarantee"]["epsilon"] <= 1.0
    alone = [told["outcomes"][name]["epsilon"] for name in ("score", "passed")]
    assert alone[1] < alone[0] < 1.0
    assert len(cl.Ledger.open("ledger").history) == 2
    assert "This run does not fit" in " ".join(ok(*FIT, "--ledger", "ledger", "--dry-run").split())
    ok("predict", "run", "pupils.csv", "-o", "all.csv")
    table = read_table(Path("all.csv"))
    wanted = {"score.prediction", "score.std", "passed.prediction", "passed.p[yes]", "served_by"}
    assert wanted <= set(table)
    assert "age" in ok("summary", "run")
    ok("report", "run", "--public")
    page = Path("run-public.html").read_text(encoding="utf-8")
    assert "learned 2 outcomes together" in page
    assert all(f'href="run-{name}-public.html"' in page for name in ("score", "passed"))
    assert "is already there" in refused("report", "run", "--public")
    assert Path("run-score-public.html").is_file()
    assert Path("run-passed-public.html").is_file()
    claimed = Path("run/outcomes.json").read_bytes()
    due = percent(Guarantee.from_dict(json.loads(claimed)["guarantee"]).detection())
    lie = json.loads(claimed) | {"guarantee": cl.Plan.load("run/passed/plan.toml").guarantee.to_dict()}
    Path("run/outcomes.json").write_text(json.dumps(lie))
    ok("report", "run", "--public", "--force")
    page = Path("run-public.html").read_text(encoding="utf-8")
    assert f"detected in at most {due} of cases" in page.replace("\xa0", " ")  # what plans and boards give
    Path("run/outcomes.json").write_bytes(claimed)
    assert set(cl.load("run").outcomes_) == {"score", "passed"}
    assert "already there" in refused(*FIT, "--ledger", "ledger", "--share", "score=3")


def test_what_was_left_goes_on_and_nothing_is_charged_twice() -> None:
    ok("ledger", "create", "ledger", "--population", "pupils", "--tasks", 40, "--epsilon", 4, "--delta", 1e-3)
    ok(*FIT, "--ledger", "ledger")
    shutil.rmtree("run/passed")
    board = Path("run/score/board").read_bytes()
    assert "other plans" in refused(*FIT, "--ledger", "ledger", "--share", "score=2")
    ok(*FIT, "--ledger", "ledger")
    assert Path("run/score/board").read_bytes() == board
    assert len(cl.Ledger.open("ledger").history) == 3  # the folder that was removed had been paid for


def killed(*given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("part", "rounds"), [("secret", "collect"), ("complete", "put_in_place")])
def test_a_run_that_was_killed_after_its_charge_goes_on_in_an_exact_account(
    monkeypatch: pytest.MonkeyPatch, part: str, rounds: str
) -> None:
    ok("ledger", "create", "ledger", "--population", "pupils", "--tasks", 40, "--epsilon", 1, "--delta", 1e-3)
    fit = (*FIT, "--ledger", "ledger", "--delta", 1e-3)
    with monkeypatch.context() as patched:
        patched.setattr(*((Curator, rounds) if rounds == "collect" else (cloister_fit, rounds)), killed)
        assert cloister(*fit).exit_code != 0
    charged = cl.Ledger.open("ledger")
    assert len(charged.history) == 1
    assert Path("run/.score.unfinished", part).is_file()
    assert "do not fit" in refused(*fit[:4], "-o", "other", *fit[6:])
    ok(*fit)
    assert len(charged.history) == 2
    assert 0.99 < charged.spent <= 1.0


def test_a_run_that_was_made_again_by_itself_is_not_of_what_is_promised_together() -> None:
    ok(*FIT)
    ok(*FIT[:-1], "twin")
    shutil.rmtree("run/score")
    shutil.move("twin/score", "run/score")  # of the same plan
    assert "run/score is another run than run/outcomes.json" in refused("summary", "run")
    one = ("fit", "pupils.csv", "--codebook", "book.toml", "--target", "score", "-o", "run/score")
    ok(*one, "--epsilon", 4, "--force")
    ok("summary", "run/score")
    before = json.loads(Path("run/outcomes.json").read_text())
    Path("run/outcomes.json").write_text(json.dumps({n: v for n, v in before.items() if n != "heads"}))
    with pytest.raises(cl.errors.InputError, match="is another run"):  # there were no heads once: by its plan
        cl.load("run")
    ok(*FIT, "--force", "--share", "score=2")  # other plans than those that are replaced
    assert len(cl.load("run").outcomes_) == 2


def test_rows_are_checked_against_all_targets_or_one() -> None:
    check = ("codebook", "pupils.csv", "--check", "book.toml")
    assert list(json.loads(ok(*check, "--json"))["columns"]) == ["age", "score", "passed"]
    spoilt = Path("pupils.csv").read_text().replace(",yes", ",maybe", 1).replace(",no", ",", 1)
    Path("pupils.csv").write_text(spoilt)
    result = cloister(*check)
    said = " ".join(result.stdout.split())
    assert (result.exit_code, "mend passed." in said, "have no 'passed'" in said) == (1, True, True)
    assert "Not in the codebook, and not used: passed" in ok(*check, "--target", "score")
    assert "a target of book.toml: score, passed. Got 'age'" in refused(*check, "--target", "age")


def test_one_of_them_by_its_name_and_what_is_for_one_alone() -> None:
    ok("fit", "pupils.csv", "--codebook", "book.toml", "--target", "passed", "-o", "one")
    assert cl.load("one").codebook_.target.name == "passed"
    several = refused("plan", "pupils.csv", "--codebook", "book.toml")
    assert "has several targets: score, passed. Add --target NAME, one of these; `cloister fit" in several
    assert "without --detection" in refused(*FIT, "--detection", "0.1")
    assert "--share must read TARGET=NUMBER" in refused(*FIT, "--share", "age=2")
    assert "score was given twice" in refused(*FIT, "--share", "score=1", "--share", "score=2")
    assert "outcomes share one budget" in ok(*FIT, "--dry-run")
    assert not Path("run").exists()


def test_whoever_gets_one_outcome_reads_what_all_cost_together() -> None:
    told = json.loads(ok(*FIT, "--json"))["guarantee"]
    rate = percent(told["detection"]["at_most"])
    both = f"one of 2 outcomes under one budget: together epsilon {rounded_up(told['epsilon'])}"
    alone = percent(json.loads(Path("run/score/guarantee.json").read_text())["detection"]["at_most"])
    assert alone != rate
    ok("verify", "run/score")
    ok("report", "run", "--public")
    ok("report", "run/score")
    said = [" ".join(ok("summary", place).split()) for place in ("run", "run/score")]
    said += [Path(f"run/{name}/guarantee.txt").read_text() for name in ("score", "passed")]
    said += [Path(f"run-{page}-public.html").read_text().replace("\xa0", " ") for page in ("score", "passed")]
    said += [Path("score-operator.html").read_text().replace("\xa0", " ")]
    assert all(both in one and f"at most {rate} of cases" in one for one in said)
    assert all(f"with all 2 outcomes {rate}" in page for page in said[-3:])
    assert "Outcome score\n" in ok("summary", "run")
    assert "Leave --interval out, or predict run/score." in refused(
        "predict", "run", "pupils.csv", "--interval", 0.9
    )
    shutil.copytree("run/score", "sent")  # without the other
    assert both in " ".join(ok("summary", "sent").split())
    for command in (["account"], ["audit"], ["show"], ["replay", "--task-name", "1"]):
        more = ["pupils.csv"] if "replay" in command else []
        assert "run holds several outcomes: name one, such as run/score" in refused(
            command[0], "run", *more, *command[1:]
        )


def test_verify_goes_through_all_and_computes_what_they_cost_together() -> None:
    told = json.loads(ok(*FIT, "--json"))["guarantee"]
    assert "Outcome passed" in ok("verify", "run")
    found = json.loads(ok("verify", "run", "--json"))
    assert found["ok"]
    assert found["holds"]
    assert found["guarantee"]["epsilon"] == pytest.approx(told["epsilon"], rel=1e-9)
    place = Path("run/outcomes.json")
    document = json.loads(place.read_text())
    document["guarantee"]["epsilon"] = 0.5
    place.write_text(json.dumps(document))
    lied = cloister("verify", "run")
    assert lied.exit_code == 1
    assert "it says epsilon = 0.5" in " ".join(lied.stdout.split())


def test_one_outcome_cannot_say_less_than_the_plans_beside_it_give() -> None:
    ok(*FIT)
    place = Path("run/score/guarantee.json")
    document = json.loads(place.read_text())
    document["one_of"]["detection"] /= 2
    del document["statement"]
    place.write_text(json.dumps(document))
    Path("run/score/guarantee.txt").write_text(str(Guarantee.from_dict(document)))
    Path("run/score/head.txt").write_text(write_manifest(Path("run/score")))
    lied = " ".join(cloister("verify", "run/score").stdout.split())
    assert "NO the guarantee is what plan and board give: it says that this is one of 2" in lied
    assert lied.count("NO ") == 1
    assert cloister("verify", "run").exit_code == 1
