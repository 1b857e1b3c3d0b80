"""The covariance family against shared priors and the literature: two synthetic problems and School.

Regenerates the comparison of "Model-protected multi-task learning" (arXiv:1809.06546, section 5): nMSE on
test rows, mean ± sd over seeds, relation replace unless said, delta = 1/(m log m) as in the paper. Settings
of the methods marked * (lambda, radius K, rounds, strong convexity) were chosen in hindsight, for each
epsilon, by their *test* error on the first seeds: generous to them, and not private. Shared priors have
nothing to tune. Penalties of non-private methods are validated on training rows. The grids stand beside the
methods in `papers.mpmtl.methods`.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean, stdev

from threadpoolctl import threadpool_limits

from benchmarks import Figures, Table, Targets, data_file, track
from papers.mpmtl.methods import NOISY, PLAIN, SHOWN_ZERO_OUT, load

NAME = "covariance"

EPSILONS = (0.1, 0.5, 1.0, 5.0, 10.0)
PRIORS = ("subspace", "support", "joint", "mean")
ALONE = ("ridge", "ridge_own", "evidence", "lasso")
#: Earlier measurements of the same methods, mean plus one sd.
SUBSPACE = {0.5: 0.0702, 1.0: 0.0372, 5.0: 0.0190, 10.0: 0.0168}
SUPPORT = {0.1: 0.0119, 0.5: 0.0115, 1.0: 0.0115, 5.0: 0.0115, 10.0: 0.0115}

Cell = tuple[str, float]  # method and epsilon; 0 where there is none
Scores = dict[Cell, list[float]]


def methods(name: str) -> list[str]:
    """Return the methods with noise that a problem's table shows."""
    return [key for key in NOISY if not key.endswith("zero_out") or key.startswith(SHOWN_ZERO_OUT[name])]


def tune(job: tuple[str, int, tuple[float, ...], int]) -> tuple[str, Scores]:
    """Score every `step`-th setting of every method that has several, on one seed."""
    name, seed, epsilons, step = job
    problem, scores = load(name, seed), {}
    with threadpool_limits(limits=1):
        for key in methods(name):
            grid = NOISY[key].grid(problem)[::step]
            if len(grid) == 1:
                continue
            for epsilon in epsilons:
                fits = (NOISY[key].fit(problem, epsilon, setting, seed) for setting in grid)
                scores[key, epsilon] = [problem.score(weights) for weights in fits]
    return name, scores


def measure(
    job: tuple[str, int, tuple[float, ...], int, dict[Cell, int]],
) -> tuple[str, dict[Cell, float]]:
    """Score every method on one seed, with the settings chosen before."""
    name, seed, epsilons, step, chosen = job
    problem = load(name, seed)
    with threadpool_limits(limits=1):
        scores = {(key, 0.0): problem.score(fit(problem)) for key, (_, fit) in PLAIN.items()}
        for key in methods(name):
            grid = NOISY[key].grid(problem)[::step]
            for epsilon in epsilons:
                setting = grid[chosen.get((key, epsilon), 0)]
                scores[key, epsilon] = problem.score(NOISY[key].fit(problem, epsilon, setting, 100 + seed))
    return name, scores


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    """Tune, then measure.

    Parameters
    ----------
    quick : bool
        Two seeds, two epsilons, the synthetic problems and a third of the settings.
    """
    epsilons, seeds, step = ((1.0, 10.0), 2, 3) if quick else (EPSILONS, 10, 1)
    names = ["low_rank", "group_sparse"]
    has_school = not quick and data_file("school.npz").exists()
    names += ["school"] if has_school else []
    trials = [(name, seed, epsilons, step) for seed in range(1 if quick else 2) for name in names]
    found: dict[str, Scores] = {name: {} for name in names}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        tuned: dict[str, Scores] = {name: {} for name in names}
        for name, scores in track(pool.map(tune, trials), len(trials), "choosing settings"):
            for cell, values in scores.items():
                sums = tuned[name].get(cell, [0.0] * len(values))
                tuned[name][cell] = [a + b for a, b in zip(sums, values, strict=True)]
        best = {name: {c: v.index(min(v)) for c, v in tuned[name].items()} for name in names}
        jobs = [(name, seed, epsilons, step, best[name]) for name in names for seed in range(seeds)]
        for name, scores in track(pool.map(measure, jobs), len(jobs), NAME):
            for cell, value in scores.items():
                found[name].setdefault(cell, []).append(value)
    rows = table(found, epsilons)
    if not has_school:
        note = "left out of a quick run" if quick else f"no {data_file('school.npz')}, set CLOISTER_DATA"
        rows.append(["school", f"not measured: {note}"] + [""] * (len(rows[0]) - 2))
    return summarise(found, epsilons), goals(epsilons), rows


def table(found: dict[str, Scores], epsilons: tuple[float, ...]) -> Table:
    """Return a row for each problem and method."""
    rows = [["data", "method (* chosen in hindsight)", "no noise", *(f"eps {e:g}" for e in epsilons)]]
    for name, scores in found.items():
        for key, (label, _) in PLAIN.items():
            rows.append([name, label, _cell(scores[key, 0.0])] + [""] * len(epsilons))
        for key in methods(name):
            rows.append([name, NOISY[key].label, "", *(_cell(scores[key, e]) for e in epsilons)])
    return rows


def _cell(values: list[float]) -> str:
    return f"{fmean(values):.4f}±{stdev(values):.4f}"


def summarise(found: dict[str, Scores], epsilons: tuple[float, ...]) -> Figures:
    """Return means and sds, the gain of the best shared prior, and what repair costs beyond an error bar."""
    figures: Figures = {}
    for name, scores in found.items():
        for (key, epsilon), values in scores.items():
            at = f"{name}_{key}" + (f"_eps{epsilon:g}" if epsilon else "")
            figures |= {at: fmean(values), f"{at}_sd": stdev(values)}
        alone = min(fmean(scores[key, 0.0]) for key in ALONE)
        for epsilon in epsilons:
            best = min(fmean(scores[key, epsilon]) for key in PRIORS)
            figures[f"{name}_gain_eps{epsilon:g}"] = 100 * (1 - best / alone)
            paper = scores["published", epsilon]
            costs = fmean(scores["repaired", epsilon]) - fmean(paper) - stdev(paper)
            figures[f"{name}_repair_costs_eps{epsilon:g}"] = costs
    return figures


def goals(epsilons: tuple[float, ...]) -> Targets:
    """Return what the figures should be."""
    targets: Targets = {"low_rank_gain_eps1": (">=", 65.0)}
    for epsilon in epsilons:
        if epsilon in SUBSPACE:
            targets[f"low_rank_subspace_eps{epsilon:g}"] = ("<=", SUBSPACE[epsilon])
        targets[f"group_sparse_support_eps{epsilon:g}"] = ("<=", SUPPORT[epsilon])
        if epsilon >= 1:
            targets[f"low_rank_repair_costs_eps{epsilon:g}"] = ("<=", 0.0)
    return targets
