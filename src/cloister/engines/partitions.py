"""One run for each of some fixed, publicly known clusters of tasks: a mean for those who resemble each other.

A task takes part in the run of its own cluster and in no other, so that run's price is its price. The noise
of a cluster is that of a run of all tasks, and its tasks are fewer: clusters pay where they separate tasks
that have little in common.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cloister.core.arrays import States
from cloister.core.errors import InputError, PlanError, check_one_owner
from cloister.core.roster import Roster, is_missing, task_name
from cloister.core.spelling import counted
from cloister.core.tasks import Tasks
from cloister.engines.curator import Bill, charge
from cloister.engines.local import Local
from cloister.engines.run import Run, check_run, run, seed_of
from cloister.engines.workers import Engine
from cloister.ledger import Ledger
from cloister.ledger.charges import exposure
from cloister.plan.plan import Plan
from cloister.privacy.accounting import tradeoff
from cloister.privacy.caveats import Caveat, merged
from cloister.privacy.guarantee import AllRuns, Guarantee, guarantee_for
from cloister.privacy.randomness import source_of

Clusters = Mapping[Hashable, Hashable]
PUBLIC = "each task takes part in the run of its own cluster alone; which one that is counts as public"


@dataclass(frozen=True, eq=False)
class PartitionRuns:
    """One finished run a cluster; made by `run_partition`.

    Attributes
    ----------
    runs : dict of Run
        The run of each cluster, with a plan and a billboard of its own.
    clusters : mapping
        The cluster of each task; public.
    """

    runs: dict[Hashable, Run]
    clusters: Clusters = field(repr=False)
    all_runs: AllRuns | None = None

    def __getstate__(self) -> object:
        owners = [name for done in self.runs.values() for name in done.private.ids.tolist()]
        instead = "Use save(folder) of each run for its public part, and give model(task) to that task alone."
        check_one_owner(owners, "A run of clusters", instead)
        return super().__getstate__()

    @property
    def guarantee(self) -> Guarantee:
        """What is promised to every task: that of its own run, at worst over the clusters."""
        plans = [done.plan for done in self.runs.values()]
        costliest = max(plans, key=lambda plan: plan.prices.own.epsilon)
        other = max((plan.prices.other for plan in plans), key=lambda price: price.epsilon)
        run = next(done for done in self.runs.values() if done.plan is costliest)
        assert costliest.delta is not None
        curve = tradeoff(*(plan.cost for plan in plans), delta=costliest.delta)
        own = guarantee_for(
            replace(costliest.prices, other=other, curve=curve),
            costliest.noise_on(run.board),
            merged(*(done.guarantee.doubts for done in self.runs.values())),
            n_tasks=len(self.clusters),
            participation=f"{PUBLIC}; in that run, {costliest.sampling.describe()}",
        )
        return replace(own, all_runs=self.all_runs)

    def model(self, task: Hashable) -> States:
        """Return one task's own model. Give it to that task alone."""
        name = task_name(task)
        if name not in self.clusters:
            raise InputError(f"There is no task {task!r} in these runs.")
        return self.runs[self.clusters[name]].model(name)


def partition_plans(plan: Plan, clusters: Clusters) -> dict[Hashable, Plan]:
    """Return a plan for each cluster, of its own number of tasks, that promises what the given plan does.

    Parameters
    ----------
    plan : Plan
        For all tasks together; calibrated, or with `NoNoise()`.
    clusters : mapping
        The cluster of each task, by its name; fixed and public before the run.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=5), n_tasks=60).calibrate(epsilon=1.0)
    >>> plans = partition_plans(plan, {school: "town" if school < 40 else "country" for school in range(60)})
    >>> {name: own.n_tasks for name, own in plans.items()}
    {'country': 20, 'town': 40}
    >>> all(own.guarantee.epsilon <= 1 and own.delta == plan.delta for own in plans.values())
    True
    """
    clusters = _named(clusters)
    _ = plan.guarantee  # a plan without a noise level says so itself
    if plan.unit.by_record:
        raise PlanError(
            f"Plans of clusters protect tasks: how many records each has is not public. Got {plan.unit}. Use "
            "Unit.task(), or a plan a cluster."
        )
    if len(clusters) != plan.n_tasks:
        raise PlanError(f"clusters must name the plan's {plan.n_tasks} tasks. Got {len(clusters)} names.")
    plans = {}
    for name, count in sorted(Counter(clusters.values()).items(), key=lambda item: str(item[0])):
        try:
            plans[name] = _resized(plan, count)
        except PlanError as error:
            raise PlanError(
                f"Cluster {name!r} has {counted(count, 'task')}, too few for this plan: {error}"
            ) from error
    return plans


