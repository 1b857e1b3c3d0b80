"""What tests of nodes share: a few of them, with their rows, and a curator over a link that may misbehave."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field

import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.engines import Local, RemoteNodes
from cloister.learners import LeastSquares
from cloister.nodes import InProcess, Node, NodeFolder, NodeSettings
from cloister.privacy.randomness import SeededRandomness
from cloister.store.signatures import Operator

M, SEED, RUN = 4, 3, "exam-2026"
OPERATOR = Operator(RUN, bytes(range(32)))
BUDGET = {"epsilon": 4.0, "delta": 1e-2}
PLAN = Plan(MeanRegularized(LeastSquares(3), rounds=4, steps=2, batch=2), n_tasks=M, delta=1e-2).calibrate(
    3.0
)


def make_tasks(classes=None):
    rng = np.random.default_rng(0)
    ids = np.repeat([f"t{i}" for i in range(M)], rng.integers(4, 9, M))
    X = rng.uniform(-0.5, 0.5, (len(ids), 3))
    return Tasks.from_arrays(X, X.sum(axis=1) if classes is None else rng.integers(0, classes, len(ids)), ids)


TASKS = make_tasks()


def make_nodes(folder, plan=PLAN, tasks=TASKS, types=(), trial=True, codebook=""):
    """Make a node for each task, with the seed that `run` gives it under SEED."""
    seeds = SeededRandomness(SEED).task_seeds(tasks.ids)
    for name, seed in zip(tasks.ids.tolist(), seeds.tolist(), strict=True):
        group = None if tasks.groups is None else tasks.only(name).groups.tolist()[0]
        settings = NodeSettings(name, OPERATOR.public.hex(), group, seed=seed)
        home = NodeFolder.create(folder / name, settings, **BUDGET)
        home.approve(plan, tasks.only(name), codebook, trial)
    return open_nodes(folder, tasks, types)


def open_nodes(folder, tasks=TASKS, types=()):
    return {name: Node(folder / name, types) for name in tasks.ids.tolist()}


def copied(template, folder):
    shutil.copytree(template, folder)
    return open_nodes(folder)


def here(plan=PLAN, tasks=TASKS):
    """Return the run on one machine, each task computed alone."""
    return run(plan, tasks, random_state=SEED, engine=Local(block=1))


@dataclass
class Recorded:
    """A link to nodes in this process that keeps all traffic, and may change what is answered.

    `away` has pairs of a round and the name of a node that is not reached in it.
    """

    nodes: dict
    change: object = staticmethod(lambda round, name, reply: [(name, reply)])
    away: set = field(default_factory=set)
    asked: list = field(default_factory=list)
    replies: list = field(default_factory=list)
    round: int = -1

    def ask(self, requests, deadline):
        self.round += 1
        requests = {name: text for name, text in requests.items() if (self.round, name) not in self.away}
        self.asked += [(self.round, name, request) for name, request in requests.items()]
        for name, reply in InProcess(self.nodes).ask(requests, deadline):
            self.replies.append((self.round, name, reply))
            yield from self.change(self.round, name, reply)


def asked(link, plan=PLAN, roster=TASKS.roster, told=None, operator=OPERATOR, deadline=20.0, **more):
    """Run over a link; `told` gets the operator's private lines."""
    lines = [] if told is None else told
    engine = RemoteNodes(link, operator, deadline=deadline, log=lines.append)
    return run(plan, roster, random_state=SEED, engine=engine, **more)


def log_of(node):
    path = node.home.folder / "log"
    return path.read_text() if path.exists() else ""


def assert_same_models(nodes, done):
    for name, node in nodes.items():
        own, model = node.model(RUN), done.model(name)
        assert own.keys() == model.keys()
        for key in model:
            np.testing.assert_array_equal(own[key], model[key])
