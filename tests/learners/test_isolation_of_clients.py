"""Nothing that one client holds, says or is reaches another's outputs, slopes or states: to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import ADAPTED, NETWORKS, build, inputs
from torch import Tensor, nn
from torch.nn import functional as F

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg
from cloister.core.tasks import public_seeds
from cloister.engines import Batched, Local
from cloister.errors import InputError
from cloister.learners import EWC, Descent, Module
from cloister.mechanisms import Gaussian
from cloister.networks.layers import swap_layers
from cloister.networks.network_losses import cross_entropy
from cloister.networks.training import Precision, Trainer

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
EVERY = pytest.mark.parametrize("name", [*NETWORKS, *ADAPTED])
GARBAGE = [np.nan, np.inf, -np.inf, 3e38, -1e30]
CLIENTS, EACH, BAD = 4, 3, 2
OTHERS = [k for k in range(CLIENTS) if k != BAD]


def outputs_and_slopes(trainer, params, x):
    """Return, for every client but the bad one, its outputs and the slope of its loss."""
    leaves = tuple(w.clone().requires_grad_() for w in params)
    out = trainer.outputs(leaves, x)
    target = torch.zeros(out.shape[:2], dtype=torch.int64)
    loss = cross_entropy(out.flatten(0, 1), target.flatten())
    slopes = torch.autograd.grad(loss.sum(), leaves)
    return [out.detach()[OTHERS], *(slope[OTHERS] for slope in slopes)]


def trainer_of(name, stacked, bf16=False):
    net, _ = build(name)
    trainer = Trainer(net, cross_entropy, precision=Precision(bf16=bf16))
    if not stacked or not (NETWORKS | ADAPTED)[name][2]:
        trainer.swapped = None
    draw = torch.Generator().manual_seed(1)
    start = trainer.start.expand(CLIENTS, -1)
    return trainer, trainer.stack(start + 0.1 * torch.randn(start.shape, generator=draw))


@EVERY
@pytest.mark.parametrize(("stacked", "bf16"), [(True, False), (False, False), (True, True)])
def test_garbage_in_data_or_weights_stays_with_its_client(name, stacked, bf16):
    trainer, params = trainer_of(name, stacked, bf16)
    x = inputs(name, CLIENTS, EACH)
    clean = outputs_and_slopes(trainer, params, x)
    values = GARBAGE if x.is_floating_point() else [-1, 5, 10**9, -(2**62), 2**62]
    for value in values:
        spoilt = x.clone()
        spoilt[BAD] = value
        assert all(map(torch.equal, clean, outputs_and_slopes(trainer, params, spoilt))), value
    for value in GARBAGE:
        spoilt_params = tuple(w.clone() for w in params)
        for w in spoilt_params:
            w[BAD] = value
        assert all(map(torch.equal, clean, outputs_and_slopes(trainer, spoilt_params, x))), value


@pytest.mark.parametrize("channels", [1, 3, 7, 8, 9, 16])
@pytest.mark.parametrize("out", [1, 5, 16])
def test_convolutions_of_any_width_do_not_mix(channels, out):
    """Grouped convolutions are computed in blocks of channels, which must not reach into other groups."""
    net = swap_layers(nn.Conv2d(channels, out, 3, padding=1))
    draw = torch.Generator().manual_seed(0)
    params = {name: torch.randn(CLIENTS, *w.shape, generator=draw) for name, w in net.named_parameters()}
    x = torch.randn(CLIENTS * EACH, channels, 6, 6, generator=draw)
    found = []
    for value in (None, *GARBAGE):
        rows = x.clone()
        if value is not None:
            rows[BAD * EACH : (BAD + 1) * EACH] = value
        leaves = {name: w.clone().requires_grad_() for name, w in params.items()}
        done = torch.func.functional_call(net, leaves, (rows,))
        slopes = torch.autograd.grad((done**2).sum(), list(leaves.values()))
        found.append([done.detach().unflatten(0, (CLIENTS, EACH))[OTHERS], *(s[OTHERS] for s in slopes)])
    for again in found[1:]:
        assert all(map(torch.equal, found[0], again))


class Padded(nn.Module):
    """An embedding with a word that means nothing: it goes through vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.read(words).mean(dim=1))


class LooksUp(nn.Module):
    """Looks codes up in its own way."""

    def __init__(self, clamp: bool) -> None:
        super().__init__()
        self.table, self.clamp = nn.Parameter(torch.ones(6, 3)), clamp

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words.clamp(0, 5) if self.clamp else words, self.table).mean(dim=1)


