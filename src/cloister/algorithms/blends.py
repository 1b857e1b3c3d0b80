"""Blends of a shared and a task's own model: what tasks are asked, and what follows before they look.

Tasks say yes, no or nothing to whether a little of the shared model is better than none. The board has the
share that said yes, and its error; each task's prior of blends is made of these. All of it is public.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc

from cloister.algorithms.constants import STACKING
from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Absolute
from cloister.learners.linear.home_constants import TRUST
from cloister.learners.linear.question import UNHEARD, believed, share_and_error

#: Parts of the shared model in the blends that a task weighs, and where each one's share of a prior ends.
PARTS = np.linspace(0, 1, 1 + round(1 / TRUST.little))
_ENDS = np.concatenate([[0.0], (PARTS[1:] + PARTS[:-1]) / 2, [1.0]])
#: Yes or no, in two numbers; by rows those of tasks with rows to spare, then those of tasks with few.
QUESTION, BY_ROWS = Channel(2, 1.0, Absolute()), Channel(4, 1.0, Absolute())


def question_share(most: float, n_tasks: float, mu: float) -> float:
    """Return the share of the squared budget that buys the answer: as much as is needed, `most` at most.

    Next to nothing if even so noise would hide it.

    Examples
    --------
    >>> [round(question_share(0.1, m, mu=0.3), 6) for m in (20, 100, 1000)]
    [1e-06, 0.1, 0.024691]
    """
    if math.isinf(mu):
        return most
    error = math.sqrt(2) / (n_tasks * mu * math.sqrt(most))
    return most * min(1.0, (error / STACKING.clear) ** 2) if error < STACKING.useless else STACKING.nothing


def estimated_share(value: Floats, noise: float, n_tasks: float) -> Floats:
    """Return the share of so many tasks that said yes, and its error; infinite if noise hides it.

    Examples
    --------
    >>> estimated_share(np.array([30.0, 10.0]), noise=2.0, n_tasks=50).round(3).tolist()
    [0.75, 0.04]
    >>> estimated_share(np.array([30.0, 10.0]), noise=30.0, n_tasks=50).tolist()
    [0.0, inf]
    """
    if noise > STACKING.useless * n_tasks:
        return np.array(UNHEARD)
    total = max(float(value.sum()), noise, 1e-300)
    return np.array(share_and_error(float(value[0]), total, noise))


def majorities(answers: Floats) -> tuple[float, float]:
    """Return how far tasks rely on the shared model before they look: with rows to spare, with few.

    That is yes less no, of all, by the least share that the answer allows: nothing is above zero that is not
    beyond doubt. What those of about as many rows say goes before what all say, if it says anything.

    Parameters
    ----------
    answers : array of shape (2,) or (3, 2)
        The share that said yes, and its error: of all tasks, of those with rows to spare, of those with few.

    Examples
    --------
    >>> heard, unheard = (0.9, 0.1), UNHEARD
    >>> [round(one, 2) for one in majorities(np.array([heard, (0.95, 0.1), (0.4, 0.2)]))]
    [0.6, -0.2]
    >>> [round(one, 2) for one in majorities(np.array([heard, unheard, (1.0, 0.05)]))]
    [0.5, 0.85]
    """
    everyone, *by_rows = answers.reshape(-1, 2)
    least = believed(0.0, everyone)
    many, few = (
        max(believed(0.0, one), min(least, float(one[0]))) if one[1] < STACKING.useless else least
        for one in by_rows or (everyone, everyone)
    )
    return 2 * many - 1, 2 * few - 1


def log_prior(majority: float) -> Floats:
    """Return the log weights of blends before tasks look at their rows, one for each of `PARTS`.

    A beta distribution around the majority that relies on the shared model, worth as much as the flat one, so
    that few rows of one's own can speak against it; without a majority all of it is on none.

    Examples
    --------
    >>> np.exp(log_prior(0.5)).round(3).tolist()
    [0.125, 0.25, 0.25, 0.25, 0.125]
    """
    if majority <= 0:
        return np.where(PARTS == 0, 0.0, -np.inf)
    expected = min(majority, STACKING.surest)
    mass = np.diff(betainc(2 * expected, 2 * (1 - expected), _ENDS))
    return np.asarray(np.log(np.maximum(mass, 1e-30)))
