r"""PooledPrior: records of all tasks say where weights lie; each task starts from there, at home.

With few tasks of many rows, what is protected is a record, and not a whole task. Records then are the ones
who speak: each says its own outer product, whichever task it is in. What is public is where the mean of the
weights of all records is, and how surely. How far tasks are from it nobody says: each finds out at home, by
its own evidence, and whether to rely on it at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri

from cloister.algorithms.bases import BayesianAlgorithm
from cloister.algorithms.constants import POOLED
from cloister.algorithms.histograms import LocateRecords
from cloister.algorithms.prior.mean import shared_weight
from cloister.algorithms.prior.pooled import LONGEST, Look, Place, contributions, posterior
from cloister.algorithms.staged import Staged
from cloister.algorithms.stages import Stage
from cloister.core.arrays import Array, Floats, Public, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import PlanError
from cloister.core.lifts import Outer, svec
from cloister.core.spec import Sender
from cloister.core.tasks import Block
from cloister.learners.home import Home
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.average import Candidate
from cloister.learners.linear.home_constants import NUMBER
from cloister.learners.linear.residuals import Residuals
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class PooledPrior(Staged, BayesianAlgorithm):
    r"""Private empirical Bayes whose senders are records: for a few tasks of many rows.

    Every task averages, by its own evidence, over priors around one pooled mean :math:`\omega` and its own,

    .. math:: w_t \sim N(\omega, V + D), \qquad \omega \sim N(\hat\omega, V)\ \text{on the board},

    where D says how far slopes and level may differ: by little or by much.

    Where tasks' rows lie elsewhere, pooled slopes are of places too: :math:`\omega = \beta + M c` for slopes
    :math:`\beta` inside tasks, c that levels follow places by beyond them, and the share M of rows' spread
    that is between tasks. With c as wide as slopes are, and :math:`M^2 \preceq M`, a task that has the share
    :math:`\rho` of what :math:`\omega` explains inside keeps :math:`1/(2-\rho)` of it, and is as unsure of
    the rest as of any slopes.

    Parameters
    ----------
    learner : Regression or Classification
        What a task does at home: numbers, or two classes that weigh the same.
    locate : LocateRecords, optional
        Search for where targets and features are first; everything else is relative to what is found.
    leave_own : bool
        Whether a task takes out of the sums what its own records said, at home. Not where persons are
        protected, some of whose records have said nothing; newcomers' are in no sum, and never taken out.

    Privacy
    -------
    In each of three rounds a record says :math:`zz'`, z being its row and its residual from a public
    point, in clips: :math:`|z|^2 \le 2`. A class less its chance is 1 at most, or a half from zero, and
    is not clipped; a row is made shorter after that. Its l2 sensitivity is :math:`2 \sqrt2` under
    replace, as no two such matrices have a negative inner product, and 2 under zero-out; both are
    attained. Units are searched as `LocateRecords` says. All else is post-processing, or a task's own
    rows and the board: free with respect to records of other tasks. Row weights count at home alone.

    References
    ----------
    Wang, UAI 2018 (AdaSSP); Bernstein and Sheldon, "Differentially private Bayesian linear regression",
    NeurIPS 2019.

    Examples
    --------
    >>> from cloister import Plan, Tasks, Unit, run
    >>> from cloister.learners import Regression
    >>> rng = np.random.default_rng(0)
    >>> X = np.column_stack([np.ones(2000), rng.uniform(-0.5, 0.5, 2000)]) / np.sqrt(2)
    >>> y = X @ [0.1, 0.8] + 0.1 * rng.standard_normal(2000)
    >>> tasks = Tasks.from_arrays(X, y, np.arange(2000) % 8)
    >>> prior = PooledPrior(Regression(2), LocateRecords((1,)))
    >>> plan = Plan(prior, n_tasks=8, unit=Unit.record(rows=2000)).calibrate(epsilon=1.0)
    >>> run(plan, tasks, random_state=0).private.models["coef"].round(1)[0].tolist()
    [0.1, 0.8]
    """

    learner: BayesianLearner
    locate: LocateRecords | None = None
    leave_own: bool = True

    def __post_init__(self) -> None:
        if self.learner.residuals is None:
            raise PlanError(
                "Records say where weights lie if targets are numbers, or two classes that weigh the same. "
                f"Got {self.learner}. Use SharedPrior and the unit Unit.task()."
            )
        self.check_searches()

    @property
    def residuals(self) -> Residuals:
        """What records say of their targets."""
        return self.learner.residuals  # type: ignore[return-value]  # one without was refused

    @property
    def senders(self) -> frozenset[Sender]:
        return frozenset({Sender.RECORD})

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Searches, and looks from where the mean is thought to be."""
        return (*self.searches, Looks(self))

    def heard(self, board: BoardView) -> bool:
        """Say whether units are known: without good ones nothing is gained, and nothing is shared."""
        return self.locate is None or float(board["records"]) > 0

    def variance(self, board: BoardView) -> float:
        """Return the variance of scores, as far as it is known beforehand."""
        return self.residuals.variance(POOLED.unfound if self.locate is None else 1 / NUMBER.typical)

    def place(self, board: BoardView, own: OwnRecords | None = None) -> Place:
        """Return where the mean is, by all looks on a board so far, and by others' records alone."""
        looks = [self.look(board.releases[at], board.before(at), own) for at in range(board.rounds)]
        usual = None if own is None else own.moments
        return self.known(looks, self.records(board.releases[-1], board, own), board, usual)

    def known(
        self, looks: Sequence[Look], records: float, board: BoardView, usual: Floats | None = None
    ) -> Place:
        """Return where the mean is by some looks."""
        return posterior(looks, records, Place.before(self.learner.size, self.variance(board)), usual)

    def records(self, release: Release, board: BoardView, own: OwnRecords | None = None) -> float:
        """Return how many records others have: as counted with noise, if the plan's bound is loose."""
        counted = 0.0 if self.locate is None else float(board["records"])
        return max((counted or release.denominator) - (0 if own is None else own.told), 1.0)

    def level(self, board: BoardView) -> float:
        """Return the deviation of residuals from where records look next."""
        return float(board["level"]) or math.sqrt(self.variance(board))

    def clip(self, board: BoardView) -> float:
        """Return how large a residual may be in the next look."""
        return self.residuals.clip(float(board["level"]), self.variance(board))

    def look(self, release: Release, before: BoardView, own: OwnRecords | None = None) -> Look:
        """Read a release of `Looks`, with the board that it was made from, less what own records said."""
        point, clip, value = before["mean"], self.clip(before), release.value
        if own is not None and own.told:
            said = contributions(self.residuals, own.X, own.y, point, clip)
            value = value - svec(said.T @ said) / LONGEST**2
        records = self.records(release, before, own)
        return Look.of(self.residuals, point, clip, records, value, release.noise)

    def candidates(self, place: Place, variance: float, own: OwnRecords | None = None) -> list[Candidate]:
        """Return priors around the mean: tasks' slopes and levels differ from it by little or by much.

        Slopes differ the less, the less is explained by what they have in common. At the usual lambda a prior
        has the noise in the mean once, and what the mean may owe to where tasks are.
        """
        size, slopes = self.learner.size, np.arange(self.learner.size) >= int(self.learner.intercept)
        both = np.outer(slopes, slopes)
        second = both * (np.outer(place.mean, place.mean) + place.covariance)
        explained = float((second * place.moments).sum())
        beforehand = float(np.trace(both * Place.before(size, variance).covariance))
        unsure = float(np.trace(both * place.covariance)) / max(beforehand, 1e-300)
        total = POOLED.shared * shared_weight(min(1.0, unsure))
        inside = 1.0 if own is None or not self.learner.intercept else own.inside(second, place.moments)
        kept = np.where(slopes, 1 / (2 - inside), 1.0)
        about = np.outer(kept, kept) * place.covariance + np.diag((1 - kept) * explained)
        kinds = [(level, slope) for level in POOLED.levels for slope in POOLED.slopes]
        found = []
        for level, slope in kinds:
            between = np.where(slopes, slope * explained, level * size * variance)
            factor = np.asarray(np.linalg.cholesky(self.learner.widening * (np.diag(between) + about)))
            found.append(Candidate(total / len(kinds), kept * place.mean, factor, shared=True, tested=True))
        return found

    def for_newcomers(self) -> PooledPrior:
        return replace(self, leave_own=False)

    def prepare(self, home: Home, board: BoardView) -> States:
        return self.learner.prepare(home.rows)

    def solve(self, home: Home, board: BoardView) -> States:
        def solve(home: Home, which: int) -> States:
            own = OwnRecords.of(home, self.leave_own, self.residuals)
            return self._solved(home, self.place(board, own), board, own)

        return home.apart(np.arange(len(home)), solve)

    def model_without_data(self, board: BoardView) -> States:
        size, nothing = self.learner.columns, np.zeros((1, 1))
        empty = Block(np.zeros(1), np.zeros((1, 1, size)), nothing, nothing, np.zeros(1, np.uint64))
        home, board = Home(self.learner.prepare(empty), empty), self.main_part(board)
        models, units = self._solved(home, self.place(board), board), self.units(board)
        return models if units is None else units.models(models)

    def _solved(self, home: Home, place: Place, board: BoardView, own: OwnRecords | None = None) -> States:
        if not self.heard(board):
            return self.learner.finish(home, (), {})
        candidates = self.candidates(place, self.variance(board), own)
        if own is None:
            candidates = [replace(one, weight=1 / len(candidates)) for one in candidates]
        return self.learner.finish(home, candidates, self.residuals.answers(self.level(board)))


