"""Frozen, shared and personal parameters: what is trained, in which order, and what runs as it was given."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from networks import Adapted, Pretrained
from test_module import block_of
from torch import nn

from cloister.errors import InputError
from cloister.learners import EWC, Descent, Module, Quadratic, SymmetrizedKL
from cloister.learners.learner import Part

X = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 2, 0, 1, 1, 0]])


def trained(net):
    return [p for p in net.parameters() if p.requires_grad]


def put(net, flat):
    torch.nn.utils.vector_to_parameters(torch.tensor(flat), trained(net))


class Biased(nn.Module):
    """Only the bias of its layer is trained."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.head.weight.requires_grad_(False)

    def forward(self, x):
        return self.head(x)


NETWORKS = {
    "body with batch norm and dropout": (Pretrained, True),
    "adapter of layers": (lambda: Adapted(layers=True), True),
    "adapter of parameters": (lambda: Adapted(layers=False), True),
    "bias alone": (Biased, True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_many_copies_are_what_each_is_alone(name):
    """Outputs in evaluation mode of the frozen layers, and steps of gradient descent by autograd."""
    make, swapped = NETWORKS[name]
    torch.manual_seed(0)
    net = make().eval()
    before = copy.deepcopy(net.state_dict())
    learner = Module(net.train())  # whatever mode it is given in
    noise = torch.randn(2, learner.size, generator=torch.Generator().manual_seed(2))
    weights = learner.start() + 0.1 * noise.numpy()
    out = learner.predict(weights, X.numpy())
    ended = learner.descend(weights, block_of(X, Y), Descent(0.3, steps=2), 0)
    assert (learner.trainer.swapped is not None) == swapped
    for k in range(2):
        alone = copy.deepcopy(net).eval()
        put(alone, weights[k])
        np.testing.assert_allclose(out[k], alone(X[k]).detach(), atol=2e-6)
        for _ in range(2):
            slopes = torch.autograd.grad(nn.functional.cross_entropy(alone(X[k]), Y[k]), trained(alone))
            with torch.no_grad():
                for parameter, slope in zip(trained(alone), slopes, strict=True):
                    parameter -= 0.3 * slope
        flat = torch.nn.utils.parameters_to_vector(trained(alone)).detach()
        np.testing.assert_allclose(ended[k], flat, atol=2e-6)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_frozen_parameters_are_held_once():
    learner = Module(Pretrained())
    one, two = (dict(net.named_parameters()) for net in (learner.trainer.net, learner.trainer.swapped))
    frozen = [name for name, p in one.items() if not p.requires_grad]
    assert frozen
    assert all(one[name] is two[name] for name in frozen)
    assert learner.size == sum(p.numel() for p in trained(learner.net))


def test_frozen_parameters_may_be_of_any_kind():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4).bfloat16().requires_grad_(False)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.body(x.bfloat16()).float())

    learner = Module(Half())
    assert np.isfinite(learner.predict(learner.start()[None], X[:1].numpy())).all()
    assert learner == Module(copy.deepcopy(learner.net))


# --- what is written of it in a plan --------------------------------------------------------------------


def test_a_changed_body_another_split_and_other_frozen_ones_are_other_networks():
    torch.manual_seed(0)
    net = Pretrained()
    learner = Module(net)
    changed = [copy.deepcopy(net) for _ in range(4)]
    with torch.no_grad():
        changed[0].body[0].weight[0, 0] += 1e-3
    changed[1].body[1].running_mean[0] += 1e-3
    changed[2].head.bias.requires_grad_(False)
    strangers = [*map(Module, changed[:3]), Module(changed[3], personal=("head.bias",))]
    assert Module(copy.deepcopy(net)) == learner
    assert len({str(other.file_description()) for other in [learner, *strangers]}) == 5
    assert Module(net, personal=("head.bias",)) == strangers[3]
    twice = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))  # as many frozen ones, and others
    first, second = copy.deepcopy(twice), copy.deepcopy(twice)
    first[0].requires_grad_(False)
    second[1].requires_grad_(False)
    assert Module(first) != Module(second)


# --- personal parameters ---------------------------------------------------------------------------------


def test_shared_parameters_come_first():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.LayerNorm(3))
    learner = Module(net, personal=("0.*", "*.bias"))
    assert list(learner.layout.shapes) == ["1.weight", "2.weight", "0.weight", "0.bias", "1.bias", "2.bias"]
    assert (learner.shared_size, learner.size) == (12, 33)
    np.testing.assert_array_equal(learner.shared(learner.start())[:9], net[1].weight.detach().flatten())
    block = block_of(X, Y)
    own = learner.keep(np.arange(66, dtype=np.float32).reshape(2, 33))
    spread = learner.spread(np.zeros(12, np.float32), block, own)
    np.testing.assert_array_equal(spread[:, :12], 0)
    np.testing.assert_array_equal(spread[:, 12:], own["personal"])
    np.testing.assert_array_equal(learner.model_without_data(spread[0, :12])[0, 12:], learner.start()[12:])


