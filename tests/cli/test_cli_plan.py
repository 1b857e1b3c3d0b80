"""A plan from public numbers: what it says, that no row moves it, and a page for this machine alone."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import BOOK, cloister, ok, refused
from typer.testing import CliRunner

from cloister import Codebook, Ledger, Plan, Trust, Unit
from cloister import load as cloister_load
from cloister.cli import app
from cloister.cli.methods import Method
from cloister.cli.plan_page import Page, PlannerServer
from cloister.cli.planning import COMMON, EPSILONS, Wish, stand_in
from cloister.cli.proposals import PrivacyTarget
from cloister.plan.forecast import DEPENDABLE
from cloister.privacy.accounting import default_delta
from cloister.privacy.statement import rounded_up

PLAN = ["plan", "exam.csv", "--codebook", "book.toml"]
ONE = PrivacyTarget(1.0, None, 0.05)


def test_the_plan_can_be_priced_and_run(work: Path) -> None:
    said = ok(*PLAN, "--rows", 8)
    assert ok(*PLAN, "--rows", 8) == said
    assert not Path("plan.toml").exists()
    ok(*PLAN, "-o", "plan.toml")
    for words in ("exam.csv: 40 tasks, 2 encoded columns", "Proposed: shared-prior", "epsilon 1 at delta"):
        assert words in " ".join(said.split())
    plan = Plan.load("plan.toml")
    assert plan == Wish(Codebook.load("book.toml"), 40, ONE).plan
    assert "epsilon = 1)" in ok("account", "plan.toml")
    ok("fit", "exam.csv", "--codebook", "book.toml", "--plan", "plan.toml", "-o", "planned")
    assert Plan.load("planned/plan.toml") == plan
    found = json.loads(
        ok(*PLAN, "--detection", 0.10, "--method", "low-rank", "-o", "plan.toml", "--force", "--json")
    )
    assert found["detection"] == pytest.approx(0.10, abs=1e-4)
    assert found["algorithm"] == type(Plan.load("plan.toml").algorithm).__name__
    assert (found["method"], found["plan"]) == ("low-rank", "plan.toml")


def test_whom_tasks_trust(work: Path) -> None:
    """Who is named is who the plan is priced against; it runs, and its folder verifies."""
    secure = ["--trust", "secure-sum", "--dropouts", 2, "--colluders", 3]
    said = " ".join(ok(*PLAN, *secure).split())
    assert "in shares that the tasks add at home" in said
    assert "the curator and 3 of the tasks together detect" in said
    assert "Add -o plan.toml" in said
    assert "cloister fit exam.csv" not in said  # which would be another plan
    pays = {}
    trusts = {
        (): Trust.curator(),
        ("--trust", "silo"): Trust.silo(),
        tuple(secure): Trust.secure_sum(2, 3),
        (*secure, "--curator-noise"): Trust.secure_sum(2, 3, curator_noise=True),
    }
    for given, trust in trusts.items():
        found = json.loads(ok(*PLAN, *given, "-o", "plan.toml", "--force", "--json"))
        pays[len(given)] = found["joining_pays_from"]
        assert Plan.load("plan.toml").trust == trust
    assert pays[2] > 3 * pays[6] > 3 * pays[0] > 0
    assert pays[7] > pays[6]  # twice the variance, but for drop-outs and colluders
    ok(*PLAN, "--trust", "secure-sum", "-o", "plan.toml", "--force")
    ok("fit", "exam.csv", "--codebook", "book.toml", "--plan", "plan.toml", "-o", "planned")
    assert "nobody sees the message of another task" in ok("verify", "planned") + ok("account", "plan.toml")
    for alone in (["--colluders", 3], ["--trust", "silo", "--curator-noise"]):
        assert "go with --trust secure-sum" in cloister(*PLAN, *alone).stderr
    assert "with a trusted curator" in cloister(*PLAN, "--trust", "silo", "--web").stderr
    said = refused(*PLAN, "--trust", "secure-sum", "--colluders", 39)
    assert "2 that neither drop out nor collude" in said


@pytest.mark.parametrize(
    "options",
    [
        ["--unit", "record=400", "--epsilon", 2],
        ["--relation", "zero_out", "--delta", 1e-4, "--method", "low-rank"],
        ["--detection", 0.10],
    ],
)
def test_the_printed_command_runs_the_plan_that_was_shown(work: Path, options: list[object]) -> None:
    """Also of one target among several, and charged to the ledger that was asked."""
    several = BOOK.replace("[target]", '[[target]]\nname = "late"\nbounds = [0, 1]\n[[target]]')
    Path("book.toml").write_text(several)
    ok(*PLAN, "--target", "score", *options, "-o", "plan.toml")
    plan = Plan.load("plan.toml")
    account = {"epsilon": 4, "delta": 1e-3, "relation": plan.relation, "unit": plan.guarantee.unit}
    Ledger.create("ledger", "ours", n_tasks=plan.senders, **account)
    (command,) = (
        line.split()[1:]
        for line in ok(*PLAN, "--target", "score", *options, "--ledger", "ledger").splitlines()
        if line.startswith("  cloister fit")
    )
    ok(*command, "-o", "ours")
    assert Plan.load("ours/plan.toml") == plan
    assert len(Ledger.open("ledger").history) == 1


def test_who_is_protected(work: Path) -> None:
    """A plan by record says so, is priced for as many, runs and verifies; others' options are refused."""
    said = " ".join(ok(*PLAN, "--unit", "record=400", "-o", "plan.toml").split())
    assert "detect one record's data" in said
    assert "Which unit: neither" in said
    plan = Plan.load("plan.toml")
    assert (plan.unit, plan.delta) == (Unit.record(400), default_delta(400))
    ok("fit", "exam.csv", "--codebook", "book.toml", "--unit", "record=400", "-o", "ours")
    assert Plan.load("ours/plan.toml") == plan
    assert "each record of any of the 40 tasks" in ok("verify", "ours") + ok("account", "ours")
    assert cloister_load("ours").unit == Unit.record(400)
    assert "at most 39 records" in refused(
        "fit", "exam.csv", "--codebook", "book.toml", "--unit", "record=39", "-o", "few"
    )
    few = refused("fit", "exam.csv", "--codebook", "book.toml", "--unit", "record=40", "-o", "few")
    assert "Give --unit a larger public N." in few
    for word in ("record", "person=400"):
        assert "must be task, record=N" in " ".join(cloister(*PLAN, "--unit", word).stderr.split())
    assert "The page plans for tasks" in " ".join(
        cloister(*PLAN, "--web", "--unit", "record=400").stderr.split()
    )
    by_record = json.loads(ok(*PLAN, "--unit", "record=400", "--json"))
    assert by_record["verdict"].startswith("Which unit: neither. ")
    assert not by_record.keys() & {"joining_pays_from", "epsilon_needed"}
    assert by_record["forecast"].keys() == {"heard", "calibrated"}
    heard = {row["epsilon"]: row["heard"] for row in by_record["at_other_epsilons"]}
    assert heard[1.0] == pytest.approx(by_record["forecast"]["heard"], rel=1e-6)
    paid = " ".join(ok("evaluate", "ours", "exam.csv", "--epsilon", 0.5).split())
    assert "% of the 40 tasks; the noise" in paid
    assert f"It cost every record epsilon 0.5 at delta {rounded_up(default_delta(400))} on top" in paid
    refusal = refused(*PLAN, "--unit", "record=400", "--method", "low-rank")
    assert "low-rank protects tasks" in refusal
    found = json.loads(ok("plan", "--tasks", 12, "--columns", 20, "--rows", 500, "--json"))
    assert (found["unit"], found["which_unit"]["unit"]) == ("task", "record")


