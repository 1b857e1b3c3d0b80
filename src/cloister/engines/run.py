"""Run a plan over tasks; and replay, the billboard lemma as a function."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, States, Words
from cloister.core.errors import InputError, PlanError, check_one_owner
from cloister.core.roster import Roster, task_name
from cloister.core.spelling import counted
from cloister.core.tasks import Tasks, public_seeds
from cloister.engines.checkpointed import check_seconds, checkpointed
from cloister.engines.curator import Curator, Progress, check_ledger, check_price
from cloister.engines.dry_run import try_plan
from cloister.engines.local import Local
from cloister.engines.noise_at_home import with_noise_at_home
from cloister.engines.workers import (
    AnyTasks,
    Engine,
    Shards,
    catch_up,
    check_callable,
    check_engine,
    check_groups,
    check_tasks,
    group_positions,
)
from cloister.ledger import Ledger
from cloister.plan.algorithm import Network
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import AllRuns, Guarantee
from cloister.privacy.sampling import InOrder, Participation
from cloister.privacy.statement import rounded_up
from cloister.store.billboard import Billboard
from cloister.store.files import make_folder, write_file
from cloister.store.journal import open_journal


@dataclass(frozen=True, eq=False, repr=False)
class PrivateRun:
    """What a run knows that must not leave it: each task's row belongs to that task alone."""

    ids: NDArray[Any]
    models: States
    coins: Participation
    seeds: Words
    rejected_messages: int

    def __repr__(self) -> str:
        return f"PrivateRun({counted(len(self.ids), 'task')}, private)"

    @property
    def held_models(self) -> States:
        """The models, where there are any."""
        if self.models:
            return self.models
        raise InputError(
            "This run holds no models: they stayed with the tasks, or nobody asked for them. Each task gets "
            "its own by replay, from the board and its own rows."
        )

    def __getstate__(self) -> object:
        check_one_owner(
            self.ids,
            "A finished run",
            "Use save(folder) for the public part, and give model(task) to that task alone; an estimator "
            "also has export(task, path).",
        )
        return super().__getstate__()


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: plan, billboard and `roster` are public, everything under `private` is not.

    Of a run that was chosen among several, `of_choice` is what the whole choice promises.
    """

    plan: Plan
    board: Billboard
    private: PrivateRun = field(repr=False)
    roster: Roster
    all_runs: AllRuns | None = None
    of_choice: Guarantee | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The plan's guarantee, with the noise that was really used and what its ledger says of all runs.

        Of a run that was chosen among several it is that of the whole choice: the plan prices one run.
        """
        if self.of_choice is not None:
            return self.of_choice
        return replace(self.plan.guarantee_on(self.board), all_runs=self.all_runs)

    def __str__(self) -> str:
        promise = self.guarantee
        price = f"({rounded_up(promise.epsilon)}, {rounded_up(promise.delta)})-joint differential privacy"
        doubts = [
            *(() if promise.holds else ("DOES NOT HOLD",)),
            *(() if promise.proven_to_the_last_bit else ("NOT PROVEN TO THE LAST BIT",)),
        ]
        claim = (
            "NOT PRIVATE"
            if math.isinf(promise.epsilon)
            else ", ".join([f"{price} for each {promise.unit}", *doubts])
        )
        rounds = counted(self.board.rounds, "round")
        return f"{rounds} with {self.plan.n_tasks} tasks: {claim}; see its guarantee"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the public part to a new folder: plan, names of the tasks, board, and the guarantee of it.

        Models are not written: give ``model(task)`` to each task, or let it `replay`.
        """
        if self.of_choice is not None:
            raise InputError(
                "This run was chosen among several, and plan and board do not show what that has cost: keep "
                "its guarantee, or choose by tune.fit_best, whose estimator is saved with all of it."
            )
        home = Path(folder)
        if home.exists() and (not home.is_dir() or any(home.iterdir())):
            raise InputError(f"{home} is already there and is left as it is. Choose another folder.")
        make_folder(home)
        self.plan.save(home / "plan.toml")
        if len(self.roster):
            write_file(home / "roster", "".join(f"{json.dumps(name)}\n" for name in self.roster).encode())
        self.board.save(home / "board")
        promise = replace(self.guarantee, all_runs=None)  # what follows from plan and board, for ever
        write_file(home / "guarantee.json", f"{promise.to_json()}\n".encode())
        write_file(home / "guarantee.txt", f"{promise.statement}\n".encode())
        return home

    @classmethod
    def load(cls, folder: str | os.PathLike[str], types: Iterable[object] = ()) -> Run:
        """Read the public part of a run that was saved, or from the journal of a finished run or stream.

        The tasks have their models, not the folder: each gets its own again by `replay`.

        Parameters
        ----------
        folder : path
            What was given to `save`, or to `run` or `TaskStream` as ``journal=``.
        types : iterable, optional
            Classes of your own, or the `Module` of a network, that the plan names.
        """
        home = Path(folder)
        if (home / "choice").is_dir():
            raise InputError(
                f"{home} was chosen among several runs, and costs more than its plan. Use cloister.load."
            )
        plan, board = Plan.load(home / "plan.toml", types), Billboard.load(home / "board")
        plan.check(board)
        return cls.public(plan, board, _joined(home / "roster"))

    @classmethod
    def public(cls, plan: Plan, board: Billboard, roster: Roster) -> Run:
        """Return a run of which the public part alone is here."""
        no_coins = Participation.always(0, len(plan.rounds))
        nobody = PrivateRun(np.array([]), {}, no_coins, np.zeros(0, np.uint64), 0)
        return cls(plan, board, nobody, roster)

    def model(self, task: object) -> States:
        """Return one task's own model. Give it to that task alone."""
        models = self.private.held_models
        found = np.flatnonzero(self.private.ids == task_name(task))
        if not len(found):
            alike = [name for name in self.private.ids.tolist() if str(name) == str(task)]
            how = f" Write {alike[0]!r}." if alike else ""
            raise InputError(f"There is no task {task!r} in this run.{how}")
        return {name: array[found[0]] for name, array in models.items()}

    def network(self, task: object) -> Any:
        """Return one task's own network, a torch module that is ready to be used. Give it to it alone."""
        return self._learner.module(self.model(task)["coef"])

    def public_network(self) -> Any:
        """Return the public network, that of a task without rows, as a torch module: from the board alone.

        Parameters that tasks keep to themselves are as at the public start.
        """
        return self._learner.module(self._public_coef)

    def export(self, task: object, path: str | os.PathLike[str]) -> Path:
        """Write one task's own network to a file that you alone can read, to be handed to that task alone.

        It is its state_dict, as safetensors, without pickle: ``learner.load(path)`` reads it, and torch does.
        """
        facts = {"task": str(task_name(task)), **self._facts}
        return self._learner.save(Path(path), self.model(task)["coef"], facts, private=True)

    def export_public(self, path: str | os.PathLike[str]) -> Path:
        """Write the public network to a file, in the form of `export`. It follows from the board alone."""
        return self._learner.save(Path(path), self._public_coef, self._facts, private=False)

    @property
    def _learner(self) -> Network:
        found = self.plan.algorithm.network
        if found is None:
            raise InputError(f"{type(self.plan.algorithm).__name__} trains no network here. Use model(task).")
        return found

    @property
    def _public_coef(self) -> Array:
        coef: Array = self.plan.algorithm.model_without_data(self.board)["coef"][0]
        return coef

    @property
    def _facts(self) -> dict[str, str]:
        return {"plan": self.plan.fingerprint, "head": self.board.head.hex()}

    def own_seed(self, task: object) -> Words:
        """Return the seed of one task's local randomness, for its `replay` at home. Give it to it alone."""
        return self.private.seeds[[Roster(self.private.ids.tolist()).position(task)]]


