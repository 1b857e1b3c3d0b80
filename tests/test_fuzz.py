"""Files from hostile hands: refused, or read as what they were; nothing is executed, nothing hangs."""

from __future__ import annotations

import json
import random
import signal
import tracemalloc
from contextlib import suppress

import fuzzing
import numpy as np
import pytest
from fuzz_readers import READERS
from fuzzing import guarded, spoil_bytes

import cloister
from cloister import Billboard, CloisterError, Plan, Tasks
from cloister.algorithms import Mean, MeanRegularized, SharedPrior
from cloister.app.folder import read_plan
from cloister.errors import BillboardError
from cloister.learners import Classification, LeastSquares, Regression
from cloister.mechanisms import L2Laplace
from cloister.sampling import Poisson
from cloister.store import Release
from cloister.store.billboard import MAGIC
from cloister.store.records import END, chained
from cloister.store.secret import Secret


def small_board() -> Billboard:
    board = Billboard.create({"m": np.zeros(2), "n": np.array(0)}, plan="p", capacity=3)
    for t in range(3):
        release = Release(np.arange(2.0) + t, noise=0.1, denominator=3.0, share=1 / 3)
        board = board.post(release, {"m": np.full(2, t + 0.5), "n": np.array(t + 1)})
    return board


def plans() -> list[Plan]:
    mean = MeanRegularized(LeastSquares(3), rounds=4, finetune=2, batch=2)
    return [
        Plan(mean, sampling=Poisson(0.5), n_tasks=20, caveats=("a",)).calibrate(1.0),
        Plan(SharedPrior(Regression(3)), n_tasks=20).calibrate(1.0),
        Plan(SharedPrior(Classification(2, classes=4), Mean()), L2Laplace(), n_tasks=20).calibrate(1.0),
    ]


def put(path, data):
    path.unlink(missing_ok=True)  # some file systems sync a file that is written over
    path.write_bytes(data)


@pytest.fixture(scope="module", autouse=True)
def audited():
    for name in cloister.__all__:
        getattr(cloister, name)  # importing is executing, and happens before
    fuzzing.watch()


MANY = pytest.mark.parametrize("cases", [2000, pytest.param(50_000, marks=pytest.mark.slow)])


@MANY
def test_mutated_boards(cases, tmp_path):
    """A board that loads is the board that was saved; what `recover` reads is a beginning of it."""
    rng, path = random.Random(1), tmp_path / "board"
    board, other = small_board(), Billboard.create({"q": np.ones(3)}, "q", 0)
    data = board.save(path).read_bytes()
    others = [data, other.save(tmp_path / "other").read_bytes()]
    hashes, refused = [record.hash for record in board.records], 0
    with guarded():
        for _ in range(cases):
            put(path, spoil_bytes(data, rng, others))
            signal.alarm(60)
            try:
                assert Billboard.load(path)._bytes() in others
            except BillboardError:
                refused += 1
            with suppress(BillboardError):
                whole = Billboard.recover(path)
                assert whole.plan == "q" or [r.hash for r in whole.records] == hashes[: len(whole.records)]
    assert refused > 0.9 * cases


def forge(data: bytes, rng: random.Random) -> bytes:
    """Change headers and arrays, and compute every hash anew, as one who owns the file can."""
    out, head, at = [MAGIC], b"", len(MAGIC)
    while data[at:] != END:
        stop = at + 8 + int.from_bytes(data[at : at + 8], "little")
        header = data[at + 8 : stop]
        size = sum(int(np.prod(shape)) * 8 for _, _, shape in json.loads(header)["arrays"])
        parts = [header, data[stop : stop + size]]
        if rng.random() < 0.4:
            which = rng.randrange(2)
            parts[which] = spoil_bytes(parts[which], rng, [data])
        head = chained(head, *parts)
        out += [len(parts[0]).to_bytes(8, "little"), *parts, head]
        at = stop + size + 32
    return b"".join([*out, END])


@MANY
def test_forged_boards_are_caught_by_the_head(cases, tmp_path):
    rng, path = random.Random(2), tmp_path / "board"
    board = small_board()
    data = board.save(path).read_bytes()
    believed = 0
    with guarded():
        for _ in range(cases):
            forged = forge(data, rng)
            put(path, forged)
            signal.alarm(60)
            with suppress(BillboardError):
                Billboard.load(path, head=board.head)
                assert forged == data
            with suppress(BillboardError):
                believed += forged != data and bool(Billboard.load(path))
    assert believed > 0  # the head was needed


@MANY
def test_mutated_plans(cases, tmp_path):
    """A plan that loads and is not the same has another fingerprint: no board is taken for its own."""
    rng, path = random.Random(3), tmp_path / "plan.toml"
    originals = plans()
    texts = [plan.to_toml().encode() for plan in originals]
    boards = [plan.create_board() for plan in originals]
    refused = 0
    with guarded():
        for _ in range(cases):
            which = rng.randrange(3)
            put(path, spoil_bytes(texts[which], rng, texts))
            signal.alarm(60)
            try:
                plan = read_plan(path)
            except CloisterError:
                refused += 1
                continue
            signal.alarm(60)
            assert plan in originals or plan.fingerprint != originals[which].fingerprint
            if plan.fingerprint not in [original.fingerprint for original in originals]:
                with pytest.raises(BillboardError, match="another plan"):
                    plan.check(boards[which])
    assert refused > 0.5 * cases


def test_mutated_secrets(tmp_path):
    rng, path = random.Random(4), tmp_path / "secret"
    tasks = Tasks.from_list([[[1.0]]], [[2.0]])
    Secret.new(tasks, None, False).write(path)
    data = path.read_bytes()
    with guarded():
        for _ in range(2000):
            put(path, spoil_bytes(data, rng, [data]))
            signal.alarm(60)
            with suppress(CloisterError):
                assert isinstance(Secret.read(path), Secret)


CLAIMS = ["[1152921504606846976]", "[1000000000,[1]]", '[1000000000,"a"]', "[-1]", "[2.0]", "[true]"]


@pytest.mark.parametrize("shape", CLAIMS)
def test_a_header_that_claims_the_world_takes_no_memory(shape, tmp_path):
    header = f'{{"arrays":[["digest/m","<f8",{shape}]],"capacity":1,"plan":"p","record":0}}'.encode()
    payload = bytes(100)
    path = tmp_path / "board"
    record = len(header).to_bytes(8, "little") + header + payload + chained(b"", header, payload)
    path.write_bytes(MAGIC + record + END)
    tracemalloc.start()
    try:
        with pytest.raises(BillboardError, match=r"truncated|edited"):
            Billboard.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cases", [60, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_readers_refuse_what_they_cannot_read(reader, cases):
    """With a `CloisterError`, and nothing else; `make fuzz` goes on for as long as one likes."""
    found = fuzzing.fuzz(reader, seed=5, most=cases)
    assert found.cases == cases
    assert found.refused > 0
    assert found.defects == {}, found.examples
