"""The planner as a page, served to this machine alone: ``cloister plan --web``."""

from __future__ import annotations

import hmac
import json
import math
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from cloister.cli.methods import Method
from cloister.cli.planning import COMMON, Wish, stand_in
from cloister.cli.proposals import PrivacyTarget
from cloister.cli.shell import say
from cloister.core.errors import CloisterError, InputError
from cloister.plan.forecast import FEWEST_TASKS
from cloister.privacy.statement import percent
from cloister.report.html_page import Stamp, load_template
from cloister.report.planner_figures import epsilon_picture, tasks_picture

_EPSILONS = np.geomspace(0.05, 16, 40).round(6).tolist()
_TASKS = np.unique(np.geomspace(FEWEST_TASKS, 1_000_000, 50).astype(int)).tolist()
_SIZES = ((760, 340), (380, 320))
#: The page may run its own script and ask its own server; nothing else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Page:
    """What the planner shows: a wish to begin with, and what of it cannot be moved.

    Attributes
    ----------
    wish : Wish
        Where sliders stand at first.
    tasks_settled, own_codebook : bool
        Whether the table says how many tasks there are, and whether the codebook is the table's own.
    source : str
        How the command names table and codebook, for the one to copy.
    """

    wish: Wish
    tasks_settled: bool
    own_codebook: bool
    source: str = ""

    def html(self, nonce: str) -> str:
        context = {"epsilon": self.wish.plan.guarantee.epsilon, "common": COMMON, "nonce": nonce}
        return str(
            load_template("planner.html").render(
                wish=self.wish,
                tasks_settled=self.tasks_settled,
                own_codebook=self.own_codebook,
                stamp=Stamp.of(self.wish.plan),
                **context,
            )
        )

    def moved(self, query: Mapping[str, str]) -> Wish:
        """Return the wish that sliders ask for; refuse what is none."""
        wish = self.wish
        if not self.tasks_settled:
            wish = replace(wish, tasks=_whole("tasks", query))
        if not self.own_codebook:
            classes = _whole("classes", query) if query.get("classes") else None
            wish = replace(wish, codebook=stand_in(_whole("columns", query), classes))
        epsilon = _number("epsilon", query)
        if not 1e-3 <= epsilon <= 100:
            raise InputError(f"epsilon must be from 0.001 to 100. Got {epsilon:g}.")
        method = query.get("method", "")
        if method not in list(COMMON):
            raise InputError(f"method must be one of {', '.join(COMMON)}.")
        rows = _number("rows", query) if query.get("rows") else None
        return replace(wish, target=PrivacyTarget(epsilon, None, 0.05), method=Method(method), rows=rows)

    def outlook(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what the page says of a wish: words and pictures."""
        wish = self.moved(query)
        found, plan, stamp = wish.forecast, wish.plan, Stamp.of(wish.plan)
        kept = f"{100 * found.low:.0f} to {100 * found.high:.0f}\N{NO-BREAK SPACE}%".replace("-", "−")
        over = wish.over_epsilon(_EPSILONS), wish.plan.guarantee.epsilon
        among = wish.over_tasks(_TASKS), wish.tasks, wish.pays_from
        return {
            "verdict": wish.verdict if found.silent is None else f"{found.silent} {wish.verdict}",
            "detection": percent(plan.guarantee.detection()).replace(" ", "\N{NO-BREAK SPACE}"),
            "kept": kept if found.calibrated else "no forecast",
            "pays": f"≈ {wish.pays_from:,}",
            "rounds": f"{len(plan.rounds):,}",
            "algorithm": f"{plan.algorithm.plain_name}; {plan.mechanism.kind}",
            "command": self._command(wish),
            "stamp": f"Plan: {stamp.plan}. Fingerprint {stamp.fingerprint}. Made on {stamp.date} by cloister "
            f"{stamp.version}.",
            "foot": stamp.print_style,
            "over_epsilon": "".join(epsilon_picture(*over, *size) for size in _SIZES),
            "over_tasks": "".join(tasks_picture(*among, *size) for size in _SIZES),
        }

    def _command(self, wish: Wish) -> str:
        options = [f"--epsilon {wish.target.epsilon:g}", f"--method {wish.method}"]
        if not self.own_codebook:
            classes = "" if wish.codebook.classes is None else f" --classes {wish.codebook.classes}"
            options.insert(0, f"--columns {wish.codebook.width - 1}{classes}")
        if not self.tasks_settled:
            options.insert(0, f"--tasks {wish.tasks}")
        options += [] if wish.rows is None else [f"--rows {wish.rows:g}"]
        return " ".join(filter(None, ["cloister plan", self.source, *options]))


def _number(name: str, query: Mapping[str, str]) -> float:
    try:
        found = float(query[name])
    except (KeyError, ValueError):
        raise InputError(f"{name} must be a number.") from None
    if not math.isfinite(found):
        raise InputError(f"{name} must be finite.")
    return found


def _whole(name: str, query: Mapping[str, str]) -> int:
    found = _number(name, query)
    if found != int(found):
        raise InputError(f"{name} must be a whole number.")
    return int(found)


class PlannerServer(ThreadingHTTPServer):
    """Serves one page on the loopback address, under a secret path, at a port that the system chooses."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, page: Page) -> None:
        self.page, self.token = page, secrets.token_urlsafe(24)
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser went away before its answer; the next one is answered."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers whoever knows the secret, and says so in the Host header: no page of another site does both."""

    server: PlannerServer
    timeout = 20
    server_version, sys_version = "cloister", ""

    def do_GET(self) -> None:
        hosts = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        if self.headers.get("Host") not in hosts:
            return self._answer(HTTPStatus.FORBIDDEN, b"This page is for this machine alone.")
        asked = urlsplit(self.path)
        secret, _, place = asked.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(secret.encode(), self.server.token.encode()):
            return self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here.")
        try:
            query = dict(parse_qsl(asked.query, max_num_fields=20))
            return self._serve(place, query)
        except CloisterError as error:
            return self._refuse(str(error))
        except (ValueError, ArithmeticError):
            return self._refuse("This cannot be planned. Move a slider back.")

    def _serve(self, place: str, query: Mapping[str, str]) -> None:
        page = self.server.page
        if place == "":
            nonce = secrets.token_urlsafe(16)
            return self._answer(HTTPStatus.OK, page.html(nonce).encode(), "text/html; charset=utf-8", nonce)
        if place == "outlook":
            text = json.dumps(page.outlook(query), allow_nan=False)
            return self._answer(HTTPStatus.OK, text.encode(), "application/json")
        if place == "plan.toml" and page.own_codebook:
            return self._answer(HTTPStatus.OK, page.moved(query).plan.to_toml().encode(), "application/toml")
        return self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here.")

    def _refuse(self, sentence: str) -> None:
        self._answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": sentence}).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain", nonce: str = "none") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY.format(nonce=nonce),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: addresses hold the secret."""


def serve(page: Page) -> None:
    """Serve the page until the command is ended."""
    load_template("planner.html")  # what is missing is said before anything is opened
    with PlannerServer(page) as server:
        say(
            f"Open this on this machine, and on no other:\n{server.url}",
            "It asks nothing of any row, and nothing leaves. End it with Ctrl-C.",
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")
