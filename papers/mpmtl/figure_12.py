"""Figure 12: the second Longitudinal Study of Aging (LSOA II), and with it Figures 9 (b) and 10 (b).

41 binary outcomes of the same people are the tasks. The data are for public use, and are not published as a
file: ``--data lsoa=FILE.csv`` names a table with one line a person, whose columns that begin with "target"
are the outcomes (`cloister.datasets.load_lsoa` says how it is read, as in the paper's section 5.5), or an
.npz file with arrays X, y and task. Losses are logistic; DP-MTRL has squares, as in the paper. Scores are 1
less the mean over tasks of the area under the ROC curve (aAUC). Settings are chosen for each ε by a fifth
of the training rows, which is not charged for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from papers.figure import Cell, Claim, Data, Options, Outcome, Row, judge, say
from papers.mpmtl import tradeoff
from papers.mpmtl.figure_9 import GROUPS, HOW, ahead, between
from papers.mpmtl.figure_11 import PERCENTS, alike
from papers.mpmtl.methods import ALONE, NOT_PRIVATE

DATA = ("lsoa",)
NOT_COVERED = (
    "acceleration, strong convexity, α and Q are not tuned here, as they are in the paper; the selection of "
    "columns is the user's."
)
SHOWN = tradeoff.ALGORITHMS | {
    "Joint": ("shared prior", "ours", "-o"),
    "quiet DP-MTRL": ("DP-MTRL, as quiet as printed", "other", ":s"),
    "DP-MTRL": ("DP-MTRL, group privacy", "other", "-s"),
    "DP-AGGR": ("DP-AGGR, group privacy", "other", "-^"),
}
measure = tradeoff.measure
summarise = partial(tradeoff.summarise, panel="percent")


def cells(options: Options) -> list[Cell]:
    options.path("lsoa")
    seeds = options.replications(full=5, quick=1)
    epsilons = (1.0, 10.0) if options.quick else tradeoff.EPSILONS
    methods = (*ALONE, *NOT_PRIVATE, "averaging", *SHOWN)
    percents = PERCENTS[::3] if options.quick else PERCENTS
    return [cell for p in percents for cell in tradeoff.parts("lsoa", seeds, methods, epsilons, int(p))]


def shown(data: Data) -> list[str]:
    """Return the percentages that were run."""
    return [percent for percent in PERCENTS if percent in data]


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for percent in shown(data):
        mine = data[percent]
        for kind, family in (("LR", "Alg. 2"), ("GS", "Alg. 3")):
            for place, epsilon in enumerate(data["epsilon"]):
                texts = [say(mine[f"{how} {kind}"][place]) for how in ("published", "repaired")]
                rows.append(
                    (f"{percent} %, {family}, ε = {epsilon:g}", "", *texts, say(mine["Joint"][place]))
                )
        for method in ("quiet DP-MTRL", *GROUPS):
            for place, epsilon in enumerate(data["epsilon"]):
                true = say(mine["averaging"][place]) if method == "DP-AGGR" else ""
                printed = "> 0.34" if method == "DP-AGGR" and percent == "30" else ""
                row = (f"{percent} %, {method}, ε = {epsilon:g}", printed, say(mine[method][place]), true, "")
                rows.append(row)
        for title, methods in (("alone", ALONE), ("no noise", NOT_PRIVATE)):
            name, point = tradeoff.best(mine, methods)
            rows.append((f"{percent} %, {title} ({name})", "", say(point), say(point), ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    percents = shown(data)
    rows = 2 if len(percents) == 4 else 1
    figure.set_size_inches(8.0, 2.7 * rows + 0.6)
    titles = {percent: f"{percent} % for training" for percent in percents}
    tradeoff.draw(data, figure, titles, SHOWN, rows=rows, score="1 - aAUC")


def claims(data: Data) -> list[Claim]:
    percents = shown(data)
    first = data[percents[0]]

    def slowly(how: str) -> Outcome:
        points = [first[f"{how} LR"][at][0] for at in (0, -1)]
        return judge([0 < points[0] - points[1] < 0.1], f"1 - aAUC from {points[0]:.3f} to {points[1]:.3f}")

    average = [point[0] for point in first["DP-AGGR"]]
    return [
        Claim(
            "Appendix, Fig. 12: Algorithm 2 behaves alike at all percentages of training rows",
            "",
            *(alike(data, how, percents) for how in HOW),
        ),
        Claim(
            "Appendix, Fig. 12: it is ahead of DP-MTRL and DP-AGGR, at every ε",
            "",
            *(ahead(data, how, percents, ["LR"]) for how in HOW),
        ),
        Claim(
            "Fig. 9 (b): both algorithms lie between learning alone and together, at every ε",
            "",
            *(between(data, how, percents[0]) for how in HOW),
        ),
        Claim("Fig. 9 (b): Algorithm 2 gains slowly with ε", "", *(slowly(how) for how in HOW)),
        Claim(
            "Fig. 9 (b): DP-AGGR has aAUC below 0.66, at every ε",
            "< 0.66",
            judge([value > 0.34 for value in average], f"at most {1 - min(average):.3f}"),
        ),
        Claim(
            "Fig. 10 (b): DP-AGGR barely grows with ε",
            "",
            judge(
                [abs(average[0] - average[-1]) < 0.02], f"aAUC {1 - average[0]:.3f} to {1 - average[-1]:.3f}"
            ),
        ),
    ]


def finding(data: Data) -> str:
    percent = shown(data)[0]
    mine = data[percent]
    ends = {how: 1 - mine[how][-1][0] for how in ("published LR", "repaired LR", "Joint")}
    return (
        f"With {percent} % of the rows aAUC at ε = {data['epsilon'][-1]:g} is {ends['published LR']:.3f} by "
        f"Algorithm 2 with its own noise, {ends['repaired LR']:.3f} with a true guarantee, "
        f"{ends['Joint']:.3f} by a shared prior, and {1 - tradeoff.best(mine, ALONE)[1][0]:.3f} alone."
    )