def test_what_a_run_would_leave_of_a_budget(work: Path) -> None:
    """It is what the ledger says once the run is charged; planning charges nothing."""
    Ledger.create("ledger", "schools", epsilon=2, delta=1e-3, n_tasks=40)
    said = " ".join(ok(*PLAN, "--ledger", "ledger").split())
    assert "The account 'schools': epsilon 0 of 2 is spent at delta 0.001. With this run it would be" in said
    room = json.loads(ok(*PLAN, "--ledger", "ledger", "--json"))["ledger"]
    assert not Ledger.open("ledger").history
    ok(*PLAN, "-o", "plan.toml")
    for left in range(room["runs"], 0, -1):
        assert json.loads(ok(*PLAN, "--ledger", "ledger", "--json"))["ledger"]["runs"] == left
        ok("ledger", "charge", "ledger", "plan.toml")
    account = Ledger.open("ledger")
    assert len(account.history) == room["runs"] >= 2
    full = json.loads(ok(*PLAN, "--ledger", "ledger", "--json"))["ledger"]
    assert (full["spent"], full["remaining"], full["runs"]) == (account.spent, account.remaining, 0)
    assert "This run does not fit" in " ".join(ok(*PLAN, "--ledger", "ledger").split())
    assert "that delta would fit" in refused("ledger", "charge", "ledger", "plan.toml")


