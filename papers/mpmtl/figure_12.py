"""Figure 12: the second Longitudinal Study of Aging (LSOA II), and with it Figure 9 (b).

41 binary outcomes of the same people are the tasks. The data are not public: ``--data lsoa=FILE.npz`` names a
file with arrays X (rows by features, missing values imputed as in the paper's section 5.5), y (0 or 1) and
task. Rows are scaled to unit length here; the score is the mean over tasks of the area under the ROC curve
(aAUC). λ and rounds are chosen for each ε by a fifth of the training rows, which is not charged for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import Independent, Joint, LowRank, SharedPrior
from cloister.core.arrays import Floats
from cloister.engines import Local
from cloister.learners import Classification, Logistic
from cloister.mechanisms import NoNoise
from cloister.metrics import average_auc
from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, by, mean, say
from papers.mpmtl.methods import grid
from papers.mpmtl.wishart import paper_delta, published_plan
from papers.pictures import curve, legend, level

DATA = ("lsoa",)
CLAIM = (
    "On LSOA II the low-rank algorithm behaves alike at all percentages of training rows, gains slowly with "
    "ε because features are many and tasks few, and is ahead of DP-MTRL and DP-AGGR."
)
PERCENTS, EPSILONS = ("30", "50", "70", "90"), (0.1, 0.5, 1.0, 5.0, 10.0)
GRID = grid(lam=(0.01, 0.03, 0.1), rounds=(1, 10))
PRIVATE = ("published", "repaired", "ours")


def cells(options: Options) -> list[Cell]:
    options.path("lsoa")
    seeds = options.replications(full=5, quick=1)
    return [
        {"percent": percent, "method": method, "epsilon": epsilon, "seed": seed}
        for seed in seeds
        for percent in (PERCENTS[:1] if options.quick else PERCENTS)
        for method in ("alone", "no noise", *PRIVATE)
        for epsilon in (((1.0, 10.0) if options.quick else EPSILONS) if method in PRIVATE else (0.0,))
    ]


def load(options: Options) -> Tasks:
    with np.load(options.path("lsoa"), allow_pickle=False) as file:
        X, y, task = np.asarray(file["X"], dtype=float), np.asarray(file["y"], dtype=float), file["task"]
    return Tasks.from_arrays(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12), y, task)


def plan(method: str, m: int, dim: int, epsilon: float, setting: dict[str, Any]) -> Plan:
    """Return the plan of a method; those without settings ignore them."""
    if method == "alone":
        return Plan(Independent(Classification(dim, intercept=False)), NoNoise(), n_tasks=m)
    if method == "ours":
        prior = SharedPrior(Classification(dim, intercept=False), Joint())
        return Plan(prior, n_tasks=m, delta=paper_delta(m)).calibrate(epsilon)
    shared = LowRank(Logistic(dim), clip=5.0, lr=4.0, **setting)
    if method == "no noise":
        return Plan(shared, NoNoise(), n_tasks=m)
    if method == "published":
        return published_plan(shared, m, epsilon)
    return Plan(shared, n_tasks=m, delta=paper_delta(m)).calibrate(epsilon)


def area(train: Tasks, test: Tasks, made: Plan, seed: int) -> float:
    """Return aAUC on the test rows."""
    weights: Floats = run(made, train, random_state=seed, engine=Local(1)).private.models["coef"]
    owner = np.searchsorted(train.ids, np.repeat(test.ids, test.sizes))
    scores = np.einsum("nd,nd->n", test.X, weights[owner])
    return float(average_auc(test.y, scores, np.repeat(test.ids, test.sizes)))


def measure(cell: Cell, options: Options) -> float:
    train, test = load(options).split(test=1 - int(cell["percent"]) / 100, seed=cell["seed"])
    seed, dim = cell["seed"], train.X.shape[1]

    def make(setting: dict[str, Any]) -> Plan:
        return plan(cell["method"], len(train), dim, cell["epsilon"], setting)

    if cell["method"] in ("alone", "ours"):
        return area(train, test, make({}), seed)
    rest, held = train.split(test=0.2, seed=0)
    best = max(GRID, key=lambda setting: area(rest, held, make(setting), seed))
    return area(train, test, make(best), seed)


def summarise(found: Found) -> Data:
    data: Data = {"epsilon": sorted({cell["epsilon"] for cell, _ in found} - {0.0})}
    for (percent, method, _), values in by(found, "percent", "method", "epsilon").items():
        data.setdefault(percent, {}).setdefault(method, []).append(mean(values))
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for percent in [p for p in PERCENTS if p in data]:
        for place, epsilon in enumerate(data["epsilon"]):
            texts = [say(data[percent][method][place]) for method in PRIVATE]
            rows.append((f"{percent} %, ε = {epsilon:g}", "", *texts))
        alone, silent = (say(data[percent][method][0]) for method in ("alone", "no noise"))
        rows += [
            (f"{percent} %, alone", "", alone, alone, ""),
            (f"{percent} %, no noise", "", silent, silent, ""),
        ]
    return rows


def draw(data: Data, figure: Any) -> None:
    panels = [p for p in PERCENTS if p in data]
    figure.set_size_inches(2.0 + 2.0 * len(panels), 3.0)
    whose = {"published": "paper", "repaired": "repaired", "ours": "ours"}
    for axes, percent in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        for method in PRIVATE:
            curve(axes, data["epsilon"], data[percent][method], method, whose[method])
        level(axes, data[percent]["alone"][0], "alone", "alone")
        axes.set(xscale="log", xlabel="ε", ylabel="aAUC", title=f"{percent} % for training")
    legend(figure, 4)


def finding(data: Data) -> Finding:
    percent = next(p for p in PERCENTS if p in data)
    mine = data[percent]
    gains = mine["repaired"][-1][0] >= mine["repaired"][0][0]
    sentence = (
        f"With {percent} % of the rows and noise whose guarantee holds, aAUC goes from "
        f"{mine['repaired'][0][0]:.3f} to {mine['repaired'][-1][0]:.3f} with ε, against "
        f"{mine['alone'][0][0]:.3f} alone; a shared prior has {mine['ours'][-1][0]:.3f} at the largest ε."
    )
    return Finding(Verdict.YES if gains else Verdict.NO, sentence)
