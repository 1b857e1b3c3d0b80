"""One page about a run: what it says to whom, and that nothing private is in the public edition."""

from __future__ import annotations

import json
import re
import shutil
import stat
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, ok, pupils, refused
from cli_helpers import cloister as cloister_command

import cloister
from cloister import Plan, SharedPriorRegressor, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.app.folder import read_public
from cloister.app.gains import measure_gains
from cloister.app.predict import write_csv
from cloister.app.summary import Coefficient, OwnCoefficient, TaskSummary
from cloister.errors import InputError
from cloister.estimators import PooledRegressor, SharedPriorClassifier
from cloister.learners import LeastSquares
from cloister.ledger import Ledger
from cloister.report.run_figures import rounds_picture, signal_to_noise
from cloister.report.run_page import _unclear
from cloister.store import Release
from cloister.tables.codebook import Codebook

#: What stands in one task's rows, in names, in a column that nobody asked for, and in the name of the file.
CANARY = {"age": 13.577531, "score": 41.424344, "school": "Canary House", "note": "the canary sings"}


class Reader(HTMLParser):
    """Reads a page; every element must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.said: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


def check_page(page: str) -> str:
    """Check that a page is whole and asks nobody for anything; return its words."""
    reader = Reader(page)
    assert reader.fetched == []
    assert not re.search(r"<script|https?://|url\(|@import", page)
    assert 'lang="en"' in page
    assert "prefers-color-scheme: dark" in page
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ET.fromstring(picture)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
    return reader.text


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on data with canaries, its ledger and its audit."""
    folder = tmp_path_factory.mktemp("canary")
    table = pupils(names="School {:03d} of nowhere".format)
    table = {name: np.append(column, column[-1:]) for name, column in table.items()}
    table["note"] = np.repeat("nothing", len(table["age"]))
    for name, value in CANARY.items():
        table[name] = table[name].astype(object)
        table[name][:5] = value
    data = folder / "canaries in a coal mine.csv"
    write_csv(data, table)
    (folder / "book.toml").write_text(BOOK)
    ok("ledger", "create", folder / "our.ledger", "--epsilon", 4, "--tasks", 41)
    fit = ["fit", data, "--codebook", folder / "book.toml", "--ledger", folder / "our.ledger"]
    ok(*fit, "-o", folder / "run")
    write_audit(folder / "audit.json", Plan.load(folder / "run" / "plan.toml"))
    return folder


def write_audit(path: Path, plan: Plan) -> None:
    """Write what an audit would print, as far as a report reads it."""
    about = {"fingerprint": plan.fingerprint, "audited": "2026-07-01", "file": "the canary's own"}
    found = {"verdict": "no contradiction found", "claimed_epsilon": 1.0, "measured_epsilon": 0.8}
    found |= {"delta": 1e-3, "confidence": 0.95, "reasons": [], "audited": about}
    path.write_text(json.dumps(found), encoding="utf-8")


def made(folder: Path, *options: object) -> str:
    page = folder / "page.html"
    ok("report", folder / "run", *options, "-o", page, "--force")
    return page.read_text(encoding="utf-8")


def without_dates(page: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page)


def test_the_public_edition_has_no_canary(canary: Path) -> None:
    evidence = ["--ledger", canary / "our.ledger", "--audit", canary / "audit.json"]
    page = made(canary, "--public", *evidence)
    text = check_page(page)
    models = {p.name: json.loads(p.read_text()) for p in (canary / "run" / "models").glob("*.json")}
    assert len(models) == 41
    names = [model["task"] for model in models.values()]
    assert CANARY["school"] in names
    weights = (f"{value:.4g}" for m in models.values() for value in (*m["coef"], m["intercept"]))
    private = [weight for weight in weights if len(weight) > 4]  # "1.8" is on any page
    assert len(private) > 100
    planted = [*map(str, CANARY.values()), "canar", "13.57", "13.58", "41.42", *names, *private]
    public = ok("summary", canary / "run")  # what is public may be on the page, by chance the same digits
    assert [word for word in planted if word.lower() in page.lower() and word not in public] == []
    for said in (
        "charges of this run's plan are blue",
        "One operator held the rows of all tasks, and was the curator.",
        "the operator, who was the curator",
        "Public edition",
        "may be published",
        "No contradiction found",
        "Over the 1 run charged",
    ):
        assert said in text
    assert "PRIVATE" not in text
    assert "Who gains" not in text


