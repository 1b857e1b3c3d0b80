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
    **{method: tradeoff.ALGORITHMS[method] for method in ("published LR", "repaired LR")},
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
    least = min(point[0] for p in PERCENTS for other in ("DP-MTRL", "DP-AGGR") for point in data[p][other])
    ahead = all(point[0] < least for p in PERCENTS for how in SHOWN for point in data[p][how])

    def gains(how: str, place: int) -> str:
        return ", ".join(f"{-data[p][f'{how}, percent above alone'][place][0]:.1f}" for p in PERCENTS)

    def better(how: str) -> bool:
        return all("better" in tradeoff.against(data, p, how) for p in PERCENTS)

    sentence = (
        f"On the same splits Algorithm 2 with the published noise, which is not private, gains "
        f"{gains('published LR', -1)} % over learning alone at ε = {data['epsilon'][-1]:g} with 30, 50, 70 "
        f"and 90 % of the pupils ({gains('published LR', 0)} at {data['epsilon'][0]:g}). With noise whose "
        f"guarantee holds it gains {gains('repaired LR', -1)} % ({gains('repaired LR', 0)}), and a shared "
        f"prior {gains('Joint', -1)} % ({gains('Joint', 0)}). All are "
        f"{'ahead' if ahead else 'not everywhere ahead'} of DP-MTRL and DP-AGGR, which never have less than "
        f"{least:.2f}."
    )
    whole = ahead and better("published LR") and better("repaired LR")
    return Finding(Verdict.YES if whole else Verdict.PARTLY, sentence)
