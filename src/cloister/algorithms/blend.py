r"""Blends of a shared and a task's own model, and what tasks say together of how much to rely on the first.

A task weighs blends by how well they predict its own rows, held out. Where these are few they cannot tell,
but all tasks together can: asked for the part of the shared model in their best blend, they say two numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc

from cloister.arrays import Floats
from cloister.channel import Absolute, Channel

__all__ = [
    "CLASSES",
    "NUMBERS",
    "PARTS",
    "QUESTION",
    "UNHEARD",
    "Caution",
    "best_parts",
    "heard_part",
    "log_prior",
    "question_share",
]

#: Parts of the shared model in the blends that a task weighs, and where each one's share of a prior ends.
PARTS = np.linspace(0, 1, 5)
_ENDS = np.array([0.0, 0.125, 0.375, 0.625, 0.875, 1.0])
# WORTH, DOUBTS, both cautions and the 0.7 of `_sharpened` were tuned on generated tables, seeds 0 and 1
# (`benchmarks family-harm` scores others), FOLLOWED and MANY on School, Exam and Hsb82 as well.
#: How many rows the prior is worth, and up to how many a task follows it in full; from there on it fades.
WORTH, FOLLOWED = 4.0, 8.0
#: Rows from which on blends that are nearly alike can be told apart.
MANY = 16.0
#: How many standard errors what was heard is thought to be off, either way: caution takes what it likes best.
DOUBTS = 1.5
#: An error of the answer that is small enough, and one that makes it useless.
CLEAR, USELESS = 0.03, 0.5
#: The parts of the shared and of the own model that a task relies on: two numbers that add up to 1 at most.
QUESTION = Channel(2, 1.0, Absolute())
#: What a board says before anyone was asked: the part that tasks rely on, and its error.
UNHEARD = (0.0, math.inf)


@dataclass(frozen=True)
class Caution:
    """How far to rely on a shared model that little is known of.

    Parameters
    ----------
    steep : float
        How readily a task's answer counts in full. It does where the loss, as a parabola in the part of the
        shared model, has a curvature of 1 / `steep` or more, relative to the sum of the losses of the own
        and of the shared model. (Of more than `MANY` rows less is enough.)
    in_doubt, unheard : float
        The part of the shared model to expect if what was heard allows it, and if nothing was heard.
    """

    steep: float
    in_doubt: float
    unheard: float


#: Few squares are fooled easily, and the worst shared model is a hundred times worse than one's own. Log-loss
#: is mostly chance that no model foresees, and what it says of a bad one is clear.
NUMBERS, CLASSES = Caution(4.0, 0.05, 0.001), Caution(16.0, 0.2, 0.02)


def question_share(most: float, n_tasks: int, mu: float) -> float:
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
    return most * min(1.0, (error / CLEAR) ** 2) if error < USELESS else 1e-6


def best_parts(own: Floats, half: Floats, shared: Floats, rows: Floats, caution: Caution) -> Floats:
    r"""Return the two parts that each task says, (tasks, 2), from its held-out losses.

    They are losses of its own model, of half of each, and of the shared model.

    The loss of a blend is a parabola in the part of the shared model (for squares exactly), whose least value
    between 0 and 1 is at a. A task says :math:`w a` and :math:`w (1 - a)`; w is less than 1 where blends
    hardly differ.

    Examples
    --------
    >>> own, half, shared = np.array([1.0, 1.0]), np.array([0.5, 3.0]), np.array([1.0, 9.0])
    >>> best_parts(own, half, shared, np.array([8, 8]), NUMBERS).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    with np.errstate(all="ignore"):
        total, curvature = own + shared, 2 * (own + shared - 2 * half)
        part = np.clip(0.5 + (own - shared) / (2 * curvature), 0.0, 1.0)
        steep = caution.steep * np.maximum(1.0, rows / MANY)
        weight = np.clip(steep * curvature / total, 0.0, 1.0)
        said = np.stack([weight * part, weight * (1 - part)], axis=1)
    return np.where(np.isfinite(said), said, 0.0)


def heard_part(value: Floats, noise: float, n_tasks: float) -> Floats:
    """Return the part that so many tasks rely on, and its error; infinite if noise hides it.

    Examples
    --------
    >>> heard_part(np.array([30.0, 10.0]), noise=2.0, n_tasks=50).round(3).tolist()
    [0.75, 0.04]
    >>> heard_part(np.array([30.0, 10.0]), noise=30.0, n_tasks=50).tolist()
    [0.0, inf]
    """
    if noise > USELESS * n_tasks:
        return np.array(UNHEARD)
    total = max(float(value.sum()), noise, 1e-300)
    part = min(1.0, max(0.0, float(value[0]) / total))
    return np.array([part, noise * math.hypot(part, 1 - part) / total])


def log_prior(heard: Floats, rows: Floats, caution: Caution) -> Floats:
    """Return the log weights of blends before tasks of so many rows look at them, (`PARTS`, tasks).

    A beta distribution around a part of the shared model: the one nearest to what is expected in doubt that
    what was heard allows. Answers of few rows are drawn to a half from either side by chance, and relying
    too much costs more than too little: odds are squared, and then lowered by three tenths. The more rows a
    task has, the less it needs the prior.

    Examples
    --------
    >>> np.exp(log_prior(np.array(UNHEARD), np.full(1, 5.0), NUMBERS)).round(3).T.tolist()
    [[0.998, 0.002, 0.0, 0.0, 0.0]]
    >>> np.exp(log_prior(np.array([0.9, 0.05]), np.full(1, 5.0), NUMBERS)).round(2).T.tolist()
    [[0.0, 0.0, 0.02, 0.13, 0.84]]
    """
    part, error = map(float, heard)
    expected = caution.unheard
    if math.isfinite(error):
        low, high = (_sharpened(part + away) for away in (-DOUBTS * error, DOUBTS * error))
        expected = min(max(caution.in_doubt, low, caution.unheard), max(high, caution.unheard), 0.99)
    mass = np.diff(betainc(WORTH * expected, WORTH * (1 - expected), _ENDS))
    with np.errstate(divide="ignore"):
        fading = np.minimum(1.0, FOLLOWED / rows)
    return np.asarray(np.log(np.maximum(mass, 1e-30))[:, None] * fading)


def _sharpened(part: float) -> float:
    part = min(max(part, 1e-6), 1 - 1e-6)
    odds = 0.7 * (part / (1 - part)) ** 2
    return odds / (1 + odds)
