"""Recurrent layers for many clients are torch's own layers for each, and learn the next character."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from cloister import Plan, run
from cloister.algorithms import FedAvg, FineTuning, Personalized
from cloister.datasets.leaf import SHAKESPEARE_ALPHABET, leaf_shakespeare
from cloister.engines import Batched
from cloister.learners import Descent, Module, Quadratic
from cloister.mechanisms import Gaussian
from cloister.networks.layers import guard_layers, swap_layers

CLIENTS, EACH, STEPS = 3, 4, 6
LAYERS = {
    "rnn": lambda: nn.RNN(3, 5, batch_first=True),
    "relu, two layers, both ways": lambda: nn.RNN(
        3, 5, 2, nonlinearity="relu", batch_first=True, bidirectional=True
    ),
    "gru, three layers": lambda: nn.GRU(3, 4, 3, batch_first=True),
    "gru, both ways, no bias": lambda: nn.GRU(3, 4, bias=False, batch_first=True, bidirectional=True),
    "lstm": lambda: nn.LSTM(3, 5, batch_first=True),
    "lstm, two layers, both ways": lambda: nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True),
}
EVERY = pytest.mark.parametrize("name", LAYERS)


def flat(found):
    """Return outputs and last states as one list."""
    out, last = found
    return [out, *(last if isinstance(last, tuple) else (last,))]


def stacked_and_rows(layer):
    draw = torch.Generator().manual_seed(0)
    stacked = {
        name: w.detach() + 0.3 * torch.randn(CLIENTS, *w.shape, generator=draw)
        for name, w in layer.named_parameters()
    }
    return stacked, torch.randn(CLIENTS * EACH, STEPS, 3, generator=draw)


@EVERY
@pytest.mark.parametrize("given", [False, True])
def test_outputs_states_and_slopes_are_torchs(name, given):
    """Each client's own layer of torch, from zero or from states that are given."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    swapped = swap_layers(layer)
    stacked, x = stacked_and_rows(layer)
    first = [torch.randn_like(part) for part in flat(layer(x))[1:]] if given else None
    leaves = {key: w.clone().requires_grad_() for key, w in stacked.items()}
    x_leaf = x.clone().requires_grad_()

    def start(rows):
        if first is None:
            return None
        own = tuple(part[:, rows] for part in first)
        return own if isinstance(layer, nn.LSTM) else own[0]

    together = flat(functional_call(swapped, leaves, (x_leaf, start(slice(None)))))
    slopes = torch.autograd.grad(sum((part**2).sum() for part in together), [*leaves.values(), x_leaf])
    for k in range(CLIENTS):
        rows = slice(k * EACH, (k + 1) * EACH)
        own = {key: w[k].clone().requires_grad_() for key, w in stacked.items()}
        x_own = x[rows].clone().requires_grad_()
        alone = flat(functional_call(layer, own, (x_own, start(rows))))
        expected = torch.autograd.grad(sum((part**2).sum() for part in alone), [*own.values(), x_own])
        torch.testing.assert_close(together[0][rows], alone[0], rtol=1e-5, atol=1e-5)
        for found, part in zip(together[1:], alone[1:], strict=True):
            torch.testing.assert_close(found[:, rows], part, rtol=1e-5, atol=1e-5)
        for found, slope in zip(slopes[:-1], expected[:-1], strict=True):
            torch.testing.assert_close(found[k], slope, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(slopes[-1][rows], expected[-1], rtol=1e-5, atol=1e-5)


@EVERY
def test_written_out_for_one_client_it_is_torchs_too(name):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    _, x = stacked_and_rows(layer)
    for one, two in zip(flat(guard_layers(layer)(x)), flat(layer(x)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@EVERY
@pytest.mark.parametrize("garbage", [np.inf, np.nan, 1e30])
def test_one_clients_garbage_stays_with_it(name, garbage):
    """Data or weights: all others' outputs and slopes are the same to the bit."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    swapped = swap_layers(layer)
    stacked, x = stacked_and_rows(layer)
    spoilt_x, spoilt_w = x.clone(), {key: w.clone() for key, w in stacked.items()}
    spoilt_x[EACH : 2 * EACH] = garbage
    for w in spoilt_w.values():
        w[1] = garbage
    others = [0, 2]
    found = []
    for parameters, rows in ((stacked, x), (stacked, spoilt_x), (spoilt_w, x)):
        leaves = {key: w.clone().requires_grad_() for key, w in parameters.items()}
        out = functional_call(swapped, leaves, (rows,))[0]
        slopes = torch.autograd.grad((out**2).sum(), list(leaves.values()))
        found.append([out.detach().unflatten(0, (CLIENTS, EACH))[others], *(s[others] for s in slopes)])
    for again in found[1:]:
        assert all(map(torch.equal, found[0], again))


class NextCharacter(nn.Module):
    """LEAF's model for Shakespeare, small."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(len(SHAKESPEARE_ALPHABET), 4)
        self.recur = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, len(SHAKESPEARE_ALPHABET))

    def forward(self, codes):
        out, _ = self.recur(self.read(codes))
        return self.head(out[:, -1])


@pytest.fixture
def roles(tmp_path):
    """Seven roles of different sizes, each with one saying that it repeats."""
    data, rng = {}, np.random.default_rng(0)
    for role, count in enumerate([1, 2, 3, 3, 5, 8, 9]):
        saying = "".join(rng.choice(list("abc d"), 5)) * 10
        starts = rng.integers(0, 5, count)
        data[f"role {role}"] = {
            "x": [saying[i : i + 12] for i in starts],
            "y": [saying[i + 12] for i in starts],
        }
    document = {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}
    (tmp_path / "shakespeare.json").write_text(json.dumps(document))
    return leaf_shakespeare(tmp_path, length=12)


@pytest.mark.parametrize("kind", [FedAvg, pytest.param(Personalized, marks=pytest.mark.slow)])
def test_the_next_character_is_learnt_alike_by_both_engines(kind, roles):
    torch.manual_seed(0)
    learner = Module(NextCharacter())
    tuned = FineTuning(Descent(1.0, batch=4, steps=5), Quadratic(0.01))
    algorithm = kind(learner, Descent(1.0, batch=4, epochs=2), clip=1.0, rounds=3, finetune=tuned)
    plan = Plan(algorithm, Gaussian(3.0), n_tasks=len(roles))
    one = run(plan, roles, random_state=0)
    two = run(plan, roles, random_state=0, engine=Batched("cpu", block=3))
    np.testing.assert_allclose(two.board["mean"], one.board["mean"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(two.private.models["coef"], one.private.models["coef"], rtol=1e-5, atol=1e-5)
    block = next(roles.blocks([np.arange(len(roles))]))
    start = np.repeat(learner.start()[None], len(roles), axis=0)
    assert (
        learner.losses(one.private.models["coef"], block).mean() < 0.8 * learner.losses(start, block).mean()
    )
