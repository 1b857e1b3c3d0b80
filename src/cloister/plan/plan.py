"""A plan: algorithm, mechanism, sampling, number of tasks; public, and priced before data is touched."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from cloister.core.arrays import is_real, is_whole
from cloister.core.channel import Channel, Round
from cloister.core.document import fingerprint, flattened, from_document, to_document
from cloister.core.errors import PlanError
from cloister.core.findings import NOT_COMPARED, EarlierPrior, ReadFrom
from cloister.core.lifts import Relation
from cloister.core.spec import Target
from cloister.core.spelling import counted
from cloister.plan.algorithm import Algorithm, Budget, PlannedStage
from cloister.plan.board_checks import check_board, noise_of, prior_of
from cloister.plan.forecast import NETWORK, SEARCH, Forecast, SilentSearch, forecast, rows_of_classes
from cloister.plan.plan_file import check_document, parsed, text_of, unreadable_files_refused
from cloister.plan.record_forecast import RecordForecast, records_heard
from cloister.privacy import accounting
from cloister.privacy.caveats import Caveat, Grade
from cloister.privacy.events import Cost
from cloister.privacy.guarantee import Guarantee, NoiseMade, domain_of, guarantee_for
from cloister.privacy.mechanisms import Gaussian, Mechanism, Schedule
from cloister.privacy.randomness import Origin, Randomness
from cloister.privacy.sampling import Everyone, Sampling
from cloister.privacy.tradeoff import FALSE_ALARMS
from cloister.privacy.trust import Trust
from cloister.privacy.unit import Unit
from cloister.store.billboard import Billboard
from cloister.store.files import write_file

#: No plan is for more tasks: beyond, whole numbers are no floats.
MANY = 2**53


@dataclass(frozen=True)
class Plan:
    """Everything public about a run, and what it will cost each task.

    Parameters
    ----------
    algorithm : Algorithm
        What tasks say and do.
    mechanism : Mechanism
        How releases are made noisy; `Gaussian()` must be calibrated, `NoNoise()` is the non-private run.
    sampling : Sampling
        Who takes part in a round.
    n_tasks : int
        Number of tasks, a public number.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    delta : float, optional
        By default min(m^-1.5, 1/(10 m)); more than 1/m is refused.
    caveats : tuple of str
        Reasons why the guarantee does not hold, e.g. bounds that were read from the data: void doubts.
    trust : Trust
        Whom tasks trust with their messages: a curator who adds the noise, by default; with their sum alone,
        to which tasks add noise in shares (`Trust.secure_sum`); or nobody (`Trust.silo`).
    unit : Unit
        Who is protected: each task with all its records (`Unit.task`), by default, or each record of a task
        (`Unit.record`).
    quorum : int, optional
        Where tasks answer from elsewhere: a round is posted when at least so many of them have answered, and
        the board says how many have. None posts every round, whoever is missing, and says nothing.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=5), n_tasks=200).calibrate(epsilon=1.0)
    >>> round(plan.guarantee.epsilon, 3), plan.guarantee.relation
    (1.0, 'replace')
    >>> Plan.from_toml(plan.to_toml()) == plan
    True
    """

    algorithm: Algorithm
    mechanism: Mechanism = field(default_factory=Gaussian)
    sampling: Sampling = field(default_factory=Everyone)
    n_tasks: int = field(kw_only=True)
    relation: Relation = field(default=Relation.REPLACE, kw_only=True)
    delta: float | None = field(default=None, kw_only=True)
    caveats: tuple[str, ...] = field(default=(), kw_only=True)
    trust: Trust = field(default_factory=Trust.curator, kw_only=True)
    unit: Unit = field(default_factory=Unit.task, kw_only=True)
    quorum: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        kinds = {"algorithm": Algorithm, "mechanism": Mechanism, "sampling": Sampling}
        for part, kind in (kinds | {"trust": Trust, "unit": Unit}).items():
            given = getattr(self, part)
            if not isinstance(given, kind):
                raise PlanError(
                    f"{part} must be of a subclass of {kind.__name__}. Got {type(given).__name__}."
                )
        object.__setattr__(self, "n_tasks", _whole("n_tasks", self.n_tasks))
        self.trust.accept(self.mechanism, self.sampling, self.n_tasks)
        self.unit.accept(self.sampling)
        if self.unit.sender not in self.algorithm.senders:
            raise PlanError(
                f"Messages of {type(self.algorithm).__name__} are sent by each "
                f"{' or '.join(sorted(self.algorithm.senders))}. Got the unit {self.unit}. Choose another of "
                "the two."
            )
        if self.relation not in list(Relation):
            raise PlanError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}.")
        object.__setattr__(self, "relation", Relation(self.relation))
        _check_number("delta", self.delta)
        if not (isinstance(self.caveats, tuple | list) and all(isinstance(c, str) for c in self.caveats)):
            raise PlanError(f"caveats must be a tuple of sentences. Got {self.caveats!r}.")
        object.__setattr__(self, "caveats", tuple(self.caveats))
        delta = accounting.default_delta(self.senders) if self.delta is None else float(self.delta)
        if delta != 0 or not self.mechanism.pure:  # pure noise needs no delta
            accounting.check_delta(delta, self.senders)
        object.__setattr__(self, "delta", delta)
        if self.quorum is not None:
            object.__setattr__(self, "quorum", _whole("quorum", self.quorum))
            self.trust.check_quorum(self.quorum, self.n_tasks)

    def calibrate(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        detection: float | None = None,
        false_alarms: float = FALSE_ALARMS,
    ) -> Plan:
        """Return the plan with as little noise as a target allows; it never overspends.

        Parameters
        ----------
        epsilon, delta : float
            The target, or delta alone beside `detection`.
        detection : float
            Instead of epsilon, a risk: the largest share of cases in which all others together may detect
            what one task holds (or, under zero_out, that it takes part). Epsilon follows.
        false_alarms : float, default=0.05
            Share of cases in which their test may raise a false alarm. Guessing detects as much.

        Examples
        --------
        >>> from cloister.algorithms import MeanRegularized
        >>> from cloister.learners import LeastSquares
        >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=5), n_tasks=200).calibrate(detection=0.10)
        >>> round(plan.guarantee.detection(), 3), round(plan.guarantee.epsilon, 2)
        (0.1, 1.05)
        """
        if (epsilon is None) == (detection is None):
            raise PlanError("calibrate needs one target: epsilon, or detection. Use calibrate(epsilon=1.0).")
        if epsilon is not None and not epsilon > 0:
            raise PlanError(f"epsilon must be > 0. Got {epsilon}. Use Independent() to release nothing.")
        if epsilon is not None and not (is_real(epsilon) and epsilon < math.inf):
            raise PlanError("epsilon must be finite. Use mechanism=NoNoise() for a non-private run.")
        _check_number("delta", delta)
        plan = self if delta is None else replace(self, delta=delta)
        if not plan.has_rounds:
            return plan
        assert plan.delta is not None

        def cost_of(mu: float) -> Cost:
            return replace(plan, mechanism=plan.mechanism.scaled(mu)).cost

        if epsilon is not None:
            budget = accounting.calibrate(cost_of, epsilon, plan.delta)
        else:
            assert detection is not None
            budget = accounting.calibrate_detection(cost_of, detection, false_alarms, plan.delta)
        return replace(plan, mechanism=plan.mechanism.scaled(budget))

    @property
    def senders(self) -> int:
        """How many messages a round has at most: of all tasks, or of all their records; public."""
        return self.unit.count(self.n_tasks)

    @property
    def denominator(self) -> float:
        """The public number that stands for how many messages are in a release."""
        return self.sampling.denominator(self.senders, len(self.rounds))

    def width(self, channel: Channel) -> int:
        """Return how many numbers leave a task on a channel: lifted ones where it sums, or adds the noise."""
        return channel.size if self.trust.at_home or self.unit.by_record else channel.dim

    @property
    def has_rounds(self) -> bool:
        """Whether anything is ever sent; if not, no noise level is needed and epsilon is 0."""
        return bool(self.algorithm.schedule(self.senders, Budget(1.0, self.mechanism.pure)))

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        if not self.has_rounds:
            return ()
        heard = self.mechanism.budget / self.trust.deviation(1.0, self.n_tasks)
        return self.algorithm.schedule(self.senders, Budget(heard, self.mechanism.pure))

    @cached_property
    def stages(self) -> tuple[PlannedStage, ...]:
        """What tasks are asked for, in order: the rounds in groups, and what each has of the budget."""
        named = groupby(self.rounds, key=lambda round: round.about or self.algorithm.plain_name)
        return tuple(PlannedStage.of(about, list(rounds)) for about, rounds in named)

    @cached_property
    def widest(self) -> int:
        """The most numbers that a task says in a round: about what its state and its model take."""
        return max((channel.dim for round in set(self.rounds) for channel in round.channels), default=1)

    @property
    def longest_message(self) -> int:
        """The most numbers that leave a task in a round."""
        channels = {channel for round in set(self.rounds) for channel in round.channels}
        return max(map(self.width, channels), default=1)

    @cached_property
    def schedule(self) -> Schedule:
        """What the mechanism is told before the run."""
        return Schedule(self.rounds, self.sampling, self.n_tasks, self.relation, self.senders)

    @property
    def cost(self) -> Cost:
        """What one unit, a task by default, is exposed to under the plan's relation."""
        return self.cost_under(self.relation)

    def cost_under(self, relation: Relation) -> Cost:
        """Return what one unit is exposed to under a relation; at worst over the channels a round may use."""
        return self.unit.priced(self.mechanism.cost(self.schedule, Relation(relation)))

    @cached_property
    def prices(self) -> accounting.Prices:
        """Epsilon and delta under both relations."""
        assert self.delta is not None
        return accounting.Prices.of(self.cost_under, self.relation, self.delta)

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the run will promise, known before data is touched."""
        return self.guarantee_with(self.noise_from(Origin.SYSTEM))

    def guarantee_with(self, made: NoiseMade) -> Guarantee:
        """Return what is promised of a run whose noise is made in this way: see `noise_from`."""
        return guarantee_for(
            self.prices,
            made,
            self.doubts,
            n_tasks=self.n_tasks,
            participation=self._participation,
            trust=self.trust.describe(self.n_tasks),
            against=self.trust.against(self.n_tasks),
            domain=domain_of(self.algorithm.groups is not None, self.unit.by_record),
        )

    def guarantee_on(self, board: Billboard) -> Guarantee:
        """Return what is promised of the run that posted a board."""
        return self.guarantee_with(self.noise_on(board))

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """What the plan itself has against its guarantee: every caveat makes it void, earlier ones too."""
        start = self.algorithm.start_from
        earlier = () if start is None else start.objections
        return tuple(Caveat(Grade.VOID, caveat) for caveat in (*self.caveats, *earlier))

    @property
    def not_compared(self) -> str:
        """What is said of a start that a plan file vouches for, and no board; empty without one."""
        start = self.algorithm.start_from
        return "" if start is None or start.read_from is not ReadFrom.FILE else NOT_COMPARED

    @property
    def fewest(self) -> int:
        """How many tasks must have answered before a round is posted; 0 where nobody is waited for."""
        return max(self.quorum or 0, self.trust.fewest(self.n_tasks) if self.trust.at_home else 0)

    @property
    def _participation(self) -> str:
        start, who, least = self.algorithm.start_from, self.sampling.describe(), self.fewest
        if self.quorum is not None or 0 < least < self.n_tasks:
            who += (
                f"; a round is posted when at least {least} of the tasks that it asks have answered: "
                "how many have is public, and that a task is away must not depend on its rows"
            )
        return who if start is None else f"{who}; {start.describe()}"

    def prior_on(self, board: Billboard) -> EarlierPrior:
        """Return what a finished board of this plan says, for a later plan to start from.

        Privacy
        -------
        Free, and as private as the earlier run, whose doubts are handed on: the board is verified.

        Examples
        --------
        >>> import numpy as np
        >>> from cloister import Tasks, run
        >>> from cloister.algorithms import Joint, SharedPrior
        >>> from cloister.learners import Regression
        >>> tasks = Tasks.from_list([np.ones((5, 1))] * 40, [np.full(5, 0.5)] * 40)
        >>> plan = Plan(SharedPrior(Regression(1)), n_tasks=40).calibrate(epsilon=2.0)
        >>> earlier = plan.prior_on(run(plan, tasks).board)
        >>> algorithm = SharedPrior(Regression(1), Joint(start_from=earlier))
        >>> later = Plan(algorithm, n_tasks=40).calibrate(epsilon=0.1)
        >>> later.guarantee.epsilon <= 0.1, earlier.source[:16] in str(later.guarantee)
        (True, True)
        """
        return prior_of(self, board)

    def forecast(self, rows: float | None = None) -> Forecast:
        """Say from public numbers alone what joining can be expected to bring.

        `rows` is a guess at how many rows a typical task has, if that is public.
        """
        if self.unit.by_record:
            largest = max(self.rounds, key=lambda round: round.share, default=Round(1.0, (Channel(1),)))
            return RecordForecast.of(
                records_heard(self.senders, self.main_rounds[0], largest.channels[0].dim)
            )
        groups = self.algorithm.groups
        group = None if groups is None else float(groups.counts @ groups.counts) / groups.tasks
        found = forecast(self.n_tasks, *self.main_rounds, self.informative_rows(rows), group)
        unknown = NETWORK if self.algorithm.network is not None else found.unknown
        needed = None if self.trust.at_home else found.tasks_needed
        silent = SilentSearch.of(self)
        return replace(found, tasks_needed=needed, unknown=unknown, silent=silent)

    def informative_rows(self, rows: float | None) -> float | None:
        """Return a guess at the rows of a task as a forecast counts them: those with classes say less."""
        asked = self.algorithm.rows
        classes = asked is not None and asked.target is Target.CLASS
        return rows_of_classes(self.main_rounds[1], rows) if classes else rows

    @property
    def main_rounds(self) -> tuple[float, int]:
        """The budget of the rounds that are about the parameters, as Gaussian DP, and how many these are.

        A search before them counts as some more parameters.
        """
        budget_of = {1: 0.0}  # by the number of parameters spoken of
        for round in self.rounds:
            dim = round.channels[0].dim
            budget_of[dim] = budget_of.get(dim, 0.0) + round.share
        dim = max(budget_of, key=budget_of.__getitem__)
        about = tuple(round for round in self.rounds if round.channels[0].dim == dim)  # not a search before
        mu = self.mechanism.effective_mu(replace(self.schedule, rounds=about)) if about else 0.0
        searched = SEARCH if self.algorithm.begins(len(self.rounds)) else 0
        return mu / self.trust.deviation(1.0, self.n_tasks), dim + searched

    def noise(self, round: int, channel: Channel, shares: int | None = None) -> float:
        """Return the standard deviation of the noise that is released in a round, in units of the clip.

        Where tasks add it, `shares` says how many have; by default all.
        """
        priced = self.mechanism.deviation(self.schedule, round, channel)
        return self.trust.deviation(priced, self.n_tasks, shares)

    def unknown_noise(self, round: int, channel: Channel) -> float:
        """Return the noise of a round that whoever it is priced against knows nothing of."""
        return self.mechanism.deviation(self.schedule, round, channel)

    def has_noise(
        self,
        round: int,
        channel: Channel,
        noise: float,
        tolerance: float = 1e-12,
        answered: int | None = None,
    ) -> bool:
        """Whether a release of this round may say this noise: that of as many shares as may be in a sum.

        Where tasks add it, and the board says how many have `answered`, it is that of so many.
        """
        priced = self.mechanism.deviation(self.schedule, round, channel)
        due = self.trust.deviations(priced, self.n_tasks, answered)
        return bool(np.isclose(noise, due, rtol=tolerance, atol=0).any())

    @property
    def relative_noise(self) -> float:
        """Length of the noise in the mean that the first round releases, in units of its clip."""
        if not self.rounds:
            return 0.0
        channel = self.rounds[0].channels[0]
        return self.noise(0, channel) * math.sqrt(channel.dim) / self.denominator

    @cached_property
    def fingerprint(self) -> str:
        """A hash that stands for the whole plan, in whichever form its file is."""
        return fingerprint(self.to_dict())

    def create_board(
        self, source: Randomness | None = None, engine: tuple[Caveat, ...] = (), together: bool = False
    ) -> Billboard:
        """Open this plan's billboard; a plan that nobody can price has none.

        It says from the start what kind of noise it has, from which source, whether tasks that add it are
        all on one machine, and the engine's doubts.
        """
        _ = self.prices
        noise = "" if source is None else str(self.noise_from(source.origin, together=together))
        return Billboard.create(self.algorithm.start(), self.fingerprint, len(self.rounds), noise, engine)

    def noise_from(
        self, origin: Origin, engine: tuple[Caveat, ...] = (), together: bool = False
    ) -> NoiseMade:
        """Say how the noise of a run is made: from randomness of this origin, on an engine with doubts."""
        if not self.rounds or math.isinf(self.prices.own.epsilon):
            return NoiseMade.none(engine)
        made = NoiseMade.by(self.mechanism, origin, engine)
        return replace(made, kind=self.trust.kind(made.kind), together=together and self.trust.at_home)

    def noise_on(self, board: Billboard) -> NoiseMade:
        """Say how the noise on a board was made; refuse one that claims noise that the plan does not have."""
        return noise_of(self, board)

    def check(self, board: Billboard, since: int = 0, *, exact: bool = False) -> None:
        """Refuse a board of another plan, or one with releases or arrays that it does not make.

        The first `since` records were checked before; `exact` compares last bits too: see `check_board`.
        """
        check_board(self, board, since, exact)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, each with the id of its type."""
        document: dict[str, Any] = to_document(self)
        if not self.trust.at_home:  # plans of before there was a choice keep their fingerprint
            del document["trust"]
        if self.unit == Unit.task():
            del document["unit"]
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], types: Iterable[Any] = ()) -> Plan:
        """Build a plan from a plain document; see `load` for `types`."""
        check_document(document, cls)
        plan: Plan = from_document(flattened(document), types)
        if plan.algorithm.start_from is not None:
            plan.algorithm.start_from.mark_read(ReadFrom.FILE)
        return plan

    def to_toml(self) -> str:
        """Return it as the text of a plan file, to be read by `from_toml`."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str, types: Iterable[Any] = ()) -> Plan:
        """Read a plan from TOML; see `load` for `types`."""
        with unreadable_files_refused():
            return cls.from_dict(parsed(text), types)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan to a TOML file, atomically."""
        return write_file(Path(path), self.to_toml().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str], types: Iterable[Any] = ()) -> Plan:
        """Read a plan from a TOML file.

        Parameters
        ----------
        path : path
            The file.
        types : iterable of classes and values
            What the file may name beside the library's own types: your own algorithm's class, say, or the
            network it describes. A file never makes anything else be imported.
        """
        return cls.from_toml(text_of(path), types)

    def __str__(self) -> str:
        head = (
            f"{type(self.algorithm).__name__} over {self.n_tasks} tasks, "
            f"{counted(len(self.rounds), 'release')}, {self.sampling.describe()}."
        )
        listed = "\n".join(f"  {stage}" for stage in self.stages if len(self.stages) > 1)
        told = [head, listed, str(self.guarantee), self.not_compared, str(self.forecast())]
        if self.algorithm.network is not None and (noise := self.relative_noise):
            told.append(f"The noise in a round's mean is {noise:.2g} times as long as the clip.")
        return "\n\n".join(filter(None, told))


def _whole(name: str, value: object) -> int:
    """Return a whole number from 1 on that is a float too."""
    if not is_whole(value):
        raise PlanError(f"{name} must be a whole number. Got {value!r}.")
    count = int(value)  # type: ignore[call-overload]
    if not 1 <= count <= MANY:
        raise PlanError(f"{name} must be at least 1, and at most {MANY}.")
    return int(count)


def _check_number(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not is_real(value)):
        raise PlanError(f"{name} must be a number. Got {value!r}.")
