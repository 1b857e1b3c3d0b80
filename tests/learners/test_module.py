"""A network as a learner: many copies at once are what each would be alone, and what is refused is told."""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from networks import NETWORKS, Centres, Counts, Drops, Own, build, inputs
from torch import nn
from torch.func import functional_call

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg
from cloister.errors import InputError, PlanError
from cloister.learners import Adam, Cosine, Descent, Module, PublicFeatures
from cloister.mechanisms import NoNoise
from cloister.networks.training import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
EVERY = pytest.mark.parametrize("name", NETWORKS)


def block_of(X, y, sizes=None):
    """Stack (tasks, rows, ...) arrays as a block; the last rows of a smaller task are padding."""
    sizes = [X.shape[1]] * len(X) if sizes is None else sizes
    rows = [X[k, :n].numpy() for k, n in enumerate(sizes)]
    targets = [y[k, :n].numpy() for k, n in enumerate(sizes)]
    return next(Tasks.from_list(rows, targets).blocks([np.arange(len(X))]))


def copies(learner, count, seed=1):
    """Return the parameters of so many different tasks."""
    noise = 0.1 * torch.randn(count, learner.size, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(learner.start(), dtype=torch.float32) + noise


@EVERY
def test_many_copies_are_what_each_is_alone(name):
    net, _ = build(name)
    learner = Module(net)
    weights, X = copies(learner, 3), inputs(name, 3, 5)
    out = learner.predict(weights.numpy(), X.numpy())
    assert (learner.trainer.swapped is not None) == NETWORKS[name][2]
    for k in range(3):
        alone = copy.deepcopy(net)
        torch.nn.utils.vector_to_parameters(weights[k], alone.parameters())
        np.testing.assert_allclose(out[k], alone(X[k]).detach(), atol=2e-6)


@EVERY
def test_swapped_layers_are_vmap(name):
    """Outputs and slopes, where layers are swapped at all."""
    net, _ = build(name)
    fast, slow = (Trainer(net, nn.functional.cross_entropy) for _ in range(2))
    slow.swapped = None
    if not NETWORKS[name][2]:
        fast.swapped = None
    params = fast.stack(copies(Module(net), 3))
    X, slopes = inputs(name, 3, 5), []
    for trainer in (fast, slow):
        leaves = tuple(w.clone().requires_grad_() for w in params)
        slopes.append(torch.autograd.grad((trainer.outputs(leaves, X) ** 2).sum(), leaves))
    for one, two in zip(*slopes, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_buffers_are_constants_of_the_plan():
    """They are used, they do not change, and a network with others is another network."""
    torch.manual_seed(0)
    net = Own()
    learner = Module(net)
    X = inputs("own layer", 1, 4)
    out = learner.predict(learner.start()[None], X.numpy())[0]
    np.testing.assert_allclose(out, functional_call(net, {}, (X[0],)).detach(), atol=1e-6)
    other = copy.deepcopy(net)
    other.order.copy_(torch.arange(4))
    assert Module(copy.deepcopy(net)) == learner
    assert hash(Module(copy.deepcopy(net))) == hash(learner)
    assert Module(other) != learner


def test_the_network_given_is_never_changed():
    net, _ = build("linear")
    before = copy.deepcopy(net.state_dict())
    learner = Module(net)
    X, y = inputs("linear", 2, 5), torch.zeros(2, 5, dtype=torch.int64)
    learner.descend(copies(learner, 2).numpy(), block_of(X, y), Descent(0.5, steps=3), 0)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_losses_are_means_over_own_rows():
    net, _ = build("linear")
    learner = Module(net)
    X, y = inputs("linear", 2, 5), torch.tensor([[0, 1, 2, 0, 1], [2, 2, 0, 1, 1]])
    found = learner.losses(np.repeat(learner.start()[None], 2, axis=0), block_of(X, y, [5, 2]))
    one = nn.functional.cross_entropy(net(X[0]), y[0]), nn.functional.cross_entropy(net(X[1, :2]), y[1, :2])
    np.testing.assert_allclose(found, [loss.item() for loss in one], rtol=1e-5)


def test_classes_may_be_floats_and_absurd_ones_stop_nobody():
    net, _ = build("linear")
    learner = Module(net)
    X = inputs("linear", 1, 3)
    labels = torch.tensor([[0, 2, 1]])
    whole, floats = (learner.losses(learner.start()[None], block_of(X, y)) for y in (labels, labels.double()))
    np.testing.assert_array_equal(whole, floats)
    block = block_of(X, labels.double())
    block.y[0, :3] = [np.nan, 1e300, -7]
    assert np.isfinite(learner.losses(learner.start()[None], block)).all()


REFUSED = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        "Layer '1' is a BatchNorm1d, which averages over examples .* Use nn.GroupNorm",
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3)),
        "Layer '0' is a Dropout, whose coins nobody could replay",
    ),
    "dropout inside": (
        lambda: nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1)),
        "Layer '0' is a MultiheadAttention with dropout",
    ),
    "statistics": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)),
        "Layer '1' is a InstanceNorm2d that keeps statistics of examples. Set track_running_stats=False",
    ),
    "time first": (
        lambda: nn.Sequential(nn.LSTM(4, 3)),
        "Layer '0' is a LSTM, which can run for many tasks side by side only .* with batch_first=True",
    ),
    "projected": (
        lambda: nn.Sequential(nn.LSTM(4, 3, proj_size=2, batch_first=True)),
        "Layer '0' is a LSTM, .* and proj_size=0. Build it so",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "Layer '0' is a LazyLinear that has no shape yet"),
    "no parameters": (lambda: nn.ReLU(), r"must have parameters, and those .* 32-bit floats. Got \[\]"),
    "other floats": (lambda: nn.Linear(4, 3).double(), r"Got \['torch.float64'\]. Call net.float\(\) first"),
    "frozen": (
        lambda: nn.Linear(4, 3).requires_grad_(False),
        r"Every parameter of this network is frozen, .* Call requires_grad_\(True\)",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_is_refused(why):
    make, sentence = REFUSED[why]
    with pytest.raises(InputError, match=sentence):
        Module(make())


class First(nn.Module):
    def forward(self, pair):
        return pair[0][:, 0]


class Sorted(nn.Module):
    """Goes through NumPy, where torch cannot follow."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return torch.from_numpy(np.sort(self.head(x).detach().numpy(), axis=1))


class Remembers(nn.Module):
    """Looks at values to be sure they are there."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        if x.isnan().any():
            raise ValueError("Got nan.")
        return self.head(x)


class Zeroes(nn.Module):
    """Gives up on all rows where one is absurd."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x) * torch.isfinite(x).all()


SEEN_LATER = {
    "tosses coins": (
        Drops,
        r"nobody could replay that\. Take the drawing out of forward, or set its",
    ),
    "mixes examples": (Centres, "mixes examples: what it says of one row changed with another"),
    "changes buffers": (Counts, "changes its buffers as it runs"),
    "wrong shape": (lambda: nn.Linear(7, 3), r"cannot take torch.float32 of shape \(4,\)"),
    "nothing to train by": (
        lambda: nn.Sequential(Sorted(), nn.PReLU()),
        r"follows from its parameters '0.head.weight', '0.head.bias', so nothing would train them",
    ),
    "fails on garbage": (Remembers, r"fails on a row of nan: Got nan.* clamp or mask what it looks up"),
    "mixes garbage": (Zeroes, "mixes examples: what it says of one row changed with another"),
    "several outputs": (
        lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.GRU(2, 3, batch_first=True)),
        "must return one tensor, with one row an example",
    ),
    "time is missing": (
        lambda: nn.Sequential(nn.GRU(4, 3, batch_first=True), First()),
        r"cannot take torch.float32 of shape \(4,\): GRU takes one tensor of shape \(examples, steps, feat",
    ),
}


@pytest.mark.parametrize("why", SEEN_LATER)
def test_what_cannot_be_is_refused_when_rows_are_first_seen(why):
    """Found with synthetic rows: no task's data has a say in it."""
    make, sentence = SEEN_LATER[why]
    learner = Module(make())
    X, y = inputs("linear", 1, 2), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(InputError, match=sentence):
        learner.descend(learner.start()[None], block_of(X, y), Descent(0.1), 0)


def weights_of(y):
    return torch.tensor([1.0, 2.0, 4.0])[y.clamp(0, 2)]


BAD_LOSSES = {
    "one for all": (
        lambda out, y: nn.functional.cross_entropy(out, y),
        r"must return one number an example\. Got shape \(\) for 2\. Write reduction='none'.* nn\.CrossE",
    ),
    "several an example": (
        lambda out, y: out - y[:, None],
        r"Got shape \(2, 3\) for 2\. Average the rest of an example: \.flatten\(1\)\.mean\(1\)\.",
    ),
    "cannot": (
        lambda out, y: out @ y,
        r"cannot take targets of torch.int64 and shape \(\), tried on the proc",
    ),
    "mixes": (lambda out, y: (out - out.mean(0)).square().sum(1), "The loss mixes examples"),
    "divides by all weights": (
        lambda out, y: weights_of(y) * out.square().sum(1) / weights_of(y).sum(),
        "The loss mixes examples: .* Nothing may average, or add up weights, over rows",
    ),
    "fails on outputs": (
        lambda out, y: nn.functional.binary_cross_entropy(
            out.sigmoid().mean(1), 0.5 + 0 * y, reduction="none"
        ),
        r"The loss fails on an output of nan: .* clamp it first: write outputs\..* in it\. For classes",
    ),
    "too few axes": (
        nn.MSELoss(),
        r"MSELoss compares outputs and targets place by place\. An example has outputs.*[^.]\. Recode",
    ),
    "fails": (
        lambda out, y: nn.functional.cross_entropy(out, y, reduction="none"),
        r"on a target of -\d+: .*[^.]\. A task .* write targets\.clamp\(0, outputs\.shape\[1\] - 1\) in it\.",
    ),
}


@pytest.mark.parametrize("why", BAD_LOSSES)
def test_a_loss_that_could_carry_rows_to_others_is_refused(why):
    loss, sentence = BAD_LOSSES[why]
    learner = Module(nn.Linear(4, 3), loss)
    X, y = inputs("linear", 1, 2), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(InputError, match=sentence):
        learner.descend(learner.start()[None], block_of(X, y), Descent(0.1), 0)


def test_a_loss_is_a_function():
    with pytest.raises(InputError, match=r"a function of outputs and targets\. Got 'mse'\. For classes"):
        Module(nn.Linear(4, 3), "mse")
    with pytest.raises(InputError, match=r"Got the class CrossEntropyLoss: call it, CrossEntropyLoss\(\)"):
        Module(nn.Linear(4, 3), nn.CrossEntropyLoss)
    for stops in (nn.BCELoss(), nn.functional.binary_cross_entropy):
        with pytest.raises(InputError, match=r"without a sigmoid, and write nn\.BCEWithLogitsLoss\(\)"):
            Module(nn.Linear(4, 1), stops)
    with pytest.raises(InputError, match=r"Got reduction='sum'\. Leave it out"):
        Module(nn.Linear(4, 3), nn.MSELoss(reduction="sum"))
    with pytest.raises(InputError, match=r"A loss has nothing to train here"):
        Module(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 3)))


