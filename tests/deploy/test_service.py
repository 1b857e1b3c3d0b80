"""The operator's service, without a network: who is let in to what, and what it holds."""

from __future__ import annotations

import asyncio
import hashlib
import time

import httpx
import pytest
from small_trial import deployed, small_plan, small_tasks

from cloister.errors import InputError, SignatureError
from cloister.nodes.entry import OPERATOR, Gate, KeyAuth
from cloister.nodes.envelopes import (
    SealedNode,
    answer_size,
    new_reader,
    open_answer,
    open_question,
    seal_answer,
    seal_question,
)
from cloister.nodes.identity import Identity, PublicIdentity
from cloister.nodes.limits import SparseLog
from cloister.nodes.node import Node
from cloister.nodes.service import Service
from cloister.store.signatures import Operator

ADDRESS, SIZE = "curator.example.org:9443", answer_size(100)
BOSS, READER = Operator.new("trial"), new_reader()


@pytest.fixture
def two(tmp_path):
    for name in ("elm", "oak"):
        (tmp_path / name).mkdir()
    return Identity.create(tmp_path / "elm"), Identity.create(tmp_path / "oak")


# --- envelopes ---------------------------------------------------------------------------------------------


def test_questions_and_answers_count_by_their_signature_alone(two):
    elm, oak = two
    asked = seal_question(BOSS, "elm", b"round 3", READER, 100)
    assert open_question(BOSS.public, "elm", asked) == b"round 3"
    for wrong, name in ((Operator.new("trial").public, "elm"), (BOSS.public, "oak")):
        with pytest.raises(SignatureError):
            open_question(wrong, name, asked)
    answer = seal_answer(elm.key, asked, b"a row")
    assert open_answer(elm.key.public_key(), READER, asked, answer) == b"a row"
    for key, question, reply in [
        (oak, asked, answer),  # in another's name
        (elm, seal_question(BOSS, "elm", b"round 4", READER, 100), answer),  # of an earlier round
        (elm, asked, answer[:-1]),
        (elm, asked, b""),
        (elm, asked, bytes(len(answer))),
    ]:
        with pytest.raises(SignatureError):
            open_answer(key.key.public_key(), READER, question, reply)


def test_answers_have_one_size_and_are_read_by_who_asks_alone(two):
    elm, _ = two
    asked, row = seal_question(BOSS, "elm", b"round 3", READER, 100), b"a clipped message" * 5
    answers = [seal_answer(elm.key, asked, reply) for reply in (row, row, b"no", b"")]
    assert {len(answer) for answer in answers} == {SIZE}
    for answer in answers[:2]:
        assert not any(row[k : k + 4] in answer for k in range(len(row) - 3))
        with pytest.raises(SignatureError):  # not by who has all of the operator's files
            open_answer(elm.key.public_key(), new_reader(), asked, answer)
    assert answers[0][96:] != answers[1][96:]  # every answer has a key of its own
    other = asked[:64] + new_reader().public_key().public_bytes_raw() + asked[96:]
    with pytest.raises(SignatureError):  # a service cannot put its own key in
        open_question(BOSS.public, "elm", other)
    with pytest.raises(InputError, match="must fit into what was asked for"):
        seal_answer(elm.key, asked, bytes(101))
    with pytest.raises(InputError, match="must fit"):
        seal_answer(elm.key, seal_question(BOSS, "elm", b"?", READER, 1 << 40), b"")


def test_a_question_that_the_operator_has_not_signed_has_no_answer(tmp_path):
    made = deployed(tmp_path / "office", small_plan(2, rounds=2), small_tasks(2))
    node = SealedNode(Node(made.folder / "nodes" / "school-0"))
    for question in (
        b"",
        b"x" * 70,
        seal_question(BOSS, "school-0", b"x", READER, 2000),
        seal_question(made.operator, "school-1", b"x", READER, 2000),
    ):
        assert node.answer(question) is None
    assert "has not signed" in (node.node.home.folder / "log").read_text()
    assert node.answer(seal_question(made.operator, "school-0", b"garbage", READER, 2000)) is not None