@pytest.mark.parametrize("command", [PLAN, ["fit", *PLAN[1:], "--dry-run", "-o", "new"]], ids=["plan", "fit"])
def test_a_ledger_that_would_refuse_the_run_is_said_before(work: Path, command: list[str]) -> None:
    asked = [*command, "--ledger", "ledger"]
    assert "There is no ledger" in refused(*asked)
    account = Ledger.create("ledger", "schools", epsilon=1.5, delta=1e-3)
    assert "Open an account with --unit record, or" in refused(*asked, "--unit", "record=400")
    ok(*PLAN, "--trust", "silo", "-o", "silo.toml")
    for left in (0, 1):
        said, room = " ".join(ok(*asked).split()), json.loads(ok(*asked, "--json"))["ledger"]
        assert ("This run does not fit" in said) == (room["runs"] == 0) == bool(left)
        assert len(account.history) == left
        if not left:
            ok("ledger", "charge", "ledger", ok(*PLAN, "-o", "plan.toml") and "plan.toml")
    assert "together they would promise neither" in refused(*asked, "--trust", "silo")
    Ledger.create("others", "schools", epsilon=1.5, delta=1e-3)
    ok("ledger", "charge", "others", "silo.toml")
    assert "together they would promise neither" in refused(*command, "--ledger", "others")


def test_no_row_moves_the_plan(work: Path) -> None:
    ok(*PLAN, "-o", "before.toml")
    lines = Path("exam.csv").read_text().splitlines()
    at = lines[0].split(",").index("school")
    spoilt = [",".join(c if i == at else "?!" for i, c in enumerate(line.split(","))) for line in lines[1:]]
    Path("exam.csv").write_text("\n".join([lines[0], *spoilt]) + "\n")
    said = [json.loads(ok(*PLAN, "-o", "after.toml", "--force", "--json")) for _ in range(2)]
    assert said[0] == said[1]
    assert Path("after.toml").read_bytes() == Path("before.toml").read_bytes()
    ok(*PLAN, "--rows", 3, "-o", "after.toml", "--force")  # a guess at rows is for the forecast alone
    assert Path("after.toml").read_bytes() == Path("before.toml").read_bytes()


