"""Algorithm 5: noise of the tasks and noise of the curator, for any split of the budget.

Low-rank simulation, ten rounds of Algorithm 2 at a curator's ε of 10. Every task adds noise to its own
model first, with budgets of rounds that are even or go like t^(2/5). The density is the corrected one
(`cloister museum inverted-density`), and messages are clipped again after it, which the paper's second half
needs. Since 2K is the distance of two tasks, a task's noise hides all of it from the curator too.

Its secure half is a real secure sum: what tasks send is masked, the curator sees nothing but the sum, and the
curator's noise is in shares that the tasks add, priced against the curator and a tenth of the tasks together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloister import Plan, Trust
from cloister.algorithms import LocalNoise, PowerBudget
from cloister.plan.algorithm import Algorithm
from papers.figure import Cell, Claim, Data, Found, Options, Row, by, judge, mean, say
from papers.mpmtl import simulation
from papers.mpmtl.simulation import PAPER
from papers.mpmtl.wishart import paper_delta
from papers.pictures import curve, legend, level

NOT_COVERED = "tasks that drop out of a sum, of which the paper has none: `Trust.secure_sum(dropouts=...)`."
LOCAL, SPLITS, CURATOR = (1.0, 10.0, 100.0, 1000.0, 10000.0), {"even": 0.0, "like t^(2/5)": 0.4}, 10.0
#: The even split, and none, with messages that nobody sees: of one seed, as every pair of tasks has masks.
SECURE, SEEDS = "even, secure sum", 1


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=10, quick=1)
    points = [(epsilon, split) for epsilon in LOCAL for split in SPLITS]
    plain = [{"local": e, "split": split, "seed": s} for s in seeds for e, split in [*points, (0.0, "none")]]
    return [*plain, *({"local": e, "split": SECURE, "seed": s} for s in seeds[:SEEDS] for e in (0.0, *LOCAL))]


def measure(cell: Cell, options: Options) -> dict[str, float]:
    """Return the error with local noise; without it also those of learning alone."""
    setting, seed = replace(PAPER, epsilon=CURATOR), cell["seed"]
    data, m, shared = setting.data(seed), setting.tasks, setting.algorithm()
    tasks, secure = simulation.training(data), cell["split"] == SECURE
    trust = Trust.secure_sum(colluders=m // 10) if secure else Trust.curator()
    asked: Algorithm = shared
    if cell["local"]:
        allocation = PowerBudget(0.0 if secure else SPLITS[cell["split"]])
        asked = LocalNoise(shared, cell["local"], setting.clip, allocation)
    plans = {"error": Plan(asked, n_tasks=m, delta=paper_delta(m), trust=trust).calibrate(CURATOR)}
    if not cell["local"]:
        plans["alone"] = simulation.reference_plans(shared, m)[0]
    return {name: simulation.nmse(simulation.models(plan, tasks, seed), data) for name, plan in plans.items()}


def summarise(found: Found) -> Data:
    groups = by(found, "split", "local")
    errors = {key: [value["error"] for value in values] for key, values in groups.items()}
    data: Data = {"local": list(LOCAL)}
    data |= {split: [mean(errors[split, local]) for local in LOCAL] for split in (*SPLITS, SECURE)}
    data |= {"curator alone": mean(errors["none", 0.0]), "secure alone": mean(errors[SECURE, 0.0])}
    pairs = [(errors[SECURE, local], errors["even" if local else "none", local]) for local in (0.0, *LOCAL)]
    data["secure costs"] = [mean([own - plain for own, plain in zip(*pair, strict=False)]) for pair in pairs]
    return data | {"alone": mean([value["alone"] for value in groups["none", 0.0]])}


def table(data: Data) -> list[Row]:
    rows: list[Row] = [
        (f"local ε = {epsilon:g}, {split}", "", "", say(data[split][place]), "")
        for split in SPLITS
        for place, epsilon in enumerate(data["local"])
    ]
    rows.append(("no local noise", "", "", say(data["curator alone"]), ""))
    words = ["no local noise", *(f"local ε = {epsilon:g}, even" for epsilon in data["local"])]
    for word, cost in zip(words, data["secure costs"], strict=True):
        rows.append((f"{word}: what a secure sum adds, on the same data", "", "", say(cost), ""))
    return [*rows, ("alone", "", "", say(data["alone"]), "")]


def draw(data: Data, figure: Any) -> None:
    axes = figure.subplots()
    for split, style in zip(SPLITS, ("-o", ":s"), strict=True):
        curve(axes, data["local"], data[split], f"both noises, local budget {split}", "repaired", style)
    _, *costs = data["secure costs"]
    secure = [[error + cost, 0.0] for (error, _), (cost, _) in zip(data["even"], costs, strict=True)]
    curve(axes, data["local"], secure, "both noises, even, and what a secure sum adds", "ours", "--^")
    level(axes, data["curator alone"], "the curator's noise alone", "ours", "-")
    level(axes, data["alone"], "alone", "alone")
    axes.set(xscale="log", xlabel="local ε of a task, all rounds", ylabel="nMSE")
    legend(figure, 2)


def claims(data: Data) -> list[Claim]:
    free, alone = data["curator alone"][0], data["alone"][0]
    near = [data[split][data["local"].index(10.0)][0] for split in SPLITS]
    return [
        Claim(
            "Algorithm 5 is not run in the paper: with rows hidden from the curator and models from each "
            "other, tasks still gain (local ε = 10)",
            "",
            None,
            judge(
                [error < free + 0.9 * (alone - free) for error in near],
                f"nMSE {near[0]:.4f}, with the curator's noise alone {free:.4f}, learning alone {alone:.4f}",
            ),
            asked=True,
        ),
        Claim(
            "its secure half, with the curator's noise in shares that a tenth of the tasks may know: as good "
            "as the curator's, at any local ε (one draw of the data; within a tenth of what sharing gains)",
            "",
            None,
            judge(
                [cost < 0.1 * (alone - free) for cost, _ in data["secure costs"]],
                f"on the same data at most {max(cost for cost, _ in data['secure costs']):.4f} more at any "
                f"local ε; sharing gains {alone - free:.4f}",
            ),
            asked=True,
        ),
    ]


def finding(data: Data) -> str:
    split = next(iter(SPLITS))
    gain = data["alone"][0] - data["curator alone"][0]
    keeps = [
        e
        for e, point in zip(data["local"], data[split], strict=True)
        if data["alone"][0] - point[0] > gain / 2
    ]
    told = f"from a local ε of {keeps[0]:g} on" if keeps else "at no local ε tried"
    return (
        f"Half of what sharing gains is left {told}: noise of the tasks hides each whole task, not a row, "
        "and is priced accordingly. How the local budget is shared over rounds matters little beside that."
    )
