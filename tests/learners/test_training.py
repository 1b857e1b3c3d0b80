"""Training many copies at once is training each alone, on minibatches that anyone can draw again."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from networks import NETWORKS, build, inputs
from torch import nn
from torch.nn import functional as F

from cloister import Tasks
from cloister.algorithms import (
    AdaptiveFedAvg,
    CrossValidatedTuning,
    Ditto,
    FedAvg,
    FedProx,
    FedRep,
    FineTuning,
    Increment,
    MetaSGD,
    Personalized,
)
from cloister.core.tasks import local_uniforms, public_seeds
from cloister.errors import InputError, PlanError
from cloister.learners import (
    EWC,
    Adam,
    AdamW,
    Convex,
    Cosine,
    Descent,
    LeastSquares,
    Module,
    Nesterov,
    Quadratic,
    SymmetrizedKL,
    WarmUp,
)
from cloister.learners.descent import MOST_EPOCHS
from cloister.networks import recorded
from cloister.networks.training import Precision, Trainer, minibatches

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
SIZES = [7, 3, 1, 5]
ROUND = 3


def make_block(name, sizes=SIZES, seed=2):
    X = [inputs(name, n, seed=seed + n).numpy() for n in sizes]
    rng = np.random.default_rng(seed)
    classes = [rng.integers(0, 3, n) for n in sizes]
    return next(
        Tasks.from_list(X, classes).blocks([np.arange(len(sizes))], public_seeds(np.arange(len(sizes)), 11))
    )


def own_starts(learner, count):
    noise = np.random.default_rng(5).normal(0, 0.05, (count, learner.size))
    return (learner.start() + noise).astype(np.float32)


def own_batches(block, k, size, solver):
    """Draw one task's minibatches anew, with NumPy, from what the task knows."""
    if solver.batch is None:
        return [np.arange(size)] * solver.count(size)
    steps, epoch = [], 0
    while len(steps) < solver.count(size):
        draws = local_uniforms(block.keys[k : k + 1], ROUND * MOST_EPOCHS + epoch, size)[0]
        order = np.argsort(draws)
        steps += [order[at : at + solver.batch] for at in range(0, size, solver.batch)]
        epoch += 1
    return steps[: solver.count(size)]


def optimiser_of(solver, parameters):
    """Return torch's own, as its documentation has it."""
    options = {"lr": solver.lr, "weight_decay": solver.weight_decay}
    if isinstance(solver, Descent):
        return torch.optim.SGD(
            parameters, **options | {"lr": solver.lr * solver.decay**ROUND}, momentum=solver.momentum
        )
    if isinstance(solver, Nesterov):
        return torch.optim.SGD(parameters, **options, momentum=solver.momentum, nesterov=True)
    kind = {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}[type(solver)]
    return kind(parameters, **options, betas=solver.betas, eps=solver.eps)


def schedule_of(schedule, optimiser):
    if isinstance(schedule, Cosine):
        least = schedule.floor * optimiser.param_groups[0]["lr"]
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, schedule.length, least)
    length = 1 if schedule is None else schedule.length
    return torch.optim.lr_scheduler.LinearLR(optimiser, 1 / length, total_iters=max(1, length - 1))


def one_by_one(net, start, block, sizes, solver, extra=lambda model, x: 0.0):
    """Train each task on its own, as anyone would in plain PyTorch."""
    ended = []
    for k, size in enumerate(sizes):
        model = copy.deepcopy(net)
        nn.utils.vector_to_parameters(torch.tensor(start[k]), model.parameters())
        optimiser = optimiser_of(solver, model.parameters())
        schedule = schedule_of(solver.over_steps, optimiser)
        for rows in own_batches(block, k, size, solver):
            X, y = block.X[k, rows], torch.tensor(block.y[k, rows])
            x = torch.tensor(X) if X.dtype.kind == "i" else torch.tensor(X, dtype=torch.float32)
            optimiser.zero_grad()
            (F.cross_entropy(model(x), y) + extra(model, x)).backward()
            if solver.max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), solver.max_norm)
            optimiser.step()
            schedule.step()
        ended.append(nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
    return np.stack(ended)


SOLVERS = {
    "all rows": Descent(0.1, epochs=3),
    "epochs": Descent(0.1, batch=2, epochs=2, momentum=0.6, weight_decay=0.02, decay=0.9),
    "steps": Descent(0.1, batch=3, steps=5, momentum=0.3),
}


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_block_trains_as_each_task_alone(name, solver):
    """Ragged sizes, partial batches, momentum, decay; the smallest task has one row."""
    net, _ = build(name)
    learner, block = Module(net), make_block(name)
    start = own_starts(learner, len(SIZES))
    found = learner.descend(start, block, solver, ROUND)
    expected = one_by_one(net, start, block, SIZES, solver)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-6)
    assert np.abs(expected - start).max() > 0.01


