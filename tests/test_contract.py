"""The contract of algorithms: what cannot run is refused before it costs anything, whoever wraps whom."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import cloister as cl
from cloister.errors import CloisterError, InputError, PlanError

M, DIM = 12, 3
SQUARES, LOGISTIC, SOFTMAX = cl.LeastSquares(DIM), cl.Logistic(DIM), cl.Softmax(DIM, 3)
STEPS = cl.Descent(lr=0.1, steps=2)
CPU = cl.Batched("cpu")


def network(outputs: int = 3) -> cl.Module:
    import torch

    torch.manual_seed(0)
    return cl.Module(torch.nn.Linear(DIM, outputs))


def data(X: object = None, y: object = None) -> cl.Tasks:
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (4 * M, DIM)) if X is None else X
    y = rng.integers(0, 2, len(X)) if y is None else y
    return cl.Tasks.from_arrays(X, y, np.repeat(np.arange(M), 4))


def labels(bad: float) -> np.ndarray:
    y = np.zeros(4 * M)
    y[5] = bad
    return y


MEAN = cl.MeanRegularized(LOGISTIC, rounds=2, steps=1)
LOWRANK = cl.LowRank(LOGISTIC, rounds=2, warmup=2)
CONVEX = cl.FedAvg(cl.Convex(LOGISTIC), STEPS, rounds=2)

#: Algorithms for three columns; classes, where they have some, are 0 and 1, or 0 to 2.
LINEAR = {
    "mean": MEAN,
    "mean, squares": cl.MeanRegularized(SQUARES, rounds=2),
    "mean, softmax": cl.MeanRegularized(SOFTMAX, rounds=2),
    "averaged": cl.Averaged(LOGISTIC, steps=2),
    "low rank": LOWRANK,
    "group sparse": cl.GroupSparse(LOGISTIC, rounds=2, warmup=2),
    "shared prior": cl.SharedPrior(cl.Classification(DIM), cl.Mean()),
    "shared prior, squares": cl.SharedPrior(cl.Regression(DIM)),
    "fed avg": CONVEX,
    "fed prox": cl.FedProx(cl.Convex(LOGISTIC), STEPS, rounds=2),
    "ditto": cl.Ditto(cl.Convex(LOGISTIC), STEPS, rounds=2),
    "personalized": cl.Personalized(cl.Convex(LOGISTIC), STEPS, rounds=2),
    "adaptive": cl.AdaptiveFedAvg(cl.Convex(LOGISTIC), STEPS, rounds=2),
    "meta": cl.MetaSGD(cl.Convex(LOGISTIC), cl.Exact(5), rounds=2),
    "stream": cl.FTMRL(cl.Convex(LOGISTIC), cl.Exact(5), rounds=2),
    "clustered": cl.ClusteredMetaSGD(cl.Convex(LOGISTIC), cl.Exact(5), rounds=8),
    "decomposed": cl.Decomposed(LOWRANK, cl.EntrySparse(0.1)),
    "guarded": cl.Guarded(MEAN, cl.Classification(DIM), folds=2),
    "local noise": cl.LocalNoise(MEAN, epsilon=5.0),
    "local noise around a guard": cl.LocalNoise(
        cl.Guarded(MEAN, cl.Classification(DIM), folds=2), epsilon=5.0
    ),
    "guard around two parts": cl.Guarded(
        cl.Decomposed(LOWRANK, cl.EntrySparse(0.1)), cl.Classification(DIM), folds=2
    ),
    "local noise around clients": cl.LocalNoise(CONVEX, epsilon=5.0),
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
            cl.run(plan, tasks, ledger=ledger, random_state=0, engine=engine or cl.Local())
    assert len(ledger.history) == 0


def planned(algorithm: cl.Algorithm) -> cl.Plan:
    return cl.Plan(algorithm, cl.Gaussian(1.0), n_tasks=M)


@pytest.mark.parametrize("name", LINEAR)
def test_wrong_data_cost_nothing(name):
    plan = planned(LINEAR[name])
    for tasks in SHAPES.values():
        refused(plan, tasks)
    if plan.algorithm.rows.classes:
        for y in LABELS.values():
            refused(plan, data(y=y))
    refused(plan, data(), cl.Batched("cpu"), PlanError)  # there is no network for it
    ledger = cl.Ledger(epsilon=100.0, delta=0.05)
    done = cl.run(plan, data(), ledger=ledger, random_state=0)  # right data are taken, and charged once
    assert len(ledger.history) == 1
    outputs = plan.algorithm.predict(done.private.models, np.zeros((M, 5, DIM)))
    assert outputs.shape[:2] == (M, 5)
    assert np.isfinite(outputs).all()
    model = plan.algorithm.newcomer(done.board)
    assert all(model[name].shape == (1, *own.shape[1:]) for name, own in done.private.models.items())


@pytest.mark.parametrize(
    "engine", [cl.Local(), cl.Batched("cpu"), cl.Several((cl.Batched("cpu"),) * 2)], ids=repr
)
@pytest.mark.parametrize("kind", [cl.FedAvg, cl.Personalized, cl.MetaSGD, cl.LocalOnly])
def test_wrong_data_cost_a_network_nothing(engine, kind):
    algorithm = kind(network(), STEPS) if kind is cl.LocalOnly else kind(network(), STEPS, rounds=2)
    for name in ("wider", "narrower", "two targets", "complex", "text"):
        refused(planned(algorithm), SHAPES[name], engine)
    for y in (labels(3), labels(-1), labels(0.5)):  # it tells three classes apart
        refused(planned(algorithm), data(y=y), engine)


def test_a_solver_that_cannot_run_is_refused_when_it_is_named():
    batches, tuned = cl.Descent(0.1, batch=2), cl.FineTuning(cl.Descent(0.1, batch=2))
    for make in (
        lambda: cl.FedAvg(cl.Convex(SQUARES), batches),
        lambda: cl.Ditto(cl.Convex(SQUARES), STEPS, finetune=tuned),
        lambda: cl.FedAvg(cl.Convex(SQUARES), cl.Exact()),  # nothing pulls
        lambda: cl.LocalOnly(cl.Convex(SQUARES), batches),
        lambda: cl.Personalized(network(), cl.Exact()),
        lambda: cl.FedAvg(SQUARES, STEPS),
        lambda: cl.FedAvg(network().net, STEPS),
        lambda: cl.Guarded(cl.MeanRegularized(SQUARES), cl.Classification(DIM)),
        lambda: cl.Plan(object(), n_tasks=M),
    ):
        with pytest.raises(PlanError):
            make()


@dataclass(frozen=True)
class Own(cl.Algorithm):
    """Says nothing of the rows it takes; breaks in one of its functions, whatever the data."""

    broken: str

    def _break(self, where):
        if where == self.broken:
            raise ZeroDivisionError(where)

    def schedule(self, n_tasks, budget):
        return (cl.Round(0.5, (cl.Channel(1),)),) * 2

    def open(self):
        return {"sum": np.zeros(1)}

    def channel(self, board):
        return cl.Channel(2 if self.broken == "channel" else 1)

    def init(self, block, board):
        self._break("init")
        return {}

    def send(self, states, block, board):
        self._break("send")
        return np.zeros((len(block), 3 if self.broken == "message" else 1)), states

    def digest(self, release, board):
        self._break("digest")
        return {"sum": release.value}

    def finish(self, states, block, board):
        self._break("finish")
        return {"coef": np.zeros((len(block), 1))}


@pytest.mark.parametrize("broken", ["channel", "init", "send", "message", "digest", "finish"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_algorithm_that_fails_on_any_data_costs_nothing(broken, wrapped):
    own = Own(broken)
    refused(planned(cl.LocalNoise(own, epsilon=1.0) if wrapped else own), data(), error=CloisterError)


def test_what_is_not_declared_is_refused_by_a_sentence():
    done = cl.run(planned(Own("")), data(), random_state=0)
    with pytest.raises(InputError, match=r"no model for a task without rows\. Use replay"):
        done.plan.algorithm.newcomer(done.board)
    with pytest.raises(InputError, match=r"Own does not say how its models predict"):
        cl.evaluate(done, data())
