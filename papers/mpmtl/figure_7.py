"""Figure 7: methods that protect rows, made to protect tasks.

The data of Figure 6. DP-MTRL (Gupta and others) and DP-AGGR (Pathak and others) protect one row; a task of 30
rows is protected as a group, with a row's budget of ε/30 (Proposition 3). Their own claims are taken as they
are. The paper tells DP-MTRL's noise in half a page; read as it stands, only shrinking every model to nothing
(nMSE 1) is left at these budgets. With the budget spent on one row, and N(0, s²) noise, it would be some
hundred times less: a guarantee for a row, if any.
"""

from __future__ import annotations

from typing import Any

from papers.figure import Cell, Data, Finding, Options, Row, Verdict, say
from papers.mpmtl import tradeoff

CLAIM = (
    "DP-AGGR has errors above 0.78 on both data sets, much worse than learning alone, which fall with ε; "
    "DP-MTRL is better than learning alone on low-rank weights when ε is large, and above 0.16 on common "
    "features."
)
PANELS = {"low_rank": "low rank", "group_sparse": "common features"}
SHOWN = {
    "DP-MTRL": ("DP-MTRL, group privacy", "paper", "-o"),
    "DP-AGGR": ("DP-AGGR, group privacy", "other", "-s"),
    "averaging": ("averaging, task protected directly", "repaired", "-^"),
}
measure = tradeoff.measure
summarise = tradeoff.summarise


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=10, quick=1)
    epsilons = (0.1, 10.0) if options.quick else tradeoff.EPSILONS
    return [
        cell
        for problem in PANELS
        for cell in tradeoff.parts(problem, seeds, ("ridge", "pooled", *SHOWN), epsilons)
    ]


def table(data: Data) -> list[Row]:
    printed = {("DP-AGGR", "low_rank"): "> 0.78", ("DP-AGGR", "group_sparse"): "> 0.78"}
    printed["DP-MTRL", "group_sparse"] = "> 0.16"
    rows: list[Row] = []
    for panel, title in PANELS.items():
        for method in ("DP-MTRL", "DP-AGGR"):
            for place, epsilon in enumerate(data["epsilon"]):
                true = say(data[panel]["averaging"][place]) if method == "DP-AGGR" else ""
                text = say(data[panel][method][place])
                rows.append(
                    (f"{title}, {method}, ε = {epsilon:g}", printed.get((method, panel), ""), text, true, "")
                )
        rows.append((f"{title}, alone", "", say(data[panel]["ridge"][0]), "", ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 3.2)
    tradeoff.draw(data, figure, PANELS, SHOWN, scale="log")


def finding(data: Data) -> Finding:
    alone = data["low_rank"]["ridge"][0][0]
    aggregate = min(point[0] for panel in PANELS for point in data[panel]["DP-AGGR"])
    falls = all(data[panel]["DP-AGGR"][-1][0] < data[panel]["DP-AGGR"][0][0] - 0.01 for panel in PANELS)
    relation = data["low_rank"]["DP-MTRL"][-1][0]
    better = relation < alone
    pooled = min(data[panel]["pooled"][0][0] for panel in PANELS)
    direct = data["low_rank"]["averaging"][-1][0]
    sentence = (
        f"DP-AGGR never has less than {aggregate:.2f}{'' if falls else ', and does not fall with ε'}: one "
        f"model for all has {pooled:.2f} without any noise, so that no average can be a good one here, as "
        f"the paper says ({direct:.2f} with tasks protected directly, at ε = {data['epsilon'][-1]:g}). "
        f"DP-MTRL at the price of a group has {relation:.2f} on low-rank weights at that ε, "
        f"{'better' if better else 'far worse'} than learning alone ({alone:.3f})"
        + ("." if better else ": what the figure shows of it needs a budget for rows, not for tasks.")
    )
    whole = aggregate > 0.78 and falls and better
    return Finding(Verdict.YES if whole else Verdict.PARTLY, sentence)
