"""The contract of algorithms: what cannot run is refused before it costs anything, whoever wraps whom."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import cloister as cl
from cloister.errors import CloisterError, InputError, PlanError

M, DIM = 12, 3
SQUARES, LOGISTIC, SOFTMAX = (
    cl.learners.LeastSquares(DIM),
    cl.learners.Logistic(DIM),
    cl.learners.Softmax(DIM, 3),
)
STEPS = cl.learners.Descent(lr=0.1, steps=2)
CPU = cl.engines.Batched("cpu")


def network(outputs: int = 3) -> cl.learners.Module:
    import torch

    torch.manual_seed(0)
    return cl.learners.Module(torch.nn.Linear(DIM, outputs))


def data(X: object = None, y: object = None) -> cl.Tasks:
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (4 * M, DIM)) if X is None else X
    y = rng.integers(0, 2, len(X)) if y is None else y
    return cl.Tasks.from_arrays(X, y, np.repeat(np.arange(M), 4))


def labels(bad: float) -> np.ndarray:
    y = np.zeros(4 * M)
    y[5] = bad
    return y


MEAN = cl.algorithms.MeanRegularized(LOGISTIC, rounds=2, steps=1)
LOWRANK = cl.algorithms.LowRank(LOGISTIC, rounds=2, warmup=2)
CONVEX = cl.algorithms.FedAvg(cl.learners.Convex(LOGISTIC), STEPS, rounds=2)

#: Algorithms for three columns; classes, where they have some, are 0 and 1, or 0 to 2.
LINEAR = {
    "mean": MEAN,
    "mean, squares": cl.algorithms.MeanRegularized(SQUARES, rounds=2),
    "mean, softmax": cl.algorithms.MeanRegularized(SOFTMAX, rounds=2),
    "averaged": cl.algorithms.ModelAveraging(LOGISTIC, steps=2),
    "low rank": LOWRANK,
    "group sparse": cl.algorithms.GroupSparse(LOGISTIC, rounds=2, warmup=2),
    "shared prior": cl.algorithms.SharedPrior(cl.learners.Classification(DIM), cl.algorithms.Mean()),
    "shared prior, squares": cl.algorithms.SharedPrior(cl.learners.Regression(DIM)),
    "fed avg": CONVEX,
    "fed prox": cl.algorithms.FedProx(cl.learners.Convex(LOGISTIC), STEPS, rounds=2),
    "scaffold": cl.algorithms.Scaffold(cl.learners.Convex(LOGISTIC), STEPS, rounds=2),
    "ditto": cl.algorithms.Ditto(cl.learners.Convex(LOGISTIC), STEPS, rounds=2),
    "personalized": cl.algorithms.Personalized(cl.learners.Convex(LOGISTIC), STEPS, rounds=2),
    "adaptive": cl.algorithms.AdaptiveFedAvg(cl.learners.Convex(LOGISTIC), STEPS, rounds=2),
    "meta": cl.algorithms.MetaSGD(cl.learners.Convex(LOGISTIC), cl.learners.ExactSolver(5), rounds=2),
    "stream": cl.algorithms.FTMRL(cl.learners.Convex(LOGISTIC), cl.learners.ExactSolver(5), rounds=2),
    "clustered": cl.algorithms.ClusteredMetaSGD(
        cl.learners.Convex(LOGISTIC), cl.learners.ExactSolver(5), rounds=8
    ),
    "decomposed": cl.algorithms.Decomposed(LOWRANK, cl.algorithms.EntrySparse(0.1)),
    "guarded": cl.algorithms.ChooseAtHome(MEAN, cl.learners.Classification(DIM), folds=2),
    "local noise": cl.algorithms.LocalNoise(MEAN, epsilon=5.0),
    "local noise around a guard": cl.algorithms.LocalNoise(
        cl.algorithms.ChooseAtHome(MEAN, cl.learners.Classification(DIM), folds=2), epsilon=5.0
    ),
    "guard around two parts": cl.algorithms.ChooseAtHome(
        cl.algorithms.Decomposed(LOWRANK, cl.algorithms.EntrySparse(0.1)),
        cl.learners.Classification(DIM),
        folds=2,
    ),
    "local noise around clients": cl.algorithms.LocalNoise(CONVEX, epsilon=5.0),
}
SHAPES = {
    "wider": data(np.zeros((4 * M, DIM + 1))),
    "narrower": data(np.zeros((4 * M, DIM - 1))),
    "images": data(np.zeros((4 * M, DIM, 2))),
    "two targets": replace(data(), y=np.zeros((4 * M, 2))),
    "complex": replace(data(), X=np.zeros((4 * M, DIM), complex)),
    "text": replace(data(), y=np.full(4 * M, "a")),
}
LABELS = {"beyond": labels(9), "below": labels(-1), "between": labels(0.5), "far": labels(-(2.0**62))}


def refused(plan: cl.Plan, tasks: cl.Tasks, engine: object = None, error: type = InputError) -> None:
    """Assert that a run is refused, twice, and that the ledger was never charged."""
    ledger = cl.Ledger(epsilon=100.0, delta=0.05)
    for _ in range(2):
        with pytest.raises(error):
            cl.run(plan, tasks, ledger=ledger, random_state=0, engine=engine or cl.engines.Local())
    assert len(ledger.history) == 0


def planned(algorithm: cl.algorithms.Algorithm) -> cl.Plan:
    return cl.Plan(algorithm, cl.mechanisms.Gaussian(1.0), n_tasks=M)


@pytest.mark.parametrize("name", LINEAR)
def test_wrong_data_cost_nothing(name):
    plan = planned(LINEAR[name])
    for tasks in SHAPES.values():
        refused(plan, tasks)
    if plan.algorithm.rows.classes:
        for y in LABELS.values():
            refused(plan, data(y=y))
    refused(plan, data(), cl.engines.Batched("cpu"), PlanError)  # there is no network for it
    ledger = cl.Ledger(epsilon=100.0, delta=0.05)
    done = cl.run(plan, data(), ledger=ledger, random_state=0)  # right data are taken, and charged once
    assert len(ledger.history) == 1
    outputs = plan.algorithm.predict(done.private.models, np.zeros((M, 5, DIM)))
    assert outputs.shape[:2] == (M, 5)
    assert np.isfinite(outputs).all()
    model = plan.algorithm.model_without_data(done.board)
    assert all(model[name].shape == (1, *own.shape[1:]) for name, own in done.private.models.items())


@pytest.mark.parametrize(
    "engine",
    [cl.engines.Local(), cl.engines.Batched("cpu"), cl.engines.MultiDevice((cl.engines.Batched("cpu"),) * 2)],
    ids=repr,
)
@pytest.mark.parametrize(
    "kind", [cl.algorithms.FedAvg, cl.algorithms.Personalized, cl.algorithms.MetaSGD, cl.algorithms.LocalOnly]
)
def test_wrong_data_cost_a_network_nothing(engine, kind):
    algorithm = (
        kind(network(), STEPS) if kind is cl.algorithms.LocalOnly else kind(network(), STEPS, rounds=2)
    )
    for name in ("wider", "narrower", "two targets", "complex", "text"):
        refused(planned(algorithm), SHAPES[name], engine)
    for y in (labels(3), labels(-1), labels(0.5)):  # it tells three classes apart
        refused(planned(algorithm), data(y=y), engine)


def test_a_solver_that_cannot_run_is_refused_when_it_is_named():
    batches, tuned = (
        cl.learners.Descent(0.1, batch=2),
        cl.algorithms.FineTuning(cl.learners.Descent(0.1, batch=2)),
    )
    for make in (
        lambda: cl.algorithms.FedAvg(cl.learners.Convex(SQUARES), batches),
        lambda: cl.algorithms.Ditto(cl.learners.Convex(SQUARES), STEPS, finetune=tuned),
        lambda: cl.algorithms.FedAvg(cl.learners.Convex(SQUARES), cl.learners.ExactSolver()),  # nothing pulls
        lambda: cl.algorithms.LocalOnly(cl.learners.Convex(SQUARES), batches),
        lambda: cl.algorithms.Personalized(network(), cl.learners.ExactSolver()),
        lambda: cl.algorithms.FedAvg(SQUARES, STEPS),
        lambda: cl.algorithms.FedAvg(network().net, STEPS),
        lambda: cl.algorithms.ChooseAtHome(
            cl.algorithms.MeanRegularized(SQUARES), cl.learners.Classification(DIM)
        ),
        lambda: cl.Plan(object(), n_tasks=M),
    ):
        with pytest.raises(PlanError):
            make()


@dataclass(frozen=True)
class Own(cl.algorithms.Algorithm):
    """Says nothing of the rows it takes; breaks in one of its functions, whatever the data."""

    broken: str

    def _break(self, where):
        if where == self.broken:
            raise ZeroDivisionError(where)

    def schedule(self, n_tasks, budget):
        return (cl.channel.Round(0.5, (cl.channel.Channel(1),)),) * 2

    def start(self):
        return {"sum": np.zeros(1)}

    def channel(self, board):
        return cl.channel.Channel(2 if self.broken == "channel" else 1)

    def init(self, block, board):
        self._break("init")
        return {}

    def send(self, states, block, board):
        self._break("send")
        return np.zeros((len(block), 3 if self.broken == "message" else 1)), states

    def update(self, release, board):
        self._break("update")
        return {"sum": release.value}

    def finish(self, states, block, board):
        self._break("finish")
        return {"coef": np.zeros((len(block), 1))}


@pytest.mark.parametrize("broken", ["channel", "init", "send", "message", "update", "finish"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_algorithm_that_fails_on_any_data_costs_nothing(broken, wrapped):
    own = Own(broken)
    refused(
        planned(cl.algorithms.LocalNoise(own, epsilon=1.0) if wrapped else own), data(), error=CloisterError
    )


def test_what_is_not_declared_is_refused_by_a_sentence():
    done = cl.run(planned(Own("")), data(), random_state=0)
    with pytest.raises(InputError, match=r"no model for a task without rows\. Use replay"):
        done.plan.algorithm.model_without_data(done.board)
    with pytest.raises(InputError, match=r"Own does not say how its models predict"):
        cl.evaluate(done, data())
