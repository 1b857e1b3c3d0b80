"""What a sum costs between nodes: processor milliseconds and bytes of one node in a round, by who is trusted.

Real nodes, each with its folder, keys, ledger and commitments on disk; questions and answers are the bytes of
a real run, sealed, signed and padded, without HTTP and TLS. Nodes are spread over the processors of this
machine. A node's time is that of its processor, with everything in it: checks, local work, exact noise,
masks and files; its bytes are those that it sends, and those that it gets. With a curator that is trusted a
round is one message; where all are waited for, one, under masks; with drop-outs, five. A tenth may drop out
and a tenth collude, one at least.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks, Trust
from cloister import run as run_plan
from cloister.algorithms import MeanRegularized
from cloister.engines import RemoteNodes
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.nodes import NodeFolder, NodeSettings
from cloister.nodes.envelopes import SealedNode, asked_size, new_reader, open_answer, seal_question
from cloister.nodes.identity import Identity, PublicIdentity
from cloister.nodes.messages import Request, RequestKind, reply_room, reply_size
from cloister.nodes.node import Node
from cloister.store.signatures import Operator

NAME = "secure-nodes"
PATHS = ("src/cloister/nodes", "src/cloister/secure")
#: Nodes and numbers of a message.
SIZES = tuple((nodes, size) for size in (1_000, 100_000) for nodes in (8, 50, 200))
OPERATOR = Operator("cost", bytes(range(32)))
ROWS = 2


def trusts(nodes: int) -> dict[str, Trust]:
    some = max(1, nodes // 10)
    return {
        "a curator": Trust.curator(),
        "secure sum, all or wait": Trust.secure_sum(0, some),
        "secure sum, drop-outs": Trust.secure_sum(some, some),
    }


def answer(folder: str, question: bytes) -> tuple[bytes, float]:
    """Let a node answer; return that and the milliseconds of this processor."""
    start = time.process_time()
    found = SealedNode(Node(folder)).answer(question)
    assert found is not None
    return found, 1e3 * (time.process_time() - start)


@dataclass
class Counted:
    """A link to nodes on many processors, which counts what each costs in rounds."""

    folder: Path
    keys: Mapping[str, str]
    reply: int
    pool: ProcessPoolExecutor
    milliseconds: dict[str, float] = field(default_factory=dict)
    up: int = 0
    down: int = 0

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        reader = new_reader()
        kinds = {Request.from_bytes(data).kind for data in requests.values()}
        sealed = {
            name: seal_question(OPERATOR, name, data, reader, reply_room(data, self.reply))
            for name, data in requests.items()
        }
        told = {
            name: self.pool.submit(answer, str(self.folder / name), data) for name, data in sealed.items()
        }
        for name, future in told.items():
            found, spent = future.result()
            if kinds == {RequestKind.ROUND}:
                self.milliseconds[name] = self.milliseconds.get(name, 0.0) + spent
                self.up += asked_size(sealed[name])
                self.down += len(sealed[name])
            key = PublicIdentity.from_text(self.keys[name]).signing
            yield name, open_answer(key, reader, sealed[name], found)


def _stop(sentence: str) -> None:
    """End a run in which a node was not counted: its cost would be another."""
    raise RuntimeError(sentence)


def cost(nodes: int, size: int, trust: Trust, pool: ProcessPoolExecutor) -> list[float]:
    """Return a node's milliseconds, and kilobytes up and down, in a run of one round."""
    plan = Plan(
        MeanRegularized(LeastSquares(size), rounds=1, steps=1), Gaussian(1.0), n_tasks=nodes, trust=trust
    )
    rng = np.random.default_rng(0)
    names = [f"n{place:03d}" for place in range(nodes)]
    X = rng.uniform(-1, 1, (nodes * ROWS, size)) / np.sqrt(size)
    tasks = Tasks.from_arrays(X, rng.uniform(-1, 1, len(X)), np.repeat(names, ROWS))
    home = Path(tempfile.mkdtemp(dir=os.environ.get("CLOISTER_SCRATCH")))
    try:
        keys = {}
        for name in names:
            NodeFolder.create(
                home / name, NodeSettings(name, OPERATOR.public.hex()), epsilon=99.0, delta=1e-3
            )
            keys[name] = Identity.create(home / name).public
        signed = OPERATOR.sign_roster(plan.fingerprint, tasks.roster, "", tuple(keys.values()))
        for name in names:
            NodeFolder(home / name).approve(plan, tasks.only(name), roster=signed, trial=True)
        link = Counted(home, keys, reply_size(plan), pool)
        engine = RemoteNodes(link, OPERATOR, deadline=3600.0, keys=keys, log=_stop)
        done = run_plan(plan, tasks.roster, random_state=0, engine=engine)
        assert done.board.complete
    finally:
        shutil.rmtree(home)
    return [float(np.mean(list(link.milliseconds.values()))), link.up / nodes / 1e3, link.down / nodes / 1e3]


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    rows = [["nodes × numbers", *trusts(3)]]
    figures: Figures = {}
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        cost(*SIZES[0], Trust.secure_sum(1), pool)  # not counted: modules are imported in it
        for nodes, size in SIZES[: 1 if quick else None]:
            rows.append([f"{nodes} × {size:,}"])
            for who, trust in trusts(nodes).items():
                found = cost(nodes, size, trust, pool)
                for of, value in zip(("ms", "kB up", "kB down"), found, strict=True):
                    figures[f"{who} {nodes} {size} {of}"] = value
                rows[-1].append(f"{found[0]:,.0f} ms, {found[1] + found[2]:,.0f} kB")
            print(" | ".join(rows[-1]), flush=True)
    return figures, {}, rows
