"""What a whole run takes between nodes, by who is trusted: a shared prior over 24 processes, and its error.

Processes of nodes, the operator's service and TLS on this machine, as in `deployed`. A tenth of the nodes may
drop out, and a tenth collude. The error is that of the nodes' own models on rows that they have not seen.
Quick: with a trusted curator alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks import Figures, Table, Targets
from benchmarks.deployed import D, deployed
from benchmarks.secure_nodes import trusts
from cloister import Plan, Tasks
from cloister.algorithms import SharedPrior
from cloister.learners import Regression
from cloister.mechanisms import Gaussian

NAME = "secure-runs"
PATHS = ("src/cloister/nodes", "src/cloister/secure")
NODES, PUPILS = 24, 20


def run(quick: bool) -> tuple[Figures, Targets, Table]:
    figures: Figures = {}
    rows, m = [["who is trusted", "rounds", "s a round", "CPU s a round", "kB up", "kB down", "error"]], NODES
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.3, D) + rng.normal(0, 0.2, (m, D))
    X, ids = rng.uniform(-0.4, 0.4, (m, 2 * PUPILS, D)), np.repeat(np.arange(m), PUPILS)
    y = np.clip(np.einsum("mnd,md->mn", X, weights) + rng.normal(0, 0.1, X.shape[:2]), -1, 1)
    tasks = Tasks.from_arrays(X[:, :PUPILS].reshape(-1, D), y[:, :PUPILS].ravel(), ids)
    for who, trust in list(trusts(m).items())[: 1 if quick else None]:
        least = trust.fewest(m) if trust.masked else m - 2
        plan = Plan(SharedPrior(Regression(D)), Gaussian(2.0), n_tasks=m, trust=trust, quorum=least)
        with tempfile.TemporaryDirectory() as folder:
            made, found = deployed(plan, tasks, Path(folder), range(m), False)
            paths = [
                made.folder / "nodes" / str(name) / "runs" / "benchmark" / "model.npz" for name in tasks.ids
            ]
            models = [np.load(path)["coef"] for path in paths]
        guessed = np.einsum("mnd,md->mn", X[:, PUPILS:], np.array(models))
        error = float(np.mean((guessed - y[:, PUPILS:]) ** 2))
        figures |= {f"{who} end to end {of}": value for of, value in found.items()} | {f"{who} error": error}
        cells = [f"{value:.2f}" for value in found.values()]
        rows.append([who, str(len(plan.rounds)), *cells, f"{error:.5f}"])
        print(" | ".join(rows[-1]), flush=True)
    return figures, {}, rows
