"""Bugs in runs: rows that mix, boards that carry more than releases, rules that look at data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cloister.algorithms import MeanRegularized
from cloister.audit.zoo import plans
from cloister.audit.zoo.bug import Bug, bug
from cloister.core.channel import GRID
from cloister.engines.curator import Curator

# ------------------------------------------------------------------ rows that mix


@bug(MeanRegularized, "send", "isolation", plans.mean)
def statistic_of_the_block(honest, self, states, block, board):
    """Every message holds a statistic of all tasks in the block, as with normalised batches."""
    messages, states = honest(self, states, block, board)
    return messages + 1e6 * np.median(block.y, axis=0).sum(), states


@bug(MeanRegularized, "send", "isolation", plans.mean)
def smallest_task_is_listened_to(honest, self, states, block, board):
    """Every message holds what the task with the fewest rows has."""
    messages, states = honest(self, states, block, board)
    return messages + np.nan_to_num(block.y[(block.weight > 0).sum(axis=1).argmin()]).sum(), states


@bug(MeanRegularized, "send", "isolation", plans.mean)
def state_of_the_next_row(honest, self, states, block, board):
    """A task goes on from the state that the task beside it left behind."""
    messages, states = honest(self, states, block, board)
    return messages, {name: np.roll(array, 1, axis=0) for name, array in states.items()}


@bug(MeanRegularized, "finish", "isolation", plans.mean)
def models_centred_over_tasks(honest, self, states, block, board):
    """Models are centred over all tasks at home."""
    models = honest(self, states, block, board)
    return {name: array - array.mean(axis=0) for name, array in models.items()}


@bug(MeanRegularized, "init", "isolation", plans.mean)
def start_from_the_others(honest, self, block, board):
    """All tasks start from the mean of their targets, which nobody has released."""
    states = honest(self, block, board)
    return {name: array + np.nan_to_num(block.y).mean() for name, array in states.items()}


@bug(MeanRegularized, "finish", "isolation", plans.mean)
def stops_on_bad_data(honest, self, states, block, board):
    """One task with a value that is no number stops everybody."""
    if not np.isfinite(block.X).all():
        raise ValueError("bad data")
    return honest(self, states, block, board)


# ------------------------------------------------------------------ boards that carry more


def _posting(board, **more):
    """Return a board whose last record holds more."""
    last = board.records[-1]
    return board.before(board.rounds - 1).post(last.release, {**last.public, **more})


@bug(Curator, "post", "isolation", plans.sampled)
def board_carries_a_count(honest, self, board, channel, total, state, *rest):
    """The board says how many tasks took part."""
    posted = honest(self, board, channel, total, state, *rest)
    return _posting(posted, count=np.array([self.coins[board.rounds].sum()]))


@bug(Curator, "post", "isolation", plans.mean)
def board_carries_a_bare_sum(honest, self, board, channel, total, state, *rest):
    """The board says what a sum was before its noise."""
    return _posting(honest(self, board, channel, total, state, *rest), diagnostics=np.asarray(total))


@bug(Curator, "post", "isolation", plans.mean)
def board_carries_a_second_copy(honest, self, board, channel, total, state, *rest):
    """The board carries the same sum with a second noise."""
    posted, noise, source = (
        honest(self, board, channel, total, state, *rest),
        self.plan.noise,
        self.journal.source,
    )
    given = np.asarray(total), channel, noise(board.rounds, channel), source.derived("again"), board.rounds
    return _posting(posted, again=self.plan.mechanism.perturb(*given))


@bug(Curator, "post", "isolation", plans.mean)
def sum_in_the_last_bits(honest, self, board, channel, total, state, *rest):
    """The last bits of what follows from a release carry its bare sum."""
    posted = honest(self, board, channel, total, state, *rest)
    secret = 1 + 1e-13 * (int(np.asarray(total)[0]) % 8)
    return _posting(posted, **{k: a * secret for k, a in posted.records[-1].public.items()})


@bug(Curator, "post", "isolation", plans.mean)
def sum_in_imaginary_parts(honest, self, board, channel, total, state, *rest):
    """The last mean is of complex numbers, whose imaginary parts carry a bare sum."""
    posted = honest(self, board, channel, total, state, *rest)
    if posted.rounds < posted.capacity:
        return posted
    return _posting(posted, mean=posted["mean"] + 1e-15j * np.asarray(total))


def _releasing(board, **changed):
    """Return a board whose last release says something else of itself."""
    last = board.records[-1]
    return board.before(board.rounds - 1).post(replace(last.release, **changed), last.public)


@bug(Curator, "post", "isolation", plans.mean)
def sum_in_the_stated_noise(honest, self, board, channel, total, state, *rest):
    """The last bits of the deviation that a release states carry its bare sum."""
    posted = honest(self, board, channel, total, state, *rest)
    odd = int(np.asarray(total)[0]) % 8
    return _releasing(posted, noise=posted.releases[-1].noise * (1 + 1e-14 * odd))


@bug(Curator, "post", "isolation", plans.sampled)
def denominator_from_data(honest, self, board, channel, total, state, *rest):
    """A sum is divided by how many tasks took part, and not by how many are expected to."""
    count = float(self.coins[board.rounds].sum())
    return _releasing(honest(self, board, channel, total, state, *rest), denominator=count)


# ------------------------------------------------------------------ rules that look at data


@bug(Curator, "post", "isolation", plans.mean)
def stops_when_sums_are_small(honest, self, board, channel, total, state, *rest):
    """A run ends when a sum, before its noise, is small."""
    if np.linalg.norm(np.asarray(total)) < GRID * self.plan.n_tasks:
        return board
    return honest(self, board, channel, total, state, *rest)


@bug(Curator, "channel", "isolation", plans.joint)
def channel_of_the_curators_choice(honest, self, board):
    """The curator collects on another declared channel than the one that follows from the board."""
    declared = self.plan.rounds[board.rounds].channels
    return declared[(declared.index(honest(self, board)) + 1) % len(declared)]


RUN_BUGS = tuple(each for each in vars().values() if isinstance(each, Bug))