def test_a_plan_file_names_a_network_and_is_read_with_that_network_alone():
    net, other = build("linear")[0], build("words")[0]
    plan = Plan(FedAvg(Module(net), Descent(0.1), rounds=2), n_tasks=10).calibrate(1.0)
    text = plan.to_toml()
    assert "Linear(in_features=4" in text
    assert 'loss = "cloister/cross-entropy/1"' in text
    back = Plan.from_toml(
        text, types=[Module(other), Module(build("linear")[0])]
    )  # equal numbers, another object
    assert back == plan
    assert back.fingerprint == plan.fingerprint
    with torch.no_grad():
        next(net.parameters()).add_(1.0)
    strangers = [(), [Module(other)], [Module(net)], [Module(build("linear")[0], lambda out, y: out.sum(-1))]]
    for types in strangers:
        with pytest.raises(PlanError, match="cannot hold a Module, and none that was handed over is the one"):
            Plan.from_toml(text, types=types)


def test_refused_settings():
    with pytest.raises(InputError, match="Give epochs or steps, not both"):
        Descent(0.1, epochs=1, steps=1)
    with pytest.raises(InputError, match=r"momentum must be a number in \[0, 1\), the share.* Got 1\.0"):
        Descent(0.1, momentum=1.0)
    for words in ({"lr": "a"}, {"lr": None}, {"lr": 0.1, "weight_decay": "x"}, {"lr": 0.1, "max_norm": "1"}):
        name, value = [*words.items()][-1]
        with pytest.raises(InputError, match=f"{name} must be a number .* Got {value!r}"):
            Descent(**words)
    with pytest.raises(InputError, match=r"batch must be a whole number, at least 1\. Got 0"):
        Descent(0.1, batch=0)
    with pytest.raises(
        InputError, match=r"betas must be two numbers, such as betas=\(0\.9, 0\.999\)\. Got 0\.9"
    ):
        Adam(0.1, betas=0.9)
    with pytest.raises(InputError, match=r"max_norm must be a number > 0 and finite\. Got 0"):
        Adam(0.1, max_norm=0)
    with pytest.raises(
        InputError, match=r"over_rounds must be a schedule, such as Cosine\(100\) or WarmUp\(5\)"
    ):
        Descent(0.1, over_rounds=0.9)
    with pytest.raises(InputError, match=r"warm_up must be less than length.* Got 5 of 5"):
        Cosine(5, warm_up=5)


