"""Fingerprints of networks: whatever a layer holds is told, and the same from one process to the next."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import MethodType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cloister import Plan, Tasks, adapt, replay, run
from cloister.algorithms import FedAvg
from cloister.errors import CloisterError, InputError
from cloister.learners import Descent, Module, PublicFeatures
from cloister.mechanisms import NoNoise
from cloister.networks.fingerprint import describe_settings

SHAPE = (3, 8)


def tripled(layer, inputs, output):
    return 3 * output


def flipped(self, x):
    return -x.flatten(1)


def squared(self, x):
    return x.flatten(1).square()


def times(factor):
    return lambda layer, inputs, output: factor * output


class Scaled(nn.Module):
    """Holds what is neither a parameter nor a buffer, and prints an address."""

    def __init__(self, mean=0.0, factor=1.0, act=F.relu, words=("a", "b", "c"), shape=(2, 12)):
        super().__init__()
        self.mean, self.factor, self.act, self.words = torch.tensor(mean), factor, act, set(words)
        self.table = nn.Parameter(torch.arange(24.0).reshape(shape), requires_grad=False)
        self.mix = nn.Linear(8, 8)
        self.parts, self.device = [self.mix, self.table, self], torch.device("cpu")
        self.handle = self.mix.register_forward_hook(self.halved)

    def halved(self, layer, inputs, output):
        return output / 2

    def forward(self, x):
        bent = self.act(self.mix(x - self.mean)) * self.factor
        return bent * self.table.reshape(3, 8)

    def extra_repr(self):
        return f"act={self.act}"


def network(hooks=(), scaled=None, forward=None, **options):
    """Return a frozen body of a given start, and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            8, options.pop("nhead", 2), 16, dropout=0.0, batch_first=True, **options
        )
        body = nn.Sequential(layer, Scaled(**(scaled or {})), nn.Flatten()).requires_grad_(False).eval()
        if forward:
            body[2].forward = MethodType(forward, body[2])
        for hook in hooks:
            body[2].register_forward_hook(hook)
        return nn.Sequential(body, nn.Linear(24, 2))


CHANGES = {
    "heads": {"nhead": 4},
    "norm first": {"norm_first": True},
    "activation": {"activation": "gelu"},
    "tensor": {"scaled": {"mean": 5.0}},
    "number": {"scaled": {"factor": 3.0}},
    "function": {"scaled": {"act": torch.tanh}},
    "words": {"scaled": {"words": ("a", "b")}},
    "shape": {"scaled": {"shape": (12, 2)}},
    "method": {"forward": flipped},
    "another method": {"forward": squared},
    "hook": {"hooks": [tripled]},
    "two hooks": {"hooks": [tripled, tripled]},
    "hook with a number": {"hooks": [times(3.0)]},
    "hook with another": {"hooks": [times(4.0)]},
}


def plan_of(net):
    return Plan(FedAvg(Module(net), Descent(lr=0.1), clip=1.0, rounds=1), NoNoise(), n_tasks=4)


def fingerprints():
    nets = [network(), *(network(**options) for options in CHANGES.values())]
    return [text for net in nets for text in (plan_of(net).fingerprint, features(net).fingerprint)]


def features(net):
    return PublicFeatures(net[0], SHAPE)


@pytest.fixture(scope="module")
def tasks():
    rng = np.random.default_rng(0)
    return Tasks.from_arrays(rng.normal(size=(24, *SHAPE)), rng.integers(0, 2, 24), np.repeat(range(4), 6))


@pytest.fixture(scope="module")
def done(tasks):
    return run(plan_of(network()), tasks, random_state=0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_body_that_holds_something_else_is_refused(change, done, tasks, tmp_path):
    net = network(**CHANGES[change])
    plan, learner = plan_of(net), Module(net)
    path = done.export_public(tmp_path / "net")
    secrets = {"coins": done.private.coins, "seeds": done.private.seeds}
    assert len(replay(done.plan, done.board, tasks, **secrets)["coef"]) == 4
    assert Module(network()).load(path).task is None
    with pytest.raises(CloisterError, match="belongs to another plan"):
        replay(plan, done.board, tasks, **secrets)
    with pytest.raises(CloisterError, match="belongs to another plan"):
        adapt(plan, done.board, tasks)
    with pytest.raises(InputError, match="is of another network"):
        learner.load(path)
    assert not set(features(net).names) & set(features(network()).names)


def test_fingerprints_are_those_of_another_process():
    """There sets have another order, functions other addresses, and hooks other numbers."""
    mine = fingerprints()
    assert len(set(mine)) == len(mine) == 2 * len(CHANGES) + 2
    code = (
        "import test_descriptions as t; t.network(hooks=[t.tripled] * 5); print(*t.fingerprints(), sep='\\n')"
    )
    env = os.environ | {"PYTHONHASHSEED": "7"}
    here = Path(__file__).parent
    theirs = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=here, env=env).split()
    assert theirs == mine


def test_training_copies_and_modes_do_not_change_a_description():
    learner = Module(network())
    assert Module(copy.deepcopy(learner.net).train()) == learner
    assert " at 0x" not in str(learner.file_description())
    own = type("Own", (nn.LSTM,), {})  # it holds its parameters twice, and weak references to them
    for net in (nn.LSTM(4, 3), own(4, 3)):
        moved = copy.deepcopy(net)
        with torch.no_grad():
            moved.weight_hh_l0 += 1.0
        assert describe_settings(moved) == describe_settings(net)


def test_what_cannot_be_told_is_refused():
    net = nn.Sequential(nn.Linear(4, 3))
    net[0].lock = threading.Lock()
    with pytest.raises(
        InputError, match=r"Layer '0' \(Linear\) holds a lock, which cannot be told .* Delete"
    ):
        Module(net).file_description()
    net[0].lock = []
    net[0].lock.append(net[0].lock)
    with pytest.raises(InputError, match=r"Layer '0' \(Linear\) holds itself"):
        Module(net).file_description()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_of_torchscript_is_refused():
    program = torch.jit.trace(nn.Linear(4, 4).requires_grad_(False), torch.zeros(2, 4))
    with pytest.raises(InputError, match="Layer '0' is a program of TorchScript"):
        Module(nn.Sequential(program, nn.Linear(4, 3)))
    with pytest.raises(InputError, match="Layer '' is a program of TorchScript"):
        PublicFeatures(program, (4,))


def test_a_hook_that_keeps_rows_is_refused(tasks):
    """Its list outlives all copies: rows of all tasks would be in it, and in the plan's fingerprint."""
    kept = []
    net = network(hooks=[lambda layer, inputs, output: kept.append(output)])
    with pytest.raises(InputError, match="keeps what is computed, and rows of all tasks would meet there"):
        run(plan_of(net), tasks)
    assert not any(torch.isin(output, torch.tensor(tasks.X).float()).any() for output in kept)
