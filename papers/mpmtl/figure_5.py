"""Figure 5: noise against signal in what is released, round by round.

Low-rank simulation, Algorithm 2 with acceleration and budgets like t^(2/5), ε = 0.1. The ratio is
log₁₀(‖E‖ / ‖Σ‖) of a release's noise and clean part, in Frobenius norm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloister import run
from cloister.algorithms import PowerBudget
from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, mean, say
from papers.mpmtl import simulation
from papers.mpmtl.simulation import PAPER, Setting, noise_to_signal
from papers.mpmtl.wishart import published_plan
from papers.pictures import curve

CLAIM = (
    "Noise is far louder than the signal at ε = 0.1 (the ratio of DP-MTRL is 0.267); models hardly suffer."
)


def cells(options: Options) -> list[Cell]:
    return [{"seed": seed} for seed in options.replications(full=50, quick=4)]


def ratios(setting: Setting, seed: int) -> dict[str, list[float]]:
    """Return the ratio of every round, with the published noise and with Gaussian noise."""
    shared, m = replace(setting.algorithm(), allocation=PowerBudget(0.4)), setting.tasks
    tasks = simulation.training(setting.data(seed))
    plans = {
        "published": published_plan(shared, m, setting.epsilon),
        "repaired": simulation.private_plan(shared, m, setting.epsilon),
    }
    return {
        name: noise_to_signal(run(plan, tasks, random_state=seed), tasks).tolist()
        for name, plan in plans.items()
    }


def measure(cell: Cell, options: Options) -> dict[str, list[float]]:
    return ratios(PAPER, cell["seed"])


def summarise(found: Found) -> Data:
    return {
        name: [mean(values) for values in zip(*(value[name] for _, value in found), strict=True)]
        for name in ("published", "repaired")
    }


def table(data: Data) -> list[Row]:
    return [
        (f"round {t + 1}", "", say(data["published"][t], ".3f"), say(data["repaired"][t], ".3f"), "")
        for t in range(len(data["repaired"]))
    ]


def draw(data: Data, figure: Any) -> None:
    axes = figure.subplots()
    rounds = list(range(1, len(data["repaired"]) + 1))
    curve(axes, rounds, data["published"], "published noise (not private)", "paper")
    curve(axes, rounds, data["repaired"], "Gaussian noise", "repaired")
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set(xlabel="round", ylabel="log₁₀ noise / signal")
    axes.legend()


def finding(data: Data) -> Finding:
    true, published = ([point[0] for point in data[name]] for name in ("repaired", "published"))
    louder = "louder and " if min(published) > max(true) else ""
    sentence = (
        f"The ratio falls from {true[0]:.2f} to {true[-1]:.2f} with noise whose guarantee holds, and from "
        f"{published[0]:.2f} to {published[-1]:.2f} with the published noise, which is {louder}not private. "
        "Models do not suffer because nothing is shared at such noise: see Proposition 1."
    )
    return Finding(Verdict.YES if min(true) > 0.5 else Verdict.NO, sentence)