@dataclass(frozen=True)
class Looks(Stage):
    """Rounds in which records say their outer products, each from where the mean is known to be by then."""

    prior: PooledPrior

    about = "where weights lie, by all records"
    length = POOLED.looks

    def rounds(self, n_tasks: int, budget: Budget, share: float) -> tuple[Round, ...]:
        return (Round(share / self.length, (self._channel,)),) * self.length

    def start(self) -> Public:
        return {"mean": np.zeros(self.prior.learner.size), "level": np.zeros(())}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def message(self, home: Home, board: BoardView) -> tuple[Array, States]:
        prior, rows = self.prior, home.rows
        said = contributions(prior.residuals, rows.X[:, 0], rows.y[:, 0], board["mean"], prior.clip(board))
        return said, home.states

    def update(self, release: Release, board: BoardView) -> Public:
        prior, looks = self.prior, []
        looks = [prior.look(board.releases[at], board.before(at)) for at in range(board.rounds)]
        looks.append(prior.look(release, board))
        place = prior.known(looks, prior.records(release, board), board)
        moved = place.mean - board["mean"]
        left = prior.residuals.left(looks[-1].level, float(moved @ place.moments @ moved))
        return {"mean": place.mean, "level": np.array(left)}

    @property
    def _channel(self) -> Channel:
        return Channel(self.prior.learner.size + 1, LONGEST, Outer())


