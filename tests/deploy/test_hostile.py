"""Whatever a node, a stranger or a service does costs its own node alone; with real connections and TLS."""

from __future__ import annotations

import http.server
import json
import resource
import shutil
import ssl
import threading
import time
from pathlib import Path

import hostile
import httpx
import pytest
from small_trial import (
    SEED,
    answering,
    deployed,
    node,
    service,
    service_log,
    small_plan,
    small_tasks,
)

from cloister import run
from cloister.engines import RemoteNodes
from cloister.nodes import InProcess, Node
from cloister.nodes.deploy.kit import make_authority
from cloister.nodes.deploy.processes import node_command
from cloister.nodes.entry import KeyAuth
from cloister.nodes.http_transport import only
from cloister.nodes.identity import CuratorAddress


class Some:
    """Nodes in this process, of which some are heard."""

    def __init__(self, nodes):
        self.nodes = nodes

    def ask(self, requests, deadline):
        return InProcess(self.nodes).ask({n: r for n, r in requests.items() if n in self.nodes}, deadline)


def _besieged(tmp_path: Path, honest: int, kinds, rounds: int, deadline: float, strangers: int):
    """Run with honest nodes, and registered ones of other kinds; return folder, board and log."""
    count = honest + len(kinds)
    plan, tasks = small_plan(count, rounds=rounds, quorum=honest), small_tasks(count)
    made = deployed(tmp_path / "office", plan, tasks, deadline=deadline)
    alike, over = shutil.copytree(made.folder / "nodes", tmp_path / "alike"), threading.Event()
    names = tasks.ids.tolist()
    outside = hostile.Strangers(made)
    evil = [kind(made, name, over) for kind, name in zip(kinds, names[honest:], strict=True)]
    with service(made) as running:
        outside.come(strangers)
        outside.come(strangers // 10, b"\x16\x03\x01\x02\x00garbage")
        outside.come(strangers // 10, b"GET / HTTP/1.1\r\n")
        with answering([node(made, name) for name in names[:honest]]):
            for each in evil:
                each.start()
            began = time.monotonic()
            with made.transport() as transport:
                done = made.curate(transport)
            took = time.monotonic() - began
            over.set()
        assert running.running["service"].poll() is None
    outside.leave()
    nodes = {name: Node(alike / name) for name in names[:honest]}
    engine = RemoteNodes(Some(nodes), made.operator, 5.0, keys=made.keys, log=lambda line: None)
    alone = run(plan, made.roster, random_state=SEED, engine=engine)
    assert done.board.head == alone.board.head
    assert [release.answered for release in done.board.releases] == [honest] * rounds
    assert made.ledger.spent == pytest.approx(plan.guarantee.epsilon)
    assert took < (rounds + 1) * (deadline + 2) + 5  # one deadline a round, and one for the end
    for name in names[:honest]:
        assert (made.folder / "nodes" / name / "runs" / "trial" / "model.npz").exists()
    return made, (made.state / "log").read_text()


def test_a_silent_node_and_one_that_sends_garbage_cost_their_own_messages_alone(tmp_path):
    kinds = [hostile.Silent, hostile.Garbage]
    _, log = _besieged(tmp_path, 2, kinds, rounds=1, deadline=2.5, strangers=0)
    assert "node 'school-2' counts as zero" in log
    assert "Node 'school-3': An answer came that the node's key has not signed" in log
    assert "school-0" not in log
    assert "school-1" not in log


@pytest.mark.slow
def test_flood_slow_half_open_garbage_and_silence_at_once(tmp_path):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kinds = [hostile.Silent, hostile.Garbage, hostile.Large, hostile.Slow, hostile.Flood]
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    made, log = _besieged(tmp_path, 8, kinds, rounds=3, deadline=8.0, strangers=1300)
    names = list(made.keys)
    for name in names[8:]:
        assert log.count(f"node {name!r} counts as zero") == 3
    for name in names[:8]:
        assert repr(name) not in log
    said = service_log(made)
    assert f"with the key of node {names[10]!r} was an answer that has not" in said
    assert f"with the key of node {names[12]!r} came after too many others" in said
    assert "One address had more than" in said
    assert len(said.splitlines()) < 40
    grown = {path: path.stat().st_size for path in made.state.rglob("*") if path.is_file()}
    assert sum(grown.values()) - sum(before.values()) < 300_000  # board, ledger and lines: nothing was stored


def test_one_address_without_a_key_shuts_nobody_out(tmp_path):
    """Connections that agree on no TLS are counted when they come; the node's own address has room too."""
    made = deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))
    outside, beside = hostile.Strangers(made), hostile.Strangers(made, "127.0.0.1")
    with service(made) as running:
        outside.come(400)
        beside.come(150)
        files = Path(f"/proc/{running.running['service'].pid}/fd")
        until = time.monotonic() + 10
        while files.exists() and len(list(files.iterdir())) > 2 * 72 + 40:
            assert time.monotonic() < until
            time.sleep(0.1)
        began = time.monotonic()
        with node(made, "school-0").connected() as client:
            assert client.get("/v1/question", headers={"x-wait": "0"}).status_code == 204
        assert time.monotonic() - began < 5
        until = time.monotonic() + 30
        while time.monotonic() < until and any(_open(each) for each in outside.held):
            time.sleep(0.2)
        assert not any(_open(each) for each in outside.held)  # who asks for nothing is let go
    outside.leave()
    beside.leave()
    assert "One address had more than 72 connections" in service_log(made)


