"""The way over Flower, without a network: who may say what in whose name."""

from __future__ import annotations

import asyncio
import stat
from base64 import b64encode
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from flower_trial import deployed, small_plan, small_tasks
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError
from uvicorn.server import ServerState

from cloister.errors import InputError, SignatureError
from cloister.nodes import REFUSAL
from cloister.nodes.deploy.kit import make_authority, make_certificate
from cloister.nodes.deploy.processes import executor_command, forget_traffic, link_command
from cloister.nodes.deploy.supervisor import curate
from cloister.nodes.flower.agent import NodeAgent
from cloister.nodes.flower.apps import Answering
from cloister.nodes.flower.deployment import Deployment
from cloister.nodes.flower.proxy import CALLS, Refusals, connections, proxy
from cloister.nodes.flower.transport import (
    CuratorAddress,
    FlowerTransport,
    Identity,
    body,
    message_body,
    new_reader,
    open_answer,
    open_question,
    seal_answer,
    seal_question,
)
from cloister.store.signatures import Operator

OPERATOR, READER = Operator.new("trial"), new_reader()


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)  # as Flower does before it calls an app
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    for name in ("elm", "oak"):
        (tmp_path / name).mkdir()
    return Identity.create(tmp_path / "elm"), Identity.create(tmp_path / "oak")


def test_questions_and_answers_count_by_their_signature_alone(two):
    elm, oak = two
    asked = seal_question(OPERATOR, "elm", b"round 3", READER)
    assert open_question(OPERATOR.public, "elm", asked) == b"round 3"
    for wrong in (Operator.new("trial").public, OPERATOR.public):
        with pytest.raises(SignatureError):
            open_question(wrong, "oak" if wrong == OPERATOR.public else "elm", asked)
    answer = seal_answer(elm.key, asked, b"a row")
    assert open_answer(elm.key.public_key(), READER, asked, answer) == b"a row"
    for key, question, reply in [
        (oak, asked, answer),  # in another's name
        (elm, seal_question(OPERATOR, "elm", b"round 4", READER), answer),  # of an earlier round
        (elm, asked, answer[:-1]),
        (elm, asked, b""),
    ]:
        with pytest.raises(SignatureError):
            open_answer(key.key.public_key(), READER, question, reply)


def test_answers_are_read_by_the_curator_that_asks_alone(two):
    elm, _ = two
    asked, row = seal_question(OPERATOR, "elm", b"round 3", READER), b"a clipped message" * 9
    answers = [seal_answer(elm.key, asked, row) for _ in range(2)]
    assert [open_answer(elm.key.public_key(), READER, asked, answer) for answer in answers] == [row, row]
    for answer in answers:
        assert not any(row[k : k + 4] in answer for k in range(len(row) - 3))
        with pytest.raises(SignatureError):  # not by who has all of the operator's files
            open_answer(elm.key.public_key(), new_reader(), asked, answer)
    assert answers[0][96:] != answers[1][96:]  # every answer has a key of its own
    other = asked[:64] + new_reader().public_key().public_bytes_raw() + asked[96:]
    with pytest.raises(SignatureError):  # a link cannot put its own key in
        open_question(OPERATOR.public, "elm", other)


