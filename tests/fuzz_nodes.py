"""The readers of what nodes, their operator and strangers send each other, and keep: see `fuzz_readers`."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from fuzzing import Reader, framed, spoil_bytes, spoil_json, spoil_toml, wrote

import cloister as cl
from cloister import Billboard, Plan
from cloister.algorithms import MeanRegularized
from cloister.core.roster import Roster
from cloister.learners import LeastSquares
from cloister.nodes import NodeFolder, NodeSettings
from cloister.nodes.envelopes import new_reader, open_answer, open_question, seal_answer, seal_question
from cloister.nodes.identity import CuratorAddress, Identity, PublicIdentity
from cloister.nodes.messages import Reply, ReplyKind, Request, RequestKind, SignedRecord, SumStep
from cloister.secure.double_masking import Step
from cloister.secure.exchange import packed, unpacked
from cloister.secure.session import Offer
from cloister.store.signatures import Operator, SignedHead, SignedRoster

DIM = 3
PLAN = Plan(MeanRegularized(LeastSquares(DIM), rounds=4), n_tasks=12, delta=1e-2).calibrate(2.0)

OPERATOR = Operator("exam", bytes(range(32)))


def make_messages(folder: Path) -> list[Path]:
    roster = OPERATOR.sign_roster(PLAN.fingerprint, Roster(["elm", "oak"], ["n", "s"]))
    board = PLAN.create_board()
    head = OPERATOR.sign_head(roster.fingerprint, 1, board.head)
    record = SignedRecord(board.record_bytes(0), head.signature)
    ask = Request(RequestKind.ROUND, "exam", 0, 0, (record,), roster, "1")
    say = Reply(ReplyKind.MESSAGE, "exam", 0, board.head.hex(), 1, np.arange(DIM))
    short = replace(say, kind=ReplyKind.DONE, row=None)
    shown = packed({0: bytes(100), 1: b""}, {1: bytes(80)}, {0: b"", 1: b""}, {0: bytes(64)})
    step = SumStep(1, Step.OPENING, shown)
    parts = {
        "request": ask.to_bytes(),
        "reply": say.to_bytes(),
        "short": short.to_bytes(),
        "asked": replace(ask, step=step).to_bytes(),
        "said": replace(say, kind=ReplyKind.STEP, row=None, said=shown).to_bytes(),
        "shown": shown,
        "roster": roster.to_bytes(),
        "head": json.dumps(head.to_dict()).encode(),
        "record": board.record_bytes(0),
        "offer": Offer(0, bytes(range(32)), bytes(range(32, 64)), bytes(64)).to_bytes(),
    }
    return [path for name, data in parts.items() for path in wrote(folder / name, data)]


def read_messages(folder: Path) -> None:
    errors = []
    for name, read in {
        "request": Request.from_bytes,
        "reply": Reply.from_bytes,
        "short": Reply.from_bytes,
        "asked": Request.from_bytes,
        "said": Reply.from_bytes,
        "shown": lambda data: unpacked(data, 4),
        "roster": SignedRoster.from_bytes,
        "head": lambda data: SignedHead.from_dict(_document(data)),
        "record": Billboard.from_bytes,
        "offer": lambda data: Offer.from_bytes(data).to_bytes(),
    }.items():
        try:
            read((folder / name).read_bytes())
        except cl.CloisterError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _document(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise cl.CloisterError("no JSON") from None


def make_envelopes(folder: Path) -> list[Path]:
    from cryptography.hazmat.primitives.asymmetric import ec

    key, reader = ec.generate_private_key(ec.SECP384R1()), new_reader()
    asked = seal_question(OPERATOR, "elm", b"round 3", reader, 1 << 10)
    answer = seal_answer(key, asked, b"a clipped message" * 9)
    KEYS[folder] = key.public_key(), reader, asked
    return [*wrote(folder / "question", asked), *wrote(folder / "answer", answer)]


KEYS: dict[Path, tuple[object, object, bytes]] = {}


def read_envelopes(folder: Path) -> None:
    key, reader, asked = KEYS[folder]
    assert open_question(OPERATOR.public, "elm", (folder / "question").read_bytes()) == b"round 3"
    found = open_answer(key, reader, asked, (folder / "answer").read_bytes())
    assert found == b"a clipped message" * 9


def make_node(folder: Path) -> list[Path]:
    settings = NodeSettings("elm", OPERATOR.public.hex(), "n", seed=3)
    home = NodeFolder.create(folder / "elm", settings, epsilon=4.0, delta=1e-2)
    return [home.folder / "node.toml", home.folder / "key"]


def read_node(folder: Path) -> None:
    home = NodeFolder(folder / "elm")
    _ = home.settings, home.has_spent


def make_keys(folder: Path) -> list[Path]:
    Identity.create(folder)
    CuratorAddress("exam.example:9443", "ca.crt").save(folder)
    return [folder / name for name in ("link.toml", "link.key", "agree.key", "link.pub")]


def spoil_pem(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change what a key file holds, and write it as one again; or put another one in its place."""
    lines = data.strip().split(b"\n")
    if rng.random() < 0.2 or not lines[0].startswith(b"-----"):
        return rng.choice(others)
    last = lines.index(lines[0].replace(b"BEGIN", b"END"))
    body = spoil_bytes(base64.b64decode(b"".join(lines[1:last])), rng, others)
    return b"\n".join([lines[0], base64.b64encode(body), *lines[last:], b""])


def read_keys(folder: Path) -> None:
    errors = []
    for read in (
        lambda: CuratorAddress.load(folder),
        lambda: Identity.load(folder).public,
        lambda: PublicIdentity.from_text((folder / "link.pub").read_text(errors="replace")).fingerprint,
    ):
        try:
            read()
        except cl.CloisterError as error:
            errors.append(error)
    if errors:
        raise errors[0]


NODE_READERS = [
    Reader("node messages", make_messages, read_messages, (spoil_bytes, spoil_json, framed(spoil_json))),
    Reader("envelopes", make_envelopes, read_envelopes),
    Reader("node keys", make_keys, read_keys, (spoil_bytes, spoil_pem, spoil_toml)),
    Reader("node folder", make_node, read_node, (spoil_bytes, spoil_toml)),
]
