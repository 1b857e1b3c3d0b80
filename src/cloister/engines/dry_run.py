"""Data of the wrong kind, and algorithms that could not run on any: refused before anything is charged."""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import States
from cloister.core.errors import AlgorithmError
from cloister.core.spec import DataSpec, Target
from cloister.core.tasks import Block, Tasks
from cloister.engines.local import named, sent
from cloister.engines.workers import check_messages
from cloister.plan.plan import Plan
from cloister.privacy.sampling import InOrder
from cloister.store.billboard import Billboard
from cloister.store.records import Release

#: Rounds that are gone through on made-up rows, and numbers on the board meanwhile, at most.
MOST_ROUNDS, MOST_NUMBERS = 32, 1 << 20


def try_plan(plan: Plan, tasks: Tasks) -> None:
    """Refuse data that a plan's algorithm is not for, and an algorithm that fails on data that it is for.

    The algorithm is tried on made-up rows of the right shape, so that no task's data decide whether *it* can
    run. Shape and kind of the data are public. Whether targets are classes is not: engines look at that.
    """
    rows = plan.algorithm.rows or DataSpec(target=Target.ANY)
    nothing = tasks.X[:0], tasks.y[:0]
    rows.check(*nothing)
    if plan.algorithm.network is not None:  # was tried by `check`, and is too large to be tried twice
        return
    made = rows.synthetic(*nothing)
    block = next(made.blocks([np.arange(len(made))]))
    try:
        with np.errstate(all="ignore"):
            _try_rounds(plan, block)
    except Exception as error:
        raise AlgorithmError(
            f"{type(plan.algorithm).__name__} fails on made-up rows like those of the data: {error} "
            "Nothing was charged."
        ) from error


def _try_rounds(plan: Plan, block: Block) -> None:
    """Go through the first rounds with silence for releases; through all and to the end if they are few."""
    algorithm, rounds = plan.algorithm, plan.rounds
    board = Billboard.create(algorithm.start(), plan.fingerprint, len(rounds))
    states: States = {}
    first = algorithm.begins(len(rounds))
    widest = max((channel.size for round in rounds[:1] for channel in round.channels), default=1)
    for t in range(min(len(rounds), MOST_ROUNDS, max(1, MOST_NUMBERS // widest))):
        if t == first:
            states = named(algorithm.init, board, block)
        channel, declared = algorithm.channel(board), rounds[t].channels
        if channel not in declared:
            raise AlgorithmError(f"Round {t} uses a channel that its schedule did not declare: {channel}.")
        messages, states = sent(plan, board, block, states)
        senders = int(block.counts().sum()) if plan.unit.by_record else len(block)
        check_messages(np.shape(messages), senders, channel.dim)
        release = Release(
            value=np.zeros(channel.size),
            noise=plan.noise(t, channel),
            denominator=plan.denominator,
            share=rounds[t].share,
            channel=declared.index(channel),
        )
        board = board.post(release, algorithm.update(release, board))
        if isinstance(plan.sampling, InOrder):  # a task of a stream has its model at its arrival
            named(algorithm.finish, board, block, states)
    if board.complete:
        if board.rounds == first:
            states = named(algorithm.init, board, block)
        named(algorithm.finish, board, block, states)
