"""Choosing by repetition: a random number of runs, of which only the best is ever shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cloister.app.choice import Grid, TuningResult
from cloister.app.vote import check_tasks, held_out_losses, on_all_rows, run_seed, split_seed
from cloister.core.errors import AlgorithmError, PlanError
from cloister.core.lifts import Relation
from cloister.core.tasks import Tasks
from cloister.engines.run import Run, run
from cloister.evaluation.scores import release_sum
from cloister.plan.plan import Plan
from cloister.privacy import accounting, tradeoff
from cloister.privacy.guarantee import Guarantee, NoiseMade, guarantee_for
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import Origin, source_of
from cloister.privacy.sampling import Everyone

HIDDEN_RUNS = (
    "a trusted curator holds the tasks' data and does all runs itself; of runs that were not chosen, and of "
    "how many there were, nobody learns anything, tasks included; nothing is claimed against the curator"
)


def selection_epsilon(mu: float, runs: float, delta: float, shape: float = 1.0) -> float:
    r"""Return the epsilon of showing the best of a random number of :math:`\mu`-GDP runs.

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter of one run, the release of its score included.
    runs : float
        Expected number of runs.
    delta : float
        Between 0 and 1.
    shape : float
        Law of the number of runs: 1 is geometric, infinity is Poisson.

    Examples
    --------
    >>> [round(selection_epsilon(0.5, runs, 1e-5), 2) for runs in (10, 30)]
    [4.32, 4.89]
    """
    import dp_accounting
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL  # mu carries the relation already
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    base = dp_accounting.GaussianDpEvent(1 / mu)
    accountant.compose(RepeatAndSelectDpEvent(base, float(runs), float(shape)))
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class RepeatAndSelect(Grid):
    """The best of a random number of runs: all of it public, and priced before data is touched.

    Parameters
    ----------
    candidates, loss, n_tasks, epsilon, delta, relation, holdout, caveats
        As for `Vote`. Each run is of a candidate drawn at random, with the same noise.
    runs : float
        Expected number of runs.
    shape : float
        Law of that number: 1 is geometric; infinity is Poisson, which may draw none at all.
    share : float
        The score's share of one run's squared Gaussian-DP budget.
    worst : float
        The loss at which a task's score is 0; the score is 1 where the loss is 0, linear in between. A public
        number, near the losses to be expected: noise is relative to it.

    Privacy
    -------
    A run's score is the mean over tasks of scores in [0, 1], released with noise inside the run: sensitivity
    1/m under both relations. The whole is proven by Rényi DP, for those who see the shown run only. Runs that
    are not shown must stay unseen by everyone. Tasks that compute their own messages do see them, so this is
    for a curator that holds the data, and the guarantee says so; for tasks that hold their own use `Vote`.
    """

    runs: float = field(default=10.0, kw_only=True)
    shape: float = field(default=1.0, kw_only=True)
    worst: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape not in (1.0, math.inf):
            raise PlanError(f"shape must be 1 (geometric) or infinite (Poisson). Got {self.shape}.")
        if not (1 <= self.runs < math.inf and 0 < self.worst < math.inf):
            raise PlanError(f"runs must be >= 1 and worst > 0. Got {self.runs} and {self.worst}.")

    @cached_property
    def mu(self) -> float:
        """Gaussian-DP parameter of one run, as large as the budget allows."""
        assert self.delta is not None
        bad = tradeoff.mu(self.epsilon, self.delta)
        good = bad / 2**20
        if self._excess(good) > 0:
            raise PlanError(
                f"epsilon = {self.epsilon:g} is too small to select from {self.runs:g} runs at "
                f"delta = {self.delta:g}. Expect fewer runs, or use Vote."
            )
        return tradeoff.boundary(self._excess, good, bad, rtol=1e-4)

    def _excess(self, mu: float) -> float:
        return self._epsilon(mu, self.relation) - self.epsilon

    def _epsilon(self, mu: float, relation: Relation) -> float:
        assert self.delta is not None
        costs = (plan.cost_under(relation) for plan in self._plans(mu))
        squares = (math.fsum(count * each**2 for each, _, count in cost.groups) for cost in costs)
        base = math.sqrt(max(squares) + self.share * mu**2) * (1 + 1e-12)  # the costliest, and its score
        return selection_epsilon(base, self.runs, self.delta, self.shape)

    def _plans(self, mu: float) -> list[Plan]:
        return [self._plan(candidate, mu * math.sqrt(1 - self.share)) for candidate in self.candidates]

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(self._plans(self.mu))

    def guarantee_from(self, origin: Origin) -> Guarantee:
        assert self.delta is not None
        own, other = (
            accounting.Price(self._epsilon(self.mu, r), self.delta, "Rényi DP of repeat-and-select")
            for r in (self.relation, self.relation.other)
        )
        return guarantee_for(
            accounting.Prices(self.relation, own, other),
            NoiseMade.by(Gaussian(), origin),
            tuple(dict.fromkeys(doubt for plan in self.plans for doubt in plan.doubts)),
            n_tasks=self.n_tasks,
            participation=Everyone().describe(),
            trust=HIDDEN_RUNS,
        )


def repeat_and_select(
    selection: RepeatAndSelect, tasks: Tasks, *, random_state: int | None = None
) -> TuningResult:
    """Run random candidates a random number of times, and return the run with the best noisy score.

    There is no ledger to charge: a ledger composes Gaussian DP, and this is not.

    Parameters
    ----------
    selection : RepeatAndSelect
        Candidates and budget.
    tasks : Tasks
        As many as it says.
    random_state : int, optional
        Makes it reproducible and INSECURE.
    """
    check_tasks(tasks, selection.n_tasks)
    source = source_of(random_state)
    plans, score_mu = selection.plans, selection.mu * math.sqrt(selection.share)
    train, test = tasks.split(selection.holdout, split_seed(random_state))
    best: tuple[float, int, Run] | None = None
    for k in range(_number_of_runs(selection, float(source.stream("runs").uniforms(1)[0]))):
        drawn = int(source.stream("candidate", k).uniforms(1)[0] * len(plans))
        done = run(plans[drawn], train, random_state=run_seed(random_state, k))
        scores = 1 - held_out_losses(done, test, selection.loss) / selection.worst
        mean = release_sum(scores, score_mu, source_of(run_seed(random_state, f"score of {k}"))) / len(tasks)
        if best is None or mean > best[0]:
            best = (mean, drawn, done)
    if best is None:
        raise AlgorithmError(
            "The number of runs came out as 0: by chance, and whatever the data. Expect more runs, or use "
            "shape=1, which draws at least one."
        )
    guarantee = selection.guarantee_from(source.origin)
    found = on_all_rows(best[2], tasks, guarantee)
    return TuningResult(best[1], selection.candidates[best[1]], found, np.array(best[:1]), guarantee)


def _number_of_runs(selection: RepeatAndSelect, uniform: float) -> int:
    """Draw the number of runs by inversion."""
    if math.isinf(selection.shape):
        from scipy.stats import poisson

        return int(poisson.ppf(uniform, selection.runs))
    if selection.runs == 1:
        return 1
    return 1 + int(math.log(uniform) / math.log1p(-1 / selection.runs))
