"""Linear regression: transfer risk from one, two or three meta-models, around three centres.

Tasks of 10 rows in 30 dimensions, with weights near one of three unknown centres. Shown is the squared
error of fresh tasks that have adapted to 10 rows (noise alone is 0.01). "Its method": a hidden half of the
tasks in a round, a silent neighbour, δ = 1/m; "with the true guarantee": everyone in every round, a
neighbour with any other data, the default δ.
"""

from __future__ import annotations

import math
from typing import Any

from cloister import Plan, run
from cloister.channel import Relation
from cloister.datasets import around_centres
from cloister.mechanisms import Gaussian, NoNoise
from cloister.sampling import Poisson
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, budget, by, judge, mean, say
from papers.meta.learning import SETTING, fresh_error, trained
from papers.pictures import at, curve

NOT_COVERED = (
    "the paper's own constants and figure, which are not in the part of it that is here: the data are ours."
)
COUNTS, MODELS = (100, 300, 1000), (1, 2, 3)
EPSILONS: tuple[float | None, ...] = (3.0, 10.0, None)


def cells(options: Options) -> list[Cell]:
    return [
        {"tasks": tasks, "epsilon": epsilon, "models": models, "seed": seed}
        for seed in options.replications(full=5, quick=2)
        for tasks in (COUNTS[:2] if options.quick else COUNTS)
        for epsilon in EPSILONS
        for models in MODELS
    ]


def measure(cell: Cell, options: Options) -> dict[str, float]:
    """Return the error of fresh tasks, as the paper prices and as its definition does."""
    data = around_centres(cell["seed"], cell["tasks"])
    meta = SETTING.meta(data.centres.shape[1], cell["models"])
    epsilon = math.inf if cell["epsilon"] is None else cell["epsilon"]
    found = {"true": fresh_error(data, trained(meta, data.train, epsilon, cell["seed"]))}
    noise = NoNoise() if math.isinf(epsilon) else Gaussian(exact=False)
    half, relation, delta = Poisson(0.5, hidden=True), Relation.ZERO_OUT, 1 / cell["tasks"]
    plan = Plan(meta, noise, half, n_tasks=cell["tasks"], relation=relation, delta=delta)
    plan = plan if math.isinf(epsilon) else plan.calibrate(epsilon)
    return found | {"published": fresh_error(data, run(plan, data.train, random_state=cell["seed"]))}


def summarise(found: Found) -> Data:
    data: Data = {}
    for (tasks, epsilon, models), values in by(found, "tasks", "epsilon", "models").items():
        for method in ("published", "true"):
            key = f"{tasks} tasks, {budget(epsilon)}, {models} models, {method}"
            data[key] = mean([value[method] for value in values])
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for key in [key.removesuffix(", true") for key in data if key.endswith(", true")]:
        published, true = (say(data[f"{key}, {method}"], ".3f") for method in ("published", "true"))
        three = key.endswith("3 models")
        rows.append((key, "", published, true, true if three else ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    panels = figure.subplots(1, 3, sharey=True)
    counts = [m for m in COUNTS if f"{m} tasks, no noise, 1 models, true" in data]
    for axes, epsilon in zip(panels, EPSILONS, strict=True):
        for models, whose in zip(MODELS, ("paper", "other", "ours"), strict=True):
            points = [data[f"{m} tasks, {budget(epsilon)}, {models} models, true"] for m in counts]
            curve(axes, list(counts), points, f"{models} model{'s' * (models > 1)}", whose)
        axes.set(title=budget(epsilon), xlabel="tasks", yscale="log")
        at(axes, list(counts))
    panels[0].set_ylabel("error of fresh tasks")
    panels[0].legend()


def claims(data: Data) -> list[Claim]:
    def better(method: str) -> Outcome:
        keys = [
            key.removesuffix(f", 1 models, {method}") for key in data if key.endswith(f", 1 models, {method}")
        ]
        wins = [data[f"{k}, 3 models, {method}"][0] < data[f"{k}, 1 models, {method}"][0] for k in keys]
        lost = [key for key, won in zip(keys, wins, strict=True) if not won]
        told = f"in {sum(wins)} of {len(wins)} places" + (f"; worse at {' and '.join(lost)}" if lost else "")
        return judge(wins, told)

    return [
        Claim(
            "do as many meta-models as clusters transfer better than one, with noise too?",
            "",
            better("published"),
            better("true"),
            asked=True,
        )
    ]


def finding(data: Data) -> str:
    keys = [key.removesuffix(", 1 models, true") for key in data if key.endswith(", 1 models, true")]
    ratio = {key: data[f"{key}, 1 models, true"][0] / data[f"{key}, 3 models, true"][0] for key in keys}
    worst, best = (choose(ratio, key=lambda key: ratio[key]) for choose in (min, max))
    return (
        f"Three meta-models have {ratio[best]:.1f} times less error than one at {best}, and at {worst} "
        + (
            f"{1 / ratio[worst]:.2f} times as much."
            if ratio[worst] < 1
            else f"{ratio[worst]:.2f} times less."
        )
    )
