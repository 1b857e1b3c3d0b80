"""Figure 10: DP-AGGR on School in detail.

The setting of Figure 9: the averaged model of all schools, protected as groups of rows (up to 75 a school)
as in the paper, and with each school's model clipped and protected directly.
"""

from __future__ import annotations

from typing import Any

from cloister.algorithms import ModelAveraging
from cloister.core.arrays import Floats
from cloister.learners import LeastSquares
from cloister.mechanisms import NoNoise
from papers.figure import Cell, Claim, Data, Options, Row, judge, say
from papers.mpmtl import tradeoff
from papers.mpmtl.problems import Problem, load, school

NOT_COVERED = "panel (b), LSOA II: see Figure 12."
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


def claims(data: Data) -> list[Claim]:
    mine, last = data["school"], data["epsilon"][-1]
    alone, pooled, averaged = (mine[how][0][0] for how in ("ridge", "pooled", "averaged"))
    direct = [point[0] for point in mine["averaging"]]
    errors = [point[0] for point in mine["DP-AGGR"]]
    return [
        Claim(
            "Section 5.5.2: DP-AGGR is worse than learning alone, at every ε",
            "",
            judge([e > alone for e in errors], f"at least {min(errors):.3f}, alone {alone:.3f}"),
            judge([e > alone for e in direct], f"at least {min(direct):.3f}, schools protected directly"),
        ),
        Claim(
            "Fig. 10 (a): its errors fall with ε",
            "",
            judge([errors[-1] < errors[0]], f"from {errors[0]:.2f} to {errors[-1]:.2f} at ε = {last:g}"),
            judge([direct[-1] < direct[0]], f"from {direct[0]:.2f} to {direct[-1]:.2f}"),
        ),
        Claim(
            "Section 5.5.2: it is worse because schools are not alike",
            "",
            judge([pooled > alone], f"one model of all rows has {pooled:.3f}, alone {alone:.3f}"),
        ),
        Claim(
            "noise aside, is the average of the schools' own models worse than they are?",
            "",
            judge([averaged > alone], f"{averaged:.3f} without noise"),
            asked=True,
        ),
    ]


def finding(data: Data) -> str:
    mine = data["school"]
    return (
        "DP-AGGR is far behind learning alone at every ε, and noise is not all of it: the average of the "
        f"schools' own models has {mine['averaged'][0][0]:.2f}. But it is not that schools are not alike: "
        f"one model of all their rows has {mine['pooled'][0][0]:.3f}, less than {mine['ridge'][0][0]:.3f} "
        "alone."
    )