class Grid:
    """What Flower's grid does, for nodes that answer at once; the first answers may be forged."""

    def __init__(self, nodes, answering, forged=()):
        self.nodes, self.answering, self.forged, self.waiting = nodes, answering, list(forged), {}

    def get_nodes(self):
        return self.nodes

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message-{len(self.waiting)}"
            message.metadata.__dict__["_message_id"] = number
            self.waiting[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        from flwr.app import Message

        for number in [n for n in numbers if n in self.waiting]:
            asked = self.waiting.pop(number)
            said = self.answering[asked.metadata.dst_node_id](message_body(asked))
            yield Message(body(self.forged.pop() if self.forged else said), reply_to=asked)


class Info:
    def __init__(self, number, identity):
        self.node_id, self.public_key = number, identity.public.encode()


def test_answers_in_anothers_name_are_told_and_passed_over(two):
    elm, oak = two
    said = []
    answering = {1: lambda sealed: seal_answer(elm.key, sealed, b"row"), 2: lambda sealed: b"garbage"}
    nodes, keys = [Info(1, elm), Info(2, oak)], {"elm": elm.public, "oak": oak.public}
    link = FlowerTransport(Grid(nodes, answering, forged=[b"\0" * 200]), OPERATOR, keys, said.append)
    assert list(link.ask({"elm": b"?", "oak": b"?"}, deadline=2.5)) == [("elm", b"row")]
    assert said
    assert all("does not count" in sentence for sentence in said)
    assert list(link.last_seen) == ["elm"]


def test_a_node_that_is_not_registered_is_not_asked(two):
    elm, oak = two
    grid = Grid([Info(1, oak)], {1: lambda sealed: seal_answer(elm.key, sealed, b"row")})
    assert list(FlowerTransport(grid, OPERATOR, {"elm": elm.public}).ask({"elm": b"?"}, deadline=0.2)) == []


def test_the_proxy_passes_on_what_registered_nodes_need(two, tmp_path):
    elm, oak = two
    make_authority(tmp_path, "ca")
    asked = []

    def link(request):
        asked.append(request)
        return httpx.Response(200, content=b"fine", headers={"content-type": "application/protobuf"})

    said = []
    way = httpx.MockTransport(link)
    known = {"elm": elm.public}
    app = proxy("https://127.0.0.1:1", tmp_path / "ca.crt", known, 100, 3.0, Refusals(said.append), way)

    async def post(path, data=b"x", key=elm, by=None):
        headers = {"flwr-public-key": b64encode(key.public.encode()).decode(), "x-other": "1"} if key else {}
        way = by or httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=way, base_url="https://proxy") as client:
            return (await client.post(path, content=data, headers=headers)).status_code

    async def statuses():
        call = "/v1/fleet/pull-messages"
        refused = [
            "/v1/control/list-nodes",
            "/v1/runtime/acquire-task",
            "/v1/fleet/register-node",
            "/",
            "/docs",
        ]
        assert [await post(path) for path in refused] == [403] * 5
        assert [await post(call, key=None), await post(call, key=oak)] == [403, 403]
        assert await post(call + "/../../control/list-nodes") == 403
        assert [await post(call), await post(call, b"x" * 101), await post(call, _parts())] == [200, 413, 413]
        assert [await post(call) for _ in range(4)] == [200, 200, 200, 429]

        elsewhere = httpx.ASGITransport(
            app, client=("192.0.2.1", 5)
        )  # the node itself, and not who bears its key
        assert await post(call, by=elsewhere) == 200

    asyncio.run(statuses())
    assert [sentence for sentence in said if "elm" not in sentence] == [
        "A request bore no key of a registered node."
    ]
    assert len(said) == 4  # of a kind one, however many come: for no node, too large, too many
    assert {request.url.path for request in asked} <= CALLS
    assert all("x-other" not in request.headers for request in asked)


def test_nobody_holds_the_door_open():
    said = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(
        app, http=connections(3, 0.3, Refusals(said.append)), ws="none", lifespan="off", log_config=None
    )
    config.load()

    async def ended(reader):
        try:
            return await asyncio.wait_for(reader.read(), 30) == b""
        except ConnectionResetError:
            return True

    async def visits():
        def made():
            return config.http_protocol_class(config, ServerState(), {})

        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        came = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        (idle, _), (slow, slowly), (node, speaks), (fourth, _) = came
        asked, told = b"POST / HTTP/1.1\r\nhost: x\r\n\r\n", b"HTTP/1.1 204"
        slowly.write(asked[:9])
        speaks.write(asked)
        assert (await node.readuntil(b"\r\n\r\n")).startswith(told)
        assert [await ended(each) for each in (fourth, idle, slow)] == [True] * 3
        speaks.write(asked)  # who has asked may ask again, long after
        assert (await node.readuntil(b"\r\n\r\n")).startswith(told)
        speaks.write(asked[:9])
        assert await ended(node)
        came.append(await asyncio.open_connection("127.0.0.1", port))  # there is room again
        came[-1][1].write(asked)
        assert (await came[-1][0].readuntil(b"\r\n\r\n")).startswith(told)
        for _, writer in came:
            writer.close()
        assert await ended(came[-1][0])
        server.close()
        await server.wait_closed()

    asyncio.run(visits())
    assert sorted(said) == [
        "A connection asked for nothing within 0.3 seconds.",
        "An address had more than 3 connections.",
    ]


def test_who_finds_the_door_full_is_told_of():
    """The fourth connection in all is turned away, and the operator reads so, however quiet uvicorn is."""
    said = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(
        app,
        http=connections(9, 30.0, Refusals(said.append)),
        ws="none",
        lifespan="off",
        log_config=None,
        limit_concurrency=4,
    )
    config.load()

    async def visits():
        everybody = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config, everybody, {}), "127.0.0.1", 0
        )
        port, told = server.sockets[0].getsockname()[1], []
        came = []
        for place in range(4):
            came.append(await asyncio.open_connection("127.0.0.1", port))
            reader, writer = came[-1]
            writer.write(b"POST / HTTP/1.1\r\n")
            assert len(said) == 0
            writer.write(b"host: x\r\n\r\n")
            told.append((await reader.readuntil(b"\r\n"))[9:12])
            assert len(said) == (place == 3)
        for _, writer in came:
            writer.close()
        server.close()
        await server.wait_closed()
        return told

    assert asyncio.run(visits()) == [b"204", b"204", b"204", b"503"]
    assert said == ["A request came while 4 connections were open in all."]


