"""Losses as people write them say one number an example, and are torch's own on one example at a time."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cloister import Ledger, Plan, Tasks, run
from cloister.algorithms import FedAvg
from cloister.engines import Batched, Local
from cloister.errors import InputError, PrivateDataError
from cloister.learners import Descent, Module, SymmetrizedKL
from cloister.mechanisms import Gaussian, NoNoise
from cloister.networks.network_losses import cross_entropy, per_example

N, T, C = 5, 4, 3
WEIGHT = torch.tensor([0.5, 1.0, 3.0])
DRAW = torch.Generator().manual_seed(0)
FLAT, SEQUENCE, ONE = (torch.randn(shape, generator=DRAW) for shape in ((N, C), (N, T, C), (N, 1)))
CLASSES, WORDS = (torch.randint(0, C, shape, generator=DRAW) for shape in ((N,), (N, T)))
NUMBERS, SHARES = torch.randn(N, generator=DRAW), FLAT.softmax(1)
PADDED = WORDS.where(torch.arange(T) < torch.tensor([4, 2, 1, 3, 4])[:, None], -100)

#: loss, outputs, targets as the network has them; and torch's own on one example, as torch wants them
AS_TORCH = {
    "classes": (nn.CrossEntropyLoss(), FLAT, CLASSES, F.cross_entropy),
    "classes as floats": (
        nn.CrossEntropyLoss(),
        FLAT,
        CLASSES.float(),
        lambda o, t: F.cross_entropy(o, t.long()),
    ),
    "function": (F.cross_entropy, FLAT, CLASSES, F.cross_entropy),
    "smoothed": (
        nn.CrossEntropyLoss(label_smoothing=0.2),
        FLAT,
        CLASSES,
        partial(F.cross_entropy, label_smoothing=0.2),
    ),
    "function with options": (
        partial(F.cross_entropy, label_smoothing=0.2),
        FLAT,
        CLASSES,
        partial(F.cross_entropy, label_smoothing=0.2),
    ),
    "shares": (nn.CrossEntropyLoss(), FLAT, SHARES, F.cross_entropy),
    "logarithms": (nn.NLLLoss(), FLAT.log_softmax(1), CLASSES, F.nll_loss),
    "sequence": (nn.CrossEntropyLoss(), SEQUENCE, WORDS, lambda o, t: F.cross_entropy(o.movedim(2, 1), t)),
    "padded": (nn.CrossEntropyLoss(), SEQUENCE, PADDED, lambda o, t: F.cross_entropy(o.movedim(2, 1), t)),
    "padded by a class": (
        nn.CrossEntropyLoss(ignore_index=0),
        SEQUENCE,
        WORDS,
        lambda o, t: F.cross_entropy(o.movedim(2, 1), t, ignore_index=0).nan_to_num(),
    ),
    "classes second": (nn.CrossEntropyLoss(), SEQUENCE.movedim(2, 1), WORDS, F.cross_entropy),
    "our own": (cross_entropy, FLAT, CLASSES, F.cross_entropy),
    "our own, sequence": (cross_entropy, SEQUENCE, WORDS, lambda o, t: F.cross_entropy(o.movedim(2, 1), t)),
    "one number": (nn.MSELoss(), ONE, NUMBERS, lambda o, t: F.mse_loss(o[:, 0], t)),
    "several numbers": (nn.HuberLoss(delta=0.5), FLAT, SHARES, partial(F.huber_loss, delta=0.5)),
    "whole numbers": (nn.L1Loss(), ONE, CLASSES, lambda o, t: F.l1_loss(o[:, 0], t.float())),
    "yes or no": (
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])),
        ONE,
        CLASSES % 2,
        lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t.float(), pos_weight=torch.tensor([3.0])),
    ),
    "other modules": (nn.SoftMarginLoss(), FLAT, SHARES.sign(), F.soft_margin_loss),
}


@pytest.mark.parametrize("which", AS_TORCH)
def test_each_example_has_torchs_loss(which):
    loss, outputs, targets, torchs = AS_TORCH[which]
    found = per_example(loss)(outputs, targets)
    expected = [torchs(outputs[i : i + 1], targets[i : i + 1]) for i in range(N)]
    torch.testing.assert_close(found, torch.stack(expected))


def test_class_weights_multiply_and_are_not_divided_by():
    """Torch divides by the weights of all rows that it is given, which here are those of all tasks."""
    found = per_example(nn.CrossEntropyLoss(weight=WEIGHT))(FLAT, CLASSES)
    torch.testing.assert_close(found, WEIGHT[CLASSES] * F.cross_entropy(FLAT, CLASSES, reduction="none"))
    padded = per_example(nn.CrossEntropyLoss(weight=WEIGHT))(SEQUENCE, PADDED)
    each = F.cross_entropy(SEQUENCE.movedim(2, 1), PADDED, weight=WEIGHT, reduction="none")
    torch.testing.assert_close(padded, each.sum(1) / (PADDED != -100).sum(1))


def test_an_example_that_is_all_padding_says_nothing():
    outputs = SEQUENCE.clone().requires_grad_()
    each = per_example(nn.CrossEntropyLoss())(outputs, torch.full((N, T), -100))
    (slope,) = torch.autograd.grad(each.sum(), outputs)
    assert not each.any()
    assert not slope.any()


class Reads(nn.Module):
    """Scores every position of a sequence of codes."""

    def __init__(self):
        super().__init__()
        self.read, self.head = nn.Embedding(6, 3), nn.Linear(3, C)

    def forward(self, codes):
        return self.head(self.read(codes))


def build(make, loss):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Module(make(), loss)


def texts(bad=None):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 6, (24, T)), rng.integers(0, C, (24, T))
    y[:, 3] = -100
    if bad is not None:
        y[3, 0] = bad
    return Tasks.from_arrays(X, y, np.arange(24) % 6)


LOSSES = {
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weighted": nn.CrossEntropyLoss(weight=WEIGHT),
}


@pytest.mark.parametrize("engine", [Local(), Batched("cpu")], ids=["local", "batched"])
@pytest.mark.parametrize("which", LOSSES)
def test_sequences_with_padding_train(which, engine):
    """One full step of one task is plain PyTorch's, positions that are padded left out."""
    learner = build(Reads, LOSSES[which])
    plan = Plan(FedAvg(learner, Descent(0.5), clip=1e3, rounds=1), NoNoise(), n_tasks=6)
    done = run(plan, texts(), random_state=0, engine=engine)
    net, weight = learner.net, WEIGHT if which == "weighted" else None
    smooth = 0.0 if which == "weighted" else 0.1
    tasks, moved = texts(), 0.0
    for i in range(6):
        X, y = (torch.tensor(part[slice(*tasks.offsets[i : i + 2])]) for part in (tasks.X, tasks.y))
        scores = net(X).movedim(2, 1)
        each = F.cross_entropy(scores, y, weight=weight, label_smoothing=smooth, reduction="none")
        slopes = torch.autograd.grad((each.sum(1) / 3).mean(), list(net.parameters()))
        moved = moved - 0.5 * nn.utils.parameters_to_vector(slopes) / 6
    np.testing.assert_allclose(done.board["mean"] - learner.start(), moved, atol=2e-6)