def _open(connection) -> bool:
    connection.settimeout(0.0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


# --- nobody ends a node ------------------------------------------------------------------------------------


class _Curator(http.server.BaseHTTPRequestHandler):
    """A service of the operator's, with its certificate, that has turned bad: another answer each time."""

    answers = (
        (412, {}, json.dumps({"code": 1001, "message": "please go", "public_details": "please go"}).encode()),
        (200, {}, b"garbage" * 9),
        (200, {"content-length": "nine"}, b""),
        (307, {"location": "http://127.0.0.1:1/delete"}, b""),
        (401, {"www-authenticate": "cloister zz"}, b""),
        (500, {}, b"\xff" * 100),
        (200, {}, b""),
    )
    given = 0

    def do_GET(self) -> None:
        kind = type(self)
        status, headers, body = self.answers[kind.given % len(self.answers)]
        kind.given += 1
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET

    def log_message(self, *words: object) -> None: ...


def test_a_service_that_sends_anything_ends_no_node(tmp_path, monkeypatch):
    made = deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))
    host, _, port = made.settings.address.rpartition(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), _Curator)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("cloister.nodes.agent.SHORTEST", 0.01)
    monkeypatch.setattr("cloister.nodes.agent.LONGEST_PAUSE", 0.01)
    agent = node(made, "school-0")
    serves = threading.Thread(target=agent.serve, daemon=True)
    serves.start()
    until = time.monotonic() + 30
    while _Curator.given < 3 * len(_Curator.answers) and time.monotonic() < until:
        time.sleep(0.05)
    assert _Curator.given >= 3 * len(_Curator.answers)
    assert serves.is_alive()
    monkeypatch.setattr("cloister.nodes.agent.SHORTEST", 3600.0)  # the thread is left asleep
    monkeypatch.setattr("cloister.nodes.agent.LONGEST_PAUSE", 3600.0)
    server.shutdown()
    server.server_close()
    log = (agent.folder / "log").read_text()
    assert "has not signed" in log
    assert "does not know this node's key yet" in log
    assert "developer.mozilla.org" not in log
    assert len(log.splitlines()) < 30  # however often it happened


def test_a_node_does_not_speak_to_a_service_of_another_authority(tmp_path):
    made = deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))
    make_authority(tmp_path, "other")
    folder = made.folder / "nodes" / "school-0"
    CuratorAddress(made.settings.address, str(tmp_path / "other.crt")).save(folder)
    with service(made) as processes:
        processes.start("node", node_command(folder))
        until = time.monotonic() + 30
        while "certificate" not in _text(folder / "log") and time.monotonic() < until:
            time.sleep(0.1)
        assert processes.running["node"].poll() is None
        other = httpx.Client(
            base_url=f"https://{made.reach}",
            verify=only(tmp_path / "other.crt"),
            auth=KeyAuth.of_operator(made.settings.address, made.operator),
        )
        with other, pytest.raises(httpx.ConnectError):
            other.get("/v1/nodes")
    assert "CERTIFICATE_VERIFY_FAILED" in _text(folder / "log")
    assert "Look at the address and the certificate" in _text(folder / "log")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
