"""The plans in which bugs are planted: small ones, each with something that the others lack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloister.algorithms import Joint, LowRank, Mean, MeanRegularized, SharedPrior
from cloister.audit.auditor import SingleRelease
from cloister.core.arrays import Array, States
from cloister.core.channel import Channel, Round
from cloister.core.lifts import Outer, Plain
from cloister.core.roster import Groups
from cloister.core.spec import DataSpec, Sender
from cloister.core.tasks import Block
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian, L2Laplace, Toeplitz, Wishart
from cloister.plan.algorithm import Algorithm, Budget
from cloister.plan.plan import Plan
from cloister.privacy.mechanisms import Mechanism
from cloister.privacy.sampling import Epochs, Everyone, OnePass, Poisson, Sampling
from cloister.privacy.unit import Unit
from cloister.store.billboard import BoardView

_TASKS = 100


def _of(
    algorithm: Algorithm,
    mechanism: Mechanism = Gaussian(),  # noqa: B008
    sampling: Sampling = Everyone(),  # noqa: B008
) -> Callable[[], Plan]:
    return lambda: Plan(algorithm, mechanism, n_tasks=_TASKS, sampling=sampling).calibrate(1.0)


@dataclass(frozen=True)
class OneLoudRound(SingleRelease):
    """One loud round, and many that are quiet beside it."""

    quiet: int = 400
    ratio: float = 4e-4

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        whole = 1 + self.quiet * self.ratio
        loud, quiet = (Round(share / whole, (self.only,)) for share in (1.0, self.ratio))
        return (loud, *(quiet,) * self.quiet)


@dataclass(frozen=True)
class EightChannels(SingleRelease):
    """A round on each of eight channels, the last of which is the widest."""

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return tuple(Round(1 / 8, (self._channel(t),)) for t in range(8))

    def channel(self, board: BoardView) -> Channel:
        return self._channel(board.rounds)

    def _channel(self, t: int) -> Channel:
        return Channel(self.only.dim, self.only.clip * (1 + t), self.only.lift)


_MEAN = MeanRegularized(LeastSquares(3), rounds=3)
mean = _of(_MEAN)
long = _of(MeanRegularized(LeastSquares(40), rounds=2))
wide = _of(MeanRegularized(LeastSquares(8), rounds=4))
sampled = _of(_MEAN, sampling=Poisson(0.5))
rarely_sampled = _of(_MEAN, sampling=Poisson(0.1))
hidden = _of(MeanRegularized(LeastSquares(3), rounds=1), sampling=Poisson(0.5, hidden=True))
one_pass = _of(_MEAN, sampling=OnePass())
passes = _of(MeanRegularized(LeastSquares(3), rounds=4), sampling=Epochs(2))
joint = _of(SharedPrior(Regression(3), Joint()))
matrix = _of(LowRank(LeastSquares(3), rounds=2))
laplace = _of(MeanRegularized(LeastSquares(3), rounds=2), L2Laplace())
wishart = _of(LowRank(LeastSquares(3), rounds=2), Wishart())
banded = _of(MeanRegularized(LeastSquares(3), rounds=6), Toeplitz())
quiet_rounds = _of(OneLoudRound(Channel(2)))
eight = _of(EightChannels(Channel(2, lift=Plain())))
grouped = _of(SharedPrior(Regression(2), Mean().grouped(Groups(("a", "b"), (50, 50)))))


@dataclass(frozen=True)
class GramOfRecords(SingleRelease):
    """Every record says its features and its target: the board has the sum of their outer products."""

    @property
    def senders(self) -> frozenset[Sender]:
        return frozenset({Sender.RECORD})

    @property
    def rows(self) -> DataSpec:
        return DataSpec((self.only.dim - 1,))

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        return np.concatenate([block.X[:, 0], block.y], axis=1), states


_GRAM = GramOfRecords(Channel(3, clip=0.5, lift=Outer()))


def records() -> Plan:
    return Plan(_GRAM, n_tasks=12, unit=Unit.record(1000)).calibrate(1.0)


def persons() -> Plan:
    return Plan(_GRAM, n_tasks=12, unit=Unit.person(1000, most=4)).calibrate(1.0)


def quiet_samples() -> Plan:
    """Coins may be seen, and the loud round is rarer than some deltas: at those the quiet ones count."""
    algorithm = OneLoudRound(Channel(2))
    return Plan(algorithm, Gaussian(10.0), n_tasks=_TASKS, sampling=Poisson(0.05))