def test_penalties_take_sequences_too():
    learner, block = build(Reads, nn.CrossEntropyLoss()), next(texts().blocks())
    start = np.repeat(learner.start()[None], len(block), axis=0)
    far = learner.start() + np.linspace(-1, 1, learner.size, dtype=np.float32)
    held, free = (
        learner.descend(start, block, Descent(0.1, steps=3), 0, far, penalty)
        for penalty in (SymmetrizedKL(1.0), None)
    )
    assert np.isfinite(held).all()
    assert np.abs(held - free).max() > 1e-3


MISLABELLED = {
    "a word too many": (
        build(Reads, nn.CrossEntropyLoss()),
        texts(C),
        "class indexes from 0 to 2, or -100 where",
    ),
    "below": (
        build(Reads, F.cross_entropy),
        texts(-1),
        "class indexes from 0 to 2, or -100 where there is none",
    ),
    "our own": (build(Reads, cross_entropy), texts(), r"class indexes from 0 to 2\. Some"),
    "yes, no and maybe": (
        build(partial(nn.Linear, 2, 1), nn.BCEWithLogitsLoss()),
        Tasks.from_arrays(np.ones((6, 2)), [0, 1, 2, 0, 1, 1], np.arange(6)),
        "must be 0, 1 or a share between them",
    ),
}