@pytest.mark.parametrize("tasks", [30, 139, 2000])
def test_from_where_joining_pays_is_where_the_forecast_says_so(tasks: int) -> None:
    wish = Wish(stand_in(5), tasks, ONE, rows=10)
    there, before = (replace(wish, tasks=n).forecast.low for n in (wish.pays_from, wish.pays_from * 3 // 4))
    assert before < DEPENDABLE <= there
    assert wish.at(wish.epsilon_needed).forecast.low == pytest.approx(DEPENDABLE, abs=0.02)
    assert ("Joining pays:" in wish.verdict) == (tasks >= wish.pays_from)


def test_no_advice_that_would_not_protect_and_no_forecast_of_a_few() -> None:
    far, few = Wish(stand_in(50), 20, ONE), Wish(stand_in(5), 2, ONE)
    assert far.epsilon_needed > 16
    assert "or about epsilon" not in far.verdict
    assert "may cost as much as 15 % of what sharing" in far.verdict
    assert "cannot be said of so few tasks" in few.verdict
    said = ok("plan", "--tasks", 2, "--columns", 5)
    assert "No forecast: too few tasks" in " ".join(said.split())
    assert "85 %" not in said


def test_curves_are_those_of_plans() -> None:
    for method in (Method.shared_prior, Method.mean_regularized):
        wish = Wish(stand_in(9, classes=3), 400, ONE, method, rows=20)
        for epsilon, detected, low, high in wish.over_epsilon(EPSILONS):
            plan = wish.at(epsilon).plan
            assert detected == pytest.approx(plan.guarantee.detection(), rel=1e-3)
            assert (low, high) == pytest.approx((plan.forecast(20).low, plan.forecast(20).high), abs=0.03)
        for tasks, low, _ in wish.over_tasks([100, 400, 3000]):
            assert low == pytest.approx(replace(wish, tasks=tasks).forecast.low, abs=0.03)


def ask(*answers: str) -> str:
    result = CliRunner().invoke(app, ["plan"], input="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_five_questions(work: Path) -> None:
    said = ask("exam.csv", "book.toml", "10 %", "1", "8")
    assert "5. About how many rows" in said
    assert "at most 10 % of cases" in said
    assert "cloister fit exam.csv --codebook book.toml --detection 0.1" in said
    again = ask(
        *(
            "nowhere.csv",
            "exam.csv",
            "nobook",
            "",
            "school",
            "score",
            "0",
            "1 %",
            "?",
            "0.5",
            "9",
            "4",
            "x",
            "",
        )
    )
    for sentence in (
        "There is no file nowhere.csv",
        "There is no file nobook",
        "Epsilon must be above 0",
        "above 5 %, which guessing detects",
        "that must be a number",
        "from 1 to 6. Got '9'",
        "Proposed: mean-regularized",
        "cloister codebook exam.csv --task school --target score",
    ):
        assert sentence in again
    by_number = ask("200", "", "7", "", "", "")
    assert "200 tasks, 7 encoded columns" in by_number
    assert "Nobody answers" in cloister("plan").stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["exam.csv"], "Without a codebook, name the columns"),
        (["exam.csv", "--task", "nope", "--target", "score"], "no column 'nope'"),
        (["exam.csv", "--task", "school", "--target", "school"], "must be different columns"),
        (["--tasks", "10"], "Give --codebook, or --columns"),
        (["--codebook", "book.toml"], "Name the table, give --tasks"),
        (["--tasks", "1", "--columns", "3"], "--tasks must be from 2"),
        (["--tasks", "10", "--columns", "0"], "--columns must be from 1"),
        (["--tasks", "10", "--columns", "3", "--classes", "1"], "--classes must be from 2"),
        (["--tasks", "10", "--columns", "3", "--rows", "0"], "--rows must be at least 1"),
        (["--tasks", "10", "--columns", "3", "--epsilon", "inf"], "--epsilon must be above 0 and finite"),
        (["--tasks", "10", "--columns", "3", "--detection", "0.03"], "above 5 %"),
        (["--tasks", "10", "--columns", "3", "--method", "single-task"], "--method must be one of"),
        (["--tasks", "10", "--columns", "3", "-o", "plan.toml"], "needs the table's codebook"),
        (["exam.csv", "--codebook", "exam.csv"], "must be readable TOML"),
        (["exam.csv", "--codebook", "book.toml", "-o", "book.toml"], "is already there"),
    ],
)
def test_wrong_things_get_a_sentence(work: Path, options: list[str], sentence: str) -> None:
    assert sentence in refused("plan", *options)
    assert not Path("plan.toml").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["exam.csv", "--codebook", "book.toml", "--tasks", "9"],
        ["--codebook", "book.toml", "--columns", "3"],
        ["--tasks", "9", "--columns", "3", "--epsilon", "1", "--detection", "0.1"],
        ["--json"],
    ],
)
def test_what_contradicts_itself_is_not_understood(work: Path, options: list[str]) -> None:
    assert cloister("plan", *options).exit_code == 2


