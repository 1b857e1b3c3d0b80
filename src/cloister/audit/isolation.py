"""Isolation by replay: with the billboard frozen, one task's data must not reach what others send or learn.

A small run of the plan is made on invented tasks. Then the data of one task are changed, to other data and to
garbage, and everybody goes through the same billboard again: whatever the others send in any round, and every
other model, must be the same to the last bit. So it goes for a task in the middle, the first, the last, one
of a single row and the largest. Meanwhile every sum is added up again: a task that takes part counts once,
and no further than its channel allows. Where the run itself is repeated with the changed data, under the same
key, its first release may move by that task's own message and by nothing else.

The billboard must follow from its noisy releases: whoever has seen nothing else, a copy of the plan from
before the run, has to make the same of them, to the last bit, each round of what it made itself before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cloister.audit.releases import in_release_units, whole
from cloister.core.arrays import Array, Floats, Integers, States
from cloister.core.channel import Channel
from cloister.core.errors import BillboardError, CloisterError
from cloister.core.lifts import Relation
from cloister.core.roster import Groups
from cloister.core.spec import Sender, Target
from cloister.core.spelling import counted
from cloister.core.tasks import Block, Tasks
from cloister.engines.check import GARBAGE, victims
from cloister.engines.local import Local
from cloister.engines.run import Run, run
from cloister.engines.workers import group_positions, summed
from cloister.plan.algorithm import Algorithm, Wrapper
from cloister.plan.plan import Plan
from cloister.privacy.noise_states import TaskSum
from cloister.store.billboard import Billboard, BoardView

_TASKS = 24
#: Rows of the largest of them, and rounds of all runs and replays together, at most.
_LARGEST, _ROUNDS = 40, 400_000
#: Rounding of sums and bounds where messages are not whole numbers.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Isolation:
    """Whether one task's data reached others past the noise: True if not, False if so, None if not tested."""

    holds: bool | None
    detail: str


def check_isolation(plan: Plan, seed: int = 0) -> Isolation:
    """Test isolation on a small run of the plan with invented tasks.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=2), n_tasks=100).calibrate(epsilon=1.0)
    >>> check_isolation(plan).holds
    True
    """
    try:
        small, tasks = small_run(plan, seed)
    except NotTestedError as error:
        return Isolation(None, f"not tested: {error}")
    untouched = copy.deepcopy(small)
    try:
        finished = run(small, tasks, random_state=seed)
    except CloisterError as error:
        return Isolation(None, f"not tested: a small run on invented data failed ({error})")
    if not finished.board.complete:
        return Isolation(False, f"a run ended after {finished.board.rounds} of {len(small.rounds)} rounds")
    more = _more_than_follows(untouched, finished.board, tasks)
    if more is not None:
        return Isolation(False, more)
    found = _others(finished, tasks, seed)
    # Once more after runs with other data: whoever remembers sums remembers those now.
    more = _more_than_follows(untouched, finished.board, tasks) if found.holds else None
    return found if more is None else Isolation(False, more)


class NotTestedError(Exception):
    """Why a plan has no small run on invented tasks."""


def small_run(plan: Plan, seed: int) -> tuple[Plan, Tasks]:
    """Return a small plan of the same kind, and invented tasks for it; or say why there is none."""
    if 10 * len(plan.rounds) > _ROUNDS:
        raise NotTestedError(f"a run of {counted(len(plan.rounds), 'round')} takes too long here")
    size = min(plan.n_tasks, max(_TASKS, getattr(plan.sampling, "size", 0)))
    tasks = invented_tasks(plan, size, seed)
    if tasks is None:
        untold = f"what rows {type(plan.algorithm).__name__} takes is not known here"
        if plan.algorithm.network is not None:
            untold += "; check_algorithm(algorithm, tasks) tests networks on made-up ones"
        raise NotTestedError(untold)
    small = replace(plan, n_tasks=size, trust=plan.trust.among_few())
    if plan.unit.by_record:  # the changes of one task's data treble it at most
        small = replace(small, unit=plan.unit.among_few(3 * len(tasks.y)), delta=None)
    if plan.algorithm.groups is None:
        return small, tasks
    # The first two of them, and half of the tasks in each.
    labels = np.resize(np.array(plan.algorithm.groups.names[:2]), size)
    return (
        replace(small, algorithm=plan.algorithm.with_groups(Groups.of(labels))),
        replace(tasks, groups=labels),
    )


