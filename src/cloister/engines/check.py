"""`check_algorithm`: the contract of an algorithm, as tests anyone can run on their own."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from cloister import engines
from cloister.core.arrays import Array, Integers, States
from cloister.core.channel import Channel
from cloister.core.document import foreign_types
from cloister.core.errors import AlgorithmError, BillboardError, InputError
from cloister.core.lifts import Relation
from cloister.core.named_inputs import inputs_of
from cloister.core.tasks import Block, Tasks
from cloister.engines.local import Local, named
from cloister.engines.run import Run, replay, run
from cloister.engines.workers import group_positions
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy.mechanisms import Gaussian, NoNoise
from cloister.privacy.sampling import Poisson
from cloister.privacy.unit import Unit
from cloister.store.billboard import Billboard

#: What tasks compute in private, step by step.
Walk: TypeAlias = list[tuple[str, States]]
#: What an adversary may put in place of data.
GARBAGE = (np.inf, -np.inf, np.nan, 1e300, -1e200, 1e30)
UNREPEATED = (
    "is not the same again from the same data, so nobody could replay it (draw from block.uniforms, not from "
    "np.random; keep nothing outside of states)"
)


@dataclass(frozen=True)
class _Faint(Gaussian):
    """Very little noise in every round, also in those that take a smaller share of a larger budget."""

    def noise(self, channel: Channel, planned: Relation, share: float) -> float:
        return channel.sensitivity(planned) / self.budget


def check_algorithm(
    algorithm: Algorithm,
    tasks: Tasks,
    *,
    epsilon: float = 5.0,
    seed: int = 0,
    unit: Unit = Unit.task(),  # noqa: B008
) -> None:
    """Run an algorithm through everything the library relies on; raise `AlgorithmError` on the first breach.

    Rows never mix, whoever's data change: of a task in the middle, the first, the last, the smallest, the
    largest; garbage in one task's data leaves its messages bounded and all others' untouched; the
    order of tasks does not matter; replay gives every task's model again, alone or together, with and
    without sampling; what is public follows from the board alone; very little noise gives the non-private
    run; plan and board survive a round trip through a file. A network's personal parameters are learned, and
    `Batched`, where arrays are torch's tensors, finds the models that `Local` finds. Where the unit is a
    record, neither do records of one task mix in what they send.

    Examples
    --------
    >>> from cloister import Tasks
    >>> from cloister.algorithms import Independent
    >>> from cloister.learners import Regression
    >>> rng = np.random.default_rng(0)
    >>> tasks = Tasks.from_arrays(rng.normal(size=(30, 2)), rng.normal(size=30), np.arange(30) % 5)
    >>> check_algorithm(Independent(Regression(2)), tasks)
    """
    untouched = copy.deepcopy(algorithm)
    plan = Plan(algorithm, Gaussian(), n_tasks=len(tasks), unit=unit).calibrate(epsilon)
    try:
        finished = run(plan, tasks, random_state=seed)
        _check_rows(plan, finished.board, tasks)
        if unit.by_record:
            _check_records(plan, finished.board, tasks)
        _check_files(finished, untouched)
        _check_replay(finished, tasks)
        if not unit.by_record:
            _check_replay(run(replace(plan, sampling=Poisson(0.5)), tasks, random_state=seed), tasks)
        _check_silence(plan, tasks, seed)
        if algorithm.network is not None:
            _check_network(finished, tasks, seed)
    except BillboardError as error:
        raise AlgorithmError(f"The board does not follow from itself: {error}") from error


def _walk(plan: Plan, board: Billboard, block: Block) -> Iterator[tuple[str, States]]:
    """Yield everything a block's tasks compute in private, step by step, against a given board."""
    first = plan.algorithm.begins(board.capacity)
    states: States = {}
    for t in range(len(plan.rounds) + 1):
        if t == first:
            states = named(plan.algorithm.init, board.before(t), block)
            yield "init", states
        if t == len(plan.rounds):
            break
        if not plan.unit.by_record:
            messages, states = named(plan.algorithm.send, board.before(t), block, states)
            yield f"send in round {t}", states | {"message": np.asarray(messages)}
    models = named(plan.algorithm.finish, board, block, states)
    yield "finish", models
    with suppress(InputError):  # it need not say how models predict
        try:
            yield "predict", {"outputs": np.asarray(plan.algorithm.predict(models, block.X))}
        except KeyError as error:
            name = type(plan.algorithm).__name__
            found = ", ".join(map(repr, models))
            raise AlgorithmError(
                f"{name}.predict needs models of the name {error}. finish returned {found}."
            ) from error
    losses = plan.algorithm.losses(models, block)
    if losses is not None:
        yield "losses", {"loss": np.asarray(losses)}