def test_the_public_edition_is_made_without_any_model(canary: Path, tmp_path: Path) -> None:
    """To the byte: whatever the private files are, and whether there are any."""
    shutil.copytree(canary, tmp_path, dirs_exist_ok=True)
    before = without_dates(made(tmp_path, "--public"))
    for model in (tmp_path / "run" / "models").iterdir():
        model.write_text("broken")
    assert without_dates(made(tmp_path, "--public")) == before
    shutil.rmtree(tmp_path / "run" / "models")
    assert without_dates(made(tmp_path, "--public")) == before


def test_the_operators_edition(canary: Path) -> None:
    page = made(canary, "--data", canary / "canaries in a coal mine.csv")
    text = check_page(page)
    assert text.count("PRIVATE") == 2
    assert "Private: made of tasks' own models and rows. Publish nothing of this section" in text
    assert "Who gains" in text
    assert "By how many rows a task has" in text
    assert "How far tasks were drawn together" in text
    assert re.search(r"(narrower|wider) by \d+\s%", text)
    assert "this was expected: with 41 tasks at epsilon" in text
    assert "Plan: shared-prior, after a private search for targets and features, over 41 tasks" in text
    assert f"cloister verify {canary / 'run'} --head" in text
    plan = Plan.load(canary / "run" / "plan.toml")
    assert text.count(plan.fingerprint) == 1
    printed = f"over 41 tasks, {len(plan.rounds)} noisy sums | plan {plan.fingerprint[:16]} |"
    assert re.search(
        r'@bottom-left { content: "shared-prior, after a private search for targets and features, '
        + re.escape(printed),
        page,
    )
    assert f"cloister {cloister.__version__}" in text
    assert stat.S_IMODE((canary / "page.html").stat().st_mode) == 0o600
    for name in ("intercept", "age", "sex[M]"):
        assert name in text
    without = check_page(made(canary))
    assert "To measure it on rows held out" in without
    assert "This run was charged to the account" in without
    assert "No audit was given" in without


def test_a_public_number_that_was_paid_for(canary: Path) -> None:
    """Charged once more, and on the public page; a file that is not of this run is refused."""
    ledger = str(canary / "our.ledger")
    before = Ledger.open(ledger).spent
    file = canary / "paid.json"
    unpaid = cloister_command("evaluate", canary / "run", canary / "canaries in a coal mine.csv")
    assert "and this is not: name its --ledger" in " ".join(unpaid.stderr.split())
    data = canary / "canaries in a coal mine.csv"
    said = ok("evaluate", canary / "run", data, "--ledger", ledger, "--epsilon", "0.5", "-o", file)
    assert "It may be published. It cost every task epsilon 0.5 at delta" in " ".join(said.split())
    assert Ledger.open(ledger).spent > before
    told = json.loads(file.read_text())
    assert told["noise"] == pytest.approx(1 / (told["guarantee"]["curve"]["mu"] * 41), rel=1e-6)
    assert abs(told["share"] - 0.5) < 0.5 + 5 * told["noise"]
    page = check_page(made(canary, "--public", "--evaluation", file))
    assert f"Joining pays for about {100 * told['share']:.0f} % of the tasks" in page
    assert "epsilon 0.5 at delta" in page
    for other in ({"plan": "0" * 64}, {"board": "0" * 64}):  # another plan's; another run's of the same plan
        file.write_text(json.dumps(told | other))
        assert "must be of this run" in refused("report", canary / "run", "--evaluation", file)
    of_before = {key: value for key, value in told.items() if key != "board"}
    file.write_text(json.dumps(of_before))
    ok("report", canary / "run", "--public", "--evaluation", file, "-o", canary / "again.html")


def test_a_tasks_own_edition_has_nothing_of_others(canary: Path) -> None:
    text = check_page(made(canary, "--task", CANARY["school"]))
    assert "PRIVATE: for task Canary House alone" in text
    assert "Your own model" in text
    assert "of nowhere" not in text
    assert "Who gains" not in text
    from_file = check_page(made(canary, "--task", canary / "run" / "models" / "Canary House.json"))
    assert without_dates(from_file) == without_dates(text)


