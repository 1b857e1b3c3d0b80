"""Choosing for all tasks: what is chosen among, the vote that decides, and the public record of both."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, States
from cloister.core.channel import Channel, Round
from cloister.core.errors import BillboardError, PlanError
from cloister.core.lifts import Absolute, Relation
from cloister.core.tasks import Block
from cloister.engines.run import Run
from cloister.learners.linear.losses import Loss
from cloister.plan.algorithm import Algorithm, Budget
from cloister.plan.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.accounting import Prices
from cloister.privacy.events import Cost
from cloister.privacy.guarantee import Guarantee, NoiseMade, domain_of, guarantee_for
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import Origin
from cloister.privacy.sampling import Everyone
from cloister.store.billboard import Billboard, BoardView
from cloister.store.records import Release

THIS_CHOICE = (
    "this is for one choice, all runs that were chosen among and the vote together, and for the rows as they "
    "were given to it: other runs on the same rows, and whatever chose or scaled rows before, are no part"
)


def cost_together(plans: Sequence[Plan], relation: Relation) -> Cost:
    """Return what one task is exposed to over several runs in all of which it takes part throughout."""
    whose = {(plan.unit, plan.trust) for plan in plans}
    if len(whose) > 1 or any(plan.sampling != Everyone() for plan in plans):
        raise BillboardError(
            "Runs are priced together where every task takes part in every round, with one unit and one "
            "trust for all."
        )
    events = tuple(event for plan in plans for event in plan.cost_under(relation).events)
    return replace(plans[0].cost_under(relation), events=events)


def guarantee_together(plans: Sequence[Plan], made: NoiseMade, scope: str = THIS_CHOICE) -> Guarantee:
    """Return what several runs over the same tasks promise together, all of whose noise is made so."""
    first = plans[0]
    assert first.delta is not None
    found = guarantee_for(
        Prices.of(partial(cost_together, plans), first.relation, first.delta),
        made,
        tuple(dict.fromkeys(doubt for plan in plans for doubt in plan.doubts)),
        n_tasks=first.n_tasks,
        participation="; ".join(dict.fromkeys(plan._participation for plan in plans)),
        trust=first.trust.describe(first.n_tasks),
        against=first.trust.against(first.n_tasks),
        domain=domain_of(any(plan.algorithm.groups is not None for plan in plans), first.unit.by_record),
    )
    return replace(found, scope=scope)


@dataclass(frozen=True, eq=False)
class Choice:
    """The runs that one was chosen among, and the vote: plans and finished boards, all of it public.

    Attributes
    ----------
    plans, boards : tuples of Plan and Billboard
        One of each for every candidate, and the vote's at the end.
    """

    plans: tuple[Plan, ...]
    boards: tuple[Billboard, ...]

    @property
    def votes(self) -> list[float]:
        """The noisy count that decided."""
        return [float(count) for count in self.boards[-1]["votes"]]

    @property
    def winner(self) -> int:
        return int(np.argmax(self.votes))

    @property
    def head(self) -> str:
        """The hash that stands for all boards, and so for all plans and the vote."""
        return hashlib.sha256(b"".join(board.head for board in self.boards)).hexdigest()

    @cached_property
    def guarantee(self) -> Guarantee:
        """What all runs and the vote promise together: more than the chosen run's own plan costs."""
        runs = zip(self.plans, self.boards, strict=True)
        kinds = {plan.noise_on(board) for plan, board in runs if plan.has_rounds}
        if len(kinds) != 1:
            raise BillboardError("The runs that were chosen among must all have the same kind of noise.")
        return guarantee_together(self.plans, kinds.pop())

    def check(self, plan: Plan, board: Billboard) -> None:
        """Refuse a record that is not whole, or by which another run than this one was chosen."""
        first, vote = self.plans[0], self.plans[-1].algorithm
        if len(self.plans) < 3 or vote != Ballot(len(self.plans) - 1):
            raise BillboardError("A choice must have two candidates or more, and a vote at the end.")
        for each, posted in zip(self.plans, self.boards, strict=True):
            if (each.n_tasks, each.relation, each.delta) != (first.n_tasks, first.relation, first.delta):
                raise BillboardError("The runs that were chosen among must be of the same tasks and delta.")
            each.check(posted)
            if not posted.complete:
                raise BillboardError("A run that was chosen among is not complete.")
        if len(self.votes) != len(self.plans) - 1:
            raise BillboardError("The vote is not among these runs.")
        if (self.plans[self.winner], self.boards[self.winner].head) != (plan, board.head):
            raise BillboardError("The vote has chosen another run than this one.")

    def save(self, folder: Path) -> None:
        """Write every candidate to a folder of its own, 0, 1, ..., and the vote."""
        for name, plan, board in zip(self._names(len(self.plans)), self.plans, self.boards, strict=True):
            (folder / name).mkdir(parents=True)
            plan.save(folder / name / "plan.toml")
            board.save(folder / name / "board")

    @classmethod
    def load(cls, folder: Path, types: Iterable[object] = ()) -> Choice:
        places = [folder / name for name in cls._names(sum(1 for _ in folder.iterdir()))]
        given = list(types)
        return cls(
            tuple(Plan.load(place / "plan.toml", given) for place in places),
            tuple(Billboard.load(place / "board") for place in places),
        )

    @staticmethod
    def _names(count: int) -> list[str]:
        return [*map(str, range(count - 1)), "vote"]


