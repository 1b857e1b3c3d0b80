r"""Where a public mean settles, by what all rounds have said of it.

In each round tasks look from a public point :math:`x_t` and say how far from it their weights lie, clipped.
Around the point :math:`\nu` where that is zero on average, what is heard is

.. math:: g_t = a\,(\nu - x_t) + e_t

with noise :math:`e_t` of known variance and :math:`a \le 1`: tasks of few rows, or far away, move by less
than the point does. Both :math:`\nu` and a are fitted to all rounds, so that their noise averages out. Rounds
that looked from far away, where the line is none, count for less.

Tasks that see a point err tell it back. Clipped offsets that all go one way, because the mean is farther than
any point so far, tell nothing else: as far as they do, the noise in the points themselves is left.
"""

from __future__ import annotations

import numpy as np

from cloister.arrays import Floats

__all__ = ["settled_mean"]

#: What a is thought to be before anything is heard, its deviation, and the least it may be.
USUAL, USUAL_SD, LEAST = 0.4, 0.15, 0.1
#: How far, in clips, each number of the mean is thought to be from where tasks looked before anything is
#: heard: loud noise moves it by less.
FAR = 1.0
#: What is heard from a point so far off, in clips, is thought wrong by this times the square of it.
CURVED = 0.35
#: Noise below this part of a clip is not told from rounding.
FINEST = 1e-3


def settled_mean(
    clip: float, points: Floats, noise: Floats, offsets: Floats, variances: Floats
) -> tuple[Floats, float]:
    """Return where offsets would be zero on average, and the variance of the noise in each number of it.

    Parameters
    ----------
    clip : float
        The longest offset that a task says.
    points, noise : arrays of shapes (rounds, weights) and (rounds,)
        Where tasks looked from, and the variance of the noise in each number of it.
    offsets, variances : arrays of shapes (rounds, weights) and (rounds,)
        Their mean offset, and the variance of the noise in each number of it.

    Examples
    --------
    >>> points, sure = np.array([[0.0], [0.2]]), np.full(2, 1e-4)
    >>> mean, variance = settled_mean(0.5, points, 0 * sure, 0.5 * (1.0 - points), sure)
    >>> mean.round(2).tolist()
    [1.21]
    """
    mean, size = points[-1], points.shape[1]
    for _ in range(8):  # how much a round counts depends on where the mean is
        away = np.square(points - mean).sum(axis=1) / clip
        weight = 1 / (variances + np.square(CURVED * away) / size + np.square(FINEST * clip))
        share = weight / weight.sum()
        center, heard = share @ points, share @ offsets
        x, g = points - center, offsets - heard
        slope = USUAL / USUAL_SD**2 - float(weight @ (x * g).sum(axis=1))
        slope /= 1 / USUAL_SD**2 + float(weight @ np.square(x).sum(axis=1))
        slope = min(max(slope, LEAST), 1.0)
        unsure = float(np.square(share) @ variances)
        gain = slope / (slope**2 + unsure / (FAR * clip) ** 2)
        mean = center + gain * heard
    one_way = min(1.0, max(0.0, float(heard @ heard) - size * unsure) / clip**2)
    return mean, gain**2 * unsure + one_way * float(share @ noise)
