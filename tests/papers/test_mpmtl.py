"""Figures of model-protected learning at tiny sizes: what each measures, and what it is there to show."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cloister.core.lifts import unsvec
from cloister.engines.run import run
from cloister.plan.plan import Plan
from cloister.privacy.mechanisms import NoNoise
from papers.figure import Options
from papers.mpmtl import (
    figure_2,
    figure_4,
    figure_5,
    figure_8,
    proposition_1,
    simulation,
    table_2,
    tradeoff,
)
from papers.mpmtl.problems import Problem
from papers.mpmtl.simulation import PAPER, Setting, noise_to_signal
from papers.mpmtl.wishart import published_plan

#: Sizes for a look within a second or two, with a budget at which so few tasks are heard.
QUICK = Setting(
    tasks=80, rows=8, dim=6, rank=1, epsilon=100.0, rounds=6, warmup=5, lam=0.02, clip=1.0, lr=1.5
)
RUNS = 6


def test_figure_2_an_anomaly_leaks_without_noise_and_not_with_it():
    """All models take on its direction, or keep their own: cosines with it, over twenty draws."""
    found = [figure_2.measure({"seed": seed}, Options()) for seed in range(20)]
    cosines = {name: np.array([value[name] for value in found]) for name in figure_2.ENDS}
    assert cosines["leaked"].shape == (20, 9)
    assert cosines["leaked"].min() > 0.999
    assert np.abs(cosines["repaired"] - cosines["start"]).max() < 0.02  # nothing is shared at 0.1
    assert np.abs(cosines["published"] - cosines["start"]).max() < 0.2
    assert cosines["start"].mean() < 0.85


@pytest.fixture(scope="module")
def allocation():
    """Errors over six draws by exponent of the budget and acceleration; and the references."""
    points = [("alpha", x, fast) for x in (-0.8, 0.0, 0.4, 1.2) for fast in (False, True)]
    points.append(("exponent", 1.0, True))
    found = {
        point: [
            figure_4.errors(QUICK, {"seed": s, "panel": point[0], "x": point[1], "accelerated": point[2]})
            for s in range(RUNS)
        ]
        for point in points
    }
    references = [figure_4.errors(QUICK, {"seed": s, "panel": "reference"}) for s in range(RUNS)]
    return {point: np.array([e["repaired"] for e in errors]) for point, errors in found.items()}, references


def test_figure_4_acceleration_helps_and_steep_allocations_do_not(allocation):
    errors, references = allocation
    alphas = (-0.8, 0.0, 0.4, 1.2)
    for alpha in alphas:
        assert (errors["alpha", alpha, True] < errors["alpha", alpha, False]).all()
    for fast in (False, True):
        best = min(alphas, key=lambda alpha: errors["alpha", alpha, fast].mean())
        assert best in (0.0, 0.4)
    assert errors["alpha", 0.0, True].mean() < np.mean([one["alpha alone"] for one in references])
    least = np.min([errors["alpha", alpha, True] for alpha in alphas], axis=0)
    assert (np.array([one["no noise"] for one in references]) < least).all()


def test_figure_4_makes_losses_strongly_convex_in_its_second_panel():
    made = figure_4.algorithm(QUICK, {"panel": "exponent", "x": 1.0, "accelerated": True})
    assert made.strong == pytest.approx(QUICK.convexity / QUICK.lr)
    shares = made.shares()
    assert shares[1] / shares[0] == pytest.approx((1 - math.sqrt(1e-3)) ** -2)


def test_figure_5_noise_falls_with_the_papers_allocation():
    quiet, loud = (
        np.array([figure_5.ratios(replace(QUICK, epsilon=epsilon), s)["repaired"] for s in range(RUNS)])
        for epsilon in (100.0, 0.1)
    )
    assert quiet.shape == (RUNS, QUICK.rounds)
    assert loud[:, 0].mean() - loud[:, -1].mean() > 0.2
    assert loud.min() > 0.5  # louder than the signal throughout, at the paper's budget
    assert (quiet < loud).all()


def test_noise_to_signal_is_what_it_says():
    """By hand for the first release: models clipped, their covariance, what was posted less that."""
    data = QUICK.data(0)
    tasks = simulation.training(data)
    algorithm = replace(QUICK.algorithm(), clip=0.3)
    done = run(simulation.private_plan(algorithm, QUICK.tasks, 1.0), tasks, random_state=0)
    models = algorithm.alone(next(tasks.blocks()))
    models /= np.maximum(np.linalg.norm(models, axis=1, keepdims=True), 0.3)
    noise = unsvec(done.board.releases[0].value, QUICK.dim) - models.T @ models
    expected = math.log10(np.linalg.norm(noise, "fro") / np.linalg.norm(models.T @ models, "fro"))
    assert noise_to_signal(done, tasks)[0] == pytest.approx(expected, rel=1e-9)
    mute = Plan(algorithm, NoNoise(), n_tasks=QUICK.tasks)
    assert (noise_to_signal(run(mute, tasks, random_state=0), tasks) < -12).all()


def test_the_published_noise_is_the_papers():
    """W_d(d + 1, K² I / 2 epsilon): its mean has trace d (d + 1) K² / 2 epsilon, and it is positive.

    Over 60 runs of six rounds the mean is off by more than a tenth once in 10^9 or so.
    """
    tasks = simulation.training(QUICK.data(0))
    plan = published_plan(replace(QUICK.algorithm(), lam=0.0, rounds=1), QUICK.tasks, 1.0)
    quiet = replace(plan, mechanism=NoNoise())
    clean = unsvec(run(quiet, tasks, random_state=0).board.releases[0].value, QUICK.dim)
    traces = []
    for seed in range(60):
        noisy = unsvec(run(plan, tasks, random_state=seed).board.releases[0].value, QUICK.dim)
        traces.append(np.trace(noisy - clean))
        assert np.linalg.eigvalsh(noisy - clean)[0] > -1e-9
    d = QUICK.dim
    assert np.mean(traces) == pytest.approx(d * (d + 1) / 2, rel=0.2)
    assert not plan.guarantee.holds or math.isinf(plan.guarantee.epsilon)


def test_figure_8_more_tasks_less_error():
    found = [[figure_8.errors(QUICK, s, count, scored=10) for s in range(RUNS)] for count in (10, 20, 40, 80)]
    table = {name: np.array([[e[name] for e in line] for line in found]) for name in figure_8.SHOWN}
    assert (np.diff(table["repaired"].mean(axis=1)) < 0).all()
    assert (table["repaired"][-1] < table["alone"][-1]).all()
    assert (table["no noise"] < table["repaired"]).all()


def test_proposition_1_needs_positive_noise():
    """Large noise: the identity, if it is positive or shifted; half of the directions lost if not."""
    found = proposition_1.effects(QUICK, 0, 1e-3)
    for how in ("published", "repaired"):
        assert found[how]["distance"] < 0.05
        assert found[how]["error"] < 1.05 * found["alone"]["error"]
        assert found[how]["error"] == pytest.approx(found[how]["alike"], rel=0.05)
    assert found["no shift"]["gone"] > 0.2
    assert found["no shift"]["error"] > 2 * found["alone"]["error"]


def test_proposition_1_takes_the_steps_of_the_algorithm():
    data = QUICK.data(0)
    tasks = simulation.training(data)
    plan = simulation.private_plan(QUICK.algorithm(), QUICK.tasks, 10.0)
    done = run(plan, tasks, random_state=0)
    again = proposition_1.with_matrices(
        plan.algorithm, tasks, proposition_1.matrices(plan.algorithm, done.board)
    )
    np.testing.assert_allclose(again, done.private.models["coef"], rtol=1e-6, atol=1e-9)


def test_table_2_measures_from_the_optimum():
    """The minimum is one: its neighbours are above it; and a line of known slope has it."""
    algorithm = replace(QUICK.algorithm(), lam=0.5, warmup=0)
    objective = table_2.Objective(algorithm, simulation.training(QUICK.data(0)))
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1):
        assert (
            objective.value(objective.best + size * rng.standard_normal(objective.best.shape))
            > objective.least
        )
    assert table_2.slope([1.0, 10.0, 100.0], [3.0, 0.3, 0.03]) == pytest.approx(-1)


def test_settings_are_chosen_on_training_rows_alone():
    data = QUICK.data(0)
    train = simulation.training(data)
    other = type(train).from_list(list(data.X_test), list(data.y_test))
    problem = Problem(train, other, lr=1.0, clip=1.0)
    seen = []

    def fit(inner, setting):
        seen.append((int(inner.train.sizes[0]), setting))
        return np.full((len(inner.train), QUICK.dim), setting)

    problem.validated((5.0, 0.0), fit)
    assert seen == [(6, 5.0), (6, 0.0), (8, 0.0)]


def test_the_papers_setting_is_the_papers():
    assert (PAPER.tasks, PAPER.rows, PAPER.dim, PAPER.epsilon) == (320, 30, 30, 0.1)
    assert 1 - math.sqrt(PAPER.convexity) == pytest.approx(0.9684, abs=1e-4)
    data = PAPER.data(0)
    assert data.X_train.shape == (320, 30, 30)
    smoothness = PAPER.algorithm().loss.smoothness(data.X_train, np.ones((320, 30)))
    assert np.median(smoothness) * PAPER.lr < 1
    assert np.linalg.norm(data.weights, axis=1).mean() == pytest.approx(1.2, abs=0.3)
    assert PAPER.algorithm(80).lam == pytest.approx(PAPER.lam / 2)


def test_errors_are_held_against_alone_on_the_same_draws():
    """Draws differ tenfold; a method is a tenth worse on each at the first ε, a fifth better at the last."""
    cell = {"problem": "low_rank", "percent": 30}
    found = [
        ({**cell, "method": method, "epsilon": epsilon, "seed": seed}, factor * 10.0**seed)
        for method, epsilon, factor in (("ridge", 0.0, 1.0), ("Joint", 1.0, 1.1), ("Joint", 10.0, 0.8))
        for seed in range(2)
    ]
    data = tradeoff.summarise(found)
    assert np.allclose(data["low_rank"]["Joint, percent above alone"], [[10, 0], [-20, 0]], atol=1e-9)
    assert tradeoff.against(data, "low_rank", "Joint") == "worse at ε = 1 and better at ε = 10"
