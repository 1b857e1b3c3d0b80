"""What it costs not to trust a curator: accuracy at one epsilon with secure sums, and with noise at home.

Shared priors over pupils in schools (Exam) and countries (Gapminder), split again and again. A gain is
1 - loss / single-task loss on the rows held out, in percent, with its standard error over re-splits. Secure
sums run the real protocol among the tasks of one process; a tenth of them may collude. At the same epsilon a
plan is priced against all other tasks where a curator is trusted, and against the curator and those that
collude, or all others, where it is not. Relation replace, default delta, seeded noise.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np

from benchmarks import Figures, Table, Targets
from cloister import Plan, Tasks, Trust, datasets
from cloister import run as run_plan
from cloister.algorithms import Independent, Locate, SharedPrior
from cloister.learners import Regression
from cloister.mechanisms import NoNoise
from harness.cells import Cells

NAME = "trust"
TABLES = {"exam": "pupils in 65 schools", "gapminder": "countries of the world"}
EPSILONS = (1.0, 2.0, 8.0)
KINDS = ("trusted curator", "secure sum, one colluder", "secure sum, a tenth collude", "noise at each task")
SPLITS, HELD_OUT = 3, 0.5
#: A secure sum keeps the gain of a trusted curator but for so many points, from this epsilon on.
MOST, FROM = 3.0, 2.0


def trusts(n_tasks: int) -> tuple[Trust, ...]:
    """Return whom tasks trust, in the order of KINDS."""
    few, many = Trust.secure_sum(), Trust.secure_sum(0, n_tasks // 10)
    return Trust.curator(), few, many, Trust.silo()


def measure(job: tuple[str, int]) -> list[list[float]]:
    """Return the gain under each kind of trust, at every epsilon, for one re-split of a table."""
    table, seed = job
    data = datasets.load(table)
    book = data.codebook
    tasks = Tasks.from_arrays(book.encode(data.X), book.encode_target(data.y), data.task)
    train, held = tasks.split(HELD_OUT, seed)
    learner, n = Regression(book.width), len(train)
    whose = np.repeat(np.searchsorted(train.ids, held.ids), held.sizes)

    def loss(plan: Plan) -> float:
        coef = run_plan(plan, train, random_state=seed).private.models["coef"]
        return float(((np.einsum("nd,nd->n", coef[whose], held.X) - held.y) ** 2).mean())

    alone = loss(Plan(Independent(learner), NoNoise(), n_tasks=n))
    algorithm = SharedPrior(learner, locate=Locate())

    def gain(trust: Trust, epsilon: float) -> float:
        plan = Plan(algorithm, n_tasks=n, trust=trust).calibrate(epsilon)
        return 100 * (1 - loss(plan) / alone)

    return [[gain(trust, epsilon) for epsilon in EPSILONS] for trust in trusts(n)]


def run(quick: bool, cells: Cells) -> tuple[Figures, Targets, Table]:
    """Measure all tables."""
    rows: Table = [["tasks", "who is trusted", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]]
    figures: Figures = {}
    tables = list(TABLES)[: 1 if quick else None]
    jobs = [(table, seed) for table in tables for seed in range(1 if quick else SPLITS)]
    found = dict(zip(jobs, cells.measured(measure, jobs), strict=True))
    for table in tables:
        splits = np.array([gains for (name, _), gains in found.items() if name == table])
        for kind, name in enumerate(KINDS):
            row = [TABLES[table], name]
            for at, epsilon in enumerate(EPSILONS):
                gains = splits[:, kind, at].tolist()
                error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
                row.append(f"{fmean(gains):.1f} ± {error:.1f}")
                figures[f"{table}, {name}, eps {epsilon:g}"] = fmean(gains)
                figures[f"{table}, {name}, eps {epsilon:g}, lost"] = fmean(
                    (splits[:, 0, at] - splits[:, kind, at]).tolist()
                )
            rows.append(row)
    targets: Targets = {
        f"{table}, {KINDS[1]}, eps {epsilon:g}, lost": ("<=", MOST)
        for table in TABLES
        for epsilon in EPSILONS
        if epsilon >= FROM
    }
    return figures, targets, rows
