r"""Pooled moments: what the records of all tasks say together of where weights lie, told record by record.

A record contributes :math:`z = (x, \mathrm{clip}_c(y - x'\nu) / c)`, seen from a public point :math:`\nu`.
The sum of :math:`zz'` has the moments S of rows x, their score b with the residuals, and the residuals'
square. Near the mean :math:`\omega` of the weights of all records,

.. math:: b = \kappa S (\omega - \nu) + e,

:math:`\kappa` being the share of residuals that are not clipped or, of classes, the mean slope of their
chances (`Residuals`). S is known with noise, which does harm as far as the point is from the mean; so records
look again, from where they last said that the mean is. Under replace the moments are free:
:math:`\|zz' - uu'\|_F \le 2 \sqrt2` for :math:`|z|^2, |u|^2 \le 2`, which in b is a noise of 2c, the price of
the score alone.

What is made of the sums is public post-processing, hence free.

References
----------
Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction & estimation in
unbounded domain", UAI 2018: AdaSSP, one round from zero and a point estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloister.algorithms.constants import POOLED
from cloister.core.arrays import Array, Floats
from cloister.core.lifts import unsvec
from cloister.learners.linear.residuals import Linear, Residuals

#: Longest contribution: a row of length 1, and a residual of one clip.
LONGEST = math.sqrt(2)


def contributions(residuals: Residuals, X: Array, y: Array, point: Floats, clip: float) -> Floats:
    """Return what each record says, seen from a public point: its row and its residual, in clips.

    Examples
    --------
    >>> from cloister.learners.linear.residuals import OfNumbers
    >>> X, y = np.eye(2), np.array([0.3, 9.0])
    >>> contributions(OfNumbers(), X, y, np.array([0.1, 0.0]), 0.5).round(2).tolist()
    [[1.0, 0.0, 0.4], [0.0, 1.0, 1.0]]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        residual = residuals.residual(X, y, point, clip) / clip
    return np.concatenate([residuals.rows(X), residual[..., None]], axis=-1)


