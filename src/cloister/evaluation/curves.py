"""How good models were after each round: computed at home, from the billboard and the tasks' own rows.

Every prefix of a board is a board: the public model after so many rounds is on it, and tasks that listen so
far have the models they had then. A score is data: curves stay at home, or leave as a release with a price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.progress import track

from cloister.core.arrays import Array, Floats, Integers, States, Words
from cloister.core.errors import AlgorithmError, InputError
from cloister.core.lifts import Relation
from cloister.core.metrics import Metric, score_tasks
from cloister.core.tasks import Block, Tasks, public_seeds
from cloister.engines.local import Local, on_features
from cloister.engines.run import Run
from cloister.engines.workers import Engine, Workers, check_engine
from cloister.evaluation.scores import ScorePrice, check_scored, default_score, release_means
from cloister.ledger import Ledger
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy.caveats import Caveat
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.sampling import Participation
from cloister.store.billboard import Billboard
from cloister.tables.frames import data_frame

__all__ = ["Curve", "Curves", "PrivateCurve", "over_rounds"]

#: Rounds that are looked at, the first and the last included, unless others are named.
SHOWN = 51
#: Test rows that are scored together: what a network's layers make of them takes memory.
AT_ONCE = 1 << 11
_Scores: TypeAlias = dict[str, Floats]
_KEEP = "private diagnostics: not private, keep at home"


@dataclass(frozen=True)
class PrivateCurve:
    """A curve that may leave, with its price; made by `Curve.release`.

    Attributes
    ----------
    rounds : tuple of int
        After how many rounds.
    values : tuple of float
        The noisy mean over all tasks after each; not clipped, hence without bias.
    noise : float
        Standard deviation of the noise in each.
    guarantee : Guarantee
        What this release costs every task, on top of what the run cost.
    """

    rounds: tuple[int, ...]
    values: tuple[float, ...]
    noise: float
    guarantee: Guarantee

    def __str__(self) -> str:
        points = ", ".join(f"{t}: {value:.4g}" for t, value in zip(self.rounds, self.values, strict=True))
        return f"{points} (noise of standard deviation {self.noise:.2g})\n\n{self.guarantee}"


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """One score of every task, after each of some rounds. Private: a column belongs to its task.

    Attributes
    ----------
    rounds : int array of shape (points,)
        After how many rounds.
    ids : array of shape (tasks,)
        The tasks.
    values : float array of shape (points, tasks)
        Scores; NaN for a task without test rows.
    """

    rounds: Integers
    ids: Array
    values: Floats
    finished: Run
    doubts: tuple[Caveat, ...] = ()
    #: The largest value of the score, where everybody knows one.
    largest: float | None = 1.0

    @property
    def mean(self) -> Floats:
        """Means over the tasks that have test rows."""
        known = ~np.isnan(self.values).all(axis=0)
        if not known.any():
            raise InputError("No task has test rows. Pass some.")
        return np.asarray(np.nanmean(self.values[:, known], axis=1))

    def quantile(self, level: float) -> Floats:
        """Return a quantile over the tasks that have test rows, after each of the rounds."""
        return np.asarray(np.nanquantile(self.values, level, axis=1))

    def __repr__(self) -> str:
        return f"{_KEEP}\nCurve of {len(self.ids)} tasks, {len(self.rounds)} points"

    def release(
        self,
        epsilon: float,
        *,
        delta: float | None = None,
        bound: float | None = None,
        relation: Relation = Relation.REPLACE,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> PrivateCurve:
        r"""Return the curve's noisy means over all tasks of the run, which may leave.

        Parameters
        ----------
        epsilon, delta : float
            Price of all points together. Delta is by default that of a plan for so many tasks.
        bound : float, optional
            Scores are clipped to [0, bound]; public, hence chosen without looking at them. By default 1; a
            loss may be of any size, and needs one.
        relation : {"replace", "zero_out"}
            Who counts as a neighbour: all of one task's rows change, for training and for the test.
        ledger : Ledger, optional
            Charged before the numbers are made; refuses what it cannot afford.
        random_state : int, optional
            Makes the noise reproducible and INSECURE.

        Privacy
        -------
        A task's rows reach its own scores and no other, one at each of k points, each within [0, bound]: one
        Gaussian release of k numbers with sensitivity :math:`\sqrt k` times the bound, whichever relation. So
        noise grows with the root of the number of points: ask for few (``over_rounds(..., rounds=...)``). A
        task without test rows says 0, and the denominator is the public number of tasks.
        """
        if len(self.ids) != self.finished.plan.n_tasks:
            raise InputError(
                f"What leaves is a mean over all {self.finished.plan.n_tasks} tasks of the run. Got scores "
                f"of {len(self.ids)}. Compute the curve of all of them."
            )
        bound = self.largest if bound is None else bound
        if bound is None:
            raise InputError(
                "A loss may be of any size, and what leaves is clipped. Pass bound=, a number that you "
                "choose without looking at the losses, such as bound=3.0."
            )
        if not 0 < bound < np.inf:
            raise InputError(f"bound must be > 0 and finite. Got {bound}.")
        price = ScorePrice(epsilon, delta, Relation(relation), ledger, random_state)
        mu = price.budget(self.finished.plan, len(self.rounds))
        told = release_means(self.finished, self.values / bound, mu, price, self.doubts)
        values = tuple((told.values * bound).tolist())
        return PrivateCurve(tuple(self.rounds.tolist()), values, told.noise * bound, told.guarantee)


@dataclass(frozen=True, eq=False, repr=False)
class Curves:
    """Scores after each of some rounds: of the public model, and of the tasks' own; made by `over_rounds`.

    Attributes
    ----------
    public, personal : dict of Curve
        By the name of the score. `public` is the model of a task without rows, on the rows of each; it is
        empty where a board has no such model.

    Privacy
    -------
    Private, all of it, the public model's scores too: they are made of everybody's test rows.
    """

    public: dict[str, Curve]
    personal: dict[str, Curve]

    @property
    def rounds(self) -> Integers:
        """After how many rounds each point of a curve is."""
        return next(iter(self.personal.values())).rounds

    def _columns(self) -> dict[str, Any]:
        kinds = {"public": self.public, "personal": self.personal}
        means = {f"{kind} {name}": c.mean for kind, found in kinds.items() for name, c in found.items()}
        return {"round": self.rounds} | means

    def to_frame(self, library: str | None = None) -> Any:
        """Return a data frame: a row for each of the rounds, means over tasks in the columns.

        Parameters
        ----------
        library : {"pandas", "polars", "pyarrow"}, optional
            By default the first of these that is installed.
        """
        return data_frame(self._columns(), library)

    def plot(self, score: str | None = None, *, ax: Any = None) -> Any:
        """Draw one of the scores, the first by default, by round: `cloister.report.plots.over_rounds`."""
        from cloister.report import plots

        return plots.over_rounds(self, score, ax=ax)

    def __repr__(self) -> str:
        columns = self._columns()
        heads = " | ".join(columns)
        rows = zip(*columns.values(), strict=True)
        lines = [" | ".join(f"{x:{len(n)}.4g}" for n, x in zip(columns, row, strict=True)) for row in rows]
        return "\n".join([f"{_KEEP}: means over {self._tasks} tasks", heads, *lines])

    @property
    def _tasks(self) -> int:
        return len(next(iter(self.personal.values())).ids)


def over_rounds(
    finished: Run,
    tasks: Tasks,
    test: Tasks,
    scores: Mapping[str, Metric] | None = None,
    *,
    rounds: Sequence[int] | None = None,
    engine: Engine = Local(),  # noqa: B008
) -> Curves:
    """Score the public model and the tasks' own as they were after each round, on each task's test rows.

    Tasks listen to the board once, and say what their models would be on the way: nothing leaves, nothing is
    spent. Whoever watches on a terminal sees a bar.

    Parameters
    ----------
    finished : Run
        A finished run. Of its public part alone, as ``Run.load(folder)`` or ``Run.public(plan, board,
        roster)`` have it, tasks' coins and seeds are those that `replay` takes by default.
    tasks : Tasks
        The rows that the tasks trained on: of all of them, or of some.
    test : Tasks
        Rows that no task trained on, under the names of some or all of `tasks`.
    scores : dict of callables, optional
        By name; each takes targets and outputs of one task's rows and returns a number. By default accuracy,
        where targets are classes, as `evaluate` has it. The algorithm's own ``loss`` is added if it
        says one.
    rounds : sequence of int, optional
        After how many rounds to look, from 0, the public start; by default 51 times at equal distances.
    engine : Local or Batched
        Where tasks are computed on. What keeps a network's tasks apart, as ``Batched("cpu", block=1)`` does,
        scores them one by one.

    Privacy
    -------
    Not private: for those who hold all of these rows. `Curve.release` makes numbers that may leave.

    Examples
    --------
    >>> from cloister import Plan, run
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import Logistic
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(3000, 2))
    >>> train, test = Tasks.from_arrays(X, X[:, 0] > 0, np.arange(3000) % 300).split(0.5)
    >>> plan = Plan(MeanRegularized(Logistic(2), lr=1.0, rounds=8), n_tasks=300).calibrate(epsilon=4.0)
    >>> done = run(plan, train, random_state=0)
    >>> curves = over_rounds(done, train, test, rounds=[0, 4, 8])
    >>> print(str(curves).split(chr(10))[0])
    private diagnostics: not private, keep at home: means over 300 tasks
    >>> bool(curves.personal["accuracy"].mean[0] < 0.6 < 0.9 < curves.personal["accuracy"].mean[-1])
    True
    >>> told = curves.public["accuracy"].release(epsilon=1.0)
    >>> told.rounds, round(told.noise, 3), round(told.guarantee.epsilon, 3)
    ((0, 4, 8), 0.017, 1.0)
    """
    check_scored(finished, tasks=tasks, test=test)
    check_engine(engine)
    plan, board, algorithm = finished.plan, finished.board, finished.plan.algorithm
    plan.check(board)
    coins, seeds = _own_randomness(finished, tasks)
    doubts = engine.doubts_of(plan)
    places = _places(test.ids, tasks.ids, partial(_not_to_score, finished))
    if algorithm.rows is not None:
        algorithm.rows.check(test.X, test.y)
    found = default_score(algorithm, test) if scores is None else None
    chosen = scores or ({} if found is None else {"accuracy": found})
    apart = algorithm.network is not None and not doubts  # their products must not be shared here either
    rest, features = on_features(plan, test, 1 if apart else None)
    scorer = _Scorer(rest, features, places, len(tasks), chosen, 1 if apart else AT_ONCE)
    shown = _chosen(rounds, board.rounds)
    one = next(tasks.select([0]).blocks())
    listen = bool(algorithm.init(one, board.before(0)))  # else tasks keep nothing from round to round
    steps = range(int(shown[-1]) + 1) if listen else shown.tolist()
    points: list[tuple[_Scores, _Scores]] = []
    with engine.workers(plan, tasks, seeds) as workers:
        workers.start(board.before(0))
        for t in _watched(steps, len(steps)):
            if t in shown:
                points.append(scorer.both(*_models_after(algorithm, workers, board, t)))
            if listen and t < shown[-1]:
                workers.listen(board.before(t), coins[t])
    curve = partial(Curve, shown, tasks.ids, finished=finished, doubts=doubts)
    public, personal = (
        {
            name: curve(np.array([each[name] for each in kind]), largest=None if name == "loss" else 1.0)
            for name in kind[0]
        }
        for kind in zip(*points, strict=True)
    )
    if not personal:
        raise InputError(
            "There is nothing to score. Pass test rows, and scores if the algorithm has no loss."
        )
    return Curves(public, personal)


@dataclass(frozen=True)
class _Scorer:
    """Scores of every task's model, block by block: each depends on its own rows and model alone."""

    plan: Plan
    test: Tasks
    #: Where the tasks of these rows are among all, of which there are so many.
    places: Integers
    n_tasks: int
    scores: Mapping[str, Metric]
    #: Test rows that share a block; with 1 every task has its own.
    at_once: int

    def both(self, public: States | None, models: States) -> tuple[_Scores, _Scores]:
        """Score the public model, if there is one, and the tasks' own; only once where they are the same."""
        own = self._scored(models)
        if public is None:
            return {}, own
        shared = {name: np.broadcast_to(x, (self.n_tasks, *x.shape[1:])) for name, x in public.items()}
        same = shared.keys() == models.keys() and all(
            np.array_equal(array, models[name]) for name, array in shared.items()
        )
        return own if same else self._scored(shared), own

    def _scored(self, models: States) -> _Scores:
        found: _Scores = {}
        for index, block in self._blocks():
            at = self.places[index]
            own = {name: array[at] for name, array in models.items()}
            for name, values in self._values(own, block, self.test.sizes[index]).items():
                found.setdefault(name, np.full(self.n_tasks, np.nan))[at] = values
        return found

    def _blocks(self) -> Iterator[tuple[Integers, Block]]:
        """Cut tasks into blocks, padded as rows of a run are: by each one's own size and public numbers."""
        sizes, dim, among = self.test.sizes, self.plan.widest, self.plan.n_tasks
        keys = np.zeros(len(self.test), dtype=np.uint64)
        for alike in self.test.layout(dim, dim, among):
            known = alike[sizes[alike] > 0]
            most = max(1, self.at_once // int(sizes[alike].max()))
            parts = [known[start : start + most] for start in range(0, len(known), most)]
            yield from zip(parts, self.test.blocks(parts, keys, dim, among=among), strict=True)

    def _values(self, own: States, block: Block, sizes: Integers) -> States:
        algorithm = self.plan.algorithm
        outputs = np.asarray(algorithm.predict(own, block.X)) if self.scores else np.zeros(0)
        values = {name: score_tasks(score, block.y, outputs, sizes) for name, score in self.scores.items()}
        losses = algorithm.losses(own, block)
        return values if losses is None else values | {"loss": np.asarray(losses)}


def _places(names: Array, among: Array, refusal: Callable[[object], str]) -> Integers:
    """Return where each name is among others; refuse one that is not there."""
    known = {name: at for at, name in enumerate(among.tolist())}
    for name in names.tolist():
        if name not in known:
            raise InputError(refusal(name))
    return np.array([known[name] for name in names.tolist()], dtype=np.int64)


def _not_to_score(finished: Run, name: object) -> str:
    if len(finished.roster) and name not in finished.roster:
        return f"Task {name!r} of the test data was not in the run. Leave it out."
    return (
        f"Task {name!r} has test rows, but is not among the tasks that you passed. Pass its training rows "
        "too, or leave it out."
    )


def _models_after(
    algorithm: Algorithm, workers: Workers, board: Billboard, round: int
) -> tuple[States | None, States]:
    """Return the public model, if there is one, and all tasks' own, after so many rounds."""
    here = board.before(round)
    try:
        return _public_model(algorithm, here), workers.finish(here)
    except (AlgorithmError, LookupError) as error:
        if round == board.rounds:
            raise
        raise InputError(
            f"{type(algorithm).__name__} has no models after {round} of {board.rounds} rounds: it makes them "
            f"of the whole board. Pass rounds=[{board.rounds}]."
        ) from error


def _public_model(algorithm: Algorithm, board: Billboard) -> States | None:
    """Return the model of a task without rows and without a group, if the board has one."""
    try:
        return {name: array[:1] for name, array in algorithm.model_without_data(board).items()}
    except InputError:
        return None


def _own_randomness(finished: Run, tasks: Tasks) -> tuple[Participation, Words]:
    """Return the tasks' coins and seeds as they were in the run, if it knows them."""
    private, count = finished.private, len(tasks)
    if not len(private.ids):
        return Participation.always(count, len(finished.plan.rounds)), public_seeds(tasks.ids)
    refusal = "There is no task {!r} in the run. Write it as it is in the roster, or leave it out.".format
    where = _places(tasks.ids, private.ids, refusal)
    return private.coins[:, where], private.seeds[where]


def _chosen(rounds: Sequence[int] | None, posted: int) -> Integers:
    """Return the rounds to look at, each once and in order."""
    if rounds is None:
        return np.unique(np.linspace(0, posted, min(posted + 1, SHOWN)).round().astype(np.int64))
    shown = np.unique(np.asarray(rounds))
    if shown.dtype.kind not in "iu" or not len(shown) or shown[0] < 0 or shown[-1] > posted:
        raise InputError(f"rounds must be whole numbers from 0 to {posted}. Got {rounds!r}.")
    return shown.astype(np.int64)


def _watched(steps: Iterable[int], total: int) -> Iterable[int]:
    """Pass steps on, with a bar on stderr if a person is watching."""
    screen = Console(stderr=True)
    seen = screen.is_terminal or screen.is_jupyter
    return track(steps, "Rounds", total=total, console=screen, transient=True, disable=not seen)
