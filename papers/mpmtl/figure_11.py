"""Figure 11: School with 30, 50, 70 and 90 % of the pupils for training.

As Figure 9, for Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from papers.figure import Cell, Claim, Data, Options, Outcome, Row, count, judge, say
from papers.mpmtl import tradeoff
from papers.mpmtl.figure_9 import GROUPS, HOW, ahead
from papers.mpmtl.methods import ALONE
from papers.mpmtl.problems import school

NOT_COVERED = (
    "acceleration, strong convexity, α and Q are not tuned here, as they are in the paper; DP-MTRL's noise "
    "is not the paper's (Figure 5); 5 splits, not 100."
)
PERCENTS = ("30", "50", "70", "90")
SHOWN = {
    **{method: tradeoff.ALGORITHMS[method] for method in ("published LR", "repaired LR")},
    "Joint": ("shared prior", "ours", "-o"),
}
measure = tradeoff.measure
summarise = partial(tradeoff.summarise, panel="percent")


def cells(options: Options) -> list[Cell]:
    school()
    seeds = options.replications(full=5, quick=1)
    epsilons = (1.0, 10.0) if options.quick else tradeoff.EPSILONS
    methods = ("ridge", "lasso", "trace norm", "pooled", *SHOWN, *GROUPS)
    return [cell for p in PERCENTS for cell in tradeoff.parts("school", seeds, methods, epsilons, int(p))]


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for percent in PERCENTS:
        for place, epsilon in enumerate(data["epsilon"]):
            texts = [say(data[percent][method][place]) for method in SHOWN]
            rows.append((f"{percent} %, ε = {epsilon:g}", "", *texts))
        rows.append((f"{percent} %, alone", "", say(tradeoff.best(data[percent], ALONE)[1]), "", ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 5.4)
    tradeoff.draw(data, figure, {percent: f"{percent} % for training" for percent in PERCENTS}, SHOWN, rows=2)


def alike(data: Data, how: str, panels: Sequence[str]) -> Outcome:
    """Judge whether Algorithm 2 is worse than alone somewhere with all percentages, or with none."""
    worse = ["worse" in tradeoff.against(data, panel, f"{how} LR") for panel in panels]
    told = f"worse than alone at some ε with {sum(worse)} of {len(worse)} percentages"
    return judge([one == worse[0] for one in worse], told)


def claims(data: Data) -> list[Claim]:
    def useful(how: str) -> Outcome:
        excess = [point for p in PERCENTS for point in data[p][f"{how} LR, percent above alone"]]
        return count([found < -2 * error for found, error in excess])

    return [
        Claim(
            "Appendix, Fig. 11: Algorithm 2 behaves alike at all percentages of training rows",
            "",
            *(alike(data, how, PERCENTS) for how in HOW),
        ),
        Claim(
            "Appendix, Fig. 11: it is ahead of DP-MTRL and DP-AGGR, at every ε",
            "",
            *(ahead(data, how, PERCENTS, ["LR"]) for how in HOW),
        ),
        Claim(
            "is it ahead of learning alone, at every ε (by two standard errors)?",
            "",
            *(useful(how) for how in HOW),
            asked=True,
        ),
    ]


def finding(data: Data) -> str:
    def gains(how: str) -> str:
        found = [-data[p][f"{how}, percent above alone"][-1][0] for p in PERCENTS]
        return f"{min(found):.1f} to {max(found):.1f} %"

    return (
        f"At ε = {data['epsilon'][-1]:g} Algorithm 2 gains {gains('published LR')} on learning alone with "
        f"its own noise, which is not private, and {gains('repaired LR')} with a true guarantee; a shared "
        f"prior gains {gains('Joint')}."
    )