def _others(finished: Run, tasks: Tasks, seed: int) -> Isolation:
    """Change one task's data after the other, and compare all that the others send and learn."""
    clean = Replayed.of(finished, tasks)
    if clean.miscounted is not None:
        return Isolation(False, clean.miscounted)
    places, changes, rounds = victims(tasks.sizes), 0, finished.board.rounds
    for turn, victim in enumerate(places):
        for number, changed in enumerate(_changes(tasks, victim, seed)):
            if turn and (number >= 3 or (changes + 12) * rounds > _ROUNDS):  # of the first all are tried
                break
            try:
                other = Replayed.of(finished, changed)
                reached = clean.moved(other, victim)
                if number == 0:
                    reached = reached or _first_release(finished, clean, other, changed, victim, seed)
            except CloisterError as error:
                reached = f"one task's data stopped everybody: {error}"
            if reached is not None:
                return Isolation(False, reached)
            changes += 1
        if finished.plan.unit.by_record:
            reached = _other_records(finished, clean, tasks, victim)
            if reached is not None:
                return Isolation(False, reached)
            changes += 2
    compared = f"messages and models of {len(tasks) - 1} others in {counted(rounds, 'round')}"
    return Isolation(
        True, f"{compared}, {counted(changes, 'change')} of the data of {counted(len(places), 'task')}"
    )


def _other_records(finished: Run, clean: Replayed, tasks: Tasks, victim: int) -> str | None:
    """Change one record of a task: say what moves of what any other record sends, of its own task too."""
    first, end = tasks.offsets[victim : victim + 2].tolist()
    record = (first + end) // 2
    turned = np.array(tasks.X)
    turned[record] *= -3
    for X in (turned, _filled(tasks, slice(record, record + 1), GARBAGE[0])):
        try:
            reached = clean.moved(Replayed.of(finished, replace(tasks, X=X)), victim, record)
        except CloisterError as error:
            reached = f"one record stopped everybody: {error}"
        if reached is not None:
            return reached
    return None