@pytest.fixture(scope="module")
def served(made: Path) -> Iterator[PlannerServer]:
    book = Codebook.load(made / "book.toml")
    with PlannerServer(Page(Wish(book, 40, ONE), True, True, "exam.csv --codebook book.toml")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(
    server: PlannerServer, place: str, method: str = "GET", host: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    headers = {} if host is None else {"Host": host}
    try:
        connection.request(method, place, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


QUERY = "epsilon=2&method=shared-prior&rows=8"


def test_the_page_is_for_this_machine_alone(served: PlannerServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert served.server_address[0] == "127.0.0.1"
    home = f"/{served.token}/"
    assert len(served.token) >= 32
    assert get(served, home)[0] == 200
    assert get(served, home, host=f"localhost:{served.server_port}")[0] == 200
    for host in ("evil.example", f"evil.example:{served.server_port}", "127.0.0.1", "127.0.0.1:1"):
        assert get(served, home, host=host)[0] == 403
    for place in ("/", f"/{served.token[:-1]}/", f"/x{served.token}/", f"{home}../", f"{home}etc/passwd"):
        assert get(served, place)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert get(served, home, method)[0] == 501
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")  # nothing with the secret in it is logged


def test_the_page_asks_nobody_else(served: PlannerServer) -> None:
    _, headers, body = get(served, f"/{served.token}/")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'self'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    page = body.decode()
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert page.count("<script") == page.count(f'<script nonce="{nonce}"') == 1
    assert "http" not in page
    other = get(served, f"/{served.token}/")[1]["Content-Security-Policy"]
    assert nonce not in other


def test_sliders_get_an_answer(served: PlannerServer) -> None:
    status, _, body = get(served, f"/{served.token}/outlook?{QUERY}")
    found = json.loads(body)
    wish = Wish(served.page.wish.codebook, 40, PrivacyTarget(2.0, None, 0.05), rows=8.0)
    assert status == 200
    assert found["verdict"] == wish.verdict
    assert found["rounds"] == str(len(wish.plan.rounds))
    assert found["command"].startswith("cloister plan exam.csv --codebook book.toml --epsilon 2 --method")
    assert found["over_epsilon"].count("<svg") == found["over_tasks"].count("<svg") == 2
    plan = get(served, f"/{served.token}/plan.toml?{QUERY}")[2].decode()
    assert Plan.from_toml(plan) == wish.plan


@pytest.mark.parametrize(
    "query",
    [
        "",
        "epsilon=x&method=shared-prior",
        "epsilon=nan&method=shared-prior",
        "epsilon=1e9&method=shared-prior",
        "epsilon=1&method=__init__",
        "epsilon=1&method=single-task",
        "epsilon=1&method=shared-prior&rows=-3",
        "&".join(f"a{i}=1" for i in range(50)),
    ],
)
def test_wrong_sliders_get_a_sentence(served: PlannerServer, query: str) -> None:
    for place in ("outlook", "plan.toml"):
        status, _, body = get(served, f"/{served.token}/{place}?{query}")
        assert status == 400
        assert json.loads(body)["error"].endswith(".")


def test_without_a_codebook_there_is_no_file() -> None:
    page = Page(Wish(stand_in(5), 150, ONE), False, False)
    with PlannerServer(page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        query = f"tasks=300&columns=7&classes=3&{QUERY}"
        found = json.loads(get(server, f"/{server.token}/outlook?{query}")[2])
        assert get(server, f"/{server.token}/plan.toml?{query}")[0] == 404
        assert get(server, f"/{server.token}/outlook?{query}&tasks=1")[0] == 400
        server.shutdown()
    assert found["command"] == (
        "cloister plan --tasks 300 --columns 7 --classes 3 --epsilon 2 --method shared-prior --rows 8"
    )
    assert json.loads(ok(*found["command"].split()[1:], "--json"))["verdict"] == found["verdict"]


def test_every_method_can_be_planned() -> None:
    for method in COMMON:
        for book in (stand_in(4), stand_in(4, classes=2)):
            assert Wish(book, 60, ONE, method).plan.guarantee.epsilon == pytest.approx(1.0, abs=1e-4)
