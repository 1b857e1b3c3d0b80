"""Figure 8: error of the first 20 tasks against the number of tasks that train together.

Low-rank simulation, Algorithm 2, ε = 0.1; λ goes with the root of the number of tasks, as the trace norm
does. Alone are the same steps without sharing; ridge regression does better (Figure 6).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, by, mean, say
from papers.mpmtl import simulation
from papers.mpmtl.simulation import PAPER, Setting
from papers.mpmtl.wishart import published_plan
from papers.pictures import curve, legend

CLAIM = (
    "The error falls with the number of tasks that train together, and standard deviations show that it does."
)
COUNTS, SCORED = (20, 40, 80, 160, 320), 20
SHOWN = {
    "alone": ("alone", "alone"),
    "published": ("published noise (not private)", "paper"),
    "repaired": ("Gaussian noise", "repaired"),
    "ours": ("shared prior", "ours"),
    "no noise": ("together, no noise", "no noise"),
}


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=50, quick=3)
    return [{"seed": seed, "tasks": count} for seed in seeds for count in COUNTS]


def errors(setting: Setting, seed: int, count: int, scored: int = SCORED) -> dict[str, float]:
    """Return errors of the first tasks when so many train together."""
    data, shared = setting.data(seed), setting.algorithm(count)
    tasks = simulation.training(data).select(range(count))
    alone, silent = simulation.reference_plans(shared, count)
    plans = {
        "alone": alone,
        "no noise": silent,
        "published": published_plan(shared, count, setting.epsilon),
        "repaired": simulation.private_plan(shared, count, setting.epsilon),
        "ours": simulation.prior_plan(setting, count),
    }
    found = {name: simulation.models(plan, tasks, seed) for name, plan in plans.items()}
    return {name: simulation.nmse(weights[:scored], data) for name, weights in found.items()}


def measure(cell: Cell, options: Options) -> dict[str, float]:
    return errors(PAPER, cell["seed"], cell["tasks"])


def summarise(found: Found) -> Data:
    groups = by(found, "tasks")
    data: Data = {"tasks": [count for (count,) in groups]}
    for name in SHOWN:
        data[name] = [mean([value[name] for value in values]) for values in groups.values()]
    # Draws differ more than methods do: what counts is the difference on the same draw.
    first, last = (groups[count,] for count in (COUNTS[0], COUNTS[-1]))
    for name in SHOWN:
        pairs = zip(first, last, strict=True)
        data[f"{name}, change"] = mean([100 * (b[name] / a[name] - 1) for a, b in pairs])
        data[f"{name}, each doubling"] = [
            mean([100 * (b[name] / a[name] - 1) for a, b in zip(groups[few,], groups[many,], strict=True)])
            for few, many in pairwise(COUNTS)
        ]
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = [
        (f"{count} tasks", "", *(say(data[name][place]) for name in ("published", "repaired", "ours")))
        for place, count in enumerate(data["tasks"])
    ]
    changes = [f"{say(data[f'{name}, change'], '.1f')} %" for name in ("published", "repaired", "ours")]
    return [
        *rows,
        ("change from 20 to 320 tasks", "falls", *changes),
        ("alone", "", *[say(data["alone"][0])] * 2, ""),
    ]


def draw(data: Data, figure: Any) -> None:
    axes = figure.subplots()
    for name, (label, whose) in SHOWN.items():
        curve(axes, data["tasks"], data[name], label, whose, "--o" if name in ("alone", "no noise") else "-o")
    axes.set(xscale="log", xlabel="tasks that train together", ylabel="nMSE of the first 20")
    axes.set_xticks(data["tasks"], [str(count) for count in data["tasks"]])
    legend(figure, 3)


def finding(data: Data) -> Finding:
    change, steps = data["repaired, change"], data["repaired, each doubling"]
    falls = all(step[0] < -3 * step[1] for step in steps)
    worse = [
        count
        for count, ours, alone in zip(data["tasks"], data["ours"], data["alone"], strict=True)
        if ours[0] > alone[0]
    ]
    sentence = (
        f"With noise whose guarantee holds the error changes by {say(change, '.1f')} % from 20 to 320 tasks "
        f"on the same draws ({', '.join(say(step, '.2f') for step in steps)} % with each doubling), to "
        f"{data['repaired'][-1][0]:.4f} against {data['alone'][-1][0]:.4f} alone. It is a shrinkage that "
        f"grows with λ, not what tasks share (Proposition 1): without noise it falls by "
        f"{-data['no noise, change'][0]:.0f} %, to {data['no noise'][-1][0]:.4f}. A shared prior gains more "
        f"by more tasks ({data['ours'][0][0]:.4f} with 20, {data['ours'][-1][0]:.4f} with 320)"
        + (
            f", but at this ε it is worse than learning alone with {', '.join(map(str, worse))}."
            if worse
            else "."
        )
    )
    return Finding(Verdict.YES if falls else Verdict.PARTLY if change[0] < 0 else Verdict.NO, sentence)