@dataclass(frozen=True, eq=False)
class TuningResult:
    """What was chosen, and what the choice and everything before it cost.

    Attributes
    ----------
    index, candidate : int, Algorithm
        The chosen one.
    run : Run
        Its plan, board and models. Its guarantee is that of everything together; the plan prices one run.
    scores : array
        The public numbers that decided: noisy votes, or the noisy score of the run that is shown.
    guarantee : Guarantee
        For everything together. This is the one to quote.
    record : Choice, optional
        Plans and boards of all runs and of the vote, where they are public.
    """

    index: int
    candidate: Algorithm
    run: Run
    scores: Floats
    guarantee: Guarantee
    record: Choice | None = None


@dataclass(frozen=True)
class Grid(ABC):
    """What both ways of choosing need to know, all of it public."""

    candidates: tuple[Algorithm, ...]
    loss: Loss
    n_tasks: int = field(kw_only=True)
    epsilon: float = field(kw_only=True)
    delta: float | None = field(default=None, kw_only=True)
    relation: Relation = field(default=Relation.REPLACE, kw_only=True)
    share: float = field(default=0.1, kw_only=True)
    holdout: float = field(default=0.3, kw_only=True)
    caveats: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if len(self.candidates) < 2:
            raise PlanError(f"There must be two candidates or more. Got {len(self.candidates)}.")
        if any(candidate.network is not None for candidate in self.candidates):
            raise PlanError("A loss judges linear models, not networks. Compare those with evaluate.")
        if not (0 < self.share < 1 and 0 < self.holdout < 1):
            raise PlanError(f"share and holdout must be in (0, 1). Got {self.share} and {self.holdout}.")
        if not 0 < self.epsilon < math.inf:
            raise PlanError(f"epsilon must be > 0 and finite. Got {self.epsilon}.")
        if self.relation not in list(Relation):
            raise PlanError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}.")
        delta = accounting.default_delta(self.n_tasks) if self.delta is None else float(self.delta)
        object.__setattr__(self, "delta", accounting.check_delta(delta, self.n_tasks))
        object.__setattr__(self, "relation", Relation(self.relation))
        object.__setattr__(self, "candidates", tuple(self.candidates))

    def _plan(self, algorithm: Algorithm, mu: float) -> Plan:
        return Plan(
            algorithm,
            Gaussian(mu),
            n_tasks=self.n_tasks,
            relation=self.relation,
            delta=self.delta,
            caveats=self.caveats,
        )

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the whole will promise, known before data is touched."""
        return self.guarantee_from(Origin.SYSTEM)

    @abstractmethod
    def guarantee_from(self, origin: Origin) -> Guarantee:
        """Return what the whole promises if randomness comes from there."""


@dataclass(frozen=True)
class Ballot(Algorithm):
    r"""One vote a task, as an algorithm: its rows are the candidates' losses, its message is one-hot.

    Privacy
    -------
    A message is a unit vector with one entry that is 1, or zero for a task that cannot tell: sensitivity 1
    (zero-out) or :math:`\sqrt2` (replace) of the count. Noise of deviation 10 votes costs
    :math:`\mu = 0.1` or 0.141, whatever the number of candidates and tasks.
    """

    candidates: int

    @property
    def _channel(self) -> Channel:
        return Channel(self.candidates, 1.0, Absolute())

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return (Round(1.0, (self._channel,)),)

    def start(self) -> dict[str, NDArray[Any]]:
        return {"votes": np.zeros(self.candidates)}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def init(self, block: Block, board: BoardView) -> States:
        return {}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[NDArray[Any], States]:
        """Vote for the smallest loss; the first of equals."""
        known = np.asarray(np.isfinite(block.X[:, 0]))
        best = np.where(known, block.X[:, 0], np.inf).argmin(axis=1)
        one_hot = best[:, None] == np.arange(self.candidates)
        return one_hot & known.any(axis=1, keepdims=True), states

    def update(self, release: Release, board: BoardView) -> dict[str, NDArray[Any]]:
        return {"votes": release.value}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {}


@dataclass(frozen=True)
class Vote(Grid):
    r"""A choice by vote: all of it public, and priced before data is touched.

    Parameters
    ----------
    candidates : tuple of Algorithm
        The grid. Those that release nothing, like `Independent`, cost nothing.
    loss : LeastSquares, Logistic or Softmax
        What held-out rows are judged by.
    n_tasks : int
        Public number of tasks.
    epsilon, delta : float
        Budget of every task for all candidates' runs and the vote together.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    share : float
        The vote's share of the squared Gaussian-DP budget; candidates with rounds share the rest equally.
    holdout : float
        Share of a task's rows that it keeps back from its messages, to vote by.
    caveats : tuple of str
        Reasons why the guarantee does not hold.

    Privacy
    -------
    The runs and the vote are Gaussian releases over the same tasks, hence exactly
    :math:`\sqrt{\mu_1^2 + \ldots + \mu_C^2 + \mu_v^2}`-GDP together. Everything on the boards may be public.

    Examples
    --------
    >>> from cloister.algorithms import Independent, MeanRegularized
    >>> from cloister.learners import LeastSquares, Regression
    >>> loss = LeastSquares(3)
    >>> election = Vote((MeanRegularized(loss), Independent(Regression(3))), loss, n_tasks=200, epsilon=1.0)
    >>> 0.999 < election.guarantee.epsilon <= 1.0
    True
    """

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """One plan a candidate, and the ballot's; together they spend the budget and no more."""
        assert self.delta is not None
        mu = accounting.calibrate(
            lambda mu: cost_together(self._plans(mu), self.relation), self.epsilon, self.delta
        )
        return self._plans(mu)

    def _plans(self, mu: float) -> tuple[Plan, ...]:
        has_rounds = [bool(candidate.schedule(self.n_tasks, Budget(1.0))) for candidate in self.candidates]
        each = mu * math.sqrt((1 - self.share) / max(1, sum(has_rounds)))
        ballot = mu * (math.sqrt(self.share) if any(has_rounds) else 1.0)
        runs = tuple(self._plan(candidate, each) for candidate in self.candidates)
        return (*runs, self._plan(Ballot(len(self.candidates)), ballot))

    def cost_under(self, relation: Relation) -> Cost:
        """Return what one task is exposed to over all runs and the vote."""
        return cost_together(self.plans, Relation(relation))

    def guarantee_from(self, origin: Origin) -> Guarantee:
        return guarantee_together(self.plans, NoiseMade.by(Gaussian(), origin))

    @property
    def fingerprint(self) -> str:
        """A hash that stands for all plans."""
        return hashlib.sha256("".join(plan.fingerprint for plan in self.plans).encode()).hexdigest()