def _joined(path: Path) -> Roster:
    """Return who took part, or has joined a stream; of a run's journal nobody is listed."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    try:
        return Roster.written([json.loads(line) for line in lines])
    except (ValueError, RecursionError):
        raise InputError(f"{path} must have the name of a task in every line. Restore it.") from None


def run(
    plan: Plan,
    tasks: AnyTasks,
    *,
    random_state: int | None = None,
    ledger: Ledger | None = None,
    engine: Engine = Local(),  # noqa: B008
    progress: Progress | None = None,
    journal: str | os.PathLike[str] | None = None,
    save: Callable[[Run], None] | None = None,
    resumed: Callable[[Billboard], None] | None = None,
    checkpoint: float = 60.0,
    finish: bool = True,
) -> Run:
    """Run a plan over tasks: on this machine, or wherever the engine's workers are.

    Parameters
    ----------
    plan : Plan
        Calibrated, or with `NoNoise()`.
    tasks : Tasks, Shards or Roster
        As many as the plan says. Shards, whose rows are read by who computes on them, are for `Cluster`. A
        roster, names without rows, is for engines whose tasks are elsewhere: they keep rows, seeds, models
        and, where tasks are sampled independently, their coins.
    random_state : int, optional
        Makes the run reproducible and INSECURE: whoever knows the seed can subtract the noise.
    ledger : Ledger, optional
        Charged for the whole run before anything leaves a task; refuses a run it cannot afford.
    engine : Local, Batched or Cluster
        Where and how tasks are computed on: NumPy on the processor by default.
    progress : callable, optional
        Called after each round with a `Posted`: rounds done and in all, the release, its noise and its norm.
        All of it is public. In a run that goes on, rounds that were posted before are reported again.
    journal : path, optional
        Folder where every release is on disk before it is used (of more than 1,000 rounds without
        `progress`, on an engine in this process, a thousandth of them at a time). If this call is killed, the
        same call goes on: it ends with the board it would have had, and is charged once. It holds a file
        ``secret`` until the run is complete.
    save : callable, optional
        Called with the finished run before the journal's secret is deleted. Save the models there: what is
        killed before this returns can go on.
    resumed : callable, optional
        Called with the board as far as it is posted, if the journal holds an unfinished run that goes on.
    checkpoint : float
        Seconds between two times that the journal keeps the tasks' states, for their owner alone, so that a
        run that goes on does not do the local work of posted rounds again. Such a file is as large as all
        states; writing it takes a twentieth of the time at most. ``math.inf`` for none.
    finish : bool
        Whether every task makes its model when the rounds are over. Without, nobody does: for meta-learning
        over many tasks, where the public model is what is wanted, and all tasks' last local training would
        take longer than the rounds. `adapt` gives a task its model whenever it asks.

    Privacy
    -------
    The only thing that crosses from private to public is the noisy sum that the plan's mechanism makes of
    clipped messages. Everything else on the board is computed from the board.
    """
    check_tasks(tasks)
    check_engine(engine)
    check_callable(progress=progress, save=save, resumed=resumed)
    apart = isinstance(tasks, Roster)
    roster = tasks if isinstance(tasks, Roster) else tasks.roster
    if len(roster) != plan.n_tasks:
        raise InputError(f"The plan is for {plan.n_tasks} tasks. Got {len(roster)}. Make a plan for these.")
    seed, seconds = seed_of(random_state), check_seconds(checkpoint)
    check_ledger(ledger)
    check_price(plan)
    check_groups(plan, roster)
    if not isinstance(tasks, Roster):
        try_plan(plan, tasks.shape if isinstance(tasks, Shards) else tasks)
    doubts = engine.doubts_of(plan)
    seen = progress is not None or engine.remote
    with open_journal(journal, plan, tasks, seed, ledger is not None, doubts, apart, seen) as kept:
        if resumed is not None and not kept.fresh:
            resumed(kept.posted)
        curator = Curator(plan, kept, group_positions(plan, roster), apart, engine.noise_sampler())
        seeds = kept.source.task_seeds(() if apart else roster)
        with ExitStack() as stack:
            try:
                workers = stack.enter_context(engine.workers(plan, tasks, seeds))
                if not apart:
                    workers = with_noise_at_home(plan, workers, curator.groups, kept.source)
                if ledger is not None:
                    curator.charge(ledger)
            except (InputError, PlanError):  # it may not take place, and nothing was recorded
                kept.discard()
                raise
            workers = checkpointed(workers, tasks, kept, seconds)
            workers.start(kept.posted.before(0))
            board = curator.rounds(workers, progress)
            models = workers.finish(board, kept.folder) if finish else {}
            private = PrivateRun(np.array(roster.names), models, curator.coins, seeds, workers.rejected())
        finished = Run(plan, board, private, roster, curator.all_runs)
        kept.finish()
        if save is not None:
            save(finished)
        kept.forget()
    return finished


def check_run(plan: Plan, tasks: Tasks, engine: Engine) -> None:
    """Refuse what `run` refuses before its charge; for who charges several runs at once, as one operator."""
    check_price(plan)
    if plan.trust.at_home:
        raise PlanError(
            "Runs that are charged or chosen among together have a trusted curator. "
            f"Got {type(plan.trust).__name__}. Use Trust.curator(), or run the plan by itself."
        )
    if plan.unit.by_record:
        raise PlanError(
            f"Runs that are charged or chosen among together protect tasks. Got {plan.unit}. Run the plan by "
            "itself, or give it Unit.task()."
        )
    check_groups(plan, tasks.roster)
    try_plan(plan, tasks)
    with engine.workers(plan, tasks, public_seeds(tasks.ids)):
        pass


def seed_of(random_state: object) -> int | None:
    if random_state is None:
        return None
    try:
        return operator.index(random_state)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"random_state must be a whole number or None. Got {random_state!r}.") from None


def replay(
    plan: Plan,
    board: Billboard,
    tasks: Tasks | Shards,
    *,
    coins: Participation | NDArray[np.bool_] | None = None,
    seeds: Words | None = None,
    engine: Engine = Local(),  # noqa: B008
) -> States:
    """Compute tasks' models from their own data and the billboard alone: nothing leaves, nothing is spent.

    For a task of the run this gives its model again (with its coins and seed): bit for bit on the same
    block layout, up to rounding on another. For a task that comes late it is how to join.

    Parameters
    ----------
    plan, board : Plan, Billboard
        The public part of a run; of a stream of tasks (`InOrder`) as far as it has come.
    tasks : Tasks or Shards
        One task or many; their number need not be the plan's. Where the plan knows public groups, one with a
        label gets the model of its group, one without the model that all tasks have in common.
    coins : Participation or bool array of shape (rounds, tasks), optional
        Which rounds each task took part in (of some tasks of a run, ``private.coins[:, where]``); by default
        all.
    seeds : uint64 array of shape (tasks,), optional
        Each task's own seed for its local randomness (of some tasks of a run, ``private.seeds[where]``); by
        default one that follows from its name.
    engine : Local or Batched
        Where and how tasks are computed on.
    """
    _check_finished(plan, board)
    return _replayed(plan, board, tasks, coins, seeds, engine)


def _check_finished(plan: Plan, board: Billboard) -> None:
    plan.check(board)
    if not (board.complete or isinstance(plan.sampling, InOrder)):
        raise InputError(
            f"The board holds {board.rounds} of {board.capacity} releases. Finish the run first."
        )


def _replayed(
    plan: Plan,
    board: Billboard,
    tasks: Tasks | Shards,
    coins: Participation | NDArray[np.bool_] | None,
    seeds: Words | None,
    engine: Engine,
) -> States:
    count = len(tasks.roster)
    if plan.unit.limit is not None and isinstance(tasks, Tasks) and tasks.turn is None:
        tasks = replace(tasks, turn=np.zeros(len(tasks.y), dtype=np.int64))  # nothing is sent
    took_part = Participation.always(count, len(plan.rounds)) if coins is None else coins
    own = public_seeds(np.array(tasks.roster.names)) if seeds is None else seeds
    with engine.workers(plan, tasks, own) as workers:
        workers.start(board.before(0))
        catch_up(workers, board, 0, (took_part[t] for t in range(board.rounds)))
        return workers.finish(board)


def adapt(
    plan: Plan,
    board: Billboard,
    tasks: Tasks,
    *,
    seeds: Words | None = None,
    engine: Engine = Local(),  # noqa: B008
) -> States:
    """Return the models of new tasks, which never took part, from their own rows and a finished board.

    Where tasks keep nothing from round to round (meta-learning, `FedAvg`, `FedProx`), all that counts is how
    they end: a task goes straight there, without a round of local work. Where they do (`Personalized`,
    `Ditto`, `SharedPrior`, and all where a network has personal parameters), a new one listens through all
    rounds first, as in `replay`, saying nothing.

    Parameters
    ----------
    plan, board : Plan, Billboard
        The public part of a finished run.
    tasks : Tasks
        One new task or many.
    seeds : uint64 array of shape (tasks,), optional
        Each task's own seed for its local randomness (of some tasks of a run, ``private.seeds[where]``); by
        default one that follows from its name.
    engine : Local or Batched
        Where and how tasks are computed on.

    Privacy
    -------
    Free: nothing leaves the new tasks, and the board stays as it is.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.algorithms import MetaSGD
    >>> from cloister.learners import Convex, ExactSolver, LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]])
    >>> plan = Plan(MetaSGD(Convex(LeastSquares(1)), ExactSolver(), clip=9, rounds=20), NoNoise(), n_tasks=2)
    >>> board = run(plan, tasks).board
    >>> adapt(plan, board, Tasks.from_list([[[1.0]]], [[5.0]]))["coef"].round(2).tolist()  # from 3, half-way
    [[4.0]]
    """
    _check_finished(plan, board)
    one = next(tasks.select([0]).blocks())
    keeps = plan.algorithm.init(one, board.before(plan.algorithm.begins(board.capacity)))
    coins = None if keeps else Participation.never(len(tasks), len(plan.rounds))
    new = replace(plan, algorithm=plan.algorithm.for_newcomers())
    return _replayed(new, board, tasks, coins, seeds, engine)
