"""The curator: the one place that charges a ledger, adds noise to a sum, and posts the release.

Everything that lets anything out goes through here, whatever the engine: runs, clusters, votes, accounted
evaluations. The curator sees plans, sums and the journal; rows, states and models stay with the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cloister.billboard import Billboard, Release
from cloister.channel import Relation
from cloister.engines.journal import Journal
from cloister.engines.workers import Workers
from cloister.errors import AlgorithmError, PlanError
from cloister.ledger import Ledger
from cloister.plan import Plan
from cloister.privacy.doubts import Doubt
from cloister.privacy.events import Cost
from cloister.privacy.mechanisms import NoiseState
from cloister.privacy.participation import Participation

__all__ = ["Bill", "Curator", "Progress", "charge", "check_price"]

#: Called with (rounds done, rounds in all).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bill:
    """What is charged for everything that one call lets out.

    Attributes
    ----------
    plan : str
        Fingerprint of the plan, or of several together.
    cost_under : callable
        Returns what one task is exposed to under a relation.
    doubts : tuple of Doubt
        Why its price may not be what it claims.
    """

    plan: str
    cost_under: Callable[[Relation], Cost]
    doubts: tuple[Doubt, ...]


def check_price(plan: Plan) -> None:
    """Refuse a plan that nobody can price, or whose noise cannot be made; before anything is charged."""
    plan.mechanism.check(plan.schedule)
    plan.open()


def charge(ledger: Ledger, bill: Bill, run: str | None = None) -> None:
    """Charge a ledger, under the key of a run so that going on with that run costs nothing more."""
    ledger.charge(bill.plan, bill.cost_under(ledger.relation), run=run, doubts=bill.doubts)


@dataclass
class Curator:
    """The curator of one run."""

    plan: Plan
    journal: Journal

    @cached_property
    def coins(self) -> Participation:
        """Who takes part in which round: drawn from a stream of its own."""
        rounds, n_tasks = len(self.plan.rounds), self.plan.n_tasks
        if not rounds:
            return Participation.always(n_tasks, 0)
        return self.plan.sampling.draw(self.journal.source.stream("coins").numbered, n_tasks, rounds)

    def charge(self, ledger: Ledger) -> None:
        """Charge for the whole run. A journal that was just begun goes if the ledger refuses."""
        doubts = self.plan.guarantee_on(self.journal.posted).doubts
        try:
            charge(ledger, Bill(self.plan.fingerprint, self.plan.cost_under, doubts), self.journal.run)
        except PlanError:  # it may not take place, and nothing was booked
            self.journal.discard()
            raise

    def rounds(self, workers: Workers, progress: Progress | None) -> Billboard:
        """Go through all rounds: tasks listen to what is posted, and the rest is collected and posted.

        In a run of more than a thousand rounds, correlated noise has what it remembers of old sums from when
        the board was synced last: the few posted rounds since are collected once more, and not released.
        """
        plan, posted, board = self.plan, self.journal.posted, self.journal.posted.before(0)
        state = plan.mechanism.begin(plan.schedule, self.journal.source)
        remembers = state.rows > 0 and not posted.complete
        kept = self.journal.kept if remembers else posted.rounds
        for t in range(len(plan.rounds)):
            if t < kept:
                workers.listen(board, self.coins[t])
                state.listen(posted.releases[t].value)
                if remembers and t + 1 == kept:
                    self.journal.restore(state)
            else:
                total = workers.collect(board, self.coins[t])
                _ = board.head  # hashed while a device may still be computing the sum
                if t < posted.rounds:
                    state.recall(total, posted.releases[t].value)
                else:
                    board = self.journal.keep(_post(plan, board, total, state), state)
            if t < posted.rounds:
                board = posted.before(t + 1)
            if progress is not None:
                progress(t + 1, len(plan.rounds))
        return board


def _post(plan: Plan, board: Billboard, total: Any, state: NoiseState) -> Billboard:
    t, channel = board.rounds, plan.algorithm.channel(board)
    declared = plan.rounds[t].channels
    if channel not in declared:
        raise AlgorithmError(f"Round {t} uses a channel that its schedule did not declare: {channel}.")
    release = Release(
        value=state.release(total, channel),
        noise=plan.noise(t, channel),
        denominator=plan.sampling.denominator(plan.n_tasks, len(plan.rounds)),
        share=plan.rounds[t].share,
        channel=declared.index(channel),
    )
    return board.post(release, plan.algorithm.digest(release, board))