WEIGHT = torch.zeros(1, requires_grad=True)
TORCHS = {
    "class": (
        torch.optim.Adam,
        r"Got torch\.optim\.adam\.Adam\. Write Adam\(lr=0\.001, batch=20, epochs=1\)",
    ),
    "instance": (
        torch.optim.AdamW([WEIGHT], lr=0.01, weight_decay=0.1),
        r"Write AdamW\(lr=0\.01, betas=\(0\.9, 0\.999\), eps=1e-08, weight_decay=0\.1, batch=20, epochs=1\)",
    ),
    "momentum": (
        torch.optim.SGD([WEIGHT], lr=0.1, momentum=0.9),
        r"Write Descent\(lr=0\.1, momentum=0\.9, batch",
    ),
    "nesterov": (
        torch.optim.SGD([WEIGHT], lr=0.1, momentum=0.9, nesterov=True),
        r"Write Nesterov\(lr=0\.1, momentum=0\.9",
    ),
    "another": (
        torch.optim.RMSprop,
        r"Got torch\.optim\.rmsprop\.RMSprop\. Write Descent\(lr=0\.1, epochs=1\)",
    ),
}


@pytest.mark.parametrize("which", TORCHS)
def test_an_optimiser_of_torch_is_told_its_like(which):
    given, sentence = TORCHS[which]
    with pytest.raises(PlanError, match=sentence):
        FedAvg(Module(nn.Linear(4, 3)), given, rounds=2)
    with pytest.raises(
        PlanError, match=r"server must be .* Write ServerAdam\(lr=0\.01\), or leave server= out"
    ):
        FedAvg(Module(nn.Linear(4, 3)), Adam(0.1), server=given)


