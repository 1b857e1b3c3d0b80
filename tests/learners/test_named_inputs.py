"""Rows with several inputs: each reaches the argument of its name, and all else is as with one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import FedAvg, LocalOnly
from cloister.core.named_inputs import row_array
from cloister.engines import Batched, Local
from cloister.errors import InputError
from cloister.learners import Convex, Descent, LeastSquares, Module, pad_sequences
from cloister.mechanisms import NoNoise
from cloister.networks.network_inputs import RowKind
from cloister.store.secret import digest_of

WORDS, STEPS = 20, 5


class Scans(nn.Module):
    """Reads a text of masked codes, an image and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.see = nn.Embedding(WORDS, 6), nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, mask, codes, image, age):
        shares = mask / mask.sum(1, keepdim=True).clamp(min=1)
        text = (self.body(codes) * shares[..., None]).sum(1)
        return self.head(torch.tanh(text + self.see(image.flatten(1)) + age[:, None]))


class AsOne(nn.Module):
    """The same network on one row of numbers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        codes, mask, image, age = x.split([STEPS, STEPS, 4, 1], dim=1)
        whole = codes.nan_to_num(posinf=0.0, neginf=0.0).to(torch.int64)
        return self.net(mask, whole, image.unflatten(1, (1, 2, 2)), age[:, 0])


def net_of(seed=0):
    torch.manual_seed(seed)
    return Scans()


def rows_of(seed=0, count=120):
    rng = np.random.default_rng(seed)
    X = {
        "codes": rng.integers(0, WORDS, (count, STEPS)),
        "mask": rng.random((count, STEPS)) < 0.7,
        "image": rng.normal(size=(count, 1, 2, 2)).astype(np.float32),
        "age": rng.random(count).astype(np.float32),
    }
    return X, rng.integers(0, 3, count), rng.integers(0, 10, count)


def plan_of(net, personal=("see.*",)):
    algorithm = FedAvg(Module(net, personal=personal), Descent(0.5, batch=4, epochs=2), clip=0.5, rounds=3)
    return Plan(algorithm, NoNoise(), n_tasks=10)


def test_models_are_those_of_the_same_network_on_one_input():
    """On every engine; where the one input has to be cut again, codes go through floats and back."""
    X, y, task = rows_of()
    whole = Tasks.from_arrays(np.column_stack([part.reshape(len(y), -1) for part in X.values()]), y, task)
    expected = run(plan_of(AsOne(net_of()), ("net.see.*",)), whole, random_state=0).private.models["coef"]
    named = Tasks.from_arrays(X, y, task)
    for engine in (Local(), Batched("cpu"), Batched("cpu", block=1)):
        found = run(plan_of(net_of()), named, engine=engine, random_state=0)
        np.testing.assert_allclose(found.private.models["coef"], expected, atol=1e-6)
    each = {name: torch.as_tensor(part[:4]) for name, part in X.items()}
    assert found.network(3)(**each).shape == (4, 3)


def test_a_frozen_body_of_several_inputs_is_kept():
    """Its features are computed once: models are those of a body that runs in every step."""
    X, y, task = rows_of()
    tasks = Tasks.from_arrays(X, y, task)

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = net_of(), nn.Linear(3, 3)
            self.inner.requires_grad_(False)

        def forward(self, **inputs):
            return self.head(self.inner(**inputs))

    torch.manual_seed(1)
    net = Apart()
    plan = plan_of(net, ())
    assert plan.algorithm.learner.for_rows(tasks.X).features_like(
        tasks.X, torch.device("cpu"), 128
    ).shape == (2, 3)
    kept = run(plan, tasks, random_state=0).private.models["coef"]
    here = run(plan, tasks, engine=Batched("cpu"), random_state=0).private.models["coef"]
    np.testing.assert_allclose(here, kept, atol=1e-6)
    learner = plan.algorithm.learner
    in_steps = Module(net)
    in_steps.by_fields[learner.for_rows(tasks.X).record] = replace(learner.for_rows(tasks.X))
    in_steps.for_rows(tasks.X).made[RowKind.of(tasks.X), "cpu"] = None
    again = run(replace(plan, algorithm=replace(plan.algorithm, learner=in_steps)), tasks, random_state=0)
    np.testing.assert_allclose(again.private.models["coef"], kept, atol=1e-6)


def test_a_task_with_absurd_inputs_changes_no_other():
    X, y, task = rows_of(count=20)
    algorithm = replace(plan_of(net_of()).algorithm, rounds=1, solver=Descent(0.5))
    check_algorithm(algorithm, Tasks.from_arrays(X, y, task % 4))


def test_tasks_keep_their_inputs_however_they_are_made_and_cut():
    X, y, task = rows_of()
    tasks = Tasks.from_arrays(X, y, task)
    own = [np.flatnonzero(task == k) for k in range(10)]
    listed = Tasks.from_list([{n: part[at] for n, part in X.items()} for at in own], [y[at] for at in own])
    assert tasks.X.dtype == listed.X.dtype
    assert (tasks.X == listed.X).all()
    np.testing.assert_array_equal(
        tasks.select([3, 1]).X["codes"], X["codes"][np.concatenate([own[3], own[1]])]
    )
    first, second = tasks.split(0.4)
    assert len(first.X) + len(second.X) == len(y)
    kind = tasks.X.dtype
    names = ("mask", "codes", "image", "age")  # equal bytes, that mean something else
    renamed = [(name, kind[old]) for name, old in zip(names, kind.names, strict=True)]
    other = replace(tasks, X=tasks.X.view(renamed))
    assert digest_of(tasks, b"key") != digest_of(other, b"key")
    assert "codes 5, mask 5, image 1x2x2, age 1 features" in repr(tasks)


@pytest.mark.parametrize(
    ("X", "sentence"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, r"one entry a row: a has float64 of shape \(3,\), b has"),
        ({"a": np.array(["x"])}, "Each input must be numbers"),
        ({"not a name": np.zeros(3)}, "must have the names of forward's arguments. Got .*not a name"),
        ({}, "must have the names of forward's arguments. Got none"),
    ],
)
def test_what_cannot_be_rows_is_refused(X, sentence):
    with pytest.raises(InputError, match=sentence):
        row_array(X)


def test_who_cannot_take_several_inputs_says_so():
    X, y, task = rows_of()
    tasks = Tasks.from_arrays(X, y, task)
    with pytest.raises(InputError, match=r"Several inputs \(codes, mask, image, age\) are for networks"):
        run(Plan(LocalOnly(Convex(LeastSquares(4)), Descent(0.1)), NoNoise(), n_tasks=10), tasks)
    with pytest.raises(InputError, match=r"cannot take codes .* unexpected keyword argument 'extra'"):
        run(plan_of(net_of()), Tasks.from_arrays({**X, "extra": y}, y, task))


def test_sequences_are_padded_to_a_public_length():
    steps = [np.ones((2, 3)), np.zeros((0, 3)), np.full((9, 3), 2.0)]
    padded, mask = pad_sequences(steps, length=4, fill=-1.0)
    assert padded.shape == (3, 4, 3)
    assert mask.sum(axis=1).tolist() == [2, 0, 4]
    assert (padded[0, 2:] == -1).all()
    for wrong, sentence in (([["a"]], "Encode them first"), ([[[1, 2]], [[1]]], "of one shape")):
        with pytest.raises(InputError, match=sentence):
            pad_sequences(wrong, length=2)
    with pytest.raises(InputError, match="length must be a whole number"):
        pad_sequences([[1]], length=0)
