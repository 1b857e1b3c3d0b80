"""Error against epsilon, for many methods and problems: what Figures 6, 7 and 9 to 11 have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from papers.figure import Cell, Data, Found, Options, by, mean
from papers.mpmtl.methods import ALONE, NOT_PRIVATE, PRIVATE
from papers.mpmtl.problems import load
from papers.pictures import curve, legend, level

EPSILONS = (0.1, 0.5, 1.0, 5.0, 10.0)
PLAIN = ALONE | NOT_PRIVATE
#: The paper's own algorithms in pictures: label, whose, style.
ALGORITHMS = {
    "published LR": ("Alg. 2, published (not private)", "paper", "-o"),
    "published GS": ("Alg. 3, published (not private)", "paper", ":s"),
    "repaired LR": ("Alg. 2, repaired", "repaired", "-o"),
    "repaired GS": ("Alg. 3, repaired", "repaired", ":s"),
}


def parts(
    problem: str, seeds: Iterable[int], methods: Sequence[str], epsilons: Sequence[float], percent: int = 30
) -> list[Cell]:
    """Return a cell for each seed, method and epsilon; epsilon is 0 where there is no noise."""
    return [
        {"problem": problem, "percent": percent, "method": method, "epsilon": epsilon, "seed": seed}
        for seed in seeds
        for method in methods
        for epsilon in (epsilons if method in PRIVATE else [0.0])
    ]


def measure(cell: Cell, options: Options) -> float:
    """Return the error of one method at one epsilon on one draw or split."""
    problem = load(cell["problem"], cell["seed"], cell["percent"], options)
    method = cell["method"]
    if method in PLAIN:
        return problem.score(PLAIN[method](problem))
    return problem.score(PRIVATE[method](problem, cell["epsilon"], 100 + cell["seed"]))


def summarise(found: Found, panel: str = "problem", alone: Iterable[str] = tuple(ALONE)) -> Data:
    """Return, for each panel and method, means and standard errors in the order of epsilons.

    And how far private methods are from the best of those alone, on the same draws: draws differ more than
    methods do.
    """
    cells = [cell for cell, _ in found]
    data: Data = {"epsilon": sorted({cell["epsilon"] for cell in cells} - {0.0})}
    for (name, method, _), values in by(found, panel, "method", "epsilon").items():
        data.setdefault(str(name), {}).setdefault(method, []).append(mean(values))
    drawn = by(found, panel, "method", "epsilon", "seed")
    for name, method, epsilon in dict.fromkeys(key[:3] for key in drawn if key[1] in PRIVATE):
        reference = best(data[str(name)], alone)[0]
        excess = [
            100 * (value / drawn[name, reference, 0.0, key[3]][0] - 1)
            for key, (value,) in drawn.items()
            if key[:3] == (name, method, epsilon)
        ]
        data[str(name)].setdefault(f"{method}, percent above alone", []).append(mean(excess))
    return data


def against(data: Data, panel: str, method: str) -> str:
    """Say at which ε a method is worse, and at which better than alone, by two standard errors."""
    epsilons, excess = data["epsilon"], data[panel][f"{method}, percent above alone"]
    pairs = list(zip(epsilons, excess, strict=True))
    worse = [epsilon for epsilon, (found, error) in pairs if found > 2 * error]
    better = [epsilon for epsilon, (found, error) in pairs if found < -2 * error]
    texts = [f"{word} {_places(at, epsilons)}" for word, at in (("worse", worse), ("better", better)) if at]
    return " and ".join(texts) or "not told apart"


def _places(some: list[float], every: list[float]) -> str:
    if some == every:
        return "everywhere"
    if some == every[: len(some)] and len(some) > 1:
        return f"up to ε = {some[-1]:g}"
    if some == every[-len(some) :] and len(some) > 1:
        return f"from ε = {some[0]:g} on"
    return f"at ε = {', '.join(f'{epsilon:g}' for epsilon in some)}"


def best(panel: dict[str, Any], methods: Iterable[str]) -> tuple[str, list[float]]:
    """Return which of the methods that do not depend on epsilon has the smallest error, and that error."""
    there = {method: panel[method][0] for method in methods if method in panel}
    name = min(there, key=lambda method: there[method][0])
    return name, there[name]


def draw(
    data: Data,
    figure: Any,
    panels: Mapping[str, str],
    shown: Mapping[str, tuple[str, str, str]],
    rows: int = 1,
    scale: str = "linear",
    score: str = "nMSE",
) -> None:
    """Draw panels, given by name and title: curves of some methods (label, whose, style), and levels."""
    for axes, (panel, title) in zip(
        figure.subplots(rows, len(panels) // rows, squeeze=False).flat, panels.items(), strict=True
    ):
        for method, (label, whose, style) in shown.items():
            if method in data[panel]:
                curve(axes, data["epsilon"], data[panel][method], label, whose, style)
        for method, style in zip(ALONE, ("--", ":"), strict=True):
            if method in data[panel]:
                level(axes, data[panel][method][0], f"alone, {method}", "alone", style)
        name, point = best(data[panel], NOT_PRIVATE)
        level(axes, point, f"{name}, no noise", "no noise")
        axes.set(title=title, xscale="log", yscale=scale, xlabel="ε", ylabel=score)
    legend(figure, 3)
