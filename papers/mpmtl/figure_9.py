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
#: Methods that protect rows, at the price of a group.
GROUPS = ("DP-MTRL", "DP-AGGR")
SHOWN = tradeoff.ALGORITHMS | {
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
    methods = (*ALONE, "trace norm", "pooled", *SHOWN, *GROUPS)
    first = tradeoff.parts("school", list(seeds)[:5], (*slow, "l2,1 norm"), epsilons)
    return first + tradeoff.parts("school", seeds, methods, epsilons)


def table(data: Data) -> list[Row]:
    mine, rows = data["school"], []
    for kind, family in (("LR", "Alg. 2"), ("GS", "Alg. 3")):
        for place, epsilon in enumerate(data["epsilon"]):
            texts = [say(mine[f"{how} {kind}"][place]) for how in ("published", "repaired")]
            rows.append((f"{family}, ε = {epsilon:g}", "", *texts, say(mine["Joint"][place])))
    for method in GROUPS:
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
    mine, epsilons = data["school"], data["epsilon"]
    alone, together = tradeoff.best(mine, ALONE)[1][0], tradeoff.best(mine, NOT_PRIVATE)[1][0]
    first, last = ({method: mine[method][place][0] for method in (*SHOWN, *GROUPS)} for place in (0, -1))
    ahead = all(
        mine[how][place][0] < min(mine[other][place][0] for other in GROUPS)
        for how in tradeoff.ALGORITHMS
        for place in range(len(epsilons))
    )

    def told(method: str) -> str:
        return tradeoff.against(data, "school", method)

    sentence = (
        f"Alone is {alone:.3f}, together without noise {together:.3f}. Held against alone on the same "
        f"splits: Algorithm 2 with the published noise, which is not private, is {told('published LR')}, "
        f"with noise whose guarantee holds {told('repaired LR')}; Algorithm 3 is {told('published GS')}, and "
        f"{told('repaired GS')} repaired. At ε = {epsilons[-1]:g} Algorithm 2 has {last['published LR']:.3f} "
        f"and {last['repaired LR']:.3f}. All are {'ahead' if ahead else 'not everywhere ahead'} of DP-MTRL "
        f"(from {first['DP-MTRL']:.2f} to {last['DP-MTRL']:.2f}) and DP-AGGR ({first['DP-AGGR']:.2f} to "
        f"{last['DP-AGGR']:.2f}). A shared prior goes from {mine['Joint'][0][0]:.3f} to "
        f"{mine['Joint'][-1][0]:.3f} ({told('Joint')})."
    )
    useful = all("worse" not in told(how) and "better" in told(how) for how in tradeoff.ALGORITHMS)
    return Finding(Verdict.YES if ahead and useful else Verdict.PARTLY, sentence)
