r"""Where a public mean settles, by what all rounds have said of it.

In each round tasks look from a public point :math:`x_t` and say how far from it their weights lie, clipped.
Around the point :math:`\nu` where that is zero on average, what is heard is

.. math:: g_t = a\,(\nu - x_t) + e_t

with noise :math:`e_t` of known variance and :math:`a \le 1`: tasks of few rows, or far away, move by less
than the point does. Both :math:`\nu` and a are fitted to all rounds, so that their noise averages out. Rounds
that looked from far away, where the line is none, count for less.

The points have noise of their own, from the rounds before. It cancels only if tasks' answers correct it: a
point that is too high is answered by lower offsets. Where clipping hides that, because the mean is so far
away that clipped offsets go one way whatever the point, it does not, and to that extent is in the variance.

The constants were chosen on generated tables, and mostly on splits of real ones other than those that
`benchmarks prior-accuracy` scores.
"""

from __future__ import annotations

import numpy as np

from cloister.arrays import Floats

__all__ = ["settled_mean"]

#: What a is thought to be before anything is heard, its deviation, and the least it may be: a mean
#: moves by ten times what is heard at most.
USUAL, USUAL_SD, LEAST = 0.4, 0.15, 0.1
#: How far, in clips, each number of the mean is thought to be from where tasks looked before anything is
#: heard. Loud noise then moves it by less: without that, it took noise for a mean at epsilon 0.05.
FAR = 1.0
#: What is heard from a point so far off, in clips, is thought wrong by this times the square of it:
#: clipping bends the line.
CURVED = 0.35
#: Noise below this part of a clip is not told from rounding, so that no round counts without limit.
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
    Tasks whose weights are 0.3 on average move by four tenths of what a point is off:

    >>> points, sure = np.array([[0.0], [0.2]]), np.full(2, 1e-4)
    >>> mean, variance = settled_mean(0.5, points, 0 * sure, 0.4 * (0.3 - points), sure)
    >>> mean.round(2).tolist()
    [0.3]
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
