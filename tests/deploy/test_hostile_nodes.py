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
from cloister.errors import ClusterError
from cloister.nodes import InProcess, Node
from cloister.nodes.agent import NodeAgent
from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.deploy.kit import make_authority
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


# --- who comes to the door ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A service that runs, for two nodes."""
    made = deployed(tmp_path_factory.mktemp("running") / "office", small_plan(2, rounds=2), small_tasks(2))
    with service(made) as processes:
        yield made, processes.running["service"]


def asks(client) -> int:
    return client.get("/v1/question", headers={"x-wait": "0"}).status_code


def test_one_address_without_a_key_shuts_nobody_out(running):
    """Connections that agree on no TLS are counted when they come; the node's own address has room too."""
    made, process = running
    outside, beside = hostile.Strangers(made), hostile.Strangers(made, "127.0.0.1")
    outside.come(400)
    beside.come(150)
    files, until = Path(f"/proc/{process.pid}/fd"), time.monotonic() + 10
    while files.exists() and len(list(files.iterdir())) > 2 * 72 + 40:
        assert time.monotonic() < until
        time.sleep(0.1)
    began = time.monotonic()
    with node(made, "school-0").connected() as client:
        assert asks(client) == 204
    assert time.monotonic() - began < 5
    outside.leave()
    beside.leave()
    assert "One address had more than 72 connections" in service_log(made)


def test_keys_can_be_added_and_taken_away_while_the_service_runs(running):
    made, _ = running
    file = made.folder / "nodes.toml"
    kept = file.read_text()
    with node(made, "school-0").connected() as client:
        for text, status in ((kept, 204), ("", 401), (kept, 204), ("garbage", 204), ("", 401), (kept, 204)):
            file.write_text(text)
            assert asks(client) == status
    assert "nodes.toml cannot be read" in service_log(made)


def test_neither_side_speaks_to_one_whose_certificate_it_does_not_believe(running, tmp_path, monkeypatch):
    made, _ = running
    make_authority(tmp_path, "other")
    folder = shutil.copytree(made.folder / "nodes" / "school-1", tmp_path / "node")
    CuratorAddress(made.settings.address, str(tmp_path / "other.crt")).save(folder)
    agent = NodeAgent(folder)

    def over(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("cloister.nodes.agent.time.sleep", over)
    with pytest.raises(KeyboardInterrupt):
        agent.serve()
    log = (folder / "log").read_text()
    assert "CERTIFICATE_VERIFY_FAILED" in log
    assert "Look at the address and the certificate" in log
    other = httpx.Client(
        base_url=f"https://{made.reach}",
        verify=only(tmp_path / "other.crt"),
        auth=KeyAuth.of_operator(made.settings.address, made.operator),
    )
    with other, pytest.raises(httpx.ConnectError):
        other.get("/v1/nodes")


def test_an_operator_of_another_folder_is_told_so(running, tmp_path):
    made, _ = running
    folder = shutil.copytree(made.folder, tmp_path / "office")
    (folder / "secrets" / "operator.key").write_text("11" * 32)
    with (
        Deployment(folder).transport() as transport,
        pytest.raises(ClusterError, match="this operator's key"),
    ):
        transport.check()


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