@pytest.mark.parametrize("why", MISLABELLED)
def test_targets_that_the_loss_is_not_for_are_refused_before_the_charge(why):
    """To the operator alone: where tasks are apart, such a task sends zeros, and nobody else can tell."""
    learner, tasks, sentence = MISLABELLED[why]
    plan = Plan(FedAvg(learner, Descent(0.5), rounds=1), Gaussian(1.0), n_tasks=6)
    ledger = Ledger(9.0, 1e-3)
    for engine in (Local(), Batched("cpu")):
        with pytest.raises(PrivateDataError, match=sentence):
            run(plan, tasks, random_state=0, engine=engine, ledger=ledger)
    assert ledger.history == ()


def test_one_score_is_no_choice_among_classes():
    learner = build(partial(nn.Linear, 2, 1), nn.CrossEntropyLoss())
    tasks = Tasks.from_arrays(np.ones((6, 2)), [0, 1, 1, 0, 1, 1], np.arange(6))
    with pytest.raises(
        InputError, match=r"one score, .* or write loss=nn\.BCEWithLogitsLoss\(\) for targets 0 and 1"
    ):
        run(Plan(FedAvg(learner, Descent(0.5), rounds=1), Gaussian(1.0), n_tasks=6), tasks)


def test_classes_on_either_axis_are_refused():
    square = torch.zeros(2, T, T)
    with pytest.raises(InputError, match=r"on either axis\. Leave loss= out, which takes the last, or pad"):
        per_example(nn.CrossEntropyLoss())(square, torch.zeros(2, T))
    assert cross_entropy(square, torch.zeros(2, T)).shape == (2,)
    with pytest.raises(
        InputError, match=r"outputs of shape \(3,\) and a target of shape \(4,\)\. Scores of cl"
    ):
        per_example(nn.CrossEntropyLoss())(FLAT, WORDS)


class Focal(nn.Module):
    """Somebody's own loss, written as torch's are."""

    def __init__(self, gamma, scale=1.0, reduction="mean"):
        super().__init__()
        self.gamma, self.reduction = gamma, reduction
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, outputs, targets):
        each = self.scale * outputs.square().mean(1) ** self.gamma
        return each.mean() if self.reduction == "mean" else each


class Holds(nn.Module):
    """Somebody's own loss, which keeps what it is given as it is."""

    def __init__(self, held):
        super().__init__()
        self._held = held

    def forward(self, outputs, targets):
        return outputs[:, 0] - targets


def held_loss(outputs, targets, *, held=None):
    return outputs[:, 0] - targets


def closed_over(held):
    def loss(outputs, targets):
        return outputs[:, 0] - (targets, held)[0]

    return loss


@dataclass(frozen=True)
class Called:
    held: object

    def __call__(self, outputs, targets):
        return outputs[:, 0] - targets


def by_default(held):
    def loss(outputs, targets, held=held):
        return outputs[:, 0] - targets

    return loss


#: Values that are told apart, however a loss holds them; the tensors and arrays print alike.
HELD = [
    None,
    (1.0, 2.0),
    [1.0, 2.0],
    {"a": 1.0},
    {"a": 2.0},
    torch.tensor(1.00001),
    torch.tensor(1.00002),
    [torch.tensor(1.00001)],
    np.full(2000, 1.0),
    np.append(np.full(1999, 1.0), 2.0),
    nn.MSELoss(reduction="none"),
    nn.L1Loss(reduction="none"),
    [nn.Linear(1, 1, bias=False)],  # of no module that a loss would train
    [nn.Linear(1, 1)],
    torch.float64,
    torch.exp,
]
HOLDERS = {
    "partial": lambda held: partial(held_loss, held=held),
    "module": Holds,
    "closure": closed_over,
    "default": by_default,
    "object": Called,
}


