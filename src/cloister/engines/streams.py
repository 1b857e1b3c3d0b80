"""Streams of tasks: a plan of a public capacity, and tasks that come one after the other, nobody knows which.

A task that joins has its model at once, from the board so far and its own rows, and sends one bounded message
for those who come later. It is a run in which the roster is not known beforehand: curator, journal and
workers are those of `run`, and the board is the one that `run` would have posted over the same tasks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Array, States
from cloister.core.errors import BillboardError, InputError, PlanError, StorageError
from cloister.core.roster import NO_GROUP, Roster
from cloister.core.spelling import counted
from cloister.core.tasks import Tasks
from cloister.engines.curator import Curator, check_ledger, check_price
from cloister.engines.dry_run import try_plan
from cloister.engines.local import Local
from cloister.engines.run import seed_of
from cloister.engines.workers import Engine, catch_up
from cloister.ledger import Ledger
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.sampling import InOrder
from cloister.store.arrivals import Arrivals, FolderArrivals
from cloister.store.billboard import Billboard
from cloister.store.journal import open_journal

_HERE = np.ones(1, dtype=np.bool_)


class TaskStream:
    """Take tasks as they arrive, up to a public number of them; each speaks once, and has its model at once.

    Parameters
    ----------
    plan : Plan
        With `InOrder` sampling, and rounds that are all alike (`FTMRL`, `MetaSGD`, ...). Its `n_tasks` is the
        capacity. A round is posted when as many tasks have joined as it takes: capacity / rounds.
    random_state : int, optional
        Makes the stream reproducible and INSECURE: whoever knows the seed can subtract the noise.
    ledger : Ledger, optional
        Charged once for the whole stream, when the first task joins: each task is in one round, and no other
        depends on its rows.
    engine : Local or Batched
        Where and how tasks are computed on.
    journal : path, optional
        Folder where every name, message and release is on disk before it counts. The same call opens the
        stream again, after `close` or after a crash: who had joined has joined, with the same noise.

    Privacy
    -------
    What `join` returns is for that task alone: it is made of the public board and of the task's own rows, and
    free. What leaves the task is one message, clipped, on which the mechanism's noise is added before it is
    posted. So a task pays the price of one round (of the noise of the whole stream, where noise is correlated
    over rounds), whatever the number of tasks; the plan's guarantee is for its capacity.

    The order of arrival, the names and their number are public. That a task comes, and when, must not depend
    on rows, its own or those of others; it may depend on the board. A message waits with the curator until
    its round is full: there it is one of the messages that a trusted curator sees.

    Examples
    --------
    >>> from cloister.algorithms import FTMRL
    >>> from cloister.learners import Convex, ExactSolver, LeastSquares
    >>> from cloister.mechanisms import Toeplitz
    >>> algorithm = FTMRL(Convex(LeastSquares(2)), ExactSolver(), rounds=50, lam_meta=9.0)
    >>> plan = Plan(algorithm, Toeplitz(), InOrder(), n_tasks=50).calibrate(epsilon=2.0)
    >>> stream = TaskStream(plan)
    >>> own = stream.join("Elm", [[0.1, 0.2], [0.3, 0.1]], [0.4, 0.5])
    >>> stream, stream.board.rounds, own["coef"].shape
    (TaskStream(1 of 50 tasks), 1, (2,))
    >>> stream.join("Elm ", [[0.1, 0.2]], [0.4])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    cloister.errors.InputError: Task 'Elm' has joined already, as number 1. Each speaks once, which ...
    """

    def __init__(
        self,
        plan: Plan,
        *,
        random_state: int | None = None,
        ledger: Ledger | None = None,
        engine: Engine = Local(),  # noqa: B008
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        self.plan, self._ledger, self._engine = plan, ledger, engine
        self._size = _tasks_of_a_round(plan)
        check_ledger(ledger)
        check_price(plan)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._tried: set[tuple[object, ...]] = set()
        with ExitStack() as stack:
            seed, doubts = seed_of(random_state), engine.doubts_of(plan)
            nobody, charged = Roster(()), ledger is not None
            kept = stack.enter_context(open_journal(journal, plan, nobody, seed, charged, doubts, apart=True))
            self._curator = Curator(plan, kept, np.full(1, NO_GROUP))
            if kept.ended:
                kept.forget()
                raise InputError(
                    f"The stream in {kept.folder} has ended: its board can be read, not added to."
                )
            exact = plan.mechanism.exact
            silence = np.zeros(plan.rounds[0].channels[0].size, dtype=np.int64 if exact else np.float64)
            if kept.folder is None:
                self._arrivals = Arrivals(silence)
            else:
                self._arrivals = FolderArrivals(silence, kept.folder, kept.source.key)
            stack.callback(self._arrivals.close)
            self._noise = self._curator.noise_state()
            self._ended = self._go_on()
            self._opened: ExitStack | None = stack.pop_all()

    @property
    def capacity(self) -> int:
        """How many tasks may join; public."""
        return self.plan.n_tasks

    @property
    def roster(self) -> Roster:
        """Who has joined, in the order of arrival; public."""
        return Roster.written(self._arrivals.roster.names)

    @property
    def board(self) -> Billboard:
        """The board so far; public."""
        return self._curator.journal.posted

    @property
    def guarantee(self) -> Guarantee:
        """What is promised to each task that joins: the plan's guarantee, for its capacity."""
        return replace(self.plan.guarantee_on(self.board), all_runs=self._curator.all_runs)

    def __len__(self) -> int:
        return len(self._arrivals.roster)

    def __repr__(self) -> str:
        return f"TaskStream({len(self)} of {self.capacity} tasks)"

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "A stream is where tasks join, and two copies would take them into the same round: it is not "
            "pickled. Give it a journal, close it, and open it again with its plan and journal."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join(self, name: object, X: ArrayLike, y: ArrayLike) -> States:
        """Let a task join: return its model at its arrival, and take its message.

        A task that is refused (a name that has joined, rows that do not fit, a stream that is full) has sent
        nothing, and nothing is charged for it. What is interrupted after its message was taken has joined: it
        is refused when it comes again, and has its model by `model`.

        Parameters
        ----------
        name : str or int
            One that has not joined; see `Roster` for which names are the same.
        X : array of shape (rows, ...)
            Its own features.
        y : array of shape (rows,)
            Its own targets.

        Returns
        -------
        dict of arrays
            Its model, from the board as it was before it spoke. Give it to that task alone.
        """
        with self._lock:
            self._check_room()
            self._check_open()
            one = self._only(name, X, y)
            self._check_new(one.ids.tolist()[0])
            model, message = self._compute(one)
            self._charge()
            with self._closed_on_error():
                self._arrivals.add(one.ids.tolist()[0], message)
                if self._is_full:
                    self._post()
        return model

    def model(self, name: object, X: ArrayLike, y: ArrayLike) -> States:
        """Return a task's own model as of now, from the board so far and its own rows. Give it to it alone.

        Free, as often as it asks, also when the stream has ended. For tasks that have not joined there is
        `adapt`, with this stream's plan and board.
        """
        one, board = self._only(name, X, y), self.board
        turn = min(self._arrivals.roster.position(name) // self._size, board.rounds)
        with self._engine.workers(
            self.plan, one, self._curator.journal.source.task_seeds(one.ids)
        ) as workers:
            workers.start(board.before(0))
            catch_up(workers, board, turn, [_HERE])
            return _first(workers.finish(board))

    def finish(self) -> Billboard:
        """End the stream for good, full or not, and return its board; a journal's secret is deleted.

        If some tasks of the last round have not come, zeros stand for them.
        """
        with self._lock:
            if self._opened is None and self._ended:
                return self.board
            self._check_open()
            with self._closed_on_error():
                if self._waiting > 0:
                    self._arrivals.end()  # lest the same round be made again with more tasks in it
                    self._post()
                self._curator.journal.finish()
                self._curator.journal.forget()
            self._ended = True
            self.close()
        return self.board

    def close(self) -> None:
        """Let go of the journal: the stream can be opened again, here or by another process."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _waiting(self) -> int:
        """How many have joined whose round is not posted; below 0 if the last round was posted short."""
        return len(self) - self._size * self.board.rounds

    def _go_on(self) -> bool:
        """Post a round that was full, or the last, when a process ended; say whether the stream has ended."""
        if not -self._size < self._waiting <= self._size:
            raise BillboardError(
                f"This stream has {self.board.rounds} releases of {len(self)} tasks: its board or its roster "
                "has lost something, and it cannot go on. Restore both."
            )
        if self._waiting <= 0:
            self._arrivals.clear()
        elif self._is_full or self._arrivals.ending:
            self._post()
        return self._waiting < 0 or self._arrivals.ending

    @property
    def _is_full(self) -> bool:
        """Whether all tasks of the coming round have joined."""
        return self._waiting == self._size or len(self) == self.capacity

    def _check_room(self) -> None:
        why = "is full" if len(self) == self.capacity else "has ended" if self._ended else ""
        if why:
            raise InputError(
                f"The stream {why}, with {len(self)} of {self.capacity} tasks. A new task has its model by "
                "adapt(plan, board, tasks), which is free; for more tasks to speak, plan another stream."
            )

    def _check_open(self) -> None:
        if self._opened is None:
            raise InputError("The stream is closed. Open it again with its plan and journal.")
        if os.getpid() != self._process:  # after a fork both would take tasks into the same round
            raise StorageError("This stream belongs to another process. Let that one take the tasks.")

    def _check_new(self, name: object) -> None:
        joined = self._arrivals.roster
        if name in joined:
            raise InputError(
                f"Task {name!r} has joined already, as number {joined.position(name) + 1}. Each speaks once, "
                f"which is what is paid for: model({name!r}, X, y) gives it the model of now."
            )
        joined.checked(name)

    def _only(self, name: object, X: ArrayLike, y: ArrayLike) -> Tasks:
        """Return one task's rows; refuse what the algorithm is not for."""
        one = Tasks.from_list([X], [y], [name])
        kind = (one.X.shape[1:], one.X.dtype, one.y.shape[1:], one.y.dtype)
        if kind not in self._tried:
            try_plan(self.plan, one)
            self._tried.add(kind)
        return one

    def _compute(self, one: Tasks) -> tuple[States, Array]:
        """Return a task's model and its message, as a sum of one; nothing has left it yet."""
        board, seeds = self.board, self._curator.journal.source.task_seeds(one.ids)
        with self._engine.workers(self.plan, one, seeds) as workers:
            workers.start(board.before(0))
            channel = self._curator.channel(board)
            message, _ = self._curator.collect(workers, board, channel, _HERE)
            return _first(workers.finish(board)), np.asarray(message)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the stream if anything goes wrong: who has joined is on disk, and known when it is opened."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _charge(self) -> None:
        """Charge the whole stream, before the first task speaks; a stream that goes on is charged already."""
        if self._ledger is None:
            return
        try:
            self._curator.charge(self._ledger)
        except (InputError, PlanError):  # it may not take place, and nothing was recorded
            if not len(self):
                self._curator.journal.discard()
                self.close()
            raise
        self._ledger = None

    def _post(self) -> None:
        """Release the sum of those who wait."""
        board = self.board
        self._curator.post(board, self._curator.channel(board), self._arrivals.total, self._noise, 0)
        self._arrivals.clear()


def _tasks_of_a_round(plan: Plan) -> int:
    """Return how many tasks a round takes; refuse a plan that cannot take tasks as they come."""
    if not isinstance(plan, Plan):
        raise PlanError(f"A stream needs a Plan. Got {type(plan).__name__}.")
    if not isinstance(plan.sampling, InOrder):
        raise PlanError(
            "A stream takes tasks in the order in which they come. "
            f"Got sampling={plan.sampling!r}. Plan with sampling=InOrder()."
        )
    if plan.quorum is not None:
        raise PlanError("A stream has no quorum: a round is of those who have come. Plan without.")
    if plan.algorithm.groups is not None:
        raise PlanError(
            "A stream knows no groups. Plan without, or run over tasks that are known beforehand."
        )
    if len(set(plan.rounds)) != 1 or len(plan.rounds[0].channels) != 1:
        raise PlanError(
            f"In a stream every round must be like the others, because nobody chooses when to come. "
            f"{type(plan.algorithm).__name__} has {len(set(plan.rounds))} kinds of rounds. Use FTMRL or "
            "MetaSGD, or run it over tasks that are known beforehand."
        )
    rounds, size = len(plan.rounds), plan.sampling.per_round(plan.n_tasks, len(plan.rounds))
    if (rounds - 1) * size >= plan.n_tasks:
        raise PlanError(
            f"{plan.n_tasks} tasks, {size} a round, do not fill {counted(rounds, 'round')}. Plan for "
            f"{-(-plan.n_tasks // size)} rounds, or for {rounds * size} tasks."
        )
    return size


def _first(models: States) -> States:
    return {name: array[0] for name, array in models.items()}
