r"""Bayesian logistic and multinomial regression, for a whole block of tasks at once.

Class 0 is the reference: with :math:`C` classes a task has :math:`q = C - 1` weight vectors :math:`v_c`, and

.. math:: p(y = c \mid x) \propto e^{s_c}, \qquad s_0 = 0, \quad s_c = o_c + x^\top v_c,

with a given offset :math:`o`. Two classes are plain logistic regression. The prior treats all classes alike,
the reference included: :math:`v \sim N(0, t K \otimes I)` with :math:`K = (I + 11^\top)/2` is what the
differences from class 0 have if all C classes have weights of their own, of variance :math:`t/2`. With
:math:`AA^\top = K` the mode is :math:`v = (A \otimes I) u` for the :math:`u` that minimises

.. math:: f(u) = -\sum_n a_n \log p(y_n \mid x_n) + \frac{|u|^2}{2t}

with :math:`a_n` the weight of row :math:`n`. A prior :math:`w \sim N(m, t K \otimes L L^\top)` is the same
problem on the features :math:`x L` with offset :math:`x m`; then :math:`w = m + (I \otimes L) v`.

Notes
-----
*Every step goes down.* Along a direction :math:`s`, the third derivative of :math:`f` is a sum of third
cumulants of the change in score, so it is at most :math:`\beta` times the second, where :math:`\beta` is
the largest spread over the classes of that change in any row. Hence, for the Newton direction with
decrement :math:`\lambda` and :math:`\varphi(\tau) = f(v + \tau s)`,

.. math:: \varphi'(\tau) \le -\lambda^2 + \lambda^2 (e^{\beta\tau} - 1) / \beta .

So the slope is still downhill at :math:`\tau = \log(1 + \beta) / \beta`, and, by integration, the full step
gains at least :math:`0.28 \lambda^2` if :math:`\beta \le 1`. That is where a step starts; a long one is then
doubled for as long as the slope at its end is downhill. No data can make it fail, separable or not, and
the last steps are full, so that convergence is fast.

*Few weights* are solved for by Cholesky factors, all tasks at once. *More than* 32 are solved for by
conjugate gradients on the Newton equations, with the preconditioner

.. math:: I + t\, A^\top\! \bar S A \otimes \sum_n a_n x_n x_n^\top, \qquad
    \bar S = \sum_n a_n (\mathrm{diag}\, p_n - p_n p_n^\top) / \sum_n a_n,

whose inverse is cheap in the eigenvectors of its two factors. Conjugate gradients from zero stop at a step
:math:`s` whose residual is orthogonal to it, so that :math:`-s^\top \nabla f = s^\top \nabla^2\! f\, s =
\lambda^2` and all of the above holds for a step that is not quite Newton's. A task that they do not
serve (absurd numbers) is solved for by its own Cholesky factor. Then features are first turned to their
principal axes, of which a task has no more than rows; across these the prior stays as it is.

*Rows never mix.* Every product is one small product per task, a task that has converged is frozen by a
mask, and one whose data cannot be used counts as a task without data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cloister.core.arrays import Array, Floats, Integers
from cloister.core.errors import InputError
from cloister.learners.linear.newton import (
    PrincipalAxes,
    SoftmaxPoint,
    SoftmaxRows,
    curvature,
    factor_diagonals,
    first_point,
    inverses,
    mixed,
    mixed_twice,
    newton,
    objective,
    point_at,
    prepared,
    scores_at,
    unmixed,
    usable_rows,
)

_LARGEST_VARIANCE = 1e20
#: A prior of less weight than that is left out of a posterior.
NEGLIGIBLE = 1e-10


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """Modes and Laplace evidence of every task under each prior variance.

    Private to the tasks, so its ``repr`` shows none of it. It keeps the data it was fitted to, for
    `posterior`; the covariances themselves would be L times as large.
    """

    variances: Floats  # (L,)
    mode: Floats = field(repr=False)  # (k, L, q, d)
    log_evidence: Floats = field(repr=False)  # (k, L)
    left_out: Floats | None = field(repr=False)  # (k, L), log-likelihood of rows that are left out
    _rows: SoftmaxRows = field(repr=False)
    _axes: PrincipalAxes | None = field(repr=False)


def laplace(
    X: Floats,
    offset: Floats | float,
    y: Array,
    weight: Floats,
    variances: Floats,
    *,
    classes: int,
    start: Floats | None = None,
    tol: float = 1e-10,
    max_iter: int = 50,
    tested: bool = False,
) -> LaplaceFit:
    r"""Fit every task under each of several prior variances, with the evidence for each.

    .. math:: \log p(y \mid u^*) - \frac{|u^*|^2}{2t} - \frac12 \log\det(I + t H),

    with :math:`u^*` the mode and :math:`H` the Hessian of minus the log-likelihood there.

    Parameters
    ----------
    X : ndarray of shape (k, n, d)
        Features. A task with data that are not finite, beyond 1e100 (weights: 1e30), or not a class
        counts as having no data.
    offset : ndarray of shape (k, n, q) or float
        Scores that the features do not explain.
    y : ndarray of shape (k, n)
        Class indexes from 0 to ``classes - 1``, of any dtype.
    weight : ndarray of shape (k, n)
        Weights of the rows; 0 marks padding.
    variances : ndarray of shape (L,)
        Prior variances in any order; each fit starts from the next smaller one.
    classes : int
        Number of classes, ``q + 1``.
    start : ndarray of shape (k, q, d), optional
        Where to start; tasks for which zero is better start there.
    tol : float
        A task is done within ``tol * (1 + |v|)`` of its mode, to first order.
    max_iter : int
        Most Newton steps for one variance.
    tested : bool
        Whether to say how well rows of two classes are foreseen by all others. Each task's matrices then
        are factored by themselves: quicker for a few of them, with other last bits.

    Examples
    --------
    A task whose rows say nothing keeps the prior, and no variance is better than another:

    >>> X = np.array([[[1.0], [-1.0]], [[0.0], [0.0]]])
    >>> y = np.array([[1, 0], [0, 1]])
    >>> fit = laplace(X, 0.0, y, np.ones((2, 2)), np.array([0.1, 1.0]), classes=2)
    >>> fit.mode[..., 0, 0].round(3)
    array([[0.095, 0.675],
           [0.   , 0.   ]])
    >>> fit.log_evidence.round(3)
    array([[-1.363, -1.236],
           [-1.386, -1.386]])
    """
    start = None if start is None else unmixed(start)
    rows = replace(usable_rows(X, offset, y, weight, classes), apart=tested)
    rows, axes, start = prepared(rows, start)
    variances = _checked(variances)
    k, _, d = X.shape
    modes = np.empty((k, len(variances), classes - 1, d))
    evidence, foreseen = np.empty((2, k, len(variances)))
    point = first_point(rows, start, variances.min())
    for i in np.argsort(variances, kind="stable"):
        t = variances[i]
        point = newton(rows, axes, t, point, tol, max_iter)
        matrices = t * curvature(rows, point)
        diagonals = factor_diagonals(matrices, tested)
        if tested:
            foreseen[:, i] = _left_out(rows, point, t * inverses(matrices, apart=True))
        evidence[:, i] = -objective(rows, point.v, point.scores, t) - np.log(diagonals).sum(axis=-1)
        modes[:, i] = mixed(point.v if axes is None else axes.back(point.v))
    return LaplaceFit(variances, modes, evidence, foreseen if tested else None, rows, axes)


def mode(
    X: Floats,
    offset: Floats | float,
    y: Array,
    weight: Floats,
    variance: float,
    *,
    classes: int,
    start: Floats | None = None,
    tol: float = 1e-10,
    max_iter: int = 50,
) -> Floats:
    """Most probable weights (k, q, d) of every task under one prior variance; see `laplace`.

    Examples
    --------
    >>> X, y = np.array([[[1.0], [-1.0]]]), np.array([[1, 0]])
    >>> mode(X, 0.0, y, np.ones((1, 2)), 1.0, classes=2).round(3)
    array([[[0.675]]])
    """
    start = None if start is None else unmixed(start)
    rows, axes, start = prepared(usable_rows(X, offset, y, weight, classes), start)
    t = _checked(np.array([variance]))[0]
    v = newton(rows, axes, t, first_point(rows, start, t), tol, max_iter).v
    return mixed(v if axes is None else axes.back(v))


def posterior(fit: LaplaceFit, average: Floats) -> tuple[Floats, Floats]:
    r"""Mean and covariance of the weights, averaged over the prior variances.

    .. math:: \bar v = \sum_l a_l v_l, \qquad
        \sum_l a_l \left[ (H_l + K^{-1} \otimes I/t_l)^{-1} + (v_l - \bar v)(v_l - \bar v)^\top \right]

    Parameters
    ----------
    fit : LaplaceFit
    average : ndarray of shape (k, L)
        How much each task trusts each variance; a row sums to 1. What is below 1e-10 is left out.

    Returns
    -------
    mean : ndarray of shape (k, q, d)
    covariance : ndarray of shape (k, q * d, q * d)
        In the order of ``mean.reshape(k, -1)``.

    Examples
    --------
    >>> X, y = np.array([[[1.0], [-1.0]]]), np.array([[1, 0]])
    >>> fit = laplace(X, 0.0, y, np.ones((1, 2)), np.array([0.1, 1.0]), classes=2)
    >>> mean, covariance = posterior(fit, np.array([[0.0, 1.0]]))
    >>> covariance.round(3)
    array([[[0.691]]])
    """
    k, L, q, d = fit.mode.shape
    mean = (average[:, None, :] @ fit.mode.reshape(k, L, q * d))[:, 0]
    covariance = np.zeros((k, q * d, q * d))
    for i, t in enumerate(fit.variances):
        used = np.flatnonzero(average[:, i] > NEGLIGIBLE)
        if not len(used):
            continue
        apart = fit.mode[used, i].reshape(len(used), q * d) - mean[used]
        inside = _within(fit, i, t, used) + apart[:, :, None] * apart[:, None, :]
        covariance[used] += average[used, i, None, None] * inside
    return mean.reshape(k, q, d), covariance


def _left_out(rows: SoftmaxRows, point: SoftmaxPoint, inverse: Floats) -> Floats:
    r"""Return the log-likelihood of rows of two classes, each under a fit to all the others.

    To first order the score without a row is :math:`s - g (y - p) / (1 - g p (1 - p))`, with
    :math:`g = x^\top (H + I/t)^{-1} x` and p the chance at the mode. Rows that are no data foresee nothing.
    """
    along = ((rows.X @ inverse) * rows.X).sum(axis=2)
    chance, rest, second = point.chance[:, 0], point.rest[:, 0], rows.target[:, 0]
    away = along * np.where(second, rest, -chance) / np.maximum(1 - along * chance * rest, 1e-10)
    scores = point.scores[:, 0] - away
    losses = rows.weight * np.logaddexp(0.0, np.where(second, -scores, scores))
    found = -losses.sum(axis=1)
    return np.where(np.isfinite(found), found, 0.0)


def _within(fit: LaplaceFit, i: int, t: float, tasks: Integers) -> Floats:
    """Return some tasks' covariances under one prior variance, of weights v."""
    rows, v = fit._rows.take(tasks), unmixed(fit.mode[tasks, i])
    if fit._axes is None:
        there = curvature(rows, point_at(rows, v, scores_at(rows, v)))
        return t * mixed_twice(inverses(t * there, rows.apart), v.shape[1])
    axes = PrincipalAxes(fit._axes.vectors[tasks], fit._axes.squares[tasks])
    v = axes.turn(v)
    less = inverses(t * curvature(rows, point_at(rows, v, scores_at(rows, v))))
    less -= np.eye(
        less.shape[1]
    )  # what the rows say, along their axes; across them the prior is left as it is
    (k, q, r), d = v.shape, axes.vectors.shape[1]
    V = axes.vectors[:, None]
    there = V @ less.reshape(k, q, r, q * r)  # from (a, i), (b, j) to (a, x), (b, j)
    both = there.reshape(k, q * d, q, r).swapaxes(1, 2) @ V.swapaxes(2, 3)
    return t * mixed_twice(np.eye(q * d) + both.swapaxes(1, 2).reshape(k, q * d, q * d), q)


def _checked(variances: Floats) -> Floats:
    variances = np.array(variances, dtype=np.float64)
    if (
        variances.ndim != 1
        or not variances.size
        or not np.all((variances > 0) & (variances < _LARGEST_VARIANCE))
    ):
        raise InputError(f"variances must be numbers in (0, {_LARGEST_VARIANCE:g}). Got {variances!r}.")
    return variances
