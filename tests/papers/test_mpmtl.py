"""Figures of model-protected learning at tiny sizes: their shapes, and what each is there to show."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cloister.engines.run import run
from cloister.lifts import unsvec
from cloister.plan import Plan
from cloister.privacy.mechanisms import NoNoise
from papers.mpmtl import simulation as mpmtl
from papers.mpmtl.simulation import PAPER, QUICK, figure_2, figure_4, figure_5, figure_8, noise_to_signal

RUNS = 6


def test_figure_2_an_anomaly_leaks_without_noise_and_not_with_it():
    """All models take on its direction, or keep their own: cosines with it, over twenty draws."""
    shown = figure_2(replications=20)
    for name in ("start", "leaked", "protected"):
        assert shown[name].shape == (20, 5, 10)
        assert shown[f"cosine_{name}"].shape == (20, 9)
        np.testing.assert_allclose(np.linalg.norm(shown[name], axis=1), 1, rtol=1e-12)
    assert shown["cosine_leaked"].min() > 0.999
    excess = shown["cosine_protected"] - shown["cosine_start"]
    assert np.abs(excess).max() < 0.02
    assert shown["cosine_start"].mean() < 0.85
    np.testing.assert_allclose(shown["protected"], shown["start"], atol=0.05)  # nothing is shared at 0.1


def test_figure_2_leaks_gradually_with_epsilon():
    excess = [
        (shown["cosine_protected"] - shown["cosine_start"]).mean()
        for shown in (figure_2(epsilon, replications=10) for epsilon in (0.1, 1e3, 1e5))
    ]
    assert excess[0] < 0.01 < excess[1] < excess[2]


@pytest.fixture(scope="module")
def allocation():
    return figure_4(QUICK, alphas=(-0.8, 0.0, 0.4, 1.2), exponents=(0.0, 0.2, 1.0), replications=RUNS)


def test_figure_4_has_its_shapes(allocation):
    assert allocation["nmse_alpha"].shape == (2, 4, RUNS)
    assert allocation["nmse_q"].shape == (2, 3, RUNS)
    assert allocation["single_task"].shape == allocation["not_private"].shape == (RUNS,)
    np.testing.assert_allclose(allocation["q"], (1 - math.sqrt(1e-3)) ** allocation["exponent"])
    np.testing.assert_array_equal(allocation["alpha"], [-0.8, 0.0, 0.4, 1.2])


def test_figure_4_acceleration_helps_and_steep_allocations_do_not(allocation):
    plain, fast = allocation["nmse_alpha"]
    assert (fast < plain).all()
    for curve in (plain, fast):
        best = curve.mean(axis=1).argmin()
        assert allocation["alpha"][best] in (0.0, 0.4)
    assert fast[1].mean() < allocation["single_task"].mean()
    assert (allocation["not_private"] < fast.min(axis=0)).all()


def test_figure_5_noise_falls_with_the_papers_allocation():
    quiet, loud = (figure_5(replace(QUICK, epsilon=epsilon), replications=RUNS) for epsilon in (100.0, 0.1))
    assert quiet["ratio"].shape == (QUICK.rounds, RUNS)
    np.testing.assert_array_equal(quiet["round"], np.arange(1, QUICK.rounds + 1))
    falls = loud["ratio"][0].mean() - loud["ratio"][-1].mean()
    assert falls > 0.2
    assert loud["ratio"].min() > 0.5  # louder than the signal throughout, at the paper's budget
    assert (quiet["ratio"] < loud["ratio"]).all()


def test_noise_to_signal_is_what_it_says():
    """By hand for the first release: models clipped, their covariance, what was posted less that."""
    data = QUICK.data(0)
    tasks = mpmtl._training(data)
    algorithm = replace(QUICK.algorithm(), clip=0.3)
    done = run(mpmtl._priced(algorithm, QUICK.tasks, 1.0), tasks, random_state=0)
    models = algorithm.alone(next(tasks.blocks()))
    models /= np.maximum(np.linalg.norm(models, axis=1, keepdims=True), 0.3)
    noise = unsvec(done.board.releases[0].value, QUICK.dim) - models.T @ models
    expected = math.log10(np.linalg.norm(noise, "fro") / np.linalg.norm(models.T @ models, "fro"))
    assert noise_to_signal(done, tasks)[0] == pytest.approx(expected, rel=1e-9)
    mute = Plan(algorithm, NoNoise(), n_tasks=QUICK.tasks)
    assert (noise_to_signal(run(mute, tasks, random_state=0), tasks) < -12).all()


def test_figure_8_more_tasks_less_error():
    shown = figure_8(QUICK, counts=(10, 20, 40, 80), scored=10, replications=RUNS)
    assert shown["nmse"].shape == shown["not_private"].shape == (4, RUNS)
    assert shown["single_task"].shape == (RUNS,)
    np.testing.assert_array_equal(shown["tasks"], [10, 20, 40, 80])
    assert (np.diff(shown["nmse"].mean(axis=1)) < 0).all()
    assert (shown["nmse"][-1] < shown["single_task"]).all()
    assert (shown["not_private"] < shown["nmse"]).all()


def test_figures_come_out_the_same_again():
    first, second = (figure_8(QUICK, counts=(10,), scored=5, replications=1, seed=3) for _ in range(2))
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])


def test_the_papers_setting_is_the_papers():
    assert (PAPER.tasks, PAPER.rows, PAPER.dim, PAPER.epsilon) == (320, 30, 30, 0.1)
    assert 1 - math.sqrt(PAPER.convexity) == pytest.approx(0.9684, abs=1e-4)
    data = PAPER.data(0)
    assert data.X_train.shape == (320, 30, 30)
    smoothness = PAPER.algorithm().loss.smoothness(data.X_train, np.ones((320, 30)))
    assert np.median(smoothness) * PAPER.lr < 1
    assert np.linalg.norm(data.weights, axis=1).mean() == pytest.approx(1.2, abs=0.3)
    assert PAPER.algorithm(80).lam == pytest.approx(PAPER.lam / 2)
