"""Questions about a prior's scale: what tasks say in one small message, beside where their weights lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.channel import Channel
from cloister.core.lifts import Absolute
from cloister.learners.home import Home
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.home_constants import TRUST

#: What a board says of a share before anyone was asked: the share, and its error.
UNHEARD = (0.0, math.inf)

Candidates: TypeAlias = Sequence[Candidate]
#: What became of the answers, by the question's name; empty where nobody asked.
Answers: TypeAlias = Mapping[str, Floats]


@dataclass(frozen=True)
class Question:
    """One round of a shared prior that is not about weights.

    Parameters
    ----------
    name : str
        What it is called on the board.
    about : str
        What it asks, in a few words.
    channel : Channel
        What may leave a task.
    unknown : tuple of float
        What the board says before anyone is asked.
    answer : callable
        From tasks at home, the candidate priors and earlier answers to one message a task.
    update : callable
        From the noisy sum of answers and its noise's deviation to what the board says.
    """

    name: str
    about: str
    channel: Channel
    unknown: tuple[float, ...]
    answer: Callable[[Home, Candidates, Answers], Floats]
    update: Callable[[Floats, float], Floats]


def centred(log_evidence: Floats) -> Floats:
    """Return a task's log evidence on a grid (last axis), less its mean: all of it that can compare."""
    return np.asarray(log_evidence - log_evidence.mean(axis=-1, keepdims=True))


def tempered(total: Floats, noise: float) -> Floats:
    """Turn a noisy sum of log evidence into log weights that trust it no further than its noise allows."""
    score = total / max(1.0, noise)
    top = score.max()
    return np.asarray(score - top - np.log(np.exp(score - top).sum()))


def usual_place(total: Floats, noise: float, grid: Floats) -> Floats:
    """Return center and deviation of the place on a grid that explains the tasks best, by a noisy sum."""
    mass = np.exp(tempered(total, noise))
    center = float(mass @ grid)
    return np.array([center, max(TRUST.scale_sd, math.sqrt(float(mass @ (grid - center) ** 2)))])


def trust_question(answer: Callable[[Home, Candidates, Answers], Floats]) -> Question:
    """Ask how likely the shared priors are, and the own one: two parts of one, of sensitivity sqrt(2)."""
    return Question(
        "trust",
        "how far tasks rely on what they share",
        Channel(2, 1.0, Absolute()),
        UNHEARD,
        answer,
        _usual_trust,
    )


def _usual_trust(value: Floats, noise: float) -> Floats:
    """Return the share of tasks that the shared priors explain, and its error; infinite if noise hides it."""
    total = float(value.sum())
    if total <= 2 * noise:
        return np.array([0.0, np.inf])
    return np.array(share_and_error(float(value[0]), total, noise))


def share_and_error(part: float, total: float, noise: float) -> tuple[float, float]:
    """Return the share that one of two noisy sums has of both, and its error, to first order.

    Examples
    --------
    >>> share_and_error(30.0, 40.0, noise=2.0)
    (0.75, 0.03952847075210474)
    """
    share = min(1.0, max(0.0, part / total))
    return share, noise * math.hypot(share, 1 - share) / total


def believed(before: float, answer: Floats) -> float:
    """Return the share to believe in: the nearest to the one before of those that the answer allows.

    It allows what is within one and a half errors, and anything if it was not heard.

    Examples
    --------
    >>> [believed(0.8, np.array([0.3, error])) for error in (0.1, 0.5, math.inf)]
    [0.45, 0.8, 0.8]
    """
    share, error = map(float, answer)
    return min(max(before, share - TRUST.doubts * error), share + TRUST.doubts * error)


def heard(candidates: Candidates) -> list[Candidate]:
    """Weigh candidates by how much of their mean is not noise: what nobody was heard about has no weight."""
    return [replace(c, weight=c.weight * c.heard) for c in candidates if c.heard > 0]


def relied_on(candidates: Candidates, answers: Answers) -> list[Candidate]:
    """Weigh shared priors as a task may that cannot tell: by what was heard of them, and by nothing else.

    It takes a majority beyond doubt, as useless slopes look better than none to about half of the tasks. The
    weight of a mean that is all noise is zero, too.
    """
    share = min(believed(0.0, answers.get("trust", np.array(UNHEARD))), 1 - TRUST.least)
    if share <= 0.5:
        return []
    before = sum(candidate.weight for candidate in candidates)
    found = [replace(c, weight=c.weight * c.heard * share / before) for c in candidates]
    return [candidate for candidate in found if candidate.weight > 0]


def trusted(candidates: Candidates, answers: Answers) -> list[Candidate]:
    """Weigh shared priors by the share of tasks that they explain, as far as that stands out from the noise.

    Where a task's few rows cannot tell, the others can: a step of expectation-maximisation on the weight of
    the own prior, taken over all tasks.
    """
    before = sum(candidate.weight for candidate in candidates)
    asked = "trust" in answers and np.isfinite(answers["trust"][1])
    if not asked or not candidates or before > 1 - 1e-9:  # a task without rows has no prior of its own
        return list(candidates)
    share = min(max(believed(before, answers["trust"]), TRUST.least), 1 - TRUST.least)
    return [replace(candidate, weight=candidate.weight * share / before) for candidate in candidates]


def votes(own: Floats, blend: Floats) -> Floats:
    """Return whether a blend has a smaller error than the own model, yes or no in two numbers, (tasks, 2).

    Who sees no difference says nothing. What is at stake is not told: rare and large losses would be clipped,
    and small gains drowned in noise. So a shared model is only relied on where most say yes.

    Examples
    --------
    >>> votes(np.array([1.0, 1.0, 1.0]), np.array([0.9, 5.0, 1.0])).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    return np.stack([blend < own, blend > own], axis=1).astype(np.float64)
