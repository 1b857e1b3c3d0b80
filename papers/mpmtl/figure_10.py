"""Figure 10: DP-AGGR on School in detail.

The setting of Figure 9. The averaged model of all schools, protected as groups of rows (up to 75 training
rows a school) as in the paper, and with each school's model clipped and protected directly, which is what it
should be held against.
"""

from __future__ import annotations

from typing import Any

from cloister.algorithms import ModelAveraging
from cloister.core.arrays import Floats
from cloister.learners import LeastSquares
from cloister.mechanisms import NoNoise
from papers.figure import Cell, Data, Finding, Options, Row, Verdict, say
from papers.mpmtl import tradeoff
from papers.mpmtl.problems import Problem, load, school

CLAIM = "DP-AGGR is worse than learning alone, because tasks are not alike, and gains with ε."
SHOWN = {
    "DP-AGGR": ("DP-AGGR, group privacy", "paper", "-o"),
    "averaging": ("averaging, task protected directly", "repaired", "-o"),
    "Mean": ("shared prior, mean only", "ours", "-o"),
}
summarise = tradeoff.summarise


def cells(options: Options) -> list[Cell]:
    school()
    seeds = options.replications(full=20, quick=2)
    epsilons = (1.0, 10.0, 100.0) if options.quick else (*tradeoff.EPSILONS, 30.0, 100.0)
    return tradeoff.parts("school", seeds, ("ridge", "pooled", "averaged", *SHOWN), epsilons)


def averaged(problem: Problem) -> Floats:
    """Average models without noise, and without a bound that any of them meets."""

    def fit(inner: Problem, lam: float) -> Floats:
        return inner.run(inner.plan(ModelAveraging(LeastSquares(inner.dim), lam=lam, clip=30.0), NoNoise()))

    return problem.validated((0.0003, 0.003, 0.03, 0.3), fit)


def measure(cell: Cell, options: Options) -> float:
    if cell["method"] != "averaged":
        return tradeoff.measure(cell, options)
    problem = load("school", cell["seed"])
    return problem.score(averaged(problem))


def table(data: Data) -> list[Row]:
    mine = data["school"]
    rows: list[Row] = [
        (f"ε = {epsilon:g}", "", *(say(mine[method][place]) for method in SHOWN))
        for place, epsilon in enumerate(data["epsilon"])
    ]
    return [
        *rows,
        ("alone", "", say(mine["ridge"][0]), "", ""),
        ("averaged, no noise", "", say(mine["averaged"][0]), "", ""),
        ("one model of all rows, no noise", "", say(mine["pooled"][0]), "", ""),
    ]


def draw(data: Data, figure: Any) -> None:
    tradeoff.draw(data, figure, {"school": ""}, SHOWN)


def finding(data: Data) -> Finding:
    mine = data["school"]
    alone, errors = mine["ridge"][0][0], [point[0] for point in mine["DP-AGGR"]]
    worse, falls = min(errors) > alone, errors[-1] < errors[0]
    sentence = (
        f"DP-AGGR goes from {errors[0]:.2f} to {errors[-1]:.2f} at ε = {data['epsilon'][-1]:g}, against "
        f"{alone:.3f} alone. Noise is not all of it: the average of the schools' own models has "
        f"{mine['averaged'][0][0]:.2f} without any, {mine['averaging'][-1][0]:.2f} with schools protected "
        f"directly. Nor is it that schools are not alike: one model of all their rows has "
        f"{mine['pooled'][0][0]:.3f}. But a school's own rows span 11 of 27 dimensions on average, and its "
        "own model knows nothing of the others."
    )
    unlike = mine["pooled"][0][0] > alone
    return Finding(Verdict.YES if worse and falls and unlike else Verdict.PARTLY, sentence)
