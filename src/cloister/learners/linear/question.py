"""Questions about a prior's scale: what tasks say in one small message, beside where their weights lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cloister.arrays import Floats, States
from cloister.channel import Channel
from cloister.learners.linear.average import Candidate

if TYPE_CHECKING:
    from cloister.tasks import Block

__all__ = ["Candidates", "Question", "Said", "centred", "tempered"]

Candidates: TypeAlias = Sequence[Candidate]
#: What became of the answers, by the question's name; empty where nobody asked.
Said: TypeAlias = Mapping[str, Floats]


@dataclass(frozen=True)
class Question:
    """One round of a shared prior that is not about weights.

    Parameters
    ----------
    name : str
        What it is called on the board.
    channel : Channel
        What may leave a task.
    unknown : tuple of float
        What the board says before anyone is asked.
    answer : callable
        From states, a block, the candidate priors and what was said so far to one message a task.
    update : callable
        From the noisy sum of answers and its noise's deviation to what the board says.
    """

    name: str
    channel: Channel
    unknown: tuple[float, ...]
    answer: Callable[[States, Block, Candidates, Said], Floats]
    update: Callable[[Floats, float], Floats]


def centred(log_evidence: Floats) -> Floats:
    """Return a task's log evidence on a grid (last axis), less its mean: all of it that can compare."""
    return np.asarray(log_evidence - log_evidence.mean(axis=-1, keepdims=True))


def tempered(total: Floats, noise: float) -> Floats:
    """Turn a noisy sum of log evidence into log weights that trust it no further than its noise allows."""
    score = total / max(1.0, noise)
    top = score.max()
    return np.asarray(score - top - np.log(np.exp(score - top).sum()))