@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_trains_every_network(name):
    """To what eight bits of a product hold."""
    net, _ = build(name)
    learner, block = Module(net), make_block(name)
    half = Module(net, learner.loss, (), Trainer(net, learner.loss, precision=Precision(bf16=True)))
    start, step = own_starts(learner, len(SIZES)), Descent(0.1, steps=2)
    found, exact = (one.descend(start, block, step, ROUND) - start for one in (half, learner))
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


LIKE_TORCH = {
    "adam": Adam(0.02, batch=2, epochs=2, weight_decay=0.1),
    "adam, all rows": Adam(0.02, steps=4, betas=(0.5, 0.8), eps=1e-3, over_steps=Cosine(4, floor=0.2)),
    "adamw": AdamW(0.02, batch=3, steps=5, weight_decay=0.3, over_steps=WarmUp(3)),
    "nesterov": Nesterov(0.1, batch=2, epochs=2, momentum=0.7, weight_decay=0.02),
    "short": Descent(0.5, batch=2, steps=5, momentum=0.3, weight_decay=0.02, max_norm=0.3),
    "short adam": Adam(0.1, batch=2, epochs=1, eps=0.1, max_norm=0.05),
}


@pytest.mark.parametrize("solver", LIKE_TORCH.values(), ids=LIKE_TORCH)
@pytest.mark.parametrize("name", ["linear", "convolutions", "words", "own layer"])
def test_solvers_are_torchs_optimisers(name, solver):
    """To the precision of 32 bits; a task that has taken its steps stays where it is meanwhile."""
    net, _ = build(name)
    learner, block = Module(net), make_block(name)
    start = own_starts(learner, len(SIZES))
    found = learner.descend(start, block, solver, ROUND)
    expected = one_by_one(net, start, block, SIZES, solver)
    # Adam divides by gradients: where they are nearly 0, their last bits are magnified
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected - start).max() > 0.01
    if solver.max_norm is not None:
        free = learner.descend(start, block, replace(solver, max_norm=None), ROUND)
        assert np.abs(found - free).max() > 1e-3


@pytest.mark.parametrize("solver", LIKE_TORCH.values(), ids=LIKE_TORCH)
def test_a_traced_step_is_every_step(solver, monkeypatch):
    """As on a graphics card, where the first step is traced, compiled and taken again: to the bit."""
    learner, block = (
        Module(build("linear")[0], nn.CrossEntropyLoss(label_smoothing=0.1)),
        make_block("linear"),
    )
    given = own_starts(learner, len(SIZES)), block, solver, ROUND, learner.start(), Quadratic(0.5)
    plain = learner.descend(*given)

    def traced(loop, inputs):
        loop.step = recorded.compiled(loop.step)
        return loop

    monkeypatch.setattr(torch, "compile", lambda program, **_: program)
    monkeypatch.setattr(learner.trainer, "_program", traced)
    np.testing.assert_array_equal(learner.descend(*given), plain)


def test_a_gradient_is_as_long_alone_as_beside_others():
    """To the bit, with two threads: a single row would be added up by both."""
    gradients = torch.randn(3, 40_000, generator=torch.Generator().manual_seed(0))
    solver, threads = Descent(0.1, max_norm=0.5), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (together,) = solver.shortened((gradients,))
        for k in range(3):
            assert torch.equal(solver.shortened((gradients[[k]],))[0][0], together[k])
    finally:
        torch.set_num_threads(threads)


