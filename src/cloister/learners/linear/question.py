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

#: How far the tasks' trust in the shared priors may lie from what it is thought to be before they are asked,
#: and the least and the most weight of the own prior.
TRUST_SD, LEAST_OWN, MOST_OWN = 0.25, 0.03, 0.98

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


def trust_question(answer: Callable[[Home, Candidates, Answers], Floats]) -> Question:
    """Ask how likely the shared priors are, and the own one: two parts of one, of sensitivity sqrt(2)."""
    return Question(
        "trust",
        "how far tasks rely on what they share",
        Channel(2, 1.0, Absolute()),
        (0.0, math.inf),
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


def relied_on(candidates: Candidates, answers: Answers) -> list[Candidate]:
    r"""Weigh shared priors as a task may that cannot tell: by what was heard of them, and by nothing else.

    Any share s of tasks, between 0 and 1, may be explained by them. Heard with an error e it counts as
    :math:`s / (1 + 3 e^2)`, which is nearest to it on average: :math:`E[s^2] = 1/3`. Not heard it is zero,
    and so is the weight of a mean that is all noise.
    """
    before = sum(candidate.weight for candidate in candidates)
    share, error = map(float, answers.get("trust", (0.0, math.inf)))
    share = min(share / (1 + 3 * error**2), 1 - LEAST_OWN)
    found = [replace(c, weight=c.weight * c.heard * share / before) for c in candidates]
    return [candidate for candidate in found if candidate.weight > 0]


def trusted(candidates: Candidates, answers: Answers) -> list[Candidate]:
    """Weigh shared priors by the share of tasks that they explain, as far as that stands out of the noise.

    Where a task's few rows cannot tell, the others can: a step of expectation-maximisation on the weight of
    the own prior, taken over all tasks.
    """
    before = sum(candidate.weight for candidate in candidates)
    asked = "trust" in answers and np.isfinite(answers["trust"][1])
    if not asked or not candidates or before > 1 - 1e-9:  # a task without rows has no prior of its own
        return list(candidates)
    share, error = map(float, answers["trust"])
    share = (before * error**2 + share * TRUST_SD**2) / (error**2 + TRUST_SD**2)
    share = min(max(share, 1 - MOST_OWN), 1 - LEAST_OWN)
    return [replace(candidate, weight=candidate.weight * share / before) for candidate in candidates]
