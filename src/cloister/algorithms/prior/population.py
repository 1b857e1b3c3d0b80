r"""The mean of the tasks' weights as a board of `SharedPrior` has it, and how surely.

In round t all tasks look from a public point :math:`x_t` and say how far their weights lie from it, by ridge
regression and clipped. Near the point :math:`\nu` where that is zero on average, the mean of messages is

.. math:: g_t = A\,(\nu - x_t) + e_t, \qquad e_t \sim N(0, s_t^2 I),

where A, with eigenvalues in (0, 1], is how strongly offsets answer to a move of the point: less than 1 the
fewer rows tasks have, and the more of them are clipped. :math:`\nu` is the mean of the tasks' weights (a
robust one: clipped offsets are what Huber's estimator sums). The estimate of it is the one that priors are
around, `cloister.algorithms.prior.mean.estimate_root`, which takes a multiple of the identity for A: with
little noise that is as good, and with much of it better. How far off it may be is a matter of all of A,
which is read off the rounds: a regression of :math:`g_t` on :math:`x_t` with a known variance.

The error has four parts: the noise, exactly known; which tasks there are, by the second moment C of what they
said, :math:`C/m` (the sandwich :math:`A^{-1} (C/m) A^{-1}`); that A is uncertain; and how far the estimate
lies from where that regression has its zero. All of it is public post-processing, hence free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloister.algorithms.constants import MEAN, POPULATION
from cloister.algorithms.prior.mean import Line
from cloister.algorithms.prior.structure import Structure
from cloister.core.arrays import Array, Floats
from cloister.learners.learner import BayesianLearner

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView


@dataclass(frozen=True, eq=False)
class _Rounds:
    """Of each round: where tasks looked from, their mean offset, its noise, and their second moment."""

    points: Floats
    offsets: Floats
    noise: Floats
    moments: Floats | None
    tasks: float


def population_mean(
    learner: BayesianLearner, structure: Structure, board: BoardView, rounds: Sequence[int]
) -> tuple[Floats, Floats | None, Floats | None] | None:
    """Return mean, covariance and scatter of a `Population`; None if the mean did not stand out.

    Parameters
    ----------
    learner, structure : BayesianLearner, Structure
        What tasks do, and what they tell each other; it says a mean.
    board : BoardView
        The board.
    rounds : sequence of int
        The numbers of the rounds in which tasks say where their weights lie.
    """
    if "since" not in board or int(board["since"]) == 0:
        return None
    seen = _read(learner, structure, board, rounds)
    line = Line.through(learner.clip, seen.points, seen.offsets, np.square(seen.noise))
    response = _Response.of(line, seen.points, seen.offsets)
    center = response.zero
    mean = structure.without_groups(learner, board.releases[rounds[-1]], board)[0]
    if seen.moments is None:
        return mean, None, None
    moment = _positive(np.einsum("t,tij->ij", line.share, seen.moments))
    back = np.linalg.inv(response.matrix)
    error = response.error(moment / seen.tasks)
    if error is not None:
        error = error + np.outer(mean - center, mean - center)
    return mean, error, back @ moment @ back


def _read(learner: BayesianLearner, structure: Structure, board: BoardView, rounds: Sequence[int]) -> _Rounds:
    points, offsets, noise, moments = [], [], [], []
    for number in rounds:
        point, release, part = structure.without_groups(learner, board.releases[number], board.before(number))
        lift = structure.channels(learner)[release.channel].lift
        size, tasks = learner.size, release.denominator
        scale = learner.clip / (math.sqrt(part) * float(lift.weights(size)[0][0]) * tasks)
        points.append(point)
        offsets.append(scale * learner.weights_of(release.value[:size]))
        noise.append(scale * release.noise)
        outer = lift.second_moment(release.value, size)
        if outer is not None:
            moments.append(learner.clip**2 * outer / tasks)
    found = np.array(moments) if len(moments) == len(points) else None
    return _Rounds(np.array(points), np.array(offsets), np.array(noise), found, tasks)


@dataclass(frozen=True, eq=False)
class _Response:
    """How offsets answer to the point tasks look from: the zero of a line, its slope A, and their errors.

    Rows of A are independent given the noise. That of number j has a prior with deviations `on` and `off`
    around a multiple of the identity, and the posterior covariance ``prior_j - spans[j].T @ spans[j]``.
    """

    zero: Floats
    matrix: Floats
    level: float
    center: Floats
    usual: float
    spans: Sequence[Floats]

    @classmethod
    def of(cls, line: Line, points: Floats, offsets: Floats) -> _Response:
        weight, center, middle = line.weight, line.center, line.middle
        x, g, usual = points - center, offsets - middle, min(line.slope, POPULATION.steepest)
        matrix, spans = np.empty((x.shape[1], x.shape[1])), []
        for j, row in enumerate(matrix):
            prior = _variances(usual, len(matrix), j)
            spread = prior * x
            root = np.linalg.inv(np.linalg.cholesky(np.diag(1 / weight) + spread @ x.T))
            spans.append(root @ spread)
            row[:] = spans[-1].T @ (root @ (-g[:, j] - usual * x[:, j]))
            row[j] += usual
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        values = np.clip(values, MEAN.least, 1.0)
        matrix = (vectors * values) @ vectors.T
        zero = center + (vectors / values) @ (vectors.T @ middle)
        return cls(zero, matrix, 1 / float(weight.sum()), center, usual, spans)

    def error(self, sampling: Floats) -> Floats | None:
        """Return the covariance of the zero, if the mean offset has this one beside the noise's.

        What the uncertainty of A adds depends on how far the zero may lie from where tasks looked from, which
        is the covariance itself: a geometric series of matrices. None if it has no sum.
        """
        back, size = np.linalg.inv(self.matrix), len(self.matrix)
        away = self.zero - self.center
        inside = self.level * np.eye(size) + sampling
        first = self._variances(np.column_stack([back @ np.linalg.cholesky(inside), away])).sum(axis=1)
        again = self._variances(back)
        if np.abs(np.linalg.eigvals(again)).max() >= 1:
            return None
        return np.asarray(back @ (inside + np.diag(np.linalg.solve(np.eye(size) - again, first))) @ back)

    def _variances(self, moves: Array) -> Floats:
        """Return the variance of each row of A along each of some moves, its columns."""
        size = len(self.matrix)
        rows = [
            _variances(self.usual, size, j) @ np.square(moves) - np.square(span @ moves).sum(axis=0)
            for j, span in enumerate(self.spans)
        ]
        return np.array(rows)


def _variances(usual: float, size: int, j: int) -> Floats:
    """Return the prior variances of row j of A."""
    variances = np.full(size, (POPULATION.off * usual) ** 2 / size)
    variances[j] = (POPULATION.on * usual) ** 2
    return variances


def _positive(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
