r"""What a method that protects single rows must pay to protect a task: group privacy, as the papers do it.

A method that is :math:`(\epsilon, \delta)`-private for one row is private for a task of n rows with the
budget of a group of n. These are statements about other people's mechanisms, for the sake of comparison.
Nothing in the library relies on them: its own channels bound what a whole task can say.

References
----------
J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang, "Model-protected multi-task learning",
arXiv:1809.06546, Definition 7 and Proposition 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloister.errors import InputError
from cloister.privacy.accountants import composition_bound


def instance_budget(
    epsilon: float, delta: float, size: int, *, published: bool = False
) -> tuple[float, float]:
    """Return what one row may be charged so that a task of `size` rows pays (epsilon, delta).

    The inverse of `group_privacy` or, as published, of Proposition 3, which leaves less for a row. Replacing
    a whole task is `size` steps only if sizes are public and equal, or if a step may add or remove a row.

    Parameters
    ----------
    epsilon, delta : float
        Budget of a task.
    size : int
        Rows of the largest task; the paper takes it to be public.
    published : bool
        Whether to convert by Proposition 3.

    Examples
    --------
    >>> epsilon, delta = instance_budget(1.0, 1e-3, 30)
    >>> f"{epsilon:.4f} {delta:.3g} {instance_budget(1.0, 1e-3, 30, published=True)[1]:.3g}"
    '0.0333 1.97e-05 1.23e-05'
    """
    if not (0 < epsilon < math.inf and 0 <= delta < 1 and size >= 1):
        raise InputError(
            "epsilon must be > 0 and finite, delta in [0, 1) and the group at least 1. "
            f"Got epsilon={epsilon}, delta={delta}, size={size}."
        )
    row = epsilon / size
    if published:
        return row, delta * math.exp(-epsilon) / size
    # delta (e^row - 1) / (e^epsilon - 1), in a form that does not overflow
    return row, delta * math.exp(row - epsilon) * math.expm1(-row) / math.expm1(-epsilon)


def round_budgets(epsilon: float, delta: float, shape: Sequence[float]) -> tuple[float, ...]:
    """Return the largest budgets of this shape, one a round, whose `composition_bound` is at most epsilon.

    Examples
    --------
    >>> round_budgets(1.0, 1e-3, [1.0, 1.0])
    (0.5, 0.5)
    """

    def spent(scale: float) -> float:
        return composition_bound([scale * part for part in shape], delta)

    low, high = 0.0, 1.0
    while spent(high) <= epsilon:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= epsilon else (low, middle)
    return tuple(low * part for part in shape)


def aggregation_scale(
    epsilon: float, sizes: Sequence[int], lam: float, slope: float = 1.0, group: int | None = None
) -> float:
    r"""Return the scale s of the noise :math:`\propto e^{-|b|/s}` that DP-AGGR adds to an average of models.

    One row moves the average of m models, each strongly convex with `lam` and with losses whose gradient is
    at most `slope`, by at most :math:`2\,\mathrm{slope}/(n_{\min} m \lambda)`. The noise is pure, so both
    group bounds agree: a task of :math:`n_{\max}` rows costs :math:`n_{\max}` times as much.

    Parameters
    ----------
    epsilon : float
        For a whole task, or for a group of rows.
    sizes : sequence of int
        Rows of each task; the paper takes them to be public.
    lam, slope : float
        As above.
    group : int, optional
        Rows that may change at once; by default those of the largest task. 1 is what the paper protects.

    References
    ----------
    M. Pathak, S. Rane and B. Raj, "Multiparty differential privacy via aggregation of locally trained
    classifiers", NeurIPS 2010, section 3.

    Examples
    --------
    >>> sizes = [30] * 320
    >>> task, row = aggregation_scale(1.0, sizes, lam=0.1), aggregation_scale(1.0, sizes, lam=0.1, group=1)
    >>> round(task, 6), round(row, 6)
    (0.0625, 0.002083)
    """
    budget, _ = instance_budget(epsilon, 0.0, max(sizes) if group is None else group)
    return 2 * slope / (min(sizes) * len(sizes) * lam) / budget