# --- keys --------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_both_keys_and_told_in_groups(two, tmp_path):
    elm, oak = (PublicIdentity.from_text(each.public) for each in two)
    mixed = [PublicIdentity(elm.signing, oak.agreement), PublicIdentity(oak.signing, elm.agreement)]
    found = [each.fingerprint for each in (elm, oak, *mixed)]
    assert len(set(found)) == 4
    for text in found:
        assert [len(group) for group in text.split()] == [4] * 8
    assert found[0].replace(" ", "") == hashlib.sha256(elm.text.encode()).hexdigest()[:32]
    (tmp_path / "elm" / "agree.key").unlink()  # a node of an earlier version
    with pytest.raises(InputError, match="Type cloister node link"):
        Identity.load(tmp_path / "elm")
    again = PublicIdentity.from_text(Identity.create(tmp_path / "elm").public)
    assert again.signing == elm.signing
    half = elm.text.partition("-----END PUBLIC KEY-----")[0] + "-----END PUBLIC KEY-----\n"
    for wrong in ("", "x", half, oak.text[::-1], elm.text.replace("A", "B")):
        with pytest.raises(InputError, match=r"whole file link\.pub"):
            PublicIdentity.from_text(wrong)


# --- the service -------------------------------------------------------------------------------------------


class Here:
    """The service in this process, and clients of it."""

    def __init__(self, elm, oak):
        self.keys, self.said = {"elm": elm.public, "oak": oak.public}, []
        self.service = Service(Gate(ADDRESS, BOSS.public, lambda: self.keys), SparseLog(self.said.append))
        self.app = self.service.app()

    def client(self, auth=None):
        way = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=way, base_url="https://x", auth=auth)

    def node(self, name, identity, address=ADDRESS):
        return self.client(KeyAuth.of_node(address, name, identity))

    def operator(self, operator=BOSS):
        return self.client(KeyAuth.of_operator(ADDRESS, operator))


def test_each_key_is_let_in_to_its_own_calls_and_nobody_else_to_any(two, tmp_path):
    elm, oak = two
    (tmp_path / "stranger").mkdir()
    stranger = Identity.create(tmp_path / "stranger")
    here = Here(elm, oak)
    put = f"/v1/answer/{'0' * 64}"
    calls = (("POST", "/v1/ask/elm"), ("GET", "/v1/nodes"), ("GET", "/v1/question"), ("PUT", put))

    async def statuses(client):
        async with client:
            found = [
                (await client.request(method, path, headers={"x-wait": "0"})).status_code
                for method, path in calls
            ]
            return found

    async def visits():
        assert await statuses(here.node("elm", elm)) == [403, 403, 204, 409]
        assert await statuses(here.operator()) == [204, 200, 403, 403]
        nobody = [
            here.client(),
            here.node("elm", stranger),  # with another's name
            here.node("stranger", stranger),
            here.node("elm", elm, "elsewhere.example.org:9443"),  # what another service was sent
            here.operator(Operator.new("trial")),
            here.node(OPERATOR, elm),
        ]
        for client in nobody:
            assert await statuses(client) == [401] * 4
        late = here.node("elm", elm)
        assert (await late.get("/v1/question", headers={"x-wait": "0"})).status_code == 204
        here.keys["elm"] = stranger.public  # its key is changed: what it has signed counts no more
        assert (await late.get("/v1/question", headers={"x-wait": "0"})).status_code == 401
        await late.aclose()

    asyncio.run(visits())
    assert "A request bore a signature that no registered key has made for it." in here.said
    assert not any("127.0.0.1" in sentence for sentence in here.said)