def test_from_python(tmp_path: Path) -> None:
    table = pupils()
    y = table.pop("score")
    book = Codebook.load(_written(tmp_path / "book.toml", BOOK))
    ledger = Ledger(4.0, 1e-3)
    model = SharedPriorRegressor("school", bounds=book, ledger=ledger).fit(table, y)
    text = check_page(model.report(tmp_path / "all.html", table, y).read_text(encoding="utf-8"))
    assert "tasks predict better joined than alone" in text
    assert "Over the 1 run charged" in text
    public = check_page(model.report(tmp_path / "public.html", public=True).read_text(encoding="utf-8"))
    assert "Public edition" in public
    own = check_page(model.report(tmp_path / "own.html", task="003").read_text(encoding="utf-8"))
    assert "for task 003 alone" in own
    for arguments, sentence in (
        ({"public": True, "task": "003"}, "public=True is made of public things alone"),
        ({"X": table, "y": y, "task": "003"}, "X and y are for the operator's edition"),
        ({"X": table}, "X must come with y"),
        ({"task": "nobody"}, "There is no model of task 'nobody'"),
        ({"audit": tmp_path / "nowhere.json"}, "cannot be read"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            model.report(tmp_path / "other.html", **arguments)
    with pytest.raises(InputError, match="is already there"):
        model.report(tmp_path / "own.html")
    assert not (tmp_path / "other.html").exists()
    pooled = PooledRegressor("school", bounds=book).fit(table, y)
    with pytest.raises(InputError, match="no page about it"):
        pooled.report(tmp_path / "other.html")


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_not_private_has_no_public_edition(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, task = {"x": rng.uniform(size=120), "<b>": rng.uniform(size=120)}, np.arange(120) % 30
    y = np.where(X["x"] + rng.normal(0, 0.3, 120) > 0.5, "yes", "no")
    bounds = {"x": (0, 1), "<b>": (0, 1), "y": ["no", "yes"]}
    seeded = SharedPriorClassifier(bounds=bounds, random_state=0).fit(X, y, tasks=task)
    with pytest.raises(InputError, match=r"whose guarantee holds\. This one's does not: .*seed"):
        seeded.report(tmp_path / "page.html", public=True)
    text = check_page(seeded.report(tmp_path / "page.html", X, y, task).read_text(encoding="utf-8"))
    assert "the guarantee does not hold" in text
    assert "“<b>”" in text  # names are text, and not part of the page
    bare = SharedPriorClassifier(bounds=bounds, epsilon=np.inf).fit(X, y, tasks=task)
    text = check_page(bare.report(tmp_path / "page.html", force=True).read_text(encoding="utf-8"))
    assert "nothing protects them" in text
    assert "sums were published as they are" in text


def test_a_run_without_a_table(tmp_path: Path) -> None:
    tasks = Tasks.from_list([np.full((4, 2), 0.5)] * 30, [np.full(4, 0.2)] * 30)
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=3), n_tasks=30).calibrate(epsilon=1.0)
    run(plan, tasks).save(tmp_path / "run")
    text = check_page(made(tmp_path))
    assert "There are no models here" in text
    assert "3 noisy sums published" in text
    check_page(made(tmp_path, "--public"))
    assert "Leave --task out" in refused("report", tmp_path / "run", "--task", "0", "-o", tmp_path / "x")
    assert "Leave --data out" in refused("report", tmp_path / "run", "--data", "t", "-o", tmp_path / "x")


def test_wrong_things_get_a_sentence(work: Path) -> None:
    own = ["report", "run", "-o", "page.html"]
    assert "has no model of task 'nobody'" in refused(*own, "--task", "nobody")
    assert "--population names an account" in refused(*own, "--population", "schools")
    assert "must be what an audit found" in refused(*own, "--audit", "book.toml")
    plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=40).calibrate(1.0)
    write_audit(Path("audit.json"), plan)
    assert "must be of this run's plan" in refused(*own, "--audit", "audit.json")
    ok("ledger", "create", "other.ledger", "--epsilon", 2, "--tasks", 40)
    ok(*own, "--ledger", "other.ledger")
    page = Reader(Path("page.html").read_text()).text
    assert "No charge there is of this run's plan" in page
    assert "Over the 0 runs" not in page
    assert "are blue" not in page
    assert "is already there" in refused(*own)
    for task in ("007", "008"):  # each has a page of its own, and a name is looked up before a file is
        ok("report", "run", "--task", task)
        assert f"for task {task} alone" in Path(f"run-task-{task}.html").read_text()
    assert "has no model of task 'nobody'" in refused(*own, "--task", "nobody")
    assert "run-task-007.html is already there" in refused("report", "run", "--task", "007")
    with Path("run/guarantee.txt").open("a", encoding="utf-8") as words:
        words.write("And nobody can see anything.")
    assert "guarantee.txt was changed since" in refused("report", "run", "--public", "-o", "public.html")