def test_convex_losses_are_trained_by_the_same_rules():
    """Two tasks of least squares by Adam, in 64 bits, each against torch's."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4))
    block = next(Tasks.from_list(list(X), list(y)).blocks())
    solver = Adam(0.1, steps=5, weight_decay=0.2, max_norm=0.5, over_steps=Cosine(5))
    found = Convex(LeastSquares(3)).descend(np.ones((2, 3)), block, solver, ROUND)
    for k in range(2):
        w = torch.ones(3, dtype=torch.float64, requires_grad=True)
        optimiser = optimiser_of(solver, [w])
        schedule = schedule_of(solver.over_steps, optimiser)
        for _ in range(5):
            optimiser.zero_grad()
            ((torch.tensor(X[k]) @ w - torch.tensor(y[k])).square().mean() / 2).backward()
            nn.utils.clip_grad_norm_([w], solver.max_norm)
            optimiser.step()
            schedule.step()
        np.testing.assert_allclose(found[k], w.detach(), rtol=1e-6)


def test_step_sizes_of_rounds_are_torchs():
    """Over 12 rounds, against torch's schedules; rounds after the last stay where these end."""
    for schedule in (WarmUp(5), WarmUp(1), Cosine(8), Cosine(8, floor=0.25)):
        optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        torchs, expected = schedule_of(schedule, optimiser), []
        for at in range(12):
            expected.append(optimiser.param_groups[0]["lr"] if at <= schedule.length else expected[-1])
            optimiser.step()
            torchs.step()
        solver = AdamW(0.5, over_rounds=schedule)
        np.testing.assert_allclose(
            [solver.timetable(at, 3)[:, 0] for at in range(12)], np.transpose([expected] * 3)
        )
    both = Descent(0.5, decay=0.5, over_rounds=WarmUp(4), over_steps=WarmUp(2))
    np.testing.assert_allclose(both.timetable(2, 3)[:, 0], 0.5 * 0.25 * 0.75 * np.array([0.5, 1.0, 1.0]))


@pytest.mark.parametrize("solver", [SOLVERS["epochs"], LIKE_TORCH["adam"], LIKE_TORCH["short"]])
def test_a_task_gets_the_same_model_in_any_company(solver):
    net, _ = build("linear")
    learner, block = Module(net), make_block("linear")
    start = own_starts(learner, len(SIZES))
    together = learner.descend(start, block, solver, ROUND)
    for k, size in enumerate(SIZES):
        alone = block.take([k])
        cut = type(alone)(alone.ids, alone.X[:, :size], alone.y[:, :size], alone.weight[:, :size], alone.keys)
        np.testing.assert_allclose(
            learner.descend(start[[k]], cut, solver, ROUND)[0], together[k], rtol=1e-6, atol=1e-6
        )


def test_row_weights_are_shares_of_the_mean():
    """A row of weight two counts as two rows; a task whose rows all weigh nothing stays where it is."""
    net, _ = build("linear")
    learner = Module(net)
    X, y = inputs("linear", 3).numpy(), np.array([0, 1, 2])
    double = Tasks.from_arrays(X, y, [0] * 3, weight=[2.0, 1.0, 0.0])
    repeated = Tasks.from_arrays(X[[0, 0, 1]], y[[0, 0, 1]], [0] * 3)
    start, solver = own_starts(learner, 1), Descent(0.3, steps=2, momentum=0.5)
    one, two = (learner.descend(start, next(t.blocks()), solver, 0) for t in (double, repeated))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    for solver in (Descent(0.3, steps=2, momentum=0.5), Adam(0.3, batch=2, epochs=2), AdamW(0.3, steps=2)):
        weightless = next(Tasks.from_arrays(X, y, [0] * 3, weight=np.zeros(3)).blocks())
        np.testing.assert_array_equal(learner.descend(start, weightless, solver, 0), start)


@pytest.mark.parametrize(
    ("solver", "names"),
    [
        (SOLVERS["epochs"], ("linear", "convolutions", "own layer", "words")),
        (LIKE_TORCH["adam"], ("linear", "own layer")),
        (LIKE_TORCH["short adam"], ("linear", "own layer")),
    ],
)
def test_a_task_with_garbage_leaves_all_others_to_the_bit(solver, names):
    for name in names:
        net, _ = build(name)
        learner, block = Module(net), make_block(name)
        start = own_starts(learner, len(SIZES))
        clean = learner.descend(start, block, solver, ROUND)
        if name == "words":
            block.y[1] = -(10**9)
        else:
            block.X[1] = np.nan
        spoilt = learner.descend(start, block, solver, ROUND)
        others = np.arange(len(SIZES)) != 1
        np.testing.assert_array_equal(clean[others], spoilt[others])
        assert not np.array_equal(clean[1], spoilt[1])


