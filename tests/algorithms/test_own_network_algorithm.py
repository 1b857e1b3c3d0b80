"""A network algorithm of a user's own: what only one engine can run is refused, and named."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Plan, Tasks, check_algorithm, run
from cloister.algorithms import FedAvg
from cloister.engines import Batched
from cloister.errors import AlgorithmError
from cloister.learners import Descent, Module

RNG = np.random.default_rng(0)
TASKS = Tasks.from_arrays(RNG.normal(size=(40, 3)), RNG.integers(0, 2, 40), np.arange(40) % 8)


def learner(personal=()):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return Module(net, personal=personal)


@dataclass(frozen=True)
class Astype(FedAvg):
    def send(self, states, block, board):
        told, states = super().send(states, block, board)
        return told.astype(np.float64), states


@dataclass(frozen=True)
class Arrays(FedAvg):
    def send(self, states, block, board):
        told, states = super().send(states, block, board)
        return np.asarray(told), states


@dataclass(frozen=True)
class Forgetful(FedAvg):
    def finish(self, states, block, board):
        return {"coef": self.learner.spread(board["mean"], block)}


class Misnamed(FedAvg):
    def finish(self, states, block, board):
        return {"weights": super().finish(states, block, board)["coef"]}


def test_models_of_a_name_that_predictions_do_not_know_are_named():
    with pytest.raises(
        AlgorithmError, match=r"^Misnamed\.predict needs .* 'coef'\. finish returned 'weights'\.$"
    ):
        check_algorithm(Misnamed(learner(), Descent(0.1, steps=1), rounds=2), TASKS)


@pytest.mark.parametrize(("kind", "said"), [(Astype, "failed on"), (Arrays, "must return torch tensors")])
def test_what_takes_numpy_arrays_alone_is_named(kind, said):
    algorithm = kind(learner(), Descent(0.1, steps=1), rounds=2)
    said = rf"^{kind.__name__}\.send {said}.* Local NumPy arrays"
    plan = Plan(algorithm, n_tasks=8).calibrate(1.0)
    run(plan, TASKS, random_state=0)
    with pytest.raises(AlgorithmError, match=said):
        run(plan, TASKS, random_state=0, engine=Batched("cpu"))
    with pytest.raises(AlgorithmError, match=said):
        check_algorithm(algorithm, TASKS)


def test_personal_parameters_that_nobody_keeps_are_refused():
    check_algorithm(FedAvg(learner(("2.*",)), Descent(0.1, steps=1), rounds=2), TASKS)
    check_algorithm(Forgetful(learner(), Descent(0.1, steps=1), rounds=2), TASKS)
    with pytest.raises(AlgorithmError, match="Personal parameters ended the same for every task"):
        check_algorithm(Forgetful(learner(("2.*",)), Descent(0.1, steps=1), rounds=2), TASKS)
