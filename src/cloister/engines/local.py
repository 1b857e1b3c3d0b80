"""The reference engine, every task on this machine; and replay, the billboard lemma as a function."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cloister.algorithm import States
from cloister.billboard import Billboard, Release
from cloister.channel import finite_rows
from cloister.engines.journal import Book, open_book
from cloister.errors import AlgorithmError, InputError, PlanError
from cloister.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.ledger import Ledger
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.noise import integer_deviation
from cloister.privacy.randomness import Randomness
from cloister.tasks import Block, Tasks

__all__ = ["Run", "replay", "run"]

T = TypeVar("T")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class PrivateRun:
    """What a run knows that must not leave it: each task's row belongs to that task alone."""

    ids: NDArray[Any]
    models: States
    coins: NDArray[np.bool_]
    local_seed: int
    rejected_messages: int

    def __repr__(self) -> str:
        return f"PrivateRun({len(self.ids)} tasks, private)"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its plan and billboard are public, everything under `private` is not."""

    plan: Plan
    board: Billboard
    private: PrivateRun = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """The plan's guarantee, with the noise that was really used."""
        promised = self.plan.guarantee
        return replace(promised, noise=self.board.noise) if self.board.noise != "none" else promised

    def model(self, task: object) -> States:
        """Return one task's own model. Give it to that task alone."""
        found = np.flatnonzero(self.private.ids == task)
        if not len(found):
            raise InputError(f"There is no task {task!r} in this run.")
        return {name: array[found[0]] for name, array in self.private.models.items()}


def run(
    plan: Plan,
    tasks: Tasks,
    *,
    random_state: int | None = None,
    ledger: Ledger | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    journal: str | os.PathLike[str] | None = None,
    save: Callable[[Run], None] | None = None,
) -> Run:
    """Run a plan over tasks that all live on this machine.

    Parameters
    ----------
    plan : Plan
        Calibrated, or with `Silent()`.
    tasks : Tasks
        As many as the plan says.
    random_state : int, optional
        Makes the run reproducible and INSECURE: whoever knows the seed can subtract the noise.
    ledger : Ledger, optional
        Charged for the whole run before anything leaves a task; refuses a run it cannot afford.
    threads : int, optional
        Blocks computed at the same time; by default one for each core. Does not change results.
    progress : callable, optional
        Called with (rounds done, rounds in all).
    journal : path, optional
        Folder where every release is on disk before it is used. If this call is killed, the same call goes
        on: it ends with the board it would have had, and is charged once. It holds a file ``secret`` until
        the run is complete.
    save : callable, optional
        Called with the finished run before the journal's secret is deleted. Save the models there: what is
        killed before this returns can go on.

    Privacy
    -------
    The only thing that crosses from private to public is the noisy sum that the plan's mechanism makes of
    clipped messages. Everything else on the board is computed from the board.
    """
    if len(tasks) != plan.n_tasks:
        raise InputError(f"The plan is for {plan.n_tasks} tasks, the data has {len(tasks)}.")
    seed = _seed(random_state)
    _check_loudness(plan)
    with open_book(journal, plan, tasks, seed, charged=ledger is not None) as book:
        if ledger is not None:
            _charge(plan, ledger, book)
        finished = _rounds(plan, tasks, book, threads, progress)
        book.finish()
        if save is not None:
            save(finished)
        book.forget()
    return finished


def _seed(random_state: object) -> int | None:
    if random_state is None:
        return None
    try:
        return operator.index(random_state)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"random_state must be a whole number or None. Got {random_state!r}.") from None


def _check_loudness(plan: Plan) -> None:
    """Refuse noise that integers cannot hold, before anything is charged."""
    if isinstance(plan.mechanism, Gaussian) and plan.mechanism.exact:
        for share, channel in {(round.share, channel) for round in plan.rounds for channel in round.channels}:
            noise = plan.mechanism.noise(channel, plan.relation, share)
            integer_deviation(noise / float(channel.steps.min()))


def _charge(plan: Plan, ledger: Ledger, book: Book) -> None:
    cost, noise = plan.cost_under(ledger.relation), plan.noise_from(book.source)
    try:
        ledger.charge(plan.fingerprint, cost, run=book.run, noise=noise)
    except PlanError:  # it may not take place, and nothing was booked
        book.discard()
        raise


def _rounds(plan: Plan, tasks: Tasks, book: Book, threads: int | None, progress: Progress | None) -> Run:
    """Go through all rounds: listen again to what is posted, and post the rest."""
    source = book.source
    local_seed = source.local_seed()
    layout = tasks.layout()
    blocks = list(tasks.blocks(layout, local_seed))
    coins = _draw_coins(plan, source)
    posted, board = book.posted, book.posted.before(0)
    rejected = 0
    with _pool(len(blocks), threads) as each:
        states = each(partial(_named, plan.algorithm.init, board), blocks)
        for t in range(len(plan.rounds)):
            took_part = [coins[t, index] for index in layout]
            heard = each(partial(_speak, plan, board), states, blocks, took_part)
            states = [state for state, _, _ in heard]
            rejected += sum(bad for _, _, bad in heard)
            if t < posted.rounds:
                board = posted.before(t + 1)
            else:
                board = book.keep(_post(plan, board, sum(total for _, total, _ in heard), source))
            if progress is not None:
                progress(t + 1, len(plan.rounds))
        finished = each(partial(_named, plan.algorithm.finish, board), blocks, states)
    private = PrivateRun(tasks.ids, _gather(finished, layout), coins, local_seed, rejected)
    return Run(plan, board, private)