@dataclass(frozen=True, eq=False)
class Look:
    """What records said in one round. Public.

    Attributes
    ----------
    residuals : Residuals
        What they say of their targets.
    point : array of shape (d,)
        Where they looked from.
    clip, level : float
        How large residuals could be, and their deviation.
    moments, score : arrays of shapes (d, d) and (d,)
        Sums over records of rows' outer products, and of rows times residuals.
    noise, score_noise : float
        Deviations of the noise on the diagonal of the moments, and in the score.
    """

    residuals: Residuals
    point: Floats
    clip: float
    level: float
    moments: Floats
    score: Floats
    noise: float
    score_noise: float

    @classmethod
    def of(
        cls, residuals: Residuals, point: Floats, clip: float, records: float, value: Floats, noise: float
    ) -> Look:
        """Read a release on a channel of clip `LONGEST`, and the deviation of its noise."""
        size = len(point)
        total = LONGEST**2 * unsvec(value, size + 1)
        level = residuals.level(float(total[size, size]) / records, clip)
        scores, noises = clip * total[:size, size], (LONGEST**2 * noise, math.sqrt(2) * clip * noise)
        return cls(residuals, point, clip, level, total[:size, :size], scores, *noises)

    def linear(self, around: Floats, moments: Floats) -> Linear:
        """Return what a record's part of the score is about, near some weights."""
        return self.residuals.linear(self.point, self.clip, self.level, around, moments)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the mean of the weights is: its posterior mean and covariance, and the mean moments of rows."""

    mean: Floats
    covariance: Floats
    moments: Floats

    @classmethod
    def before(cls, size: int, variance: float) -> Place:
        """Return what is known beforehand of targets with this variance: slopes may explain twice as much."""
        spread = np.full(size, 2 * variance * size / max(size - 1, 1))
        spread[0] = size * variance
        return cls(np.zeros(size), np.diag(spread), np.eye(size) / size)


def posterior(looks: Sequence[Look], records: float, before: Place, usual: Floats | None = None) -> Place:
    """Return where the mean is by all looks so far.

    Parameters
    ----------
    looks : sequence of Look
        What was said.
    records : float
        How many records said it.
    before : Place
        What was known beforehand.
    usual : array of shape (d, d), optional
        What noisy moments are drawn towards, say a task's own; by default a multiple of the identity.

    Examples
    --------
    >>> from cloister.learners.linear.residuals import OfNumbers
    >>> look = Look(OfNumbers(), np.zeros(1), 9.0, 0.5, np.array([[50.0]]), np.array([15.0]), 0.0, 0.0)
    >>> posterior([look], 50, Place.before(1, 0.1)).mean.round(2).tolist()
    [0.29]
    """
    told = np.array([1 / max(look.noise, 1e-9 * records) ** 2 for look in looks])
    sums = np.einsum("t,tij->ij", told / told.sum(), np.array([look.moments for look in looks]))
    moments, error = shrunk(sums / records, 1 / (math.sqrt(told.sum()) * records), usual)
    place = Place(looks[-1].point, before.covariance, moments)
    for _ in range(looks[-1].residuals.passes):
        found = _near(place, looks, records, before, error)
        place = replace(found, mean=looks[-1].residuals.step(place.mean, found.mean, moments))
    return place


def _near(place: Place, looks: Sequence[Look], records: float, before: Place, error: float) -> Place:
    """Return where the mean is if what is expected of records is linear around some place."""
    size, found = len(before.mean), []
    linear = [look.linear(place.mean, place.moments) for look in looks]
    for width, weight in POOLED.widths:
        scale = np.append(1.0, np.full(size - 1, width))
        variances, parts = scale * np.diag(before.covariance), zip(looks, linear, strict=True)
        worth, mean, covariance = _under(variances, tuple(parts), records, place.moments, error)
        found.append((math.log(weight) + worth, mean, covariance))
    worths, means, covariances = (np.array(part) for part in zip(*found, strict=True))
    share = np.exp(worths - np.logaddexp.reduce(worths))
    mean = share @ means
    away = means - mean
    return Place(mean, np.einsum("k,kij->ij", share, covariances) + (share * away.T) @ away, place.moments)


def _under(
    variances: Floats,
    looks: Sequence[tuple[Look, Linear]],
    records: float,
    moments: Floats,
    error: float,
) -> tuple[float, Floats, Floats]:
    """Return log evidence, mean and covariance under one prior of weights around zero."""
    size, covariance = len(variances), np.diag(variances)
    told, precision, worth = np.zeros(size), np.diag(1 / variances), 0.0
    for look, linear in looks:
        slope = linear.share * records * moments
        away = float(np.trace(covariance))  # how far records looked from the mean
        variance = look.score_noise**2 + (linear.share * records * error) ** 2 * away
        variance += records * look.level**2 / size + records**2 * linear.unsure
        seen = look.score + slope @ linear.at + records * linear.gap
        precision = precision + slope @ slope / variance
        told = told + slope @ seen / variance
        worth -= 0.5 * (size * math.log(variance) + float(seen @ seen) / variance)
        covariance = np.asarray(np.linalg.inv(precision))
    mean = covariance @ told
    worth += 0.5 * (float(told @ mean) + np.linalg.slogdet(covariance)[1] - np.log(variances).sum())
    return float(worth), mean, covariance


def shrunk(moments: Floats, noise: float, usual: Floats | None = None) -> tuple[Floats, float]:
    """Return noisy mean moments, drawn towards usual ones, and what error is left in a number.

    Numbers off the diagonal have half the noise's variance. Each kind is drawn as far as its spread is noise.
    """
    size = len(moments)
    mean = max(float(np.trace(moments)) / size, POOLED.least / size)
    target = mean * np.eye(size) if usual is None else usual
    away, off = moments - target, ~np.eye(size, dtype=bool)
    kept, left = np.zeros_like(away), 0.0
    for part, variance in ((off, noise**2 / 2), (~off, noise**2)):
        if part.any():
            signal = float(np.mean(away[part] ** 2)) - variance
            signal = max(signal, POOLED.signal * variance, 1e-12 * mean**2)
            kept[part] = signal / (signal + variance)
            left += float(kept[part].sum()) * variance
    values, vectors = np.linalg.eigh(target + kept * away)
    return np.asarray((vectors * np.maximum(values, POOLED.least * mean)) @ vectors.T), math.sqrt(left) / size