@dataclass(frozen=True, eq=False, repr=False)
class OwnRecords:
    """A task's own rows and targets as its records told them. Private.

    They are taken out of the sums: who compares with a mean that the own rows have drawn near counts them
    twice.
    """

    X: Floats
    y: Floats
    taken_out: bool
    residuals: Residuals

    @classmethod
    def of(cls, home: Home, take_out: bool, residuals: Residuals) -> OwnRecords:
        """Return those of one task that are data, each in the units in which it was told."""
        (there,) = np.nonzero(home.block.weight[0] > 0)
        X, y, weight = (part[0][there][:, None] for part in (home.block.X, home.block.y, home.block.weight))
        ids, keys = np.zeros(len(there)), np.zeros(len(there), np.uint64)
        rows = Home({}, Block(ids, X, y, weight, keys), home.units).rows
        with np.errstate(invalid="ignore", over="ignore"):
            length = np.square(residuals.rows(rows.X[:, 0])).sum(axis=1)
            data = (length <= LONGEST**2) & np.isfinite(rows.y[:, 0])
        return cls(rows.X[data, 0], rows.y[data, 0], take_out and home.block.turn is None, residuals)

    def inside(self, second: Floats, moments: Floats) -> float:
        """Return the share of what pooled slopes explain that varies inside a task, by its own rows.

        It is less than all if it is so beyond chance; `second` has the products of slopes.
        """
        rows, freedom = self.residuals.rows(self.X), len(self.X) - 1
        everywhere = float((second * _around_mean(moments)).sum())
        if freedom < 1 or everywhere <= 0:
            return 1.0
        here = float((second * _around_mean(rows.T @ rows)).sum())
        return min(1.0, here / everywhere / float(chdtri(freedom, 1 - POOLED.chance)))

    @property
    def told(self) -> int:
        """How many are in the sums."""
        return len(self.y) if self.taken_out else 0

    @property
    def moments(self) -> Floats:
        """Mean moments of the rows, and of as many usual ones as there are columns."""
        size, rows = self.X.shape[1], self.residuals.rows(self.X)
        return np.asarray((rows.T @ rows + np.eye(size)) / (len(rows) + size))


def _around_mean(moments: Floats) -> Floats:
    """Return what is left of rows' products when column 0, which is an intercept's, explains what it can."""
    front = moments[0]
    return np.asarray(moments - np.outer(front, front) / max(front[0], 1e-300))