def run_partition(
    plan: Plan,
    tasks: Tasks,
    clusters: Clusters,
    *,
    random_state: int | None = None,
    ledger: Ledger | None = None,
    engine: Engine = Local(),  # noqa: B008
) -> PartitionRuns:
    """Run a plan within each of some fixed clusters of tasks.

    Parameters
    ----------
    plan : Plan
        For all tasks together; see `partition_plans` for what each cluster's run makes of it.
    tasks : Tasks
        As many as the plan says.
    clusters : mapping
        The cluster of each task, by its name.
    random_state : int, optional
        Makes the runs reproducible and INSECURE; every cluster has noise of its own all the same.
    ledger : Ledger, optional
        Account of all these tasks. Charged once, for the worst of the runs, before anything leaves a task.
    engine : Local or Batched
        Where and how tasks are computed on.

    Privacy
    -------
    Another task's data change the billboard of its own cluster alone, so that all billboards together are as
    private for it as that one. Who is in which cluster is public: if clusters were found in the tasks' data,
    no guarantee here covers what that gives away. The ledger keeps one number for all its tasks; the
    worst run's price overstates what tasks of other clusters have lost, and understates no one's.

    References
    ----------
    S. Hu, Z. S. Wu and V. Smith, "Private multi-task learning: formulation and applications to federated
    learning", arXiv:2108.12978, remark on fixed clusters.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> rng = np.random.default_rng(0)
    >>> schools = Tasks.from_arrays(rng.uniform(size=(240, 3)), rng.uniform(size=240), np.arange(240) % 60)
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=5), n_tasks=60).calibrate(epsilon=1.0)
    >>> places = {school: "town" if school < 40 else "country" for school in range(60)}
    >>> done = run_partition(plan, schools, places)
    >>> done.guarantee.holds, done.guarantee.n_tasks, round(done.guarantee.epsilon, 3)
    (True, 60, 1.0)
    >>> done.model(7)["coef"].shape
    (3,)
    """
    roster, seed, clusters = tasks.roster, seed_of(random_state), _named(clusters)
    _check_names(roster, clusters)
    plans = partition_plans(plan, clusters)
    of_task = [clusters[name] for name in roster]
    parts = {name: tasks.select(np.array([cluster == name for cluster in of_task])) for name in plans}
    for name, own in plans.items():
        check_run(own, parts[name], engine)
    all_runs = None if ledger is None else _charge(plans, ledger, seed, engine.doubts_of(plan))
    runs = {
        name: run(
            own,
            parts[name],
            random_state=None if seed is None else _own_seed(seed, name),
            engine=engine,
        )
        for name, own in plans.items()
    }
    return PartitionRuns(runs, clusters, all_runs)


def _resized(plan: Plan, count: int) -> Plan:
    """Return the plan for so many tasks, calibrated anew if it would cost more than for all."""
    own = replace(plan, n_tasks=count)
    own.sampling.probability(count, max(1, len(own.rounds)))  # refuses a sample larger than the cluster
    promised = plan.guarantee.epsilon
    return own if own.guarantee.epsilon <= promised else own.calibrate(promised)


def _named(clusters: Clusters) -> dict[Hashable, Hashable]:
    if not isinstance(clusters, Mapping):
        raise InputError(
            "clusters must map each task's name to its cluster, as a dict does. "
            f"Got a {type(clusters).__name__}; of a list in their order, dict(zip(tasks.ids, it))."
        )
    nowhere = [name for name, cluster in clusters.items() if is_missing(cluster)]
    if nowhere:
        raise InputError(f"Every task must be in a cluster. Task {nowhere[0]!r} is in none; put it in one.")
    return dict(zip(Roster(list(clusters)), clusters.values(), strict=True))  # type: ignore[arg-type]


def _check_names(roster: Roster, clusters: Clusters) -> None:
    absent = [name for name in roster if name not in clusters]
    if absent:
        raise InputError(f"Every task must be in a cluster. Task {absent[0]!r} is in none; put it in one.")
    strange = set(clusters) - set(roster)
    if strange:
        raise InputError(f"clusters names {min(strange, key=str)!r}, not a task of the data. Leave it out.")


def _charge(
    plans: dict[Hashable, Plan], ledger: Ledger, seed: int | None, engine: tuple[Caveat, ...]
) -> AllRuns:
    """Charge the most expensive run once, for all tasks: no task takes part in two."""
    costliest = max(plans.values(), key=lambda own: exposure(own.cost_under(ledger.relation)))
    count = sum(own.n_tasks for own in plans.values())
    together = hashlib.sha256("".join(own.fingerprint for own in plans.values()).encode()).hexdigest()
    made = (own.noise_from(source_of(seed).origin, engine) for own in plans.values())
    each = (own.guarantee_with(noise) for own, noise in zip(plans.values(), made, strict=True))
    doubts = merged(*(guarantee.doubts for guarantee in each))
    charge(ledger, Bill(together, lambda r: replace(costliest.cost_under(r), n_tasks=count), doubts))
    return ledger.balance.all_runs


def _own_seed(seed: int, cluster: Hashable) -> int:
    """Return a cluster's own seed: with the same one, two billboards would share their noise."""
    return int.from_bytes(hashlib.blake2b(f"{seed}|{cluster!r}".encode(), digest_size=8).digest(), "little")
