"""`check_algorithm`: the contract of an algorithm, as tests anyone can run on their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from cloister.algorithm import Algorithm, States
from cloister.billboard import Billboard
from cloister.engines.local import Run, replay, run
from cloister.errors import AlgorithmError
from cloister.plan import Plan
from cloister.privacy.mechanisms import Gaussian, Silent
from cloister.tasks import Block, Tasks

__all__ = ["check_algorithm"]

#: What an adversary may put in place of data.
GARBAGE = (np.inf, -np.inf, np.nan, 1e300, -1e200, 1e30)


def check_algorithm(algorithm: Algorithm, tasks: Tasks, *, epsilon: float = 5.0, seed: int = 0) -> None:
    """Run an algorithm through everything the library relies on; raise `AlgorithmError` on the first breach.

    Rows never mix; garbage in one task's data leaves its messages bounded and all others' untouched;
    replay gives every task's model again, after a save and load, in any order, alone or together; very
    little noise gives the non-private run; plan and board survive a round trip through a file.

    Examples
    --------
    >>> from cloister import Independent, Regression, Tasks
    >>> rng = np.random.default_rng(0)
    >>> tasks = Tasks.from_arrays(rng.normal(size=(30, 2)), rng.normal(size=30), np.arange(30) % 5)
    >>> check_algorithm(Independent(Regression(2)), tasks)
    """
    plan = Plan(algorithm, Gaussian(), n_tasks=len(tasks))
    plan = plan.calibrate(epsilon) if plan.speaks else plan
    finished = run(plan, tasks, random_state=seed)
    _check_rows(plan, finished.board, tasks)
    _check_replay(finished, tasks)
    _check_files(finished)
    _check_silence(plan, tasks, seed)


def _walk(plan: Plan, board: Billboard, block: Block) -> Iterator[tuple[str, States]]:
    """Yield everything a block's tasks compute in private, step by step, against a given board."""
    states = plan.algorithm.init(block, board.before(0))
    yield "init", states
    for t in range(len(plan.rounds)):
        messages, states = plan.algorithm.send(states, block, board.before(t))
        yield f"send in round {t}", states | {"message": np.asarray(messages)}
    yield "finish", plan.algorithm.finish(states, block, board)


def _check_rows(plan: Plan, board: Billboard, tasks: Tasks) -> None:
    block = next(tasks.blocks())
    victim = len(block) // 2
    others = np.arange(len(block)) != victim
    for garbage in GARBAGE:
        X = np.array(block.X, dtype=np.float64)
        X[victim] = garbage
        with np.errstate(all="ignore"):
            pairs = zip(_walk(plan, board, block), _walk(plan, board, replace(block, X=X)), strict=True)
            for (step, clean), (_, dirty) in pairs:
                for name in clean:
                    _same(clean[name][others], dirty[name][others], 0.0, f"{step} mixes rows: {name!r}")
        _check_bounds(plan, board, replace(block, X=X))


def _check_bounds(plan: Plan, board: Billboard, block: Block) -> None:
    rounds = 0
    with np.errstate(all="ignore"):
        for step, arrays in _walk(plan, board, block):
            if "message" not in arrays:
                continue
            channel = plan.algorithm.channel(board.before(rounds))
            if channel not in plan.rounds[rounds].channels:
                raise AlgorithmError(f"{step} uses a channel that its schedule did not declare: {channel}.")
            norms = np.linalg.norm(channel.units(arrays["message"]), axis=1)
            if not (norms <= 1).all():
                raise AlgorithmError(f"{step} lets a message of norm {norms.max()} out of its channel.")
            rounds += 1


def _check_replay(finished: Run, tasks: Tasks) -> None:
    private = finished.private

    def again(part: Tasks, at: np.ndarray) -> States:
        return replay(
            finished.plan, finished.board, part, coins=private.coins[:, at], local_seed=private.local_seed
        )

    everyone = np.arange(len(tasks))
    for name, array in again(tasks, everyone).items():
        _same(private.models[name], array, 0.0, f"replay differs from the run: {name!r}")
    backwards = everyone[::-1]
    for name, array in again(tasks.select(backwards), backwards).items():
        _same(private.models[name][backwards], array, 1e-10, f"the order of tasks matters: {name!r}")
    for i in (0, len(tasks) - 1):
        at = np.array([i])
        for name, array in again(tasks.select(at), at).items():
            _same(private.models[name][at], array, 1e-10, f"a task alone gets another model: {name!r}")


def _check_files(finished: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        board = Billboard.load(finished.board.save(Path(folder) / "board"))
        plan = Plan.load(finished.plan.save(Path(folder) / "plan.toml"))
    if board.head != finished.board.head or plan != finished.plan:
        raise AlgorithmError("The plan or the board changed on its way through a file.")
    plan.check(board)


def _check_silence(plan: Plan, tasks: Tasks, seed: int) -> None:
    if not plan.rounds:
        return
    mute = run(replace(plan, mechanism=Silent()), tasks, random_state=seed)
    faint = run(replace(plan, mechanism=Gaussian(1e13)), tasks, random_state=seed)
    for name, array in mute.private.models.items():
        _same(array, faint.private.models[name], 1e-5, f"little noise is not no noise: {name!r}")


def _same(expected: np.ndarray, found: np.ndarray, tolerance: float, complaint: str) -> None:
    equal: Callable[[np.ndarray, np.ndarray], bool] = (
        (lambda a, b: bool(np.array_equal(a, b, equal_nan=True)))
        if tolerance == 0
        else (lambda a, b: bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)))
    )
    if not equal(np.asarray(expected), np.asarray(found)):
        raise AlgorithmError(f"{complaint}.")
