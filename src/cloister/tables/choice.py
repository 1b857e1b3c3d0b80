"""A run that tasks chose among several by vote: the public record of them all, and their price together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from cloister.channel import Relation
from cloister.document import type_id
from cloister.errors import BillboardError
from cloister.plan import Plan
from cloister.privacy.accounting import Prices
from cloister.privacy.events import Cost
from cloister.privacy.guarantee import Guarantee, NoiseMade, guarantee_for
from cloister.privacy.sampling import Everyone
from cloister.store.billboard import Billboard

__all__ = ["Choice", "cost_together", "guarantee_together"]

_BALLOT = "cloister/ballot/1"
THIS_CHOICE = (
    "this is for one choice, all runs that were chosen among and the vote together, and for the rows as they "
    "were given to it: other runs on the same rows, and whatever chose or scaled rows before, are no part"
)


def cost_together(plans: Sequence[Plan], relation: Relation) -> Cost:
    """Return what one task is exposed to over several runs in all of which it takes part throughout."""
    if any(plan.sampling != Everyone() for plan in plans):
        raise BillboardError("Runs are priced together where every task takes part in every round.")
    events = tuple(event for plan in plans for event in plan.cost_under(relation).events)
    return Cost(events, Everyone(), plans[0].n_tasks, Relation(relation).value)


def guarantee_together(plans: Sequence[Plan], made: NoiseMade) -> Guarantee:
    """Return what several runs over the same tasks promise together, all of whose noise is made so."""
    first = plans[0]
    assert first.delta is not None
    found = guarantee_for(
        Prices.of(partial(cost_together, plans), first.relation, first.delta),
        made,
        tuple(dict.fromkeys(doubt for plan in plans for doubt in plan.doubts)),
        n_tasks=first.n_tasks,
        participation="; ".join(dict.fromkeys(plan._participation for plan in plans)),
    )
    return replace(found, scope=THIS_CHOICE)


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
        first, ballot = self.plans[0], self.plans[-1]
        if len(self.plans) < 3 or type_id(type(ballot.algorithm)) != _BALLOT:
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
