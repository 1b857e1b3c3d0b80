"""How far boards of one machine are from what another computes of their releases: in ``make test-machines``.

``python tests/boards_between.py post FOLDER`` posts boards, and with ``check`` compares those that are there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from test_golden import CASES, NETWORKS

import cloister as cl
from cloister.plan.board_checks import ROUNDINGS, check_board


def plans() -> Iterator[tuple[str, cl.Plan, cl.Tasks]]:
    """Every algorithm but networks, whose start is another one elsewhere; and what is hardest to compute."""
    for name, make, data in CASES:
        if name not in NETWORKS:
            yield name, make(), data()
    for m, d in ((400, 12), (150, 40)):
        tasks = wide(m, d)
        named = np.repeat(tasks.ids, tasks.sizes)
        for classes in (2, 4):
            cuts = np.quantile(tasks.y, np.linspace(0, 1, classes + 1)[1:-1])
            labelled = cl.Tasks.from_arrays(tasks.X, np.searchsorted(cuts, tasks.y), named)
            learner = cl.learners.Classification(d, classes=classes)
            algorithm = cl.algorithms.SharedPrior(learner, cl.algorithms.Mean())
            yield f"{classes} classes of {d}", cl.Plan(algorithm, n_tasks=m).calibrate(8.0), labelled
        joint = cl.algorithms.SharedPrior(cl.learners.Regression(d))
        squares = cl.algorithms.LowRank(cl.learners.LeastSquares(d), rounds=20, warmup=5)
        for algorithm in (joint, squares):
            yield f"{algorithm.plain_name} of {d}", cl.Plan(algorithm, n_tasks=m).calibrate(2.0), tasks
    squares = cl.algorithms.LowRank(cl.learners.LeastSquares(80), rounds=20, warmup=5)
    yield "low-rank of 80, no noise", cl.Plan(squares, cl.mechanisms.NoNoise(), n_tasks=300), wide(300, 80)


def wide(m: int, d: int) -> cl.Tasks:
    rng = np.random.default_rng(3)
    task = np.repeat(np.arange(m), rng.integers(2, 14, m))
    X = np.c_[np.ones(len(task)), rng.uniform(-1, 1, (len(task), d - 1))] / np.sqrt(d)
    weights = 0.6 * rng.normal(size=d) + 0.2 * rng.normal(size=(m, d))
    y = (X * weights[task]).sum(axis=1) + 0.1 * rng.normal(size=len(task))
    return cl.Tasks.from_arrays(X, y.clip(-1, 1), task)


def post(folder: Path) -> None:
    for number, (_, plan, tasks) in enumerate(plans()):
        board = cl.run(plan, tasks, random_state=number).board
        place = folder / str(number)
        place.mkdir(parents=True)
        plan.save(place / "plan.toml")
        board.save(place / "board")


def check(folder: Path) -> None:
    """Refuse a board that does not pass here, and say how many roundings the farthest number is away."""
    exact, farthest, boards = 0, (0.0, ""), sorted(folder.iterdir(), key=lambda place: int(place.name))
    for place in boards:
        plan, board = cl.Plan.load(place / "plan.toml"), cl.Billboard.load(place / "board")
        exact += check_board(plan, board)
        farthest = max(farthest, (roundings(plan, board), plan.algorithm.plain_name))
    print(
        f"   {exact} of {len(boards)} boards equal to the last bit; farthest: {farthest[0]:.0f} roundings of "
        f"{ROUNDINGS} ({farthest[1]})"
    )


def roundings(plan: cl.Plan, board: cl.Billboard) -> float:
    own, most = cl.Billboard.create(plan.algorithm.start(), board.plan, board.capacity), 0.0
    for t in range(board.rounds):
        own = own.post(board.releases[t], plan.algorithm.update(board.releases[t], own))
        for name, array in board.records[t + 1].public.items():
            here = own[name]
            if array.dtype == np.float64 and (here != array).any():
                at = np.isfinite(here)
                most = max(most, float(abs(array - here)[at].max() / abs(here)[at].max() / 2.0**-52))
    return most


if __name__ == "__main__":
    {"post": post, "check": check}[sys.argv[1]](Path(sys.argv[2]))
