r"""Federated data made up or cut up: the synthetic data of FedProx, and any labelled set with skewed labels.

References
----------
.. [1] T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated optimization in
   heterogeneous networks", arXiv:1812.06127, appendix C.1.
.. [2] M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni, "Bayesian nonparametric
   federated learning of neural networks", arXiv:1905.12022, section 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.arrays import Floats
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks

#: A task has 50 rows and as many more as a log-normal variable with this mean and deviation of its logarithm.
FEWEST_ROWS, LOG_MEAN, LOG_DEVIATION = 50, 4.0, 2.0
#: The variance of feature j is j to this power.
DECAY = -1.2
#: A partition with a task below its fewest rows is drawn again, at most so often.
ATTEMPTS = 1000


def fedprox(
    alpha: float, beta: float, n_tasks: int = 30, dim: int = 60, classes: int = 10, seed: int = 0
) -> Tasks:
    r"""Draw the data set "synthetic(alpha, beta)" of FedProx (arXiv:1812.06127, appendix C.1).

    Task k has a model of its own, :math:`y = \arg\max(W_k^\top x + b_k)`, and features of its own:

    .. math::
        W_k, b_k \sim N(u_k, 1), \quad u_k \sim N(0, \alpha), \qquad
        x \sim N(v_k, \Sigma), \quad v_k \sim N(B_k, 1), \quad B_k \sim N(0, \beta),

    entry by entry, with :math:`\Sigma` diagonal and :math:`\Sigma_{jj} = j^{-1.2}`. A task has 50 rows and
    :math:`\lfloor e^{4 + 2z} \rfloor` more, z standard normal: some have thousands.

    Parameters
    ----------
    alpha, beta : float
        The spread of :math:`u_k` and :math:`B_k`: *standard deviations*, as in the program the authors
        published; the paper's :math:`N(0, \alpha)` reads like a variance. For 0 and 1 it is the same.
    n_tasks, dim, classes : int, default=30, 60 and 10
        Numbers of tasks, features and classes.
    seed : int, default=0
        Of the generator. Task k depends on (seed, k) only: more tasks leave the first ones as they are.

    Returns
    -------
    Tasks
        Named 0, 1, ...; y is int64. `Tasks.split` makes a training and a test part.

    Notes
    -----
    As published, alpha changes nothing: :math:`u_k` adds the same :math:`u_k (1 + \sum_j x_j)` to the score
    of every class, and the largest stays the largest. Models differ between tasks by the unit variance of W
    and b alone, and so they do with alpha = 0; for tasks that are alike see `fedprox_iid`.

    Examples
    --------
    >>> tasks = fedprox(alpha=1.0, beta=1.0, n_tasks=3, seed=0)
    >>> len(tasks), tasks.X.shape[1], int(tasks.sizes.min()) >= 50
    (3, 60, True)
    """
    _check_sizes(n_tasks=n_tasks, dim=dim, classes=classes)
    for name, deviation in (("alpha", alpha), ("beta", beta)):
        if not 0 <= deviation < np.inf:
            raise InputError(f"{name} must be a finite number >= 0. Got {deviation}.")
    parts = []
    for k in range(n_tasks):
        rng = _generator_of(seed, k)
        shift, centre = rng.normal(0, alpha), rng.normal(0, beta)
        weights, intercepts = rng.normal(shift, 1, (dim, classes)), rng.normal(shift, 1, classes)
        parts.append(_rows(rng, rng.normal(centre, 1, dim), weights, intercepts))
    return Tasks.from_list([X for X, _ in parts], [y for _, y in parts])


def fedprox_iid(n_tasks: int = 30, dim: int = 60, classes: int = 10, seed: int = 0) -> Tasks:
    r"""Draw FedProx's "synthetic IID": all tasks have one model, and features with mean zero.

    The entries of W and b are standard normal, drawn once; all else is as in `fedprox`.

    Parameters
    ----------
    n_tasks, dim, classes, seed : int
        As for `fedprox`.

    Returns
    -------
    Tasks
        Named 0, 1, ...; y is int64.

    Examples
    --------
    >>> fedprox_iid(n_tasks=3, dim=5, classes=2, seed=0).ids.tolist()
    [0, 1, 2]
    """
    _check_sizes(n_tasks=n_tasks, dim=dim, classes=classes)
    shared = np.random.default_rng(seed)
    weights, intercepts = shared.standard_normal((dim, classes)), shared.standard_normal(classes)
    parts = [_rows(_generator_of(seed, k), np.zeros(dim), weights, intercepts) for k in range(n_tasks)]
    return Tasks.from_list([X for X, _ in parts], [y for _, y in parts])


def dirichlet(
    X: ArrayLike, y: ArrayLike, n_tasks: int, concentration: float, seed: int = 0, min_rows: int = 1
) -> Tasks:
    r"""Cut a labelled set into tasks whose labels are skewed.

    The rows of each class are dealt out to tasks at random, in shares drawn from a symmetric Dirichlet
    distribution (arXiv:1905.12022), one draw a class. Every row goes to one task. A small concentration
    gives a task few classes and sizes far apart; a large one gives all tasks nearly the same labels and
    sizes.

    Parameters
    ----------
    X : array of shape (rows, ...)
        Features.
    y : array of shape (rows,)
        Labels.
    n_tasks : int
        Number of tasks.
    concentration : float
        The parameter of the Dirichlet distribution; 0.1 to 1 is common.
    seed : int, default=0
        Of the generator.
    min_rows : int, default=1
        Partitions with a smaller task are drawn again.

    Returns
    -------
    Tasks
        Named 0 to n_tasks - 1.

    Notes
    -----
    Such tasks are *one* population cut by a label: a stand-in where no real grouping is to be had. They say
    little about parties whose rows mean different things.

    Examples
    --------
    >>> y = np.repeat([0, 1, 2], 100)
    >>> tasks = dirichlet(np.arange(300.0)[:, None], y, n_tasks=5, concentration=0.5, seed=0, min_rows=10)
    >>> len(tasks), len(tasks.y), int(tasks.sizes.min()) >= 10
    (5, 300, True)
    """
    labels = np.asarray(y)
    _check_sizes(n_tasks=n_tasks, min_rows=min_rows)
    if labels.ndim != 1 or (labels.dtype.kind == "f" and (labels != np.floor(labels)).any()):
        raise InputError("y must hold one label a row: whole numbers, not measurements.")
    if not 0 < concentration < np.inf:
        raise InputError(f"concentration must be a finite number > 0. Got {concentration}.")
    rng = np.random.default_rng(seed)
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sizes = _deal(rng, counts, n_tasks, concentration, min_rows)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(inverse[shuffled], kind="stable")]
    task = np.empty(len(labels), dtype=np.int64)
    task[by_label] = np.repeat(np.tile(np.arange(n_tasks), len(sizes)), sizes.ravel())
    return Tasks.from_arrays(X, labels, task)


def _deal(
    rng: np.random.Generator, counts: NDArray[np.int64], n_tasks: int, concentration: float, min_rows: int
) -> NDArray[np.int64]:
    """Return how many rows of each class (rows) each task (columns) gets."""
    rows = int(counts.sum())
    for _ in range(ATTEMPTS if n_tasks * min_rows <= rows else 0):
        shares = rng.dirichlet(np.full(n_tasks, concentration), size=len(counts))
        ends = np.rint(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts
        sizes = np.diff(ends, axis=1, prepend=0)
        if sizes.sum(axis=0).min() >= min_rows:
            return sizes
    raise InputError(
        f"No partition of {rows} rows into {n_tasks} tasks of at least {min_rows} was found at concentration "
        f"{concentration}. Raise the concentration, or lower n_tasks or min_rows."
    )


def _generator_of(seed: int, k: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k,)))


def _rows(
    rng: np.random.Generator, mean: Floats, weights: Floats, intercepts: Floats
) -> tuple[Floats, NDArray[np.int64]]:
    count = FEWEST_ROWS + int(rng.lognormal(LOG_MEAN, LOG_DEVIATION))
    deviations = np.arange(1, len(mean) + 1) ** (DECAY / 2)
    X = mean + deviations * rng.standard_normal((count, len(mean)))
    return X, np.argmax(X @ weights + intercepts, axis=1)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1. Got {size}.")
