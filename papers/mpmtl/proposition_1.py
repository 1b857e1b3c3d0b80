"""Proposition 1: large noise makes Algorithm 2 single-task learning.

Low-rank simulation, ten rounds: how far the last M is from the nearest multiple of the identity, relative
to M; the error; and the error with that multiple in place of every M, which shrinks all models alike. The
proposition rests on Wishart noise being positive. Gaussian noise without a public shift wipes out about
half of all directions. Alone are the same steps without sharing; ridge regression does better (Figure 6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import LowRank
from cloister.algorithms.mean_regularized import project
from cloister.core.arrays import Floats
from cloister.engines import Local
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, judge, mean, say
from papers.mpmtl import simulation
from papers.mpmtl.simulation import PAPER, Setting
from papers.mpmtl.wishart import published_plan
from papers.pictures import curve, legend, level

NOT_COVERED = "Algorithm 3's part of the proposition, which is the same on a diagonal."
EPSILONS = (0.01, 0.1, 1.0, 10.0, 100.0)
HOW = {
    "published": ("published noise (not private)", "paper", "-o"),
    "no shift": ("Gaussian noise, no shift", "repaired", ":s"),
    "repaired": ("Gaussian noise, shifted", "repaired", "-o"),
}


def cells(options: Options) -> list[Cell]:
    seeds = options.replications(full=30, quick=3)
    return [{"seed": seed, "epsilon": epsilon} for seed in seeds for epsilon in EPSILONS]


def plan(setting: Setting, how: str, epsilon: float) -> Plan:
    shared = replace(setting.algorithm(), shift=0.0 if how == "no shift" else 1.0)
    if how == "published":
        return published_plan(shared, setting.tasks, epsilon)
    return simulation.private_plan(shared, setting.tasks, epsilon)


def matrices(algorithm: LowRank, board: Any) -> list[Floats]:
    """Return the matrix M of every round."""
    unit = algorithm.clip**2
    return [algorithm.shared_matrix(unit * r.value, unit * r.noise) for r in board.releases]


def with_matrices(algorithm: LowRank, tasks: Tasks, shared: list[Floats]) -> Floats:
    """Return what tasks come to with these matrices (Steps 9 to 11), instead of those of a board."""
    block = next(tasks.blocks([np.arange(len(tasks))]))
    weights = algorithm.alone(block)
    before = project(weights, algorithm.clip)
    for t, matrix in enumerate(shared, start=1):
        now = project(weights, algorithm.clip) @ matrix
        ahead = now + algorithm.momentum(t) * (now - before)
        weights, before = algorithm.descend(ahead, algorithm.gradient(ahead, block)), now
    return before


def effects(setting: Setting, seed: int, epsilon: float) -> dict[str, dict[str, float]]:
    """Return what noise of each kind does to M and to models."""
    data = setting.data(seed)
    tasks = simulation.training(data)
    found = {}
    for how in HOW:
        priced = plan(setting, how, epsilon)
        done = run(priced, tasks, random_state=seed, engine=Local(1))
        shared = matrices(priced.algorithm, done.board)
        multiples = [np.trace(matrix) / len(matrix) * np.eye(len(matrix)) for matrix in shared]
        distance = np.linalg.norm(shared[-1] - multiples[-1]) / np.linalg.norm(shared[-1])
        alike = with_matrices(priced.algorithm, tasks, multiples)
        found[how] = {
            "distance": float(distance),
            "multiple": float(multiples[-1][0, 0]),
            "gone": float((np.linalg.eigvalsh(shared[-1]) < 1e-9).mean()),
            "error": simulation.nmse(done.private.models["coef"], data),
            "alike": simulation.nmse(alike, data),
        }
    alone, _ = simulation.reference_plans(setting.algorithm(), setting.tasks)
    found["alone"] = {"error": simulation.nmse(simulation.models(alone, tasks, seed), data)}
    return found


def measure(cell: Cell, options: Options) -> dict[str, dict[str, float]]:
    return effects(PAPER, cell["seed"], cell["epsilon"])


def summarise(found: Found) -> Data:
    groups = by(found, "epsilon")
    data: Data = {"epsilon": [epsilon for (epsilon,) in groups]}
    for how in HOW:
        data[how] = {
            what: [mean([value[how][what] for value in values]) for values in groups.values()]
            for what in ("distance", "multiple", "gone", "error", "alike")
        }
    data["alone"] = mean([value["alone"]["error"] for _, value in found])
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for place, epsilon in enumerate(data["epsilon"]):
        pair = [data[how] for how in ("published", "repaired")]
        rows.append(
            (
                f"ε = {epsilon:g}: distance of M from a multiple of I",
                "0 if noise is large" if place == 0 else "",
                *(f"{100 * one['distance'][place][0]:.2g} %" for one in pair),
                "",
            )
        )
        rows.append((f"ε = {epsilon:g}: nMSE", "", *(say(one["error"][place]) for one in pair), ""))
        rows.append(
            (f"ε = {epsilon:g}: nMSE, all shrunk alike", "", *(say(one["alike"][place]) for one in pair), "")
        )
    gone = data["no shift"]
    rows.append(("ε = 0.01, no shift: directions lost", "", "", f"{100 * gone['gone'][0][0]:.0f} %", ""))
    rows.append(("ε = 0.01, no shift: nMSE", "", "", say(gone["error"][0]), ""))
    return [*rows, ("alone", "", say(data["alone"]), say(data["alone"]), "")]


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(8.0, 3.2)
    left, right = figure.subplots(1, 2)
    for how, (label, whose, style) in HOW.items():
        curve(left, data["epsilon"], data[how]["distance"], label, whose, style)
        curve(right, data["epsilon"], data[how]["error"], label, whose, style)
    level(right, data["alone"], "alone", "alone")
    left.set(xscale="log", yscale="log", xlabel="ε", ylabel="distance of M from a multiple of I")
    right.set(xscale="log", yscale="log", xlabel="ε", ylabel="nMSE")
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    alone = data["alone"][0]

    def identity(how: str) -> Outcome:
        found = data[how]["distance"][0][0]
        return judge(
            [found < 0.05], f"{100 * found:.2g} % from a multiple of I at ε = {data['epsilon'][0]:g}"
        )

    def safe(how: str) -> Outcome:
        worst = max(point[0] for point in data[how]["error"])
        return judge([worst < 1.02 * alone], f"at most {worst:.4f}, alone {alone:.4f}")

    return [
        Claim(
            "Proposition 1: under large noise the matrix that tasks share becomes the identity",
            "",
            identity("published"),
            identity("repaired"),
        ),
        Claim(
            "Section 4.2: so that the algorithm does no worse than learning alone, at any ε",
            "",
            safe("published"),
            safe("repaired"),
        ),
    ]


def finding(data: Data) -> str:
    bare = data["no shift"]
    return (
        "It holds for noise that is positive, and for Gaussian noise with a public shift: nothing is shared "
        f"then. Gaussian noise without the shift loses {100 * bare['gone'][0][0]:.0f} % of all directions at "
        f"ε = {data['epsilon'][0]:g}, and the error is {bare['error'][0][0]:.2f}."
    )
