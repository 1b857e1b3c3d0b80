"""Seeded values of every algorithm and mechanism, as they were before: a change of them is a decision.

A case is a plan and its tasks; what is kept of it are numbers that summarise the last release and the models.
``python tests/test_golden.py`` writes them anew. Say in the commit why they changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cloister as cl
from cloister.privacy.noise import discrete_gaussian
from cloister.privacy.randomness import SeededRandomness

VALUES = Path(__file__).parent / "golden" / "values.json"
TASKS, DIM = 24, 3


def regression(seed: int = 0) -> cl.Tasks:
    """Return tasks of 2 to 9 rows around a common mean."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 10, TASKS)
    task = np.repeat(np.arange(TASKS), sizes)
    X = rng.uniform(-1, 1, (len(task), DIM)) / np.sqrt(DIM)
    weights = np.array([0.8, -0.5, 0.3]) + 0.2 * rng.normal(size=(TASKS, DIM))
    y = (X * weights[task]).sum(axis=1) + 0.1 * rng.normal(size=len(task))
    return cl.Tasks.from_arrays(X, y.clip(-1, 1), task)


def classes(count: int) -> cl.Tasks:
    data = regression(1)
    cuts = np.quantile(data.y, np.linspace(0, 1, count + 1)[1:-1])
    names = np.repeat(data.ids, data.sizes)
    return cl.Tasks.from_arrays(data.X, np.searchsorted(cuts, data.y), names)


def linear(algorithm: object, mechanism: object = None, sampling: object = None, **more: object) -> cl.Plan:
    plan = cl.Plan(
        algorithm,
        mechanism or cl.mechanisms.Gaussian(),
        sampling or cl.sampling.Everyone(),
        n_tasks=TASKS,
        **more,
    )
    return plan if isinstance(mechanism, cl.mechanisms.NoNoise) else plan.calibrate(5.0)