def victims(sizes: Integers) -> list[int]:
    """Return whose data are changed: tasks in the middle, first and last, the smallest and the largest.

    Examples
    --------
    >>> victims(np.array([5, 1, 4, 4, 9, 5]))
    [3, 0, 5, 1, 4]
    """
    places = [len(sizes) // 2, 0, len(sizes) - 1, int(np.argmin(sizes)), int(np.argmax(sizes))]
    return list(dict.fromkeys(places))


def _changed(block: Block, victim: int, garbage_too: bool) -> Iterator[tuple[str, Block]]:
    """Yield the block with one task's data changed: to other data, then to garbage; and say to what."""
    X, (y, weight) = _floats(block.X), (np.array(a, dtype=np.float64) for a in (block.y, block.weight))
    y[victim], weight[victim] = y[victim].max() - y[victim], 3 * weight[victim]
    for part in inputs_of(X).values():
        part[victim] = -part[victim]
    yield "other data", replace(block, X=X, y=y, weight=weight)
    for garbage in GARBAGE if garbage_too else GARBAGE[:1]:
        X, y = _floats(block.X), np.array(block.y, dtype=np.float64)
        for part in inputs_of(X).values():
            with np.errstate(invalid="ignore", over="ignore"):  # a whole number is then the smallest there is
                part[victim] = np.asarray(garbage).astype(part.dtype)
        yield f"features of {garbage}", replace(block, X=X)
        y[victim] = garbage
        yield f"targets of {garbage}", replace(block, y=y)


def _floats(X: Array) -> Array:
    """Return a copy of rows as 64-bit floats; of several inputs each as it is."""
    return np.array(X, dtype=np.float64 if X.dtype.names is None else None)


def _check_rows(plan: Plan, board: Billboard, tasks: Tasks) -> None:
    groups = group_positions(plan, tasks)
    block = next(tasks.blocks([np.arange(min(len(tasks), 64))], groups=groups))
    with np.errstate(all="ignore"):
        clean = list(_walk(plan, board, block))
        everyone = np.full(len(block), True)
        _compare(clean, list(_walk(plan, board, block)), everyone, 0.0, UNREPEATED)
        for turn, victim in enumerate(victims(tasks.sizes[: len(block)])):
            for what, other in _changed(block, victim, garbage_too=turn == 0):
                _check_victim(plan, board, clean, victim, what, other)
        backwards = np.arange(len(block))[::-1]
        turned = list(_walk(plan, board, block.take(backwards)))
        back = [(step, {name: array[::-1] for name, array in arrays.items()}) for step, arrays in turned]
        _compare(clean, back, everyone, 1e-10, "depends on the order of tasks")


def _check_records(plan: Plan, board: Billboard, tasks: Tasks) -> None:
    """Refuse records whose messages depend on others, of their own task or of another."""
    whole = next(tasks.blocks([np.arange(min(len(tasks), 64))], groups=group_positions(plan, tasks)))
    records = whole.records()
    everyone, backwards = np.full(len(records), True), np.arange(len(records))[::-1]
    with np.errstate(all="ignore"):
        clean = list(_said(plan, board, records))
        _compare(clean, list(_said(plan, board, records)), everyone, 0.0, UNREPEATED)
        for victim in victims(np.arange(len(records))):
            for what, other in _changed(records, victim, garbage_too=True):
                dirty = list(_said(plan, board, other))
                others = np.arange(len(records)) != victim
                _compare(clean, dirty, others, 0.0, f"mixes rows (with {what} in one record's place)")
                _check_messages(plan, board, [arrays["message"] for _, arrays in dirty])
        turned = list(_said(plan, board, records.take(backwards)))
        back = [(step, {"message": arrays["message"][::-1]}) for step, arrays in turned]
        _compare(clean, back, everyone, 1e-10, "depends on the order of records")


def _said(plan: Plan, board: Billboard, records: Block) -> Iterator[tuple[str, States]]:
    """Yield what records send in each round, against a given board."""
    for t in range(len(plan.rounds)):
        messages, _ = named(plan.algorithm.send, board.before(t), records, {})
        yield f"send in round {t}", {"message": np.asarray(messages)}


def _check_victim(plan: Plan, board: Billboard, clean: Walk, victim: int, what: str, changed: Block) -> None:
    """Refuse an algorithm for whose other tasks it makes a difference that one task's data changed."""
    try:
        dirty = list(_walk(plan, board, changed))
    except AlgorithmError as error:
        raise AlgorithmError(
            f"{error} (with {what} in its place). One task's data must not stop the others: "
            "compute on something harmless instead, and say NaN or zeros."
        ) from error
    _compare(clean, dirty, np.arange(len(changed)) != victim, 0.0, "mixes rows")
    _check_messages(plan, board, [arrays["message"] for _, arrays in dirty if "message" in arrays])


def _compare(one: Walk, two: Walk, rows: np.ndarray, tolerance: float, complaint: str) -> None:
    for (step, first), (_, second) in zip(one, two, strict=True):
        for name in first:
            _same(first[name][rows], second[name][rows], tolerance, f"{step} {complaint}: {name!r}")


def _check_messages(plan: Plan, board: Billboard, messages: list[np.ndarray]) -> None:
    for t, message in enumerate(messages):
        channel = plan.algorithm.channel(board.before(t))
        if channel not in plan.rounds[t].channels:
            raise AlgorithmError(f"Round {t} uses a channel that its schedule did not declare: {channel}.")
        norms = np.linalg.norm(channel.units(message), axis=1)
        if not (norms <= 1).all():
            raise AlgorithmError(f"Round {t} lets a message of norm {norms.max()} out of its channel.")


def _check_replay(finished: Run, tasks: Tasks) -> None:
    private = finished.private

    def again(part: Tasks, at: np.ndarray) -> States:
        return replay(
            finished.plan, finished.board, part, coins=private.coins[:, at], seeds=private.seeds[at]
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


def _check_files(finished: Run, untouched: Algorithm) -> None:
    """Check that an algorithm that has never run reads board and plan as the one that has run wrote them."""
    with tempfile.TemporaryDirectory() as folder:
        board = Billboard.load(finished.board.save(Path(folder) / "board"))
    text = finished.plan.to_toml()
    plan = Plan.from_toml(text, foreign_types(untouched))
    if board.head != finished.board.head or plan != finished.plan or plan.to_toml() != text:
        raise AlgorithmError("The plan or the board changed on its way through a file.")
    plan.check(board)


def _check_silence(plan: Plan, tasks: Tasks, seed: int) -> None:
    if not plan.rounds:
        return
    without_noise = run(replace(plan, mechanism=NoNoise()), tasks, random_state=seed)
    little_noise = run(replace(plan, mechanism=_Faint(1e13, exact=False)), tasks, random_state=seed)
    for name, array in without_noise.private.models.items():
        _same(array, little_noise.private.models[name], 1e-5, f"little noise is not no noise: {name!r}")


def _check_network(finished: Run, tasks: Tasks, seed: int) -> None:
    """Refuse an algorithm that leaves personal parameters where they are, or that only `Local` can run."""
    plan, coef = finished.plan, finished.private.models.get("coef")
    assert plan.algorithm.network is not None
    own = None if coef is None else coef[:, plan.algorithm.network.shared_size :]
    if own is not None and own.size and len(own) > 1 and (own == own[0]).all():
        raise AlgorithmError(
            "Personal parameters ended the same for every task, so none has learned its own. Let init return "
            "learner.first(mean, block) and send learner.keep(ended), and give states to learner.spread."
        )
    silent = replace(plan, mechanism=NoNoise())
    alone, together = (
        run(silent, tasks, random_state=seed, engine=engine).private.models
        for engine in (Local(), engines.Batched("cpu"))
    )
    for name, array in alone.items():
        _same(array, together[name], 1e-2, f"Batched finds other models than Local: {name!r}")


def _same(expected: np.ndarray, found: np.ndarray, tolerance: float, complaint: str) -> None:
    if np.asarray(expected).dtype == np.float32 and tolerance:
        tolerance = max(tolerance, 1e-4)  # what 32 bits hold
    equal: Callable[[np.ndarray, np.ndarray], bool] = (
        (lambda a, b: bool(np.array_equal(a, b, equal_nan=True)))
        if tolerance == 0
        else (lambda a, b: bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)))
    )
    if not equal(np.asarray(expected), np.asarray(found)):
        raise AlgorithmError(f"{complaint}.")
