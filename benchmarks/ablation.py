"""What does each tuned number bring? Every one of them at a value that does nothing, or what others have.

Each is replaced in a process of its own before anything is computed with it; tables, draws and noise are the
same. A change is that of the logarithm of the loss, averaged over cells (a table, a codebook, an epsilon, a
draw), with its standard error over draws and tables. A number that brings nothing can go.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks import Figures, Table, Targets
    from harness.cells import Cells

NAME = "ablation"

#: By stage and name: what does nothing, or what another number says.
NEUTRAL: dict[str, Any] = {
    "SEARCH.bins": 16,
    "SEARCH.spread": 3.5,
    "SEARCH.most": 0.06,
    "SEARCH.half": 1.0,
    "BUDGET.questions": 0.1,
    "BUDGET.rounds": 1.0,
    "BUDGET.fewest": 1,
    "BUDGET.most": 10,
    "MEAN.usual": 1.0,
    "MEAN.usual_sd": 10.0,
    "MEAN.curved": 0.0,
    "MEAN.surprise": 2.0,
    "MEAN.shrinkage": 1.0,
    "MEAN.moving": 0.5,
    "MEAN.standing": 0.6,
    "COVARIANCE.mix": 0.03,
    "WEIGHTS.by_class": 1 / 3,
    "WEIGHTS.zero": 0.1,
    "WEIGHTS.relevance": 0.6,
    "WEIGHTS.least_relevance": 0.01,
    "STACKING.folds": 3,
    "STACKING.clear": 0.1,
    "TRUST.doubts": 1.0,
    "TRUST.little": 1.0,
    "TRUST.least": 0.1,
    "TRUST.scale_sd": 0.0,
    "NUMBER.clip": 1.0,
    "NUMBER.ridge": 0.01,
    "NUMBER.plain": 0.01,
    "NUMBER.asked": 1,
    "NUMBER.narrow": 0.0,
    "NUMBER.exact": 1e-5,
    "NUMBER.own_power": 1.0,
    "SCORE.clip": 4.0,
    "SCORE.slopes": 1.0,
    "SCORE.loose": 100.0,
    "SCORE.columns": 1e9,
    "SCORE.told": 3.0,
    "SCORE.usual_sd": 10.0,
    "SCORE.own_level": 1.0,
}
PRIOR = ("numbers", "real", "classes", "real classes")
PARTS = (*PRIOR, "family")
#: Stages whose numbers are of some of the parts alone.
PARTS_OF = {
    "SEARCH": ("numbers", "real", "family"),
    "BUDGET": PRIOR,
    "MEAN": PRIOR,
    "COVARIANCE": PRIOR,
    "WEIGHTS": PRIOR,
    "STACKING": ("family",),
    "NUMBER": ("numbers", "real"),
    "SCORE": ("classes", "real classes"),
}
TABLES = {
    "numbers": (
        *("sensors", "costs", "unrelated", "noise-free", "alike", "exams few", "unrelated off"),
        *("part exact", "two rows", "small rents", "part visits", "half of one row"),
    ),
    "classes": ("rare", "own slopes", "three", "classes wide", "small opposite", "part own slopes"),
    "family": ("alike off", "unrelated off", "small rents", "part visits", "own slopes", "part own slopes"),
    "real": ("exam", "hsb82", "bdf", "scotssec"),
    "real classes": ("contraception",),
}
DRAWS = {"numbers": 4, "classes": 2, "family": 1, "real": 2, "real classes": 1}
EPSILONS = (0.3, 1.5)
#: Standard errors, and a change in percent, from which on a number is missed.
CLEAR, SMALL = 2.0, 0.2


def measure(job: tuple[str, str, str]) -> dict[str, float]:
    """Measure a part with one number replaced; return losses by cell."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ablation", *job], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{job} fails: {done.stderr[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure each number's part.

    Parameters
    ----------
    quick : bool
        Five of the numbers, tables of numbers alone.
    """
    names = list(NEUTRAL)[:5] if quick else list(NEUTRAL)
    parts = PARTS[:1] if quick else PARTS
    jobs = [("", part) for part in parts]
    jobs += [(name, part) for part in parts for name in names if part in PARTS_OF.get(stage(name), PARTS)]
    sentences = {"": ""} | origins()
    losses = cells.measured(measure, [(name, part, sentences[name]) for name, part in jobs])
    found = dict(zip(jobs, losses, strict=True))
    rows: Table = [["number", "neutral", *parts, "worst table"]]
    missed = 0
    for name in names:
        shown, worst, clear = [], ("", 0.0), False
        for part in parts:
            if (name, part) not in found:
                shown.append("")
                continue
            mean, error, table = change(found["", part], found[name, part])
            shown.append(f"{mean:+.2f} ± {error:.2f}")
            clear |= mean > SMALL and mean > CLEAR * error
            worst = max(worst, table, key=lambda one: one[1])
        missed += clear
        rows.append([name, f"{NEUTRAL[name]:.3g}", *shown, f"{worst[0]} {worst[1]:+.1f}"])
    return {"numbers": len(names), "missed": missed}, {}, rows


def stage(name: str) -> str:
    return name.split(".")[0]


def change(before: dict[str, float], after: dict[str, float]) -> tuple[float, float, tuple[str, float]]:
    """Return the mean change in percent, its standard error, and the table that is worst off."""
    by_draw: dict[tuple[str, str], list[float]] = {}
    by_table: dict[str, list[float]] = {}
    for cell, loss in before.items():
        table, _, _, draw = cell.split("|")
        ratio = 100 * math.log(max(after[cell], 1e-12) / max(loss, 1e-12))
        by_draw.setdefault((table, draw), []).append(ratio)
        by_table.setdefault(table, []).append(ratio)
    each = [fmean(values) for values in by_draw.values()]
    tables = {table: fmean(values) for table, values in by_table.items()}
    worst = max(tables, key=lambda table: tables[table])
    return fmean(each), stdev(each) / math.sqrt(len(each)), (worst, tables[worst])


def measured(part: str) -> dict[str, float]:
    """Return losses by table, codebook, epsilon and draw, with the numbers that this process has."""
    if part.startswith("real"):
        return {key: loss for name in TABLES[part] for key, loss in real(name, DRAWS[part])}
    from benchmarks import family_harm, harm
    from benchmarks.harm_tables import TABLES as ALL
    from benchmarks.harm_tables import draw

    found = {}
    for table in ALL:
        for seed in range(200, 200 + DRAWS[part] * (table.name in TABLES[part])):
            train, test = draw(table, seed, harm.SCORED[bool(table.classes)])
            loose = table.codebooks[seed % len(table.codebooks)]
            for epsilon in EPSILONS:
                key = f"{table.name}|{loose.label}|{epsilon}|{seed}"
                if part == "family":
                    for kind in family_harm.FAMILY:
                        parts = family_harm.ours(table, loose, epsilon, kind, seed)
                        found[key.replace("|", f" {kind}|", 1)] = float(parts[0] or 0.0)
                else:
                    predicted = harm.our_predictions(table, loose, epsilon, seed, train, test)
                    found[key] = float(harm.losses(table, train, test, predicted)[0] or 0.0)
    return found


def real(name: str, splits: int) -> list[tuple[str, float]]:
    """Return losses on real rows held out."""
    from benchmarks import prior_accuracy

    tasks, learner = prior_accuracy.table(name)
    found = []
    for split in range(100, 100 + splits):
        train, test = tasks.split(test=0.3, seed=split)
        for epsilon in EPSILONS:
            book = prior_accuracy.loaded(name).codebook
            plan = prior_accuracy.plan_for(learner, len(train), epsilon, "joint", book)
            loss, _ = prior_accuracy.losses(plan, train, test, split)
            found.append((f"{name}||{epsilon}|{split}", loss))
    return found


def origins() -> dict[str, str]:
    """Return the sentence of each tuned number."""
    from cloister.algorithms import constants
    from cloister.core.origin import told
    from cloister.learners.linear import home_constants

    found: dict[str, str] = {}
    for module in (constants, home_constants):
        for one in {stage(name) for name in NEUTRAL} & set(vars(module)):
            numbers = told(getattr(module, one))
            found |= {f"{one}.{name}": why["tuned"] for name, _, why in numbers if "tuned" in why}
    return found


def child(name: str, part: str, sentence: str) -> None:
    """Measure with a number replaced before any module reads it, by the sentence of its origin."""
    from cloister.core import origin

    plain = origin.tuned

    def tuned(value: Any, what: str, by: str = origin.GAIN_AND_HARM) -> Any:
        return plain(NEUTRAL[name] if name and what == sentence else value, what, by)

    origin.tuned = tuned
    warnings.simplefilter("ignore")
    print(json.dumps(measured(part)))


if __name__ == "__main__":
    child(*sys.argv[1:])