def test_a_solver_alone_is_no_fine_tuning():
    with pytest.raises(PlanError, match=r"Got Adam\. Write FineTuning\(Adam\(\.\.\.\)\)\."):
        FedAvg(Module(nn.Linear(4, 3)), Adam(0.1), finetune=Adam(0.1))
    with pytest.raises(PlanError, match=r"Got int\. Write FineTuning\(Descent\(lr=0\.1, steps=20\)\)\."):
        FedAvg(Module(nn.Linear(4, 3)), Adam(0.1), finetune=5)


def test_what_is_no_network_is_told_how_to_become_one():
    for net, how in ((nn.Linear, r"Call it: Linear\("), (nn.Linear(2, 2).state_dict(), "load_state_dict")):
        with pytest.raises(InputError, match=how):
            Module(net)
    with pytest.raises(InputError, match=r"or \(64,\). Got 64"):
        PublicFeatures(nn.Linear(64, 2), shape=64)


class Answers(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        return {"logits": self.net(x)}


def test_refusals_say_what_to_write():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8, 2)), rng.integers(0, 2, 8)
    with pytest.raises(InputError, match=r"Got a dict\. .* self\.net\(x\)\.logits"):
        Module(Answers()).try_rows(X, y)
    with pytest.raises(InputError, match=r"nn\.MSELoss\(\) for numbers"):
        Module(nn.Linear(2, 1)).try_rows(X, X[:, 0])
    with pytest.raises(InputError, match=r"Write 'head\.\*'"):
        Module(nn.Sequential(OrderedDict(body=nn.Linear(2, 2), head=nn.Linear(2, 2))), personal=("head",))
    sequences = Module(nn.Sequential(nn.Linear(2, 6), nn.Unflatten(1, (3, 2))))
    with pytest.raises(InputError, match=r"write Module\(net, nn\.CrossEntropyLoss\(\)\)"):
        sequences.rows.check_labels(X, np.full((8, 3), -100))
    tasks = Tasks.from_arrays(X, y, np.arange(8) // 2)
    done = run(Plan(FedAvg(Module(nn.Linear(2, 2)), Descent(0.1), rounds=1), NoNoise(), n_tasks=4), tasks)
    with pytest.raises(InputError, match=r"no task '3' in this run\. Write 3\."):
        done.network("3")
