r"""Two levels of protection, as a baseline: tasks add noise of their own before they speak.

The curator's noise protects tasks from each other and needs a curator who can be trusted with what tasks
say. Noise at home protects them from the curator as well, and costs far more.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.covariance import Allocation
from cloister.core.arrays import Array, Floats, States, to_uniforms
from cloister.core.channel import Channel
from cloister.core.errors import PlanError
from cloister.core.lifts import Plain
from cloister.plan.algorithm import Algorithm, Wrapper

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView


@final
@dataclass(frozen=True)
class LocalNoise(Wrapper):
    r"""Any algorithm, with messages that are noisy before they leave (Algorithm 5, corrected). A baseline.

    A message is clipped to K, gets a noise vector b with density
    :math:`\propto \exp(-\frac{\epsilon_t}{2K} |b|)`, and is clipped again, by the algorithm's own channel,
    before it is lifted and summed. The task goes on with its clean model.

    Parameters
    ----------
    algorithm : Algorithm
        What is wrapped. Its ``clip`` is the second one, K', which prices the curator's noise; a larger one
        lets more of the local noise through.
    epsilon : float
        Local budget over all rounds.
    clip : float
        The first clip, K, which prices the local noise.
    allocation : PowerBudget or GeometricBudget, optional
        Which share of it each round has; by default all have the same, :math:`\epsilon_t = \epsilon / T`.

    Privacy
    -------
    *Between tasks*: the guarantee of the plan, neither better nor worse, because the second clip bounds what
    is summed whatever the local noise was. *Against the curator*: any two data sets of a task give messages
    within 2K of each other, so all its messages together are :math:`\epsilon`-locally differentially private
    (pure), for the whole task and not for one of its rows only. That second promise is `local_guarantee`. It
    holds while the task's key is secret, fresh for each run, and kept at the task: noise is derived from it
    by a cryptographic hash (SHAKE-256). In the local engine all keys come from one seed on one machine, so
    there the second promise is *simulated*; 64-bit keys and floating-point noise are no better than that.

    Notes
    -----
    The paper's density is :math:`\exp(-\frac{2K}{\epsilon_t}|b|)`, which adds *less* noise for a smaller
    epsilon and loses up to :math:`4K^2/\epsilon_t` a round; and it forms the covariance from noisy models of
    any length, so that no bound holds for it. Since 2K is the distance of two tasks, not of two rows, its
    "noise for a single instance" already hides the whole task: prefer the curator's noise alone.

    References
    ----------
    arXiv:1809.06546, Algorithm 5 and Proposition 4.

    Examples
    --------
    >>> from cloister import Plan
    >>> from cloister.algorithms import LowRank
    >>> from cloister.learners import LeastSquares
    >>> quiet = LowRank(LeastSquares(3), clip=2.0, rounds=5)
    >>> plan = Plan(LocalNoise(quiet, epsilon=50.0, clip=1.0), n_tasks=100).calibrate(1.0)
    >>> plan.mechanism == Plan(quiet, n_tasks=100).calibrate(1.0).mechanism
    True
    """

    algorithm: Algorithm
    epsilon: float
    clip: float = 1.0
    allocation: Allocation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Algorithm):
            raise PlanError(f"algorithm must be an algorithm. Got {type(self.algorithm).__name__}.")
        if not (0 < self.epsilon < math.inf and 0 < self.clip < math.inf):
            raise PlanError(
                "epsilon and clip must be > 0 and finite. "
                f"Got {self.epsilon} and {self.clip}. Use the algorithm itself for no local noise."
            )

    @property
    def inner(self) -> Algorithm:
        return self.algorithm

    def around(self, inner: Algorithm) -> LocalNoise:
        return replace(self, algorithm=inner)

    @property
    def network(self) -> None:
        """None: noise at home is drawn by NumPy, so what is inside is computed by it."""

    @property
    def local_guarantee(self) -> str:
        """What a task is promised against the curator, in a sentence or two."""
        return (
            f"All messages of a task together are {self.epsilon:g}-locally differentially private (pure, for "
            "the whole task), also against the curator, as long as the task's key is known to the task alone "
            "and used for one run only. On one machine, which knows all keys, this is simulated."
        )

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        """Say what the algorithm says, clipped and noisy; what is not finite counts as zero, noisy too."""
        messages, states = self.algorithm.send(states, block, board)
        first = Channel(self.algorithm.channel(board).dim, self.clip, Plain())
        clipped = self.clip * first.units(messages)
        scale = 2 * self.clip / (self._share(board) * self.epsilon)
        return clipped + scale * unit_noise(block.keys, board.rounds, first.dim), states

    def _share(self, board: BoardView) -> float:
        """Return which part of the local budget this round has."""
        if self.allocation is None:
            return 1 / board.capacity
        roots = np.sqrt(self.allocation.shares(board.capacity))  # they are shares of the squared budget
        return float(roots[board.rounds] / roots.sum())


def unit_noise(keys: NDArray[np.uint64], round: int, dim: int) -> Floats:
    """Draw a vector with density proportional to exp(-|b|) for each task, from its own secret key.

    The direction is uniform and the length Gamma(dim, 1). `local_uniforms` would not do: one of its draws
    gives away all others.

    Examples
    --------
    >>> noise = unit_noise(np.array([1, 2], dtype=np.uint64), round=0, dim=3)
    >>> noise.shape, bool((unit_noise(np.array([2], dtype=np.uint64), 0, 3) == noise[1:]).all())
    ((2, 3), True)
    """
    from scipy.special import gammaincinv, ndtri

    draws = _secret_uniforms(keys, round, dim + 1)
    normal = ndtri(draws[:, 1:])
    lengths = gammaincinv(dim, draws[:, :1])
    return np.asarray(lengths * normal / np.linalg.norm(normal, axis=1, keepdims=True), dtype=np.float64)


def _secret_uniforms(keys: NDArray[np.uint64], round: int, count: int) -> Floats:
    """Return uniforms in (0, 1) that nobody can tell from random, or continue, without the key."""
    streams = [hashlib.shake_256(f"cloister local noise|{key}|{round}".encode()) for key in keys.tolist()]
    bits = np.frombuffer(b"".join(stream.digest(8 * count) for stream in streams), dtype="<u8")
    return to_uniforms(bits).reshape(len(keys), count)
