"""Figure 11: School with 30, 50, 70 and 90 % of the pupils for training.

As Figure 9, for Algorithm 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from papers.figure import Cell, Data, Finding, Options, Row, Verdict, say
from papers.mpmtl import tradeoff
from papers.mpmtl.methods import ALONE
from papers.mpmtl.problems import school

CLAIM = (
    "The low-rank algorithm behaves alike at all percentages, and is ahead of DP-MTRL and DP-AGGR, above "
    "all when ε is small."
)
PERCENTS = ("30", "50", "70", "90")
SHOWN = {
    "published LR": ("Alg. 2, published (not private)", "paper", "-o"),
    "repaired LR": ("Alg. 2, repaired", "repaired", "-o"),
    "Joint": ("shared prior", "ours", "-o"),
}
measure = tradeoff.measure
summarise = partial(tradeoff.summarise, panel="percent")


def cells(options: Options) -> list[Cell]:
    school()
    seeds = options.replications(full=5, quick=1)
    epsilons = (1.0, 10.0) if options.quick else tradeoff.EPSILONS
    methods = ("ridge", "lasso", "trace norm", "pooled", *SHOWN, "DP-MTRL", "DP-AGGR")
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


def finding(data: Data) -> Finding:
    alone = {p: tradeoff.best(data[p], ALONE)[1][0] for p in PERCENTS}
    gains = {p: [100 * (1 - point[0] / alone[p]) for point in data[p]["repaired LR"]] for p in PERCENTS}
    alike = all(series[-1] > series[0] for series in gains.values())
    ahead = all(
        data[p]["repaired LR"][0][0] < min(data[p][other][0][0] for other in ("DP-MTRL", "DP-AGGR"))
        for p in PERCENTS
    )
    starts, ends = (", ".join(f"{gains[p][place]:.1f}" for p in PERCENTS) for place in (0, -1))
    sentence = (
        f"With noise whose guarantee holds, Algorithm 2 gains {starts} % over learning alone at ε = "
        f"{data['epsilon'][0]:g} with 30, 50, 70 and 90 % of the pupils, and {ends} % at ε = "
        f"{data['epsilon'][-1]:g}; DP-MTRL and DP-AGGR are {'behind' if ahead else 'not all behind'} at the "
        "smallest ε."
    )
    return Finding(Verdict.YES if alike and ahead else Verdict.PARTLY, sentence)
