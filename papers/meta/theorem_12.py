"""Theorems 12 and 13: regret and excess risk of a stream of tasks fall as one over the root of its length.

Linear regressions of 10 rows in 30 dimensions around one centre, each task asked once (`FTMRL`). Regret is
against the best meta-model in hindsight; excess risk is that of the mean iterate on fresh tasks. "Its
method": the tree's noise as Theorem 10 prints it, 2⌈log₂(K+1)⌉ ln(1/δ)/ε at every node, δ = 1/K (n taken as
K); "with the true guarantee": a tree with the least noise; "ours": `Toeplitz` at the same price. Slopes are
of logarithms, seed by seed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cloister import Plan, run
from cloister.algorithms import FTMRL
from cloister.channel import Relation
from cloister.datasets import Centres
from cloister.engines import Run
from cloister.mechanisms import NoNoise, Toeplitz, Tree
from cloister.privacy.mechanisms import Mechanism
from cloister.sampling import OnePass
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, judge, mean, say
from papers.meta.learning import SETTING
from papers.meta.streams import Envelopes, excess_risk, one_centre, regret
from papers.pictures import at, curve

NOT_COVERED = (
    "the lemma from the literature (11) that the proof takes; the dependence on β, the probability that the "
    "bound fails."
)
COUNTS = (200, 400, 800, 1600)
NOISES = ("none", "published", "tree", "toeplitz")
EPSILON = 10.0
#: At which the longest stream is run as well.
OTHERS = (1.0, 3.0, 30.0, 100.0)


def cells(options: Options) -> list[Cell]:
    counts = COUNTS[:3] if options.quick else COUNTS
    places = [(tasks, EPSILON) for tasks in counts] + [(counts[-1], epsilon) for epsilon in OTHERS]
    return [
        {"tasks": tasks, "noise": noise, "seed": seed, "epsilon": epsilon}
        for seed in options.replications(full=10, quick=2)
        for tasks, epsilon in places
        for noise in NOISES
        if noise != "none" or epsilon == EPSILON
    ]


def published(tasks: int, epsilon: float) -> Tree:
    """Return a tree with the deviation at a node that Theorem 10 prints; mu is relative to silence."""
    levels = math.floor(math.log2(tasks)) + 1
    deviation = 2 * math.ceil(math.log2(tasks + 1)) * math.log(tasks) / epsilon
    return Tree(math.sqrt(levels) / deviation, exact=False)


def streamed(data: Centres, stream: FTMRL, noise: str, epsilon: float, seed: int) -> Run:
    """Run a stream with one of the noises."""
    tasks = len(data.train)
    if noise == "published":
        plan = Plan(
            stream,
            published(tasks, epsilon),
            OnePass(),
            n_tasks=tasks,
            relation=Relation.ZERO_OUT,
            delta=1 / tasks,
        )
        return run(plan, data.train, random_state=seed)
    kinds: dict[str, Mechanism] = {
        "none": NoNoise(),
        "tree": Tree(exact=False),
        "toeplitz": Toeplitz(exact=False),
    }
    plan = Plan(stream, kinds[noise], OnePass(), n_tasks=tasks)
    return run(plan if noise == "none" else plan.calibrate(epsilon), data.train, random_state=seed)


def measure(cell: Cell, options: Options) -> dict[str, float]:
    data = one_centre(cell["seed"], cell["tasks"])
    stream = SETTING.stream(data.centres.shape[1], cell["tasks"])
    done = streamed(data, stream, cell["noise"], cell["epsilon"], cell["seed"])
    return {
        "regret": regret(done, Envelopes.of(data.train, SETTING.lam)),
        "excess": excess_risk(done.board["average"], Envelopes.of(data.fresh, SETTING.lam)),
    }


def summarise(found: Found) -> Data:
    data: Data = {}
    counts = sorted({cell["tasks"] for cell, _ in found})
    for (noise, epsilon, tasks), values in by(found, "noise", "epsilon", "tasks").items():
        if tasks == counts[-1] and noise != "none":
            for what in ("regret", "excess"):
                key = f"{what}, {noise}, longest, ε = {epsilon:g}"
                data[key] = mean([value[what] for value in values])
    found = [(cell, value) for cell, value in found if cell["epsilon"] == EPSILON]
    for what in ("regret", "excess"):
        for (noise,), pairs in by([(cell, (cell, value)) for cell, value in found], "noise").items():
            for tasks in counts:
                values = [value[what] for cell, value in pairs if cell["tasks"] == tasks]
                data[f"{what}, {noise}, {tasks} tasks"] = mean(values)
            slopes = []
            for seed in sorted({cell["seed"] for cell, _ in pairs}):
                mine = {cell["tasks"]: value[what] for cell, value in pairs if cell["seed"] == seed}
                heights = np.log(np.maximum([mine[tasks] for tasks in counts], 1e-12))
                slopes.append(float(np.polyfit(np.log(counts), heights, 1)[0]))
            data[f"{what}, {noise}, slope"] = mean(slopes)
    data["tasks"] = counts
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for what in ("regret", "excess"):
        name = "regret" if what == "regret" else "excess risk"
        for tasks in data["tasks"]:
            cells_ = [say(data[f"{what}, {noise}, {tasks} tasks"], ".2g") for noise in NOISES[1:]]
            rows.append((f"{name}, K = {tasks}, ε = {EPSILON:g}", "", *cells_))
        rows.append(
            (
                f"{name}, slope in K, ε = {EPSILON:g}",
                "-0.5",
                *(say(data[f"{what}, {n}, slope"], ".2f") for n in NOISES[1:]),
            )
        )
        for epsilon in OTHERS:
            key = f"longest, ε = {epsilon:g}"
            if f"{what}, tree, {key}" in data:
                texts = [say(data[f"{what}, {noise}, {key}"], ".2g") for noise in NOISES[1:]]
                rows.append((f"{name}, K = {data['tasks'][-1]}, ε = {epsilon:g}", "", *texts))
        quiet = say(data[f"{what}, none, slope"], ".2f")
        rows.append((f"{name}, slope in K, no noise", "-0.5", quiet, quiet, quiet))
    return rows


def draw(data: Data, figure: Any) -> None:
    panels = figure.subplots(1, 2)
    labels = ("no noise", "tree as printed", "tree, least noise", "Toeplitz")
    for axes, what in zip(panels, ("regret", "excess"), strict=True):
        for noise, label, whose in zip(
            NOISES, labels, ("no noise", "paper", "repaired", "ours"), strict=True
        ):
            curve(
                axes,
                data["tasks"],
                [data[f"{what}, {noise}, {m} tasks"] for m in data["tasks"]],
                label,
                whose,
            )
        title = "regret" if what == "regret" else "excess risk"
        axes.set(title=title, xlabel="tasks in the stream", yscale="log")
        at(axes, data["tasks"])
    panels[0].legend()


def claims(data: Data) -> list[Claim]:
    def rate(what: str, noise: str) -> Outcome:
        power, error = data[f"{what}, {noise}, slope"]
        return judge([power <= -0.5 + 2 * error + 0.05], f"K to the {power:.2f} ± {error:.2f}")

    def root(what: str, noise: str) -> Outcome | None:
        """From 1 to the largest ε at which noise is seen at all: by two standard errors."""
        last = data["tasks"][-1]
        silent, error = data[f"{what}, none, {last} tasks"]
        points = {e: data[f"{what}, {noise}, longest, ε = {e:g}"] for e in sorted((EPSILON, *OTHERS))}
        part = {e: v - silent for e, (v, own) in points.items() if v - silent > 2 * math.hypot(own, error)}
        if len(part) < 2:
            return None
        first, *_, most = part
        power = math.log(part[most] / part[first]) / math.log(most / first)
        return judge([power <= -0.45], f"ε to the {power:.2f}, from {first:g} to {most:g}")

    both = (("regret", "Theorem 12: the regret"), ("excess", "Theorem 13: the excess risk"))
    found = []
    for what, title in both:
        says = f"{title} falls as 1/√K without noise"
        found.append(Claim(says, "power -0.5", rate(what, "none")))
        says = f"{title} at ε = {EPSILON:g} falls at least as fast"
        found.append(Claim(says, "power -0.5", rate(what, "published"), rate(what, "tree")))
        says = f"{title}: the part of noise falls as 1/√ε"
        found.append(Claim(says, "power -0.5", root(what, "published"), root(what, "tree")))
    return found


def finding(data: Data) -> str:
    last = data["tasks"][-1]
    times = data[f"excess, published, {last} tasks"][0] / data[f"excess, toeplitz, {last} tasks"][0]
    return (
        f"The rate in K comes out without noise (K to the {data['regret, none, slope'][0]:.2f}). The noise "
        f"that Theorem 10 prints leaves {times:.3g} times the excess risk of noise that cancels in totals, "
        f"at K = {last} and the same ε."
    )
