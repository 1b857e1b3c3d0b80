"""Table 1: four ways of fine-tuning after private MTL and after one private model for all.

Mean test accuracy over writers, each way of tuning from the one board of the one run: it is free, so that a
task may try all. Twenty steps at home, in which a writer is held near the public model by a quadratic (λ =
0.1), by a symmetrised Kullback-Leibler divergence, by elastic weight consolidation, or not at all. Priced
as "with the true guarantee" is in Figure 3. The paper's numbers are for FEMNIST, for training data that are
not published. What each writer has alone is in Figure 3.
"""

from __future__ import annotations

from typing import Any

from cloister.learners import Descent
from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, budget, by, mean, say
from papers.pictures import COLOURS, legend
from papers.pmtl.runs import tuned_run, tunings
from papers.pmtl.writers import (
    SETS,
    TITLES,
    engine,
    methods,
    require_data,
    said_of,
    scored,
    split,
    trained,
    true_plan,
)

CLAIM = (
    "With noise, private MTL is ahead of a private model for all in 10 of 12 places; without, a tuned "
    "global model "
    "is best."
)
EPSILONS: tuple[float | None, ...] = (0.1, 0.8, 2.0, None)
METHODS = ("mtl", "fedavg")
WAYS = tunings(Descent(0.1, batch=20, steps=20))
#: MTL and global, printed for FEMNIST at these budgets.
PRINTED = {
    "vanilla": ((0.645, 0.606), (0.640, 0.648), (0.677, 0.653), (0.832, 0.812)),
    "mean-regularised": ((0.608, 0.581), (0.605, 0.574), (0.656, 0.633), (0.826, 0.839)),
    "symmetrised KL": ((0.486, 0.348), (0.584, 0.481), (0.662, 0.565), (0.839, 0.829)),
    "EWC": ((0.663, 0.556), (0.595, 0.607), (0.681, 0.666), (0.837, 0.823)),
}


def cells(options: Options) -> list[Cell]:
    require_data()
    return [
        {"data": data, "method": method, "seed": seed, "quick": options.quick}
        for seed in options.replications(full=5, quick=1)
        for data in SETS
        for method in METHODS
    ]


def budgets(quick: bool) -> tuple[float | None, ...]:
    return EPSILONS[1:2] if quick else EPSILONS


def measure(cell: Cell, options: Options) -> list[list[float]]:
    """Return accuracies, a row a budget, a column a way of tuning."""
    data, seed, quick = cell["data"], cell["seed"], cell["quick"]
    train, test = split(data, seed, quick)
    rows = []
    for epsilon in budgets(quick):
        plan = true_plan(methods(data, seed, quick, epsilon)[cell["method"]], len(train), epsilon)
        done = trained(plan, train, seed, options.device)
        ends = (
            done if way is None else tuned_run(done, train, way, engine(options.device))
            for way in WAYS.values()
        )
        rows.append([scored(end, test, options.device)[0] for end in ends])
    return rows


def summarise(found: Found) -> Data:
    data: Data = {}
    for (name, method), values in by(found, "data", "method").items():
        for row, epsilon in enumerate(budgets(found[0][0]["quick"])):
            for column, way in enumerate(WAYS):
                said = said_of(epsilon)
                data[f"{name}, {said}, {way}, {method}"] = mean([value[row][column] for value in values])
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for name, title in TITLES.items():
        for place, epsilon in enumerate(EPSILONS):
            said = said_of(epsilon)
            for way in WAYS:
                if f"{name}, {said}, {way}, mtl" not in data:
                    continue
                mtl, fedavg = (data[f"{name}, {said}, {way}, {method}"] for method in METHODS)
                printed = PRINTED[way][place] if name == "femnist" and way in PRINTED else None
                paper = f"MTL {printed[0]:.3f}, global {printed[1]:.3f}" if printed else ""
                label = f"{title}, {budget(epsilon)}, {'not tuned' if way == 'none' else way}"
                rows.append((label, paper, "", f"MTL {say(mtl, '.3f')}", f"FedAvg {say(fedavg, '.3f')}"))
    return rows


def draw(data: Data, figure: Any) -> None:
    names = [name for name in TITLES if f"{name}, 0.8, none, mtl" in data]
    shown = ((-0.2, "mtl", "paper", "private MTL"), (0.2, "fedavg", "ours", "private FedAvg"))
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for shift, method, whose, label in shown:
            points = [data[f"{name}, 0.8, {way}, {method}"] for way in WAYS]
            x = [place + shift for place in range(len(WAYS))]
            errors = [point[1] for point in points]
            axes.bar(x, [point[0] for point in points], 0.4, yerr=errors, color=COLOURS[whose], label=label)
        axes.set_xticks(range(len(WAYS)), ["none", "vanilla", "mean", "KL", "EWC"])
        axes.set(title=f"{TITLES[name]}, ε = 0.8")
    panels[0].set_ylabel("test accuracy")
    legend(figure, 2)


def finding(data: Data) -> Finding:
    keys = [key.removesuffix(", mtl") for key in data if key.endswith(", mtl")]
    noisy = [key for key in keys if "none" not in key and "no noise" not in key]
    parts, ahead = [], 0
    for name, title in TITLES.items():
        mine = [key for key in noisy if key.startswith(f"{name},")]
        if not mine:
            continue
        won = sum(data[f"{key}, mtl"][0] > data[f"{key}, fedavg"][0] for key in mine)
        best = [f"{max(data[f'{key}, {method}'][0] for key in mine):.3f}" for method in METHODS]
        parts.append(f"{won} of {len(mine)} places on {title} (at best {best[0]}, a model for all {best[1]})")
        ahead += won
    share = ahead / len(noisy)
    sentence = f"With noise and tuning, private MTL is ahead in {' and in '.join(parts)}."
    return Finding(Verdict.YES if share > 0.8 else Verdict.PARTLY if share > 0.3 else Verdict.NO, sentence)