@pytest.mark.parametrize("how", HOLDERS)
def test_the_plan_tells_losses_apart_by_all_that_they_hold(how):
    net = nn.Linear(4, 1)
    said, again = (
        [Module(net, HOLDERS[how](held)).file_description()["loss"] for held in values]
        for values in (HELD, copy.deepcopy(HELD))
    )
    assert len(set(said)) == len(HELD)
    assert again == said
    assert not [sentence for sentence in said if " at 0x" in sentence]
    with pytest.raises(
        InputError, match=r"A lock cannot be told from others of its kind\. Let the loss hold"
    ):
        Module(net, HOLDERS[how](threading.Lock())).file_description()


def test_the_plan_tells_lambdas_apart():
    """And knows a plain function by its name alone."""
    net = nn.Linear(4, 1)
    twice, thrice = Module(net, lambda o, t: 2 * (o[:, 0] - t)), Module(net, lambda o, t: 3 * (o[:, 0] - t))
    assert twice != thrice
    assert twice == Module(net, lambda o, t: 2 * (o[:, 0] - t))
    assert Module(net, plain_loss).file_description()["loss"] == f"{__name__}:plain_loss/1"


def plain_loss(outputs, targets):
    return outputs[:, 0] - targets


DIFFERENT = [
    cross_entropy,
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(label_smoothing=0.1),
    nn.CrossEntropyLoss(weight=WEIGHT),
    nn.CrossEntropyLoss(weight=2 * WEIGHT),
    nn.CrossEntropyLoss(ignore_index=1),
    nn.NLLLoss(),
    nn.MSELoss(),
    nn.HuberLoss(delta=2.0),
    nn.HuberLoss(delta=3.0),
    Focal(1.0),
    Focal(2.0),
    Focal(2.0, 0.5),
]


def test_the_plan_tells_losses_apart_by_their_options():
    """And knows one again that is written in another way, or in another process."""
    net = nn.Linear(4, C)
    said = [Module(net, loss).file_description()["loss"] for loss in DIFFERENT]
    assert len(set(said)) == len(DIFFERENT)
    assert not [sentence for sentence in said if " at 0x" in sentence]
    assert Module(net, F.cross_entropy) == Module(net, nn.CrossEntropyLoss(reduction="none"))
    again = Module(net, nn.CrossEntropyLoss(weight=WEIGHT.clone()))
    assert again.file_description()["loss"] == said[3]
    assert Module(net, again.loss) == again
    assert said[0] == "cloister/cross-entropy/1"


@pytest.mark.parametrize(
    ("make", "loss", "garbage"),
    [
        (Reads, nn.CrossEntropyLoss(label_smoothing=0.1, weight=WEIGHT), [-1, C, -(2**62), 2**62]),
        (Reads, cross_entropy, [-1, C, -(2**62), 2**62]),
        (partial(nn.Linear, 2, 1), nn.MSELoss(), [np.nan, np.inf, 3e38]),
        (partial(nn.Linear, 2, 1), nn.BCEWithLogitsLoss(), [np.nan, -np.inf, 3e38]),
        (partial(nn.Linear, 2, C), nn.CrossEntropyLoss(), [np.nan, np.inf, -np.inf, 3e38]),
    ],
    ids=["weighted sequence", "sequence", "numbers", "yes or no", "classes as floats"],
)
def test_absurd_targets_stay_with_their_task(make, loss, garbage):
    """All others' models are the same to the bit."""
    learner = build(make, loss)
    rows = (
        texts()
        if make is Reads
        else Tasks.from_arrays(np.ones((24, 2)), np.arange(24) // 6 % 2.0, np.arange(24) % 6)
    )
    block = next(rows.blocks())
    start = np.repeat(learner.start()[None], len(block), axis=0)
    clean = learner.descend(start, block, Descent(0.1, batch=3, epochs=2), 0)
    for value in garbage:
        y = block.y.copy()
        y[2] = value
        spoilt = learner.descend(start, replace(block, y=y), Descent(0.1, batch=3, epochs=2), 0)
        np.testing.assert_array_equal(np.delete(spoilt, 2, axis=0), np.delete(clean, 2, axis=0))
        assert not np.array_equal(spoilt[2], clean[2])
