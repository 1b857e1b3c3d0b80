"""Tasks' own models after each round of a finished run: from its board and their rows, at home."""

from __future__ import annotations

from collections.abc import Iterator

from cloister import Tasks
from cloister.core.arrays import Array
from cloister.engines import Run
from cloister.engines.workers import Engine


def states_over_rounds(done: Run, tasks: Tasks, engine: Engine) -> Iterator[tuple[Array, Array]]:
    """Yield the public model, and each task's own, before the first round and after every one."""
    with engine.workers(done.plan, tasks, done.private.seeds) as workers:
        workers.start(done.board.before(0))
        for t in range(done.board.rounds + 1):
            board = done.board.before(t)
            yield board["mean"], workers.save_state().states["weights"]
            if t < done.board.rounds:
                workers.listen(board, done.private.coins[t])
