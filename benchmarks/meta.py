"""How well fresh tasks do from meta-models learned in private: linear regressions around three centres.

Tasks have 10 rows in 30 dimensions; relation replace, everyone in every round, default delta, seeded noise.
The figures are mean squared errors of fresh tasks on further rows once they have adapted (noise alone is
0.01), over five seeds of data and noise; then, at worst over seeds, how many tasks use the model of their own
centre and how far a centre is from it, how fast the regret of a stream falls, and what a stream costs against
rounds, by the noise it has. How models are split was worked out on other seeds, from 100 on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import Figures, Table, Tables, Targets
from cloister.datasets import Centres, around_centres
from cloister.learners import Convex, ExactSolver, LeastSquares, Quadratic
from cloister.mechanisms import Gaussian, Toeplitz, Tree
from papers.meta.learning import SETTING, Risk, transfer_risk
from papers.meta.streams import stream_against_rounds, stream_rates

NAME = "meta"
SEEDS = range(5)
COUNTS = (100, 300, 1000, 3000)
EPSILONS = (3.0, 10.0, math.inf)
MODELS = (1, 2, 3)
LENGTHS = (200, 400, 800, 1600)
#: Noise that is fresh in every round, and noise that cancels in running totals.
FRESH, ROOT = Gaussian(exact=False), Toeplitz(exact=False)
#: Pulls that a task alone, or one that knows its centre, may choose from in hindsight.
PULLS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)


def bounds(data: Centres) -> tuple[float, float]:
    """Return the error of fresh tasks from zero and from their true centre, at the best of `PULLS`."""
    learner = Convex(LeastSquares(data.centres.shape[1]))
    block = next(data.fresh.blocks([np.arange(len(data.fresh))]))
    test = next(data.fresh_test.blocks([np.arange(len(data.fresh))]))
    found = np.full((2, len(PULLS)), 0.0)
    for column, lam in enumerate(PULLS):
        for row, centres in enumerate((np.zeros_like(data.centres), data.centres)):
            coef = np.empty((len(block), learner.size))
            for j, centre in enumerate(centres):
                own = learner.descend(
                    learner.spread(centre, block), block, ExactSolver(), 0, centre, Quadratic(lam)
                )
                coef[data.fresh_centre == j] = own[data.fresh_centre == j]
            found[row, column] = 2 * learner.losses(coef, test).mean()
    return float(found[0].min()), float(found[1].min())


def table(quick: bool) -> list[Risk]:
    """Measure every cell of the table."""
    cells = []
    for tasks in COUNTS[1:2] if quick else COUNTS:
        for epsilon in EPSILONS:
            for models in MODELS:
                cells.append(transfer_risk(tasks, epsilon, models, range(2) if quick else SEEDS))
                last = cells[-1]
                print(
                    f"{tasks} {epsilon:g} {models}: {last.mean:.4f} +- {last.deviation:.4f}", file=sys.stderr
                )
    return cells


def streams(quick: bool) -> tuple[Figures, Table, Table]:
    """Measure how regret and excess risk fall, with noise and without, and compare a stream with rounds."""
    seeds, figures = range(2) if quick else SEEDS, {}
    fall: Table = [["what falls, with which noise", "ε", f"at K = {', '.join(map(str, LENGTHS))}", "slope"]]
    for name, epsilon, mechanism in (
        ("none", math.inf, FRESH),
        ("fresh", 10.0, FRESH),
        ("toeplitz", 10.0, ROOT),
    ):
        rates = stream_rates(LENGTHS[: 3 if quick else 4], epsilon, seeds, mechanism)
        for what, rate in (("regret", rates.regret), ("excess", rates.excess)):
            label = f"{what}_slope_{name}"
            figures |= {label: rate.slope, f"{label}_half_width": rate.half_width}
            values = ", ".join(f"{value:.4f}" for value in rate.means)
            slope = f"{rate.slope:.2f} ± {rate.half_width:.2f}"
            fall.append([f"{what}, {'no' if name == 'none' else name} noise", _said(epsilon), values, slope])
    ways: dict[str, list[str]] = {}
    for epsilon in (1.0, 10.0):
        setting = replace(SETTING, per_round=50)
        for name, mechanism in (("fresh", FRESH), ("tree", Tree(exact=False)), ("toeplitz", ROOT)):
            found = stream_against_rounds(1000, epsilon, seeds, mechanism, setting)
            figures[f"excess_stream_{name}_eps{epsilon:g}"] = float(np.mean(found.stream))
            ways.setdefault(f"`FTMRL`, {name} noise", []).append(spread(found.stream))
        figures[f"excess_rounds_eps{epsilon:g}"] = float(np.mean(found.rounds))
        ways.setdefault("`MetaSGD`, visible", []).append(spread(found.rounds))
    return figures, fall, [["", "ε = 1", "ε = 10"], *([name, *cells] for name, cells in ways.items())]


def _said(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"


def spread(values: Sequence[float]) -> str:
    """Say a mean and a standard deviation."""
    return f"{np.mean(values):.4f} ± {np.std(values):.4f}"


def run(quick: bool) -> tuple[Figures, Targets, Tables]:
    """Measure the table, the centres found, and the streams.

    Parameters
    ----------
    quick : bool
        Two seeds and 300 tasks only.
    """
    cells = table(quick)
    figures: Figures = {}
    rows: Table = [["tasks", "ε", "one model", "two", "three", "at their own centre", "furthest centre"]]
    for tasks, epsilon in dict.fromkeys((cell.tasks, cell.epsilon) for cell in cells):
        same = [cell for cell in cells if (cell.tasks, cell.epsilon) == (tasks, epsilon)]
        for cell in same:
            figures[f"mse_{tasks}_eps{epsilon:g}_q{cell.models}"] = cell.mean
        found = same[-1].recoveries
        share, distance = min(r.share for r in found), max(r.distance for r in found)
        figures |= {f"share_{tasks}_eps{epsilon:g}": share, f"distance_{tasks}_eps{epsilon:g}": distance}
        values = [f"{cell.mean:.3f} ± {cell.deviation:.3f}" for cell in same]
        rows.append([str(tasks), _said(epsilon), *values, f"{share:.0%}", f"{distance:.2f}"])
    alone, oracle = np.mean([bounds(around_centres(seed)) for seed in SEEDS], axis=0)
    figures |= {"mse_alone": float(alone), "mse_true_centres": float(oracle)}
    more, fall, ways = streams(quick)
    figures |= more
    figures["regret_slope_from_half"] = abs(figures["regret_slope_none"] + 0.5)
    count = 300 if quick else 1000
    figures["one_over_three"] = figures[f"mse_{count}_eps10_q1"] / figures[f"mse_{count}_eps10_q3"]
    targets: Targets = {
        "mse_1000_eps10_q3": ("<=", 0.05),
        "one_over_three": (">=", 5.0),
        "share_1000_eps10": (">=", 0.95),
        "distance_1000_eps10": ("<=", 1.0),
        "regret_slope_from_half": ("<=", 0.1),
    }
    return figures, targets, {NAME: rows, "streams": fall, "stream or rounds": ways}