def test_an_answer_goes_back_by_the_request_that_asked_and_nothing_stays(two):
    elm, oak = two
    here = Here(elm, oak)
    question = seal_question(BOSS, "elm", b"round 3", READER, 100)
    path = f"/v1/answer/{hashlib.sha256(question).hexdigest()}"
    answer = seal_answer(elm.key, question, b"row")

    async def visits():
        async with here.operator() as office, here.node("elm", elm) as node, here.node("oak", oak) as other:
            asks = asyncio.create_task(office.post("/v1/ask/elm", content=question))
            found = await node.get("/v1/question")
            assert found.content == question
            assert (await other.get("/v1/question", headers={"x-wait": "0"})).status_code == 204
            assert (await other.put(path, content=answer)).status_code == 409  # it is not asked
            assert (await node.put("/v1/answer/0", content=answer)).status_code == 409
            for wrong in (answer[:-1], answer + b"x", b""):
                assert (await node.put(path, content=wrong)).status_code == 413
            assert not asks.done()
            assert (await node.put(path, content=answer)).status_code == 204
            assert (await node.get("/v1/question", headers={"x-wait": "0"})).status_code == 204
            assert (await asks).content == answer
            assert (await node.put(path, content=answer)).status_code == 409  # nobody asks any more
            box = here.service.boxes["elm"]
            assert box.question is None
            assert (await office.get("/v1/nodes")).json()["elm"]["seen"] < 60

    asyncio.run(visits())
    assert any("has not" in sentence and "'elm'" in sentence for sentence in here.said)


def test_a_question_ends_with_who_asks_and_a_new_one_takes_its_place(two):
    elm, oak = two
    here = Here(elm, oak)

    async def visits():
        async with here.operator() as office, here.node("elm", elm) as node:
            first = asyncio.create_task(office.post("/v1/ask/elm", content=b"first"))
            assert (await node.get("/v1/question")).content == b"first"
            second = asyncio.create_task(office.post("/v1/ask/elm", content=b"second"))
            assert (await first).status_code == 204
            assert (await node.get("/v1/question")).content == b"second"
            began = time.monotonic()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            assert (await node.get("/v1/question", headers={"x-wait": "0.1"})).status_code == 204
            timed = await office.post("/v1/ask/elm", content=b"third", headers={"x-wait": "0.1"})
            assert timed.status_code == 204
            assert time.monotonic() - began < 10
            assert (await office.post("/v1/ask/nobody", content=b"?")).status_code == 404
            later = asyncio.create_task(office.post("/v1/ask/elm", content=b"fourth"))
            for odd in ("nan", "-1", "x", "inf"):  # no time at all: as if nothing was said
                assert (await node.get("/v1/question", headers={"x-wait": odd})).content == b"fourth"
            later.cancel()
            await asyncio.gather(later, return_exceptions=True)

    asyncio.run(visits())


def test_a_node_that_floods_is_slowed_and_holds_one_answer(two):
    elm, oak = two
    here = Here(elm, oak)
    question = seal_question(BOSS, "elm", b"round 3", READER, 100)
    path = f"/v1/answer/{hashlib.sha256(question).hexdigest()}"
    more = asyncio.Event()

    async def halves():
        yield b"x"
        await more.wait()
        yield b"x" * (SIZE - 1)

    async def visits():
        async with here.operator() as office, here.node("elm", elm) as node:
            asks = asyncio.create_task(office.post("/v1/ask/elm", content=question))
            await node.get("/v1/question")
            size = {"content-length": str(SIZE)}
            slow = asyncio.create_task(node.put(path, content=halves(), headers=size))
            await asyncio.sleep(0.05)
            assert (await node.put(path, content=b"y" * SIZE)).status_code == 204
            assert (await asks).content == b"y" * SIZE
            more.set()
            assert (await slow).status_code in (408, 409)
            found = [
                (await node.get("/v1/question", headers={"x-wait": "0"})).status_code for _ in range(120)
            ]
            assert set(found) == {204, 429}
            assert (await office.get("/v1/nodes")).status_code == 200

    asyncio.run(visits())
