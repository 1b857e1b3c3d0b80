"""What can be mended of a network is, each change is told, and what is left is refused all at once."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg
from cloister.engines import Batched, Local
from cloister.errors import InputError
from cloister.learners import Descent, Module, fix_network
from cloister.mechanisms import NoNoise


class Skipped(nn.Module):
    """Skips what is inside it at random, for a share of the examples."""

    def __init__(self, inside: nn.Module, drop_prob: float) -> None:
        super().__init__()
        self.inside, self.drop_prob = inside, drop_prob

    def forward(self, x):
        kept = torch.rand(len(x), 1) >= self.drop_prob if self.training and self.drop_prob else 1.0
        return x + kept * self.inside(x)


class Answers:
    """What some libraries return."""

    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


class Published(nn.Module):
    """A network as they are published: norms, dropout in layers and in forward, a part that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.norm = nn.Linear(4, 16), nn.BatchNorm1d(16)
        self.block, self.drop = Skipped(nn.Linear(16, 16), 0.2), nn.Dropout(0.1)
        self.attention_dropout, self.pooler, self.head = 0.3, nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x, mask=None):
        seen = F.relu(self.norm(self.read(x)), inplace=True)
        seen = F.dropout(self.block(self.drop(seen)), self.attention_dropout, self.training)
        return Answers(self.head(seen), self.pooler(seen))


def published(seed=0):
    torch.manual_seed(seed)
    return Published()


X = np.random.default_rng(0).normal(size=(30, 4))


def test_all_that_layers_show_is_refused_at_once():
    with pytest.raises(InputError) as told:
        Module(published())
    lines = str(told.value).splitlines()
    assert lines[0] == "This network cannot be trained here, for 2 reasons."
    assert "1. Layer 'norm' is a BatchNorm1d" in lines[1]
    assert "2. Layer 'drop' is a Dropout" in lines[2]
    assert all("fix_network(net, X)" in line for line in lines[1:])
    many = nn.Sequential(*(nn.Dropout(0.1) for _ in range(4)), nn.Linear(4, 3))
    with pytest.raises(InputError, match=r"^Layer '0', like 3 more, is a Dropout"):
        Module(many)


def test_a_published_network_is_mended_and_trains():
    net = published()
    before = copy.deepcopy(net.state_dict())
    fixed = fix_network(net, X)
    assert str(fixed).splitlines() == [
        "Layer 'norm' was batch normalisation that has seen no examples. It is group normalisation now.",
        "Layer '', like 2 more, dropped numbers at random. It drops none now.",
        "No output follows from parameters 'pooler.weight', 'pooler.bias'. They are frozen now.",
        "The network returned a Answers. It returns its logits now, and its parameters are called as before "
        "with 'net.' in front.",
    ]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.norm.num_features == 16
    tasks = Tasks.from_arrays(X, np.arange(30) % 3, np.arange(30) % 5)
    plan = Plan(FedAvg(Module(fixed.net), Descent(0.5), rounds=2), NoNoise(), n_tasks=5)
    one, two = (run(plan, tasks, engine=engine, random_state=0) for engine in (Local(), Batched("cpu")))
    np.testing.assert_allclose(one.private.models["coef"], two.private.models["coef"], atol=1e-6)
    assert np.abs(one.private.models["coef"] - plan.algorithm.learner.start()).max() > 1e-3


def test_a_norm_that_has_learned_says_what_it_said():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, affine=False), nn.Linear(16, 3))
    for _ in range(5):
        net(torch.randn(20, 4))
    fixed = fix_network(net, X)
    assert fixed.changes == (
        "Layer '1' is batch normalisation. It is frozen now, with the statistics that it has.",
    )
    rows = torch.randn(6, 4)
    learner = Module(fixed.net)
    torch.testing.assert_close(learner.module(learner.start())(rows), net.eval()(rows))


def test_sizes_of_groups():
    """Groups have eight channels or more: one each would leave nothing but signs."""
    for channels, groups in ((64, 8), (16, 2), (10, 1), (27, 3), (3, 1)):
        fixed = fix_network(
            nn.Sequential(nn.Linear(4, channels), nn.BatchNorm1d(channels), nn.Linear(channels, 3))
        )
        assert fixed.net[1].num_groups == groups


def test_frozen_layers_and_sound_networks_are_left_alone():
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)).requires_grad_(False)
    fixed = fix_network(nn.Sequential(body, nn.Linear(8, 3)), X)
    assert str(fixed) == "Nothing had to be changed."
    assert fixed.net[0][2].p == 0.2


def test_numbers_and_statistics_are_mended():
    net = nn.Sequential(nn.Conv1d(1, 4, 2), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten())
    fixed = fix_network(nn.Sequential(*net, nn.Linear(12, 3)).double(), X[:, None])
    assert [line.split(" ")[0] for line in fixed.changes] == ["Layer", "Trained"]
    assert {p.dtype for p in fixed.net.parameters()} == {torch.float32}


class Mixes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return {"scores": F.dropout(self.head(x - x.mean(0)), 0.5)}


def test_what_cannot_be_mended_is_refused_all_at_once():
    with pytest.raises(InputError) as told:
        fix_network(Mixes(), X)
    found = str(told.value)
    assert found.startswith("This network cannot be trained here, for 4 reasons.")
    for what in ("Got a dict", "draws at random", "changes its buffers", "mixes examples"):
        assert what in found
    with pytest.raises(InputError, match="Every parameter of this network is frozen"):
        fix_network(nn.Linear(4, 3).requires_grad_(False))