def invented_tasks(plan: Plan, size: int, seed: int) -> Tasks | None:
    """Return random tasks of the kind that a plan's algorithm takes; None if it does not say.

    They are small, one of them has a single row, and one has many.
    """
    due = plan.algorithm.rows
    if due is None or due.features is None:
        return None
    rng = np.random.default_rng(seed)
    rows = rng.integers(4, 9, size)
    rows[size // 4], rows[3 * size // 4] = 1, _LARGEST
    X = rng.uniform(-1, 1, (int(rows.sum()), *due.features)) / np.sqrt(np.prod(due.features))
    y = rng.integers(0, due.classes, len(X)) if due.classes else rng.uniform(-1, 1, len(X))
    if due.target is Target.COUNT:
        y = np.floor(8 * np.square(y))
    alone = np.arange(len(y))  # each row is of another person, so that all of them send
    return Tasks.from_arrays(X, y, np.repeat(np.arange(size), rows), person=alone)


def _changes(tasks: Tasks, victim: int, seed: int) -> Iterator[Tasks]:
    """Yield the tasks with one task's data changed: to other data, to garbage, to fewer and more rows."""
    rows = slice(int(tasks.offsets[victim]), int(tasks.offsets[victim + 1]))
    X, y = np.array(tasks.X), np.array(tasks.y)
    X[rows], y[rows] = -X[rows], y[rows].max() - y[rows]
    yield replace(tasks, X=X, y=y)
    yield replace(tasks, X=_filled(tasks, rows, GARBAGE[0]))
    own, names = np.arange(rows.start, rows.stop), np.repeat(tasks.ids, tasks.sizes)
    for kept in (own[:1], np.tile(own, 3)):
        at = np.concatenate([np.arange(rows.start), kept, np.arange(rows.stop, len(tasks.y))])
        parts = tasks.X[at], tasks.y[at], names[at], tasks.weight[at]
        fewer = Tasks.from_arrays(*parts, person=np.arange(len(at)))
        yield replace(fewer, groups=tasks.groups)
    for garbage in GARBAGE[1:]:
        yield replace(tasks, X=_filled(tasks, rows, garbage))


def _filled(tasks: Tasks, rows: slice, value: float) -> Array:
    X = np.array(tasks.X)
    X[rows] = value
    return X


@dataclass(frozen=True, eq=False)
class _Overheard(Wrapper):
    """An algorithm around another that keeps what its tasks send: the round, whose it is, and messages."""

    inside: Algorithm
    heard: list[tuple[int, Array, Array]] = field(default_factory=list)

    @property
    def inner(self) -> Algorithm:
        return self.inside

    def around(self, inner: Algorithm) -> _Overheard:
        return replace(self, inside=inner)

    @property
    def senders(self) -> frozenset[Sender]:
        return self.inside.senders

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        messages, states = self.inside.send(states, block, board)
        self.heard.append((board.rounds, block.ids, np.array(messages)))
        return messages, states


@dataclass(frozen=True, eq=False)
class Replayed:
    """What tasks, or their records, sent and learned, against the billboard of a run.

    Attributes
    ----------
    messages : list of array of shape (senders, dim)
        Of each round, zeros of who did not take part.
    sums : list
        What was collected of them in each round.
    channels : list of Channel
        Of each round.
    task : array of shape (senders,)
        The position of each sender's task.
    groups : array of shape (senders,)
        Positions of the public groups of their tasks.
    models : dict of array
        Of all tasks.
    miscounted : str, optional
        How a sum is not that of one message of each task that takes part.
    """

    messages: list[Array]
    sums: list[TaskSum]
    channels: list[Channel]
    task: Integers
    groups: Integers
    models: States
    miscounted: str | None

    @classmethod
    def of(cls, finished: Run, tasks: Tasks) -> Replayed:
        plan, board, private = finished.plan, finished.board, finished.private
        overheard, exact = _Overheard(plan.algorithm), plan.mechanism.exact
        starts = tasks.offsets if plan.unit.by_record else np.arange(len(tasks) + 1)
        task = np.repeat(np.arange(len(tasks)), np.diff(starts))
        groups = group_positions(plan, tasks)[task]
        channels = [plan.algorithm.channel(board.before(t)) for t in range(board.rounds)]
        messages, sums, miscounted = [], [], None
        with (
            np.errstate(all="ignore"),
            Local().workers(replace(plan, algorithm=overheard), tasks, private.seeds) as workers,
        ):
            workers.start(board.before(0))
            for t, channel in enumerate(channels):
                coins = private.coins[t]
                sums.append(summed(workers.collect(board.before(t), channel, coins)))
                sent, times = _by_sender(overheard, t, tasks.ids, starts, channel.dim)
                messages.append(sent)
                due = coins[task]
                miscounted = miscounted or _miscounted(sums[t], sent, channel, exact, groups, times, due)
                overheard.heard.clear()
            models = workers.finish(board)
        return cls(messages, sums, channels, task, groups, models, miscounted)

    def moved(self, other: Replayed, victim: int, record: int | None = None) -> str | None:
        """Say what moved but what one task itself sends and learns, if anything did.

        Where one `record` of it has changed alone, it may not move what the others of its task send either.
        """
        if other.miscounted is not None:
            return other.miscounted
        who, whom = ("one task's data", "tasks") if record is None else ("one record", "records")
        for t, (one, two) in enumerate(zip(self.messages, other.messages, strict=True)):
            if not _same(one[self._others(victim, record)], two[other._others(victim, record)]):
                return f"{who} moved what other {whom} send in round {t + 1}, with the billboard frozen"
        others = np.arange(len(next(iter(self.models.values()), []))) != victim
        for name, array in other.models.items():
            if not _same(array[others], self.models[name][others]):
                return f"{who} moved {name!r} of other tasks, with the billboard frozen"
        return None

    def _others(self, victim: int, record: int | None) -> NDArray[np.bool_]:
        return np.asarray(self.task != victim if record is None else np.arange(len(self.task)) != record)

    def own(self, t: int, task: int, exact: bool) -> Floats:
        """Return what one task adds to the sum of a round, in units of the clip."""
        at, channel = self.task == task, self.channels[t]
        return in_release_units(channel, channel.total(self.messages[t][at], exact, self.groups[at]))


def _by_sender(
    overheard: _Overheard, t: int, ids: Array, starts: Integers, dim: int
) -> tuple[Array, Integers]:
    """Return what each sender sent in a round, and how often; a task's records come one after the other."""
    messages, times = np.zeros((starts[-1], dim)), np.zeros(starts[-1], dtype=np.int64)
    for round, names, sent in overheard.heard:
        if round == t:
            task = np.searchsorted(ids, names)
            first = np.flatnonzero(np.append(True, task[1:] != task[:-1]))
            place = np.arange(len(task)) - np.repeat(first, np.diff(np.append(first, len(task))))
            at = starts[task] + np.minimum(place, np.diff(starts)[task] - 1)
            messages[at] = sent
            np.add.at(times, at, 1)
    return messages, times


def _miscounted(
    total: TaskSum,
    messages: Array,
    channel: Channel,
    exact: bool,
    groups: Integers,
    times: Integers,
    coins: NDArray[np.bool_],
) -> str | None:
    """Say how a sum is not that of one bounded message of each sender that takes part."""
    if not np.array_equal(times, np.where(coins, 1, 0)):
        return "a sender is asked for a message in a round in which it does not take part, or for two"
    own = (channel.total(messages[i : i + 1], exact, groups[i : i + 1]) for i in np.flatnonzero(coins))
    added = np.zeros(channel.size, dtype=np.int64 if exact else np.float64)
    most = channel.sensitivity(Relation.ZERO_OUT) * (1 + _ROUNDING)
    for one in own:
        if not np.linalg.norm(in_release_units(channel, one)) <= most:
            return "one message moves a sum further than its channel allows"
        added = added + one
    found = np.asarray(total)
    if exact and not np.array_equal(found, added):
        return "a sum is not that of one message of each sender that takes part"
    if not np.allclose(found, added, rtol=_ROUNDING, atol=_ROUNDING):
        return "a sum is not that of one message of each sender that takes part"
    return None


def _first_release(
    finished: Run, clean: Replayed, other: Replayed, changed: Tasks, victim: int, seed: int
) -> str | None:
    """Repeat a run with one task's data changed: its first release moves by that task's message alone."""
    plan, board = finished.plan, run(finished.plan, changed, random_state=seed).board
    if board.rounds != finished.board.rounds:
        return "one task's data moved how many rounds a run has"
    if not all(_same(board.records[0].public[k], v) for k, v in finished.board.records[0].public.items()):
        return "one task's data moved what the billboard says before any release"
    moved = board.releases[0].value - finished.board.releases[0].value
    exact = plan.mechanism.exact
    due = other.own(0, victim, exact) - clean.own(0, victim, exact)
    if not finished.private.coins[0][victim]:
        due = 0 * due
    # Values are rounded once each, and where noise is correlated decoded from whole numbers.
    rounding = _ROUNDING * (1 + float(np.abs(finished.board.releases[0].value).max()))
    if not np.allclose(moved, due, rtol=0, atol=rounding):
        return "one task's data moved a release by more than its own message, under the same key"
    return None


def _more_than_follows(untouched: Plan, board: Billboard, tasks: Tasks) -> str | None:
    """Say what of a board does not follow from its releases, to the last bit."""
    lead = "the billboard says more than follows from its releases"
    try:
        untouched.check(board)
    except BillboardError as error:
        return f"{lead}: {error}"
    seeds = np.zeros(len(tasks), dtype=np.uint64)
    with Local().workers(untouched, tasks, seeds):  # which computes as the run did
        own = Billboard.create(untouched.algorithm.start(), board.plan, board.capacity)
        for t, release in enumerate(board.releases):
            channel, mechanism = untouched.algorithm.channel(own), untouched.mechanism
            on_grid = mechanism.correlated or whole(release.value[None], channel.steps).all()
            if release.value.dtype != np.float64 or (mechanism.exact and not on_grid):
                return f"{lead}: Release {t} is not made of whole numbers of its steps."
            priced = untouched.noise(t, channel), untouched.denominator
            if (release.noise, release.denominator, release.share) != (*priced, untouched.rounds[t].share):
                return f"{lead}: what Release {t} says of itself is not its plan's, to the last bit."
            own = own.post(release, untouched.algorithm.update(release, own))
        for t, (posted, made) in enumerate(zip(board.records, own.records, strict=True)):
            for name in posted.public.keys() | made.public.keys():
                pair = [record.public.get(name) for record in (posted, made)]
                if not _to_the_bit(*pair):
                    return f"{lead}: {name!r} of record {t} is not what its plan computes, to the last bit."
    return None


def _same(one: Array, two: Array) -> bool:
    return bool(np.array_equal(one, two, equal_nan=True))


def _to_the_bit(one: Array | None, two: Array | None) -> bool:
    if one is None or two is None:
        return False
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
