"""The documentation site builds without a warning, its links lead somewhere, and it loads nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import CONTRAST, FAULTS, browser

pytest.importorskip("furo")
pytestmark = pytest.mark.slow  # test_docs.py looks at links of the pages as they are written

DOCS = Path(__file__).parents[1] / "docs"
PUBLIC = (
    "algorithms audit channel core.spec datasets engines errors estimators evaluation learners "
    "ledger mechanisms metrics report.plots sampling store tune"
)


class Page(HTMLParser):
    """What a page names, links to, and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name == "href" and value and tag == "a":
                self.links.append(value)
            if value and ((name == "src") or (name == "href" and tag == "link")):
                self.loads.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-D", "toc_object_entries=0"]  # a fifth of the time
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        assert not [url for url in page.loads if urlsplit(url).netloc], path
        for url in page.links:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name} links to {url}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name} links to {url}"


def test_the_folder_opens_at_the_front_page(site: Path) -> None:
    with browser() as window:
        window.open((site / "index.html").as_uri())
        assert window.script("return document.querySelector('h1').textContent").startswith("cloister")


def test_everything_public_is_in_the_reference(site: Path) -> None:
    described = {i for path in (site / "api").glob("*.html") for i in Page(path.read_text("utf-8")).ids}
    for package in PUBLIC.split():
        module = importlib.import_module(f"cloister.{package}")
        names = {f"cloister.{package}.{name}" for name in module.__all__ if callable(getattr(module, name))}
        missing = names - described
        assert not missing


@pytest.mark.parametrize("name", ["README", "gallery"])
def test_pages_in_a_browser(site: Path, name: str) -> None:
    """Nothing overlaps, is cut or faint, nothing goes wrong, and nobody is asked."""
    with browser() as window:
        for width in (1280, 768, 390):
            for dark in (False, True):
                window.look(width, dark)
                window.open((site / f"{name}.html").as_uri())
                assert window.script(FAULTS) == [], (width, dark)
                assert window.script(CONTRAST)[0] >= 4.5, (width, dark)
        window.look(794, media="print")
        assert window.script(FAULTS) == []
        assert window.pdf().startswith(b"%PDF")
        assert window.log("browser") == []
        assert all(address.startswith(("file:", "data:")) for address in window.requests())