def words_of(bad_code=None):
    rng = np.random.default_rng(0)
    X, ids = rng.integers(0, 6, (40, 4)), np.arange(40) % 8
    if bad_code is not None:
        X[ids == BAD] = bad_code
    return Tasks.from_arrays(X, rng.integers(0, 3, 40), ids)


@pytest.mark.parametrize("engine", [Local(), Batched("cpu", block=3)], ids=["local", "batched"])
@pytest.mark.parametrize("code", [-1, 6, -(2**40), 2**62])
@pytest.mark.parametrize(
    "make", [Padded, lambda: LooksUp(clamp=True), lambda: nn.Sequential(nn.Embedding(6, 3), Mean())]
)
def test_a_code_beyond_the_table_stops_nobody(make, code, engine):
    """The run goes on, and what others say and are given the board is the same to the bit."""
    torch.manual_seed(0)
    plan = Plan(FedAvg(Module(make()), Descent(0.3, batch=2), rounds=1), Gaussian(1.0), n_tasks=8)
    boards = [run(plan, tasks, random_state=0, engine=engine).board for tasks in (words_of(), words_of(code))]
    assert all(board.complete for board in boards)
    states = []
    for tasks in (words_of(), words_of(code)):
        with engine.workers(plan, tasks, public_seeds(tasks.ids)) as workers:
            workers.start(boards[0].before(0))
            workers.listen(boards[0].before(0), np.ones(8, dtype=bool))
            states.append(workers.finish(boards[0])["coef"])
            assert workers.rejected() == 0
    np.testing.assert_array_equal(*(np.delete(state, BAD, axis=0) for state in states))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def test_a_network_that_any_code_could_stop_is_refused_before_data_are_seen():
    plan = Plan(FedAvg(Module(LooksUp(clamp=False)), Descent(0.3), rounds=1), Gaussian(1.0), n_tasks=8)
    with pytest.raises(InputError, match=r"fails on a row of -\d+: .* clamp or mask what it looks up"):
        run(plan, words_of(), random_state=0)


class Direction(nn.Module):
    """Has no slope at a row of zeros, which is what padding is."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.turn(x)
        return self.head(turned / turned.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("solver", [Descent(0.2, epochs=3), Descent(0.2, batch=2, epochs=3)], ids=repr)
@pytest.mark.parametrize("penalty", [None, EWC(1.0)], ids=repr)
def test_a_larger_neighbour_does_not_change_a_task(solver, penalty):
    """It makes padding: rows of zeros, at which this network's slope is not a number."""
    torch.manual_seed(0)
    learner, rng = Module(Direction()), np.random.default_rng(0)
    X, y = rng.normal(size=(9, 3)).astype(np.float32), rng.integers(0, 3, 9)
    ended = []
    for size in (2, 7):
        block = next(
            Tasks.from_list([X[:2], X[2 : 2 + size]], [y[:2], y[2 : 2 + size]], ["a", "b"]).blocks(
                [np.arange(2)]
            )
        )
        at = block.ids.tolist().index("a")
        weights = np.repeat(learner.start()[None], 2, axis=0)
        ended.append(learner.descend(weights, block, solver, 0, learner.start(), penalty)[at])
    assert np.isfinite(ended[0]).all()
    np.testing.assert_allclose(ended[1], ended[0], atol=1e-6)


def test_rows_without_weight_do_not_count_whatever_they_hold():
    torch.manual_seed(0)
    learner, rng = Module(nn.Linear(3, 3)), np.random.default_rng(0)
    tasks = Tasks.from_list([rng.normal(size=(4, 3)).astype(np.float32)] * 2, [np.array([0, 1, 2, 1])] * 2)
    block = next(tasks.blocks())
    weight = block.weight.copy()
    weight[0, 1] = 0
    X = block.X.copy()
    X[0, 1] = np.nan
    start = np.repeat(learner.start()[None], 2, axis=0)
    for solver in (Descent(0.2, steps=3), Descent(0.2, batch=2, steps=5)):
        for penalty in (None, EWC(1.0)):
            clean, spoilt = (
                learner.descend(
                    start, replace(block, X=rows, weight=weight), solver, 0, learner.start(), penalty
                )
                for rows in (block.X, X)
            )
            np.testing.assert_array_equal(clean, spoilt)