def test_gains_are_those_of_models_on_rows_held_out(made: Path) -> None:
    """Where tasks differ little and have few rows, most gain."""
    table = pupils()
    public = read_public(made / "run")
    book = public.codebook
    data = Tasks.from_arrays(book.encode(table), book.encode_target(table["score"]), table["school"])
    gains = measure_gains(public, data)
    assert gains.left_out == 0
    sizes = gains.by_rows
    assert sum(tasks for _, tasks, _, _ in sizes) == len(gains.joined)
    assert sum(better for _, _, better, _ in sizes) == gains.better
    assert gains.share > 0.5
    assert gains.change < -0.05
    few = data.select(np.arange(3))
    assert measure_gains(public, few).alone == pytest.approx(gains.alone[:3])
    assert measure_gains(public, few).joined == pytest.approx(gains.joined[:3])


def test_a_tasks_rows_decide_over_its_own_gain_alone(made: Path) -> None:
    """So a count of those that gain moves by one at most, and by one where a task's rows turn it: tight."""
    table = pupils()
    book = read_public(made / "run").codebook
    encoded = book.encode(table), book.encode_target(table["score"])
    public, turned = read_public(made / "run"), False
    data = Tasks.from_arrays(*encoded, table["school"])
    gains = measure_gains(public, data).changes < 0
    for seed in range(20):
        own = np.asarray(table["school"]) == f"{seed:03d}"
        y = encoded[1].copy()
        y[own] = np.random.default_rng(seed).permutation(y)[own] * 5
        others = measure_gains(public, Tasks.from_arrays(encoded[0], y, table["school"])).changes < 0
        assert np.delete(others, seed).tolist() == np.delete(gains, seed).tolist()
        turned = turned or bool(others[seed] != gains[seed])
    assert turned


def test_noise_alone_is_not_heard() -> None:
    """Each release of noise is called heard with probability 2.5 %: more than 40 of 800, once in 10,000."""
    rng = np.random.default_rng(0)
    noise = [Release(rng.normal(0, 3.0, size), 3.0, 50.0) for size in (1, 4, 32, 500) * 200]
    found = signal_to_noise(noise)
    assert 5 < found.heard < 40
    assert found.ratio[3::4] == pytest.approx(1.0, abs=0.2)
    loud = signal_to_noise([Release(np.full(9, 10.0), 1.0, 50.0)])
    assert (loud.heard, loud.signal) == (1, pytest.approx([np.sqrt(99)]))
    assert rounds_picture(found, 760, 300).count("<circle") == 150
    ET.fromstring(rounds_picture(loud, 380, 300))


def test_coefficients_that_say_nothing_are_said_to() -> None:
    found = [Coefficient("intercept", 9.0, 1.0), Coefficient("age", 1.9, 1.0)]
    assert _unclear(found) == "No coefficient but the intercept stands two standard errors from zero."
    assert _unclear(found[1:]) == "No coefficient stands two standard errors from zero."
    assert _unclear([*found, Coefficient("sex", -2.0, 1.0)]) == ""
    assert _unclear([*found, Coefficient("sex", 0.1)]) == ""  # whose error is not known


def test_a_task_that_stays_with_its_own_prior_was_not_drawn() -> None:
    coefficient = OwnCoefficient("age", 1.0, 0.1, 1.0, 2.0, 1.0)
    said = [TaskSummary("a", (coefficient,), 9.0, weight, None, None).sentences for weight in (0.5, 0.001)]
    assert ["was drawn" in " ".join(each) for each in said] == [True, False]