def replay(
    plan: Plan,
    board: Billboard,
    tasks: Tasks,
    *,
    coins: NDArray[np.bool_] | None = None,
    local_seed: int = 0,
) -> States:
    """Compute tasks' models from their own data and the billboard alone: nothing leaves, nothing is spent.

    For a task of the run this gives its model again (with its coins and seed): bit for bit on the same
    block layout, up to rounding on another. For a task that comes late it is how to join.

    Parameters
    ----------
    plan, board : Plan, Billboard
        The public part of a run.
    tasks : Tasks
        One task or many; their number need not be the plan's.
    coins : bool array of shape (rounds, tasks), optional
        Which rounds each task took part in; by default all.
    local_seed : int
        The seed of the tasks' local randomness.
    """
    plan.check(board)
    if not board.complete:
        raise InputError(
            f"The board holds {board.rounds} of {board.capacity} releases. Finish the run first."
        )
    layout = tasks.layout()
    blocks = list(tasks.blocks(layout, local_seed))
    took_part = np.ones((len(plan.rounds), len(tasks)), dtype=bool) if coins is None else coins
    with _pool(len(blocks), None) as each:
        states = each(partial(_named, plan.algorithm.init, board.before(0)), blocks)
        for t in range(len(plan.rounds)):
            rows = [took_part[t, index] for index in layout]
            heard = each(partial(_listen, plan, board.before(t)), states, blocks, rows)
            states = [state for state, _ in heard]
        finished = each(partial(_named, plan.algorithm.finish, board), blocks, states)
    return _gather(finished, layout)


def _draw_coins(plan: Plan, source: Randomness) -> NDArray[np.bool_]:
    rounds = len(plan.rounds)
    if not rounds:
        return np.zeros((0, plan.n_tasks), dtype=bool)
    return plan.sampling.draw(source.stream("coins").uniforms, plan.n_tasks, rounds)


def _listen(
    plan: Plan, board: Billboard, states: States, block: Block, coins: NDArray[np.bool_]
) -> tuple[States, NDArray[Any] | None]:
    """Let the sampled rows of a block do their local work; return new states and raw messages."""
    if not coins.any():
        return states, None
    if coins.all():
        messages, states = _named(plan.algorithm.send, board, block, states)
        return states, messages
    rows = np.flatnonzero(coins)
    part = {name: array[rows] for name, array in states.items()}
    messages, part = _named(plan.algorithm.send, board, block.take(rows), part)
    merged = {name: array.copy() for name, array in states.items()}
    for name, array in part.items():
        if name not in merged or array.shape != merged[name][rows].shape or array.dtype != merged[name].dtype:
            raise AlgorithmError(f"send changes the names, shapes or types of the state: {name!r}.")
        merged[name][rows] = array
    return merged, messages


def _speak(
    plan: Plan, board: Billboard, states: States, block: Block, coins: NDArray[np.bool_]
) -> tuple[States, Any, int]:
    channel = plan.algorithm.channel(board)
    states, messages = _listen(plan, board, states, block, coins)
    if messages is None:
        return states, plan.mechanism.total(channel, np.zeros((0, channel.dim))), 0
    expected = (int(coins.sum()), channel.dim)  # a second row of a task would be a message nobody paid for
    if np.shape(messages) != expected:
        raise AlgorithmError(
            f"send must return one message a task, of shape {expected}. Got shape {np.shape(messages)}."
        )
    return states, plan.mechanism.total(channel, messages), int((~finite_rows(messages)).sum())


def _post(plan: Plan, board: Billboard, total: Any, source: Randomness) -> Billboard:
    t, channel = board.rounds, plan.algorithm.channel(board)
    declared = plan.rounds[t].channels
    if channel not in declared:
        raise AlgorithmError(f"Round {t} uses a channel that its schedule did not declare: {channel}.")
    noise = plan.noise(t, channel)
    release = Release(
        value=plan.mechanism.perturb(total, channel, noise, source, t),
        noise=noise,
        denominator=plan.sampling.denominator(plan.n_tasks, len(plan.rounds)),
        share=plan.rounds[t].share,
        channel=declared.index(channel),
    )
    return board.post(release, plan.algorithm.digest(release, board))


def _gather(parts: Sequence[States], layout: Sequence[NDArray[np.int64]]) -> States:
    """Put the blocks' rows back in the order of the tasks."""
    total = sum(map(len, layout))
    models = {name: np.empty((total, *array.shape[1:]), array.dtype) for name, array in parts[0].items()}
    for index, part in zip(layout, parts, strict=True):
        for name, array in part.items():
            models[name][index] = array
    return models


def _named(function: Callable[..., T], board: Billboard, block: Block, states: States | None = None) -> T:
    """Call one of an algorithm's private functions; if it fails, say which one and for which task."""
    try:
        return function(block, board) if states is None else function(states, block, board)
    except Exception as error:
        for i, name in enumerate(block.ids.tolist()):
            one = block.take([i])
            try:
                if states is None:
                    function(one, board)
                else:
                    function({key: value[[i]] for key, value in states.items()}, one, board)
            except Exception as cause:
                raise AlgorithmError(f"{function.__qualname__} failed for task {name!r}: {cause}") from cause
        raise AlgorithmError(f"{function.__qualname__} failed on a block: {error}") from error


@contextmanager
def _pool(blocks: int, threads: int | None) -> Iterator[Callable[..., list[Any]]]:
    """Yield an ordered map over blocks, on threads when there are several (NumPy releases the lock).

    Linear algebra libraries keep to one thread meanwhile: matrices are small and there are many.
    """
    from threadpoolctl import threadpool_limits

    workers = min(blocks, threads or os.cpu_count() or 1)
    with threadpool_limits(limits=1):
        if workers <= 1:
            yield lambda function, *parts: list(map(function, *parts))
            return
        with ThreadPoolExecutor(workers) as executor:
            yield lambda function, *parts: list(executor.map(function, *parts))
