"""Bugs in clips and lifts: a task moves a sum further than is paid for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cloister.audit.zoo import plans
from cloister.audit.zoo.bug import Bug, bug
from cloister.core.channel import GRID, Channel
from cloister.core.lifts import Grouped, MeanAndOuter, Outer, Plain, Relation
from cloister.engines import local
from cloister.engines.local import LocalWorkers


@bug(Channel, "whole", "sensitivity", plans.wide)
def clip_is_missing(honest, self, messages):
    """Messages are put on the grid and not clipped."""
    return np.rint(np.nan_to_num(messages, posinf=0.0, neginf=0.0) / self.clip * GRID)


@bug(Channel, "whole", "sensitivity", plans.wide)
def clip_by_the_largest_number(honest, self, messages):
    """Messages are clipped by their largest number and not by their length."""
    rows = np.nan_to_num(messages, posinf=0.0, neginf=0.0)
    return np.rint(rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), self.clip) * GRID)


@bug(Channel, "whole", "sensitivity", plans.long)
def clip_by_the_first_numbers(honest, self, messages):
    """Messages are clipped by the length of their first sixteen numbers."""
    rows = np.nan_to_num(messages, posinf=0.0, neginf=0.0)
    length = np.linalg.norm(rows[:, :16] / self.clip, axis=1, keepdims=True)
    return np.trunc(rows / self.clip / np.maximum(1, length) * (GRID - 8))


@bug(Channel, "whole", "sensitivity", plans.wide)
def clip_before_rounding_alone(honest, self, messages):
    """Rounding to the grid makes clipped messages longer than the clip."""
    return np.rint(self.units(messages) * GRID)


@bug(Channel, "whole", "sensitivity", plans.mean)
def not_finite_let_through(honest, self, messages):
    """A message with what is no number is no message of zeros."""
    finite = np.isfinite(messages).all(axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(finite[:, None], honest(self, messages), messages)


@bug(Channel, "whole", "sensitivity", plans.mean)
def long_messages_say_more(honest, self, messages):
    """What was far too long is clipped to twice the clip."""
    long = np.abs(np.nan_to_num(messages)).max(axis=1, keepdims=True) > 100 * self.clip
    return honest(self, messages) * (1 + long)


@bug(Channel, "total", "sensitivity", plans.mean)
def sum_before_clip(honest, self, messages, exact=False, groups=None):
    """The mean of all messages is clipped, and not each of them."""
    count = len(messages)
    return count * honest(self, np.sum(messages, axis=0, keepdims=True) / max(1, count), exact)


@bug(Plain, "sensitivity", "sensitivity", plans.mean)
def replace_taken_for_zero_out(honest, self, relation):
    """A message and its opposite are two clips apart, and priced as one."""
    return honest(self, Relation.ZERO_OUT)


@bug(Outer, "sensitivity", "sensitivity", plans.matrix)
def outer_products_too_small(honest, self, relation):
    """Two outer products are priced as if one of them were zero."""
    return 1.0


@bug(MeanAndOuter, "sensitivity", "sensitivity", plans.joint)
def mean_that_is_free(honest, self, relation):
    """A mean and a second moment are priced as the second moment alone."""
    return 1.0 if relation == Relation.ZERO_OUT else math.sqrt(2)


@bug(Grouped, "weights", "sensitivity", plans.grouped)
def groups_on_top(honest, self, dim):
    """What a task says to its group comes on top of what it says to all, unpaid."""
    weights, linear = self.lift.weights(dim)[0], self._linear(dim)
    return np.concatenate([weights, np.tile(weights[linear], self.groups)]), honest(self, dim)[1]


@bug(Channel, "sensitivity", "sensitivity", plans.eight)
def last_of_eight_channels_too_small(honest, self, relation):
    """Of eight channels the last is priced at half of what moves it."""
    return honest(self, relation) / (2 if self.clip == 8 else 1)


@bug(local, "_summed", "isolation", plans.mean)
def clip_from_data(honest, channel, exact, messages, groups):
    """Messages are clipped to their median length, in units of which the sum is told."""
    median = float(np.median(np.linalg.norm(np.nan_to_num(messages), axis=1)))
    return honest(replace(channel, clip=median or channel.clip), exact, messages, groups)


@bug(local, "_summed", "isolation", plans.mean)
def task_that_counts_twice(honest, channel, exact, messages, groups):
    """The first task of a block is counted once more."""
    twice = np.concatenate([np.arange(len(messages)), np.arange(len(messages))[:1]])
    return honest(channel, exact, messages[twice], groups[twice])


@bug(local, "_summed", "isolation", plans.mean)
def sum_over_those_that_are_finite(honest, channel, exact, messages, groups):
    """Where a message is no number, those of the others count for it."""
    total, bad = honest(channel, exact, messages, groups)
    return total * len(messages) // max(1, len(messages) - bad), bad


@bug(local, "_summed", "isolation", plans.records)
def tasks_sum_clipped_for_records(honest, channel, exact, messages, groups):
    """Records are summed first and their sum is clipped, at the price of a record."""
    return honest(channel, exact, messages.sum(axis=0, keepdims=True), groups[:1])


@bug(local, "_summed", "isolation", plans.records)
def mean_over_the_records_that_speak(honest, channel, exact, messages, groups):
    """The sum is divided by how many records say more than zeros, and not by a public number."""
    total, bad = honest(channel, exact, messages, groups)
    return total * 1000 // max(1, np.count_nonzero(messages.any(axis=1))), bad


@bug(plans.GramOfRecords, "send", "isolation", plans.records)
def records_about_their_mean(honest, self, states, block, board):
    """Records say how far they are from the mean of all in their block."""
    messages, states = honest(self, states, block, board)
    return messages - np.nan_to_num(messages).mean(axis=0), states


@bug(plans.GramOfRecords, "send", "isolation", plans.records)
def records_about_their_tasks_mean(honest, self, states, block, board):
    """Records say how far they are from the mean of their own task: others of it say something else then."""
    messages, states = honest(self, states, block, board)
    own = block.ids[:, None] == block.ids
    return messages - own @ np.nan_to_num(messages) / own.sum(axis=1, keepdims=True), states


@bug(LocalWorkers, "collect", "isolation", plans.sampled)
def who_is_not_drawn_takes_part(honest, self, board, channel, coins):
    """All tasks are asked in rounds of which some should take part."""
    return honest(self, board, channel, np.full(len(coins), True))


SENSITIVITY_BUGS = tuple(each for each in vars().values() if isinstance(each, Bug))