async def _parts():
    for _ in range(200):  # of no length that is told beforehand
        yield b"x"


def test_what_deploy_init_writes_is_closed(tmp_path):
    made = deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))
    link, executor = link_command(made), executor_command(made)
    secret = str(made.folder / "secrets" / "executor.secret")
    assert link[link.index("--host") + 1] == "127.0.0.1"
    assert link[link.index("--isolation") + 1] == "process"
    assert secret in link
    assert secret in executor
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link + executor
    for path in made.folder.rglob("*"):
        hidden = path.suffix in (".key", ".secret") or path.name in ("key", "ledger", "rows.npz")
        assert not hidden or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    app = b"".join(path.read_bytes() for path in (made.folder / "app").rglob("*") if path.is_file())
    assert made.operator.secret.hex().encode() not in app
    with pytest.raises(InputError, match="already there"):
        deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))


def test_a_question_that_the_operator_has_not_signed_is_refused_at_home(tmp_path):
    made = deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))
    node = Answering(made.folder / "nodes" / "school-0")
    for question in (
        b"",
        b"x" * 70,
        seal_question(OPERATOR, "school-0", b"x", READER),
        seal_question(made.operator, "b", b"x", READER),
    ):
        assert node.answer(question) == REFUSAL
    assert "has not signed" in (node.node.home.folder / "log").read_text()


def test_a_way_says_what_must_stand_there(tmp_path):
    with pytest.raises(InputError, match="address"):
        CuratorAddress.load(tmp_path)
    make_authority(tmp_path, "ca")
    make_certificate(tmp_path, "server", "ca", ["curator.example.org", "127.0.0.1"])
    CuratorAddress("curator.example.org:9443", "ca.crt").save(tmp_path)
    assert CuratorAddress.load(tmp_path).certificate == str(tmp_path / "ca.crt")


class Nobody:
    """A grid on which no node is."""

    def get_nodes(self):
        return []


def test_a_curator_that_dies_on_its_last_step_has_finished(tmp_path, monkeypatch):
    made = deployed(tmp_path / "office", small_plan(2, rounds=1), small_tasks(2), deadline=0.1)
    write = Deployment._write

    def dies(self, name, document):
        if not (self.journal / "secret").exists():
            raise KeyboardInterrupt
        write(self, name, document)

    monkeypatch.setattr(Deployment, "_write", dies)
    database = [made.state / name for name in ("link.db", "link.db-wal", "link.db-shm")]
    for path in database:
        path.write_bytes(b"x")
    forget_traffic(made)
    assert not made.finished
    assert all(path.exists() for path in database)  # the run goes on with it
    with pytest.raises(KeyboardInterrupt):
        made.curate(Nobody())
    assert made.finished
    assert made.curate(Nobody()) is None
    assert curate(made, lambda now: None).complete  # no link is needed any more
    forget_traffic(made)
    assert not any(path.exists() for path in database)


def test_a_node_follows_no_redirect_and_outlives_garbage(tmp_path, monkeypatch):
    made = deployed(tmp_path / "office", small_plan(2, rounds=1), small_tasks(2))
    node = NodeAgent(made.folder / "nodes" / "school-0")
    asked, steps = [], []

    def elsewhere(self, request):
        asked.append(request.url)
        return httpx.Response(307, headers={"location": "http://inside.example.org/delete"})

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", elsewhere)
    monkeypatch.setattr("cloister.nodes.flower.agent.LONGEST_WAIT", 0.0)
    with pytest.raises(httpx.HTTPStatusError), node._connected():
        pass
    assert {url.host for url in asked} == {"127.0.0.1"}

    @contextmanager
    def connected(self):
        yield None

    def step(self, link):
        steps.append(link)
        raise DecodeError("spoiled") if len(steps) == 1 else KeyboardInterrupt

    monkeypatch.setattr(NodeAgent, "_connected", connected)
    monkeypatch.setattr(NodeAgent, "step", step)
    with pytest.raises(KeyboardInterrupt):
        node.serve()
    assert len(steps) == 2
    assert "DecodeError: spoiled" in (node.folder / "log").read_text()