def test_draws_are_those_of_tasks_bit_for_bit():
    keys = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0xDEADBEEFCAFEF00D], dtype=np.uint64)
    counters = [0, 1, 7 * MOST_EPOCHS + 5]
    found = local_uniforms(torch.from_numpy(keys.view(np.int64)), torch.tensor(counters), 9).numpy()
    for at, counter in enumerate(counters):
        np.testing.assert_array_equal(found[at], local_uniforms(keys, counter, 9))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 50])
def test_every_row_is_used_once_a_pass(batch):
    """And never one of weight zero, wherever it lies; the rest of a block's steps have no weight."""
    block = make_block("linear")
    weight = torch.tensor(block.weight, dtype=torch.float32)
    weight[0, 2] = 0.0
    keys, epochs = torch.from_numpy(block.keys.view(np.int64)), 3
    solver = Descent(0.1, batch=batch, epochs=epochs)
    at, live = minibatches(keys, weight, solver, torch.tensor(ROUND))
    width = weight.shape[1]  # the block is wider than its largest task
    assert at.shape == live.shape == (solver.count(width), len(SIZES), min(batch, width))
    for k in range(len(SIZES)):
        real = np.flatnonzero(weight[k] > 0)
        used = [at[t, k][live[t, k] > 0].tolist() for t in range(len(at))]
        full = [rows for rows in used if rows]
        assert used == full + [[]] * (len(used) - len(full))
        per_epoch = -(-len(real) // batch)
        passes = [list(chain(*full[e * per_epoch : (e + 1) * per_epoch])) for e in range(epochs)]
        assert len(full) == epochs * per_epoch
        assert all(sorted(rows) == real.tolist() for rows in passes)
    later, _ = minibatches(keys, weight, solver, torch.tensor(ROUND + 1))
    assert not torch.equal(at, later)


def written_objectives(net, anchor, x, y):
    """The penalties as formulas on parameters, for autograd."""
    public = copy.deepcopy(net)
    nn.utils.vector_to_parameters(anchor, public.parameters())
    fisher = torch.zeros_like(anchor)
    for i in range(len(x)):
        slope = torch.autograd.grad(F.cross_entropy(public(x[i : i + 1]), y[i : i + 1]), public.parameters())
        fisher += nn.utils.parameters_to_vector(slope) ** 2 / len(x)
    q = public(x).softmax(-1).detach()

    def kl(model, rows):
        p = model(rows).softmax(-1)
        both = (p * (p.log() - q.log())).sum(-1) + (q * (q.log() - p.log())).sum(-1)
        return 1.5 / 2 * both.mean()

    def squares(model, rows, shape):
        w = nn.utils.parameters_to_vector(model.parameters())
        return 0.7 / 2 * (shape * (w - anchor) ** 2).sum()

    return {
        "quadratic": (Quadratic(0.7), lambda model, rows: squares(model, rows, torch.ones_like(anchor))),
        "kl": (SymmetrizedKL(1.5), kl),
        "ewc": (EWC(0.7), lambda model, rows: squares(model, rows, fisher)),
    }


@pytest.mark.parametrize("which", ["quadratic", "kl", "ewc"])
def test_penalties_are_the_slopes_of_their_formulas(which):
    """Two full-batch steps of one task, beside a smaller one, against plain PyTorch."""
    net, _ = build("linear")
    learner, block = Module(net), make_block("linear", [6, 2])
    start = own_starts(learner, 2)
    anchor = learner.start().astype(np.float32) + 0.1
    x, y = torch.tensor(block.X[0, :6], dtype=torch.float32), torch.tensor(block.y[0, :6])
    penalty, formula = written_objectives(net, torch.tensor(anchor), x, y)[which]
    solver = Descent(0.2, steps=2)
    found = learner.descend(start, block, solver, ROUND, anchor, penalty)
    expected = one_by_one(net, start[:1], block, [6], solver, formula)
    np.testing.assert_allclose(found[:1], expected, rtol=1e-5, atol=2e-6)
    plain = learner.descend(start, block, solver, ROUND)
    assert np.abs(found - plain).max(axis=1).min() > 1e-4


def test_a_code_beyond_the_table_does_not_read_the_next_clients():
    """All tables lie one after another in memory; a code that is too large, or below 0, stays in its own."""
    torch.manual_seed(0)
    learner = Module(nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3)))
    weights = own_starts(learner, 3)
    codes = np.array([[[1, 7]], [[-3, 12]], [[4, 999]]])
    before = learner.predict(weights, codes)
    for k in range(3):
        others = weights + 1.0
        others[k] = weights[k]
        np.testing.assert_array_equal(learner.predict(others, codes)[k], before[k])
    np.testing.assert_array_equal(before, learner.predict(weights, codes.clip(0, 4)))


