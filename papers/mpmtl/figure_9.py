"""Figure 9: privacy against accuracy on School, 30 % of the pupils for training.

139 schools, 27 features, rows of unit length; nMSE on the other pupils at δ = 1/(m log m). Settings are
chosen for each ε by a fifth of the training rows, which is not charged for. The paper's panel (b) is LSOA II:
see Figure 12.
"""

from __future__ import annotations

from typing import Any

from papers.figure import Cell, Data, Finding, Options, Row, Verdict, say
from papers.mpmtl import tradeoff
from papers.mpmtl.methods import ALONE, NOT_PRIVATE
from papers.mpmtl.problems import school

CLAIM = (
    "As on synthetic data: both algorithms lie between learning alone and multi-task learning without noise, "
    "and are ahead of DP-MTRL and DP-AGGR, above all when ε is small."
)
OURS = ("Joint", "Mean")
PRIVATE = ("published LR", "published GS", "repaired LR", "repaired GS", "DP-MTRL", "DP-AGGR")
SHOWN = {
    "published LR": ("Alg. 2, published (not private)", "paper", "-o"),
    "published GS": ("Alg. 3, published (not private)", "paper", ":s"),
    "repaired LR": ("Alg. 2, repaired", "repaired", "-o"),
    "repaired GS": ("Alg. 3, repaired", "repaired", ":s"),
    "Joint": ("shared prior", "ours", "-o"),
    "Mean": ("shared prior, mean only", "ours", ":^"),
}
measure = tradeoff.measure
summarise = tradeoff.summarise


def cells(options: Options) -> list[Cell]:
    school()
    seeds = options.replications(full=10, quick=1)
    epsilons = (1.0, 10.0) if options.quick else tradeoff.EPSILONS
    slow = () if options.quick else ("MTRL",)
    methods = (*ALONE, "trace norm", "pooled", *PRIVATE, *OURS)
    first = tradeoff.parts("school", list(seeds)[:5], (*slow, "l2,1 norm"), epsilons)
    return first + tradeoff.parts("school", seeds, methods, epsilons)


def table(data: Data) -> list[Row]:
    mine, rows = data["school"], []
    for kind, family in (("LR", "Alg. 2"), ("GS", "Alg. 3")):
        for place, epsilon in enumerate(data["epsilon"]):
            texts = [say(mine[f"{how} {kind}"][place]) for how in ("published", "repaired")]
            rows.append((f"{family}, ε = {epsilon:g}", "", *texts, say(mine["Joint"][place])))
    for method in ("DP-MTRL", "DP-AGGR"):
        for place, epsilon in enumerate(data["epsilon"]):
            rows.append(
                (f"{method}, ε = {epsilon:g}", "", say(mine[method][place]), "", say(mine["Mean"][place]))
            )
    for title, methods in (("alone", ALONE), ("no noise", NOT_PRIVATE)):
        name, point = tradeoff.best(mine, methods)
        rows.append((f"{title} ({name})", "", say(point), say(point), ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    tradeoff.draw(data, figure, {"school": ""}, SHOWN)


def finding(data: Data) -> Finding:
    mine = data["school"]
    alone, together = tradeoff.best(mine, ALONE)[1][0], tradeoff.best(mine, NOT_PRIVATE)[1][0]
    first = {method: mine[method][0][0] for method in mine}
    last = {method: mine[method][-1][0] for method in mine}
    ahead = all(
        first[how] < min(first["DP-MTRL"], first["DP-AGGR"]) for how in ("published LR", "repaired LR")
    )
    between = all(together <= point[0] <= alone + 0.005 for point in mine["published LR"])
    true = all(point[0] <= alone + 0.005 for point in mine["repaired LR"])
    sentence = (
        f"Alone is {alone:.3f}, together without noise {together:.3f}. Algorithm 2 with the published noise, "
        f"which is not private, goes from {first['published LR']:.3f} to {last['published LR']:.3f}; with "
        f"noise whose guarantee holds from {first['repaired LR']:.3f} to {last['repaired LR']:.3f}, so that "
        f"it is {'never worse' if true else 'worse than learning alone at small ε'}. Both are "
        f"{'ahead of' if ahead else 'not ahead of'} DP-MTRL ({first['DP-MTRL']:.2f}) and DP-AGGR "
        f"({first['DP-AGGR']:.2f}) at ε = {data['epsilon'][0]:g}. A shared prior goes from "
        f"{first['Joint']:.3f} to {last['Joint']:.3f}."
    )
    return Finding(Verdict.YES if ahead and between and true else Verdict.PARTLY, sentence)
