"""Figure 4: how the budget is shared over rounds, with and without acceleration.

Low-rank simulation, Algorithm 2, ε = 0.1. Budgets of round t go like t^α in (a), and like Q^-t in (b), where
losses are made strongly convex; Q is given by its exponent to the base Q₀ = 1 - √(μ/L) = 0.9684. Scores are
on fresh rows where the paper has five folds of the training rows. λ and rounds are the same everywhere.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cloister.algorithms import GeometricBudget, LowRank, PowerBudget
from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, by, mean, say
from papers.mpmtl import simulation
from papers.mpmtl.simulation import PAPER, Setting
from papers.mpmtl.wishart import published_plan
from papers.pictures import curve, legend, level

CLAIM = (
    "Errors are smaller with acceleration, and smallest at small positive exponents in both panels, which is "
    "what the utility analysis says (α = 0 without acceleration, 2/5 with it)."
)
AXES = {"alpha": (-0.8, -0.4, 0.0, 0.4, 0.8, 1.2), "exponent": (-0.8, -0.4, 0.0, 0.2, 0.4, 0.8, 1.2)}
HOW = {"published": "paper", "repaired": "repaired"}


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=30, quick=2)
    axes = {"alpha": (0.0, 0.4, 1.2), "exponent": (0.0, 0.2, 1.2)} if options.quick else AXES
    points = [(panel, x, fast) for panel in axes for x in axes[panel] for fast in (False, True)]
    return [{"seed": s, "panel": p, "x": x, "accelerated": fast} for s in seeds for p, x, fast in points] + [
        {"seed": seed, "panel": "reference"} for seed in seeds
    ]


def algorithm(setting: Setting, cell: Cell) -> LowRank:
    """Return Algorithm 2 with the budgets of a point."""
    base = replace(setting.algorithm(), accelerated=cell["accelerated"])
    if cell["panel"] == "alpha":
        return replace(base, allocation=PowerBudget(cell["x"]))
    q = (1 - math.sqrt(setting.convexity)) ** cell["x"]
    return replace(base, allocation=GeometricBudget(q), strong=setting.convexity / setting.lr)


def errors(setting: Setting, cell: Cell) -> dict[str, float]:
    """Return the errors at one point, or of what does not depend on allocation."""
    data, m, seed = setting.data(cell["seed"]), setting.tasks, cell["seed"]
    if cell["panel"] == "reference":
        alone, silent = simulation.reference_plans(setting.algorithm(), m)
        plans = {"alone": alone, "no noise": silent, "ours": simulation.prior_plan(setting, m)}
    else:
        shared = algorithm(setting, cell)
        plans = {
            "published": published_plan(shared, m, setting.epsilon),
            "repaired": simulation.private_plan(shared, m, setting.epsilon),
        }
    tasks = simulation.training(data)
    return {name: simulation.nmse(simulation.models(plan, tasks, seed), data) for name, plan in plans.items()}


def measure(cell: Cell, options: Options) -> dict[str, float]:
    return errors(PAPER, cell)


def summarise(found: Found) -> Data:
    points = [(cell, value) for cell, value in found if cell["panel"] != "reference"]
    data: Data = {panel: sorted({c["x"] for c, _ in points if c["panel"] == panel}) for panel in AXES}
    for (panel, fast, _), values in by(points, "panel", "accelerated", "x").items():
        for how in HOW:
            name = f"{panel}, {how}, {'accelerated' if fast else 'plain'}"
            data.setdefault(name, []).append(mean([value[how] for value in values]))
    references = [value for cell, value in found if cell["panel"] == "reference"]
    return data | {name: mean([value[name] for value in references]) for name in references[0]}


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for panel, symbol in (("alpha", "α"), ("exponent", "exponent of Q")):
        for speed in ("plain", "accelerated"):
            for place, x in enumerate(data[panel]):
                texts = [say(data[f"{panel}, {how}, {speed}"][place]) for how in HOW]
                rows.append((f"{symbol} = {x:g}, {speed}", "", *texts, ""))
    rows.append(("no noise", "0.0140", say(data["no noise"]), say(data["no noise"]), ""))
    return [*rows, ("alone; ours at ε = 0.1", "", say(data["alone"]), say(data["alone"]), say(data["ours"]))]


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 3.2)
    labels = ("α (budget of round t like t^α)", "exponent of Q₀ in Q (budget like Q^-t)")
    for axes, panel, label in zip(figure.subplots(1, 2), AXES, labels, strict=True):
        for how, whose in HOW.items():
            for speed, style in (("plain", ":o"), ("accelerated", "-o")):
                name = f"{panel}, {how}, {speed}"
                curve(axes, data[panel], data[name], name.removeprefix(f"{panel}, "), whose, style)
        level(axes, data["alone"], "alone", "alone")
        axes.set(xlabel=label, ylabel="nMSE")
    legend(figure, 3)


def finding(data: Data) -> Finding:
    fast, slow = ([p[0] for p in data[f"alpha, repaired, {speed}"]] for speed in ("accelerated", "plain"))
    helps = min(fast) < min(slow)
    at = {speed: data["alpha"][e.index(min(e))] for speed, e in (("with", fast), ("without", slow))}
    gain = 100 * (1 - min(fast) / data["alone"][0])
    flat = 100 * (max(fast) / min(fast) - 1)
    sentence = (
        f"With noise whose guarantee holds acceleration {'helps' if helps else 'does not help'} in (a), and "
        f"the best α is {at['with']:g} with it and {at['without']:g} without. But the curve is nearly flat "
        f"(the worst α is {flat:.1f} % above the best), and the {gain:.1f} % gained over learning alone "
        f"({data['alone'][0]:.4f}) come from shrinking all models alike, not from what tasks share: see "
        "Proposition 1."
    )
    small = 0 < at["with"] <= 0.8
    return Finding(Verdict.YES if helps and small else Verdict.PARTLY, sentence)