def network() -> cl.learners.Module:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(DIM, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return cl.learners.Module(net)


SQUARES, LOGISTIC = cl.learners.LeastSquares(DIM), cl.learners.Logistic(DIM)
MEAN = cl.algorithms.MeanRegularized(SQUARES, rounds=4)
LOWRANK = cl.algorithms.LowRank(SQUARES, rounds=4, warmup=5)
CONVEX, STEPS = cl.learners.Convex(SQUARES), cl.learners.Descent(lr=0.2, batch=2, steps=3)

#: Cases whose tasks have numbers as targets.
NUMBERS: dict[str, Callable[[], cl.Plan]] = {
    "independent": lambda: linear(cl.algorithms.Independent(cl.learners.Regression(DIM))),
    "mean": lambda: linear(MEAN),
    "mean, minibatches and fine-tuning": lambda: linear(
        cl.algorithms.MeanRegularized(SQUARES, rounds=3, batch=2, finetune=2)
    ),
    "mean, no noise": lambda: linear(MEAN, cl.mechanisms.NoNoise()),
    "mean, zero-out": lambda: linear(MEAN, relation="zero_out"),
    "mean, floating point": lambda: linear(MEAN, cl.mechanisms.Gaussian(exact=False)),
    "mean, Laplace": lambda: linear(MEAN, cl.mechanisms.L2Laplace()),
    "mean, Toeplitz": lambda: linear(MEAN, cl.mechanisms.Toeplitz()),
    "mean, Tree": lambda: linear(MEAN, cl.mechanisms.Tree()),
    "mean, BLT": lambda: linear(MEAN, cl.mechanisms.BLT()),
    "mean, Poisson": lambda: linear(MEAN, None, cl.sampling.Poisson(0.5)),
    "mean, fixed size": lambda: linear(MEAN, None, cl.sampling.FixedSize(6)),
    "mean, one pass": lambda: linear(MEAN, None, cl.sampling.OnePass()),
    "mean, epochs": lambda: linear(MEAN, None, cl.sampling.Epochs(2)),
    "averaged": lambda: linear(cl.algorithms.ModelAveraging(SQUARES)),
    "low rank": lambda: linear(LOWRANK),
    "low rank, Wishart": lambda: linear(LOWRANK, cl.mechanisms.Wishart()),
    "group sparse": lambda: linear(
        cl.algorithms.GroupSparse(SQUARES, rounds=4, warmup=5, allocation=cl.algorithms.PowerBudget(0.5))
    ),
    "decomposed": lambda: linear(cl.algorithms.Decomposed(LOWRANK, cl.algorithms.EntrySparse(0.1))),
    "guarded": lambda: linear(cl.algorithms.ChooseAtHome(MEAN, cl.learners.Regression(DIM))),
    "local noise": lambda: linear(cl.algorithms.LocalNoise(MEAN, epsilon=5.0)),
    "prior, joint": lambda: linear(cl.algorithms.SharedPrior(cl.learners.Regression(DIM))),
    "prior, mean": lambda: linear(
        cl.algorithms.SharedPrior(cl.learners.Regression(DIM), cl.algorithms.Mean())
    ),
    "prior, subspace": lambda: linear(
        cl.algorithms.SharedPrior(cl.learners.Regression(DIM), cl.algorithms.Subspace())
    ),
    "prior, support": lambda: linear(
        cl.algorithms.SharedPrior(cl.learners.Regression(DIM), cl.algorithms.Support())
    ),
    "meta": lambda: linear(cl.algorithms.MetaSGD(CONVEX, cl.learners.ExactSolver(), rounds=4)),
    "meta, several models": lambda: linear(
        cl.algorithms.ClusteredMetaSGD(CONVEX, cl.learners.ExactSolver(), rounds=8)
    ),
    "meta, stream": lambda: linear(
        cl.algorithms.FTMRL(CONVEX, cl.learners.ExactSolver(), rounds=4),
        cl.mechanisms.Toeplitz(),
        cl.sampling.OnePass(),
    ),
    "federated averaging, convex": lambda: linear(
        cl.algorithms.FedAvg(CONVEX, cl.learners.Descent(lr=0.2, steps=3), rounds=3)
    ),
}
#: Cases whose tasks have two classes.
TWO: dict[str, Callable[[], cl.Plan]] = {
    "mean, logistic": lambda: linear(cl.algorithms.MeanRegularized(LOGISTIC, rounds=4)),
    "prior, two classes": lambda: linear(
        cl.algorithms.SharedPrior(cl.learners.Classification(DIM, classes=2))
    ),
}
#: Cases whose tasks have three classes.
THREE: dict[str, Callable[[], cl.Plan]] = {
    "mean, softmax": lambda: linear(cl.algorithms.MeanRegularized(cl.learners.Softmax(DIM, 3), rounds=4)),
    "prior, three classes": lambda: linear(
        cl.algorithms.SharedPrior(cl.learners.Classification(DIM, classes=3), cl.algorithms.Mean())
    ),
}
#: Cases of small networks.
NETWORKS: dict[str, Callable[[], cl.Plan]] = {
    "federated averaging": lambda: linear(cl.algorithms.FedAvg(network(), STEPS, rounds=3)),
    "adaptive clip": lambda: linear(cl.algorithms.AdaptiveFedAvg(network(), STEPS, rounds=3)),
    "proximal": lambda: linear(
        cl.algorithms.FedProx(network(), STEPS, rounds=3, server=cl.algorithms.ServerMomentum())
    ),
    "ditto": lambda: linear(
        cl.algorithms.Ditto(network(), STEPS, rounds=3, server=cl.algorithms.ServerAdam())
    ),
    "personalized": lambda: linear(cl.algorithms.Personalized(network(), STEPS, rounds=3)),
    "local only": lambda: linear(cl.algorithms.LocalOnly(network(), STEPS)),
    "meta, network": lambda: linear(cl.algorithms.MetaSGD(network(), STEPS, rounds=3)),
}
CASES = [
    *((name, make, lambda: regression()) for name, make in NUMBERS.items()),
    *((name, make, lambda: classes(2)) for name, make in (TWO | NETWORKS).items()),
    *((name, make, lambda: classes(3)) for name, make in THREE.items()),
]


def summary(name: str, make: Callable[[], cl.Plan], data: Callable[[], cl.Tasks]) -> dict[str, list[float]]:
    """Return, of the last release and of each array of the models, five numbers that any change moves."""
    engine = cl.engines.Batched("cpu") if name in NETWORKS else cl.engines.Local()
    done = cl.run(make(), data(), random_state=7, engine=engine)
    arrays = {f"model {key}": value for key, value in done.private.models.items()}
    if done.board.rounds:
        arrays["release"] = done.board.releases[-1].value
    return {key: _moments(np.asarray(value, dtype=np.float64)) for key, value in sorted(arrays.items())}


def _moments(array: np.ndarray) -> list[float]:
    flat = array.ravel()
    waves = np.cos(np.arange(flat.size))
    found = [flat.mean(), np.abs(flat).mean(), np.sqrt((flat**2).mean()), (flat * waves).mean(), flat[-1]]
    return [float(f"{value:.9g}") for value in found]


@pytest.mark.parametrize(("name", "make", "data"), CASES, ids=[case[0] for case in CASES])
def test_seeded_values_are_what_they_were(name, make, data):
    expected = json.loads(VALUES.read_text())[name]
    found = summary(name, make, data)
    tolerance = 1e-4 if name in NETWORKS else 1e-7
    assert found.keys() == expected.keys()
    for key, numbers in found.items():
        np.testing.assert_allclose(numbers, expected[key], rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize(
    ("power", "first", "digits"),
    [
        (3, [-5, -1, 6, 22], "b75aef1db64ddf74"),
        (20, [847570, 1510858, 300464, -1814603], "c2289f9f0e9c53a4"),
        (40, [2107399808537, 1475490093724, 870902559110, 1576265035096], "55cc150c5ef7dba5"),
    ],
)
def test_noise_is_the_same_on_any_processor(power, first, digits):
    """To the bit: journals that were begun elsewhere go on with the same noise."""
    drawn = discrete_gaussian(2**power, 4096, SeededRandomness(7).stream("golden", power))
    assert drawn[:4].tolist() == first
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest().startswith(digits)


if __name__ == "__main__":
    VALUES.write_text(json.dumps({case[0]: summary(*case) for case in CASES}, indent=1) + "\n")