@pytest.mark.parametrize(
    ("personal", "sentence"),
    [
        (
            ("tail.*",),
            r"personal='tail\.\*' names no parameter that is trained. Choose among 'head.weight', ",
        ),
        (("body.*",), r"personal='body\.\*' names no parameter that is trained"),
        (("*",), "names every parameter that is trained, and nothing would be shared"),
        ("head.*", r"must be a tuple of patterns .* Write personal=\(\"head\.\*\",\)"),
    ],
)
def test_patterns_that_name_nothing_or_all_are_refused(personal, sentence):
    with pytest.raises(InputError, match=sentence):
        Module(Pretrained(), personal=personal)


class TwoNames(nn.Module):
    """A frozen body, and a weight that two layers use."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.head(self.b(torch.tanh(self.a(self.body(x)))))


@pytest.mark.parametrize("personal", ["a.*", "b.*", "b.weight", "a.[w]*"])
def test_a_parameter_of_two_names_is_personal_by_both_or_by_none(personal):
    with pytest.raises(
        InputError, match=r"'b\.weight' is 'a\.weight': .* Name both in personal=, or neither"
    ):
        Module(TwoNames(), personal=(personal,))
    assert list(Module(TwoNames(), personal=("[ab].bias",)).layout.personal) == ["a.bias", "b.bias"]
    learner = Module(TwoNames(), personal=("a.weight", "b.*"))
    assert list(learner.layout.personal) == ["a.weight", "b.bias"]
    assert list(learner.split[1].layout.personal) == ["net.a.weight", "net.b.bias"]


@pytest.mark.parametrize(
    "penalty", [Quadratic(1e4), EWC(1e4), SymmetrizedKL(1.0)], ids=lambda p: type(p).__name__
)
def test_penalties_hold_shared_parameters_alone(penalty):
    """The same step without a penalty on personal ones; shared ones are pulled, whatever the strength."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    learner = Module(net, personal=("2.*",))
    start = learner.start()[None] + 0.1 * np.random.default_rng(0).normal(size=(2, learner.size))
    start, anchor = start.astype(np.float32), learner.shared(learner.start())
    block, step = block_of(X, Y), Descent(1e-4, steps=1)
    held, free = (learner.descend(start, block, step, 0, anchor, p) for p in (penalty, None))
    split = learner.shared_size
    assert not np.array_equal(held[:, :split], free[:, :split])
    if not isinstance(penalty, SymmetrizedKL):  # which is a term of the loss, and speaks of outputs
        np.testing.assert_array_equal(held[:, split:], free[:, split:])


@pytest.mark.parametrize("part", [Part.SHARED, Part.PERSONAL])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_part_is_trained_while_the_rest_stays(part, momentum):
    """As if the rest were frozen: by autograd, on a copy of the network in which it is."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    learner = Module(net, personal=("0.*",))
    weights, block = np.repeat(learner.start()[None], 2, axis=0), block_of(X, Y)
    solver = Descent(0.3, batch=2, epochs=1, momentum=momentum)
    found = learner.descend(weights, block, solver, 0, part=part)
    fixed = copy.deepcopy(net)
    fixed[0 if part is Part.SHARED else 2].requires_grad_(False)
    rest = Module(fixed)
    alone = rest.descend(np.repeat(rest.start()[None], 2, axis=0), block, solver, 0)
    split = learner.shared_size
    shared, personal = found[:, :split], found[:, split:]
    moved, stays = (shared, personal) if part is Part.SHARED else (personal, shared)
    np.testing.assert_allclose(moved, alone, atol=1e-6)
    before = learner.start()[split:] if part is Part.SHARED else learner.start()[:split]
    np.testing.assert_array_equal(stays, np.repeat(before[None], 2, axis=0))


# --- refusals ---------------------------------------------------------------------------------------------


def flat(*layers):
    net = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), *layers, nn.Linear(4, 3))
    return net


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.2), nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)], ids=repr
)
def test_coins_and_statistics_outside_of_frozen_layers_are_refused(layer):
    """Nobody froze them: a batch norm without parameters is no constant because it has none."""
    with pytest.raises(InputError, match="Or put it into one module with layers that are all frozen"):
        Module(flat(layer))


def test_a_frozen_batch_norm_within_trained_layers_is_a_constant():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4).requires_grad_(False)
    norm.running_mean += 1.0
    net = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3))
    learner = Module(net)
    out = learner.predict(learner.start()[None], X[:1].numpy())[0]
    np.testing.assert_allclose(out, net.eval()(X[0]).detach(), atol=1e-6)
