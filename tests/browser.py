"""A real browser, driven over WebDriver with the standard library: how a page looks, and whom it asks."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: Texts that lie over each other, are cut, or stick out of the page; run in the page.
FAULTS = """
const faults = [], wide = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > wide + 1) faults.push('the page is wider than the window');
const shown = e => e.checkVisibility() && e.getBoundingClientRect().width > 0;
const inside = (a, b) =>
  a.left > b.left - 1 && a.right < b.right + 1 && a.top > b.top - 1 && a.bottom < b.bottom + 1;
const shared = (from, to, other, end) => Math.min(to, end) - Math.max(from, other);
for (const svg of document.querySelectorAll('svg')) {
  if (!shown(svg)) continue;
  const frame = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')].filter(shown);
  const boxes = texts.map(t => t.getBoundingClientRect());
  boxes.forEach((a, i) => {
    if (!inside(a, frame)) faults.push('cut: ' + texts[i].textContent);
    boxes.slice(i + 1).forEach((b, j) => {
      const across = shared(a.left, a.right, b.left, b.right);
      const down = shared(a.top, a.bottom, b.top, b.bottom);
      if (across > 1 && down > 4)
        faults.push('overlap: ' + texts[i].textContent + ' / ' + texts[i + 1 + j].textContent);
    });
  });
}
for (const e of wide > 1000 ? document.querySelectorAll('.scroll') : [])
  if (shown(e) && e.scrollWidth > e.clientWidth + 1) faults.push('cut: ' + e.textContent.slice(0, 60));
const words = 'h1,h2,h3,p,li,td,th,dd,dt,code,figcaption,summary,button,label,output,select,input,legend';
for (const e of document.querySelectorAll(words)) {
  if (!shown(e) || e.closest('.scroll, .toc-drawer, .sidebar-drawer')) continue;
  const said = e.textContent.slice(0, 60), flows = getComputedStyle(e).display === 'inline';
  if (e.getBoundingClientRect().right > wide + 1) faults.push('sticks out: ' + said);
  if (e.scrollWidth > e.clientWidth + 1 && !flows) faults.push('too long for its place: ' + said);
}
return faults;
"""
#: The text with the least contrast to what is behind it, and that contrast.
CONTRAST = """
const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = c => [.2126, .7152, .0722].reduce((sum, w, i) => sum + w * linear(c[i] / 255), 0);
const behind = e => {
  for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length == 3 || c[3] > .99) return c;
  }
  return [255, 255, 255];
};
let least = [99, ''];
for (const e of document.querySelectorAll('h1,h2,h3,p,li,td,th,dd,dt,figcaption,.badge,code,svg text')) {
  if (!e.checkVisibility() || !e.textContent.trim()) continue;
  const style = getComputedStyle(e), ink = light(rgb(e.tagName == 'text' ? style.fill : style.color));
  const paper = light(behind(e)), ratio = (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
  if (ratio < least[0]) least = [ratio, e.textContent.trim().slice(0, 40)];
}
return least;
"""


@dataclass
class Browser:
    """One window of a headless Chromium."""

    address: str
    session: str

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return _ask(self.address, method, f"/session/{self.session}{path}", body)

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def script(self, text: str) -> Any:
        return self("POST", "/execute/sync", {"script": text, "args": []})

    def open(self, url: str) -> None:
        self("POST", "/url", {"url": url})

    def look(self, width: int, dark: bool = False, media: str = "") -> None:
        """Make the window so wide, in light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self, path: Path) -> None:
        found = self.cdp("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        found = self.cdp("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(found["data"])

    def log(self, kind: str) -> list[dict[str, Any]]:
        return self("POST", "/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since this was last called."""
        messages = (json.loads(entry["message"])["message"] for entry in self.log("performance"))
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def _ask(address: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        address + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from None


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser; skip the test where there is none."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or chromium is None:
        pytest.skip("chromium and chromedriver are not installed: apt-get install chromium chromium-driver")
    command = [driver, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            started = next(line for line in process.stdout if "started successfully on port" in line)
            address = f"http://127.0.0.1:{started.split()[-1].strip('.')}"
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            wanted = {
                "goog:chromeOptions": {"binary": chromium, "args": arguments},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = _ask(address, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            window = Browser(address, made["sessionId"])
            try:
                yield window
            finally:
                window("DELETE", "")  # the browser ends too, whatever went wrong
        finally:
            process.terminate()