@pytest.mark.parametrize("penalty", [None, EWC(1.0)], ids=repr)
def test_several_labels_a_row(penalty):
    """Targets may have axes of their own, such as the tags of a question."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    X, tags = rng.normal(size=(9, 4)).astype(np.float32), rng.integers(0, 2, (9, 3))
    block = next(Tasks.from_list([X[:5], X[5:]], [tags[:5], tags[5:]]).blocks([np.arange(2)]))

    def every_tag(outputs, targets):
        return F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none").mean(1)

    learner = Module(nn.Linear(4, 3), every_tag)
    start = np.repeat(learner.start()[None], 2, axis=0)
    ended = learner.descend(start, block, Descent(0.5, batch=2, epochs=8), 0, learner.start(), penalty)
    assert (learner.losses(ended, block) < learner.losses(start, block)).all()


def test_fine_tuning_in_steps_of_size_0_is_refused():
    learner, late = Module(nn.Linear(2, 2)), Adam(0.1, over_rounds=Cosine(5))
    for finetune in (FineTuning(late), CrossValidatedTuning((FineTuning(late),))):
        with pytest.raises(PlanError, match=r"after 5 rounds the step size of its solver is 0"):
            FedAvg(learner, late, rounds=5, finetune=finetune)
        FedAvg(learner, late, rounds=4, finetune=finetune)
    for rounds in (4, 5):  # one more solve, or one more training of the head, is fine-tuning too
        told = nullcontext() if rounds == 4 else pytest.raises(PlanError, match="counts as one round more")
        with told:
            MetaSGD(learner, late, rounds=rounds)
        with told:
            FedRep(Module(nn.Linear(2, 2), personal=("bias",)), late, rounds=rounds)


def test_rounds_of_noise_alone_are_refused():
    """What says how far it moved says nothing in steps of size 0, and would be charged for that."""
    learner, early = Module(nn.Linear(2, 2)), Descent(0.1, steps=3, over_rounds=Cosine(2))
    told = r"from round 3, and 3 of 5 rounds would release noise alone\. Write over_rounds=Cosine\(5\), or"
    kinds = (FedAvg, AdaptiveFedAvg, FedProx, Ditto, MetaSGD, partial(Personalized, message=Increment(1.0)))
    for kind in kinds:
        with pytest.raises(PlanError, match=told):
            kind(learner, early, rounds=5)
        for enough in (Cosine(6), Cosine(2, floor=0.1), WarmUp(9)):
            kind(learner, replace(early, over_rounds=enough), rounds=5)
    Personalized(learner, early, rounds=5)  # says where it is, whether it moves or not
    with pytest.raises(PlanError, match=r"from round 5, .* Write over_rounds=Cosine\(6, warm_up=1\)"):
        FedAvg(learner, replace(early, over_rounds=Cosine(4, warm_up=1)), rounds=6)
    with pytest.raises(PlanError, match=r"would release noise alone\. Let over_rounds= or decay= fall more"):
        FedAvg(learner, Descent(0.1, decay=1e-200), rounds=3)


def test_steps_of_size_0_are_refused():
    told = r"It is 0 in 4 of 6 steps of a round, from step 3\. Write over_steps=Cosine\(6\), or give"
    for length in ({"steps": 6}, {"steps": 6, "batch": 2}, {"epochs": 6}):
        with pytest.raises(InputError, match=told):
            Descent(0.1, over_steps=Cosine(2), **length)
        Descent(0.1, over_steps=Cosine(6), **length)
        Descent(0.1, over_steps=Cosine(2, floor=0.1), **length)
    Descent(0.1, batch=2, epochs=6, over_steps=Cosine(2))  # how many steps that is, a task alone knows
