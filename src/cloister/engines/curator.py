"""The curator: the one place that charges a ledger, adds noise to a sum, and posts the release.

Everything that lets anything out goes through here, whatever the engine: runs, streams, clusters, votes,
accounted evaluations. It sees plans, sums and the journal; rows, states and models stay with the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.channel import GRID, Channel, Round
from cloister.core.errors import AlgorithmError, InputError
from cloister.core.lifts import Relation
from cloister.core.spelling import counted
from cloister.engines.workers import Coins, Collected, GridRows, Workers, check_sent
from cloister.ledger import Charge, Ledger
from cloister.plan.plan import Plan
from cloister.privacy.caveats import Caveat
from cloister.privacy.chacha_proposals import Sampler, on_processor
from cloister.privacy.events import Cost
from cloister.privacy.guarantee import AllRuns
from cloister.privacy.mechanisms import Mechanism, NoiseState, Schedule
from cloister.privacy.noise_states import NoisySum, TaskSum
from cloister.privacy.randomness import Randomness
from cloister.privacy.sampling import Everyone, Participation
from cloister.store.billboard import Billboard
from cloister.store.journal import Journal
from cloister.store.records import Release


@dataclass(frozen=True)
class Posted:
    """What everybody may know when a round is over: its release, as it stands on the board.

    Attributes
    ----------
    done, total : int
        Rounds that are over, this one included, and rounds in all.
    release : Release
        The noisy sum.
    """

    done: int
    total: int
    release: Release

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in each number of the release."""
        return self.release.noise

    @property
    def norm(self) -> float:
        """Length of the release; noise alone has about ``noise * sqrt(size)``."""
        return float(np.linalg.norm(self.release.value))

    @property
    def size(self) -> int:
        """How many numbers the release has."""
        return int(self.release.value.size)

    def __str__(self) -> str:
        return (
            f"round {self.done} of {self.total}: {counted(self.size, 'number')} of norm {self.norm:.4g}, "
            f"with noise of standard deviation {self.noise:.4g} in each"
        )


#: Called after each round.
Progress = Callable[[Posted], None]


@dataclass(frozen=True)
class Bill:
    """What is charged for everything that one call lets out.

    Attributes
    ----------
    plan : str
        Fingerprint of the plan, or of several together.
    cost_under : callable
        Returns what one task is exposed to under a relation.
    doubts : tuple of Caveat
        Why its price may not be what it claims.
    adversary : str
        Against whom it is priced, where that is not everybody but a trusted curator.
    """

    plan: str
    cost_under: Callable[[Relation], Cost]
    doubts: tuple[Caveat, ...]
    adversary: str = ""


def check_price(plan: Plan) -> None:
    """Refuse a plan that nobody can price, or whose noise cannot be made; before anything is charged."""
    plan.mechanism.check(plan.schedule)
    plan.trust.check(plan.mechanism, plan.schedule)
    plan.create_board()


def check_ledger(ledger: object) -> None:
    """Refuse what is not an account, such as the path of one; before anything is computed."""
    if ledger is not None and not isinstance(ledger, Ledger):
        got = type(ledger).__name__  # and not the text: an address may hold a password
        raise InputError(f"ledger must be a Ledger. Got a {got}. Pass ledger=Ledger.open(path).")


def bill_of(plan: Plan, board: Billboard) -> Bill:
    """Return what is charged for one run, with the doubts that its board says."""
    return Bill(plan.fingerprint, plan.cost_under, plan.guarantee_on(board).doubts, plan.trust.adversary)


def charge(ledger: Ledger, bill: Bill, run: str | None = None) -> Charge:
    """Charge a ledger, under the key of a run so that going on with that run costs nothing more."""
    check_ledger(ledger)
    return ledger.charge(
        bill.plan,
        bill.cost_under(ledger.relation),
        run=run,
        doubts=bill.doubts,
        adversary=bill.adversary,
    )


@dataclass
class Curator:
    """The curator of one run."""

    plan: Plan
    journal: Journal
    groups: Integers
    apart: bool = False
    all_runs: AllRuns | None = field(default=None, init=False)
    sampler: Sampler = on_processor

    @cached_property
    def coins(self) -> Participation:
        """Who takes part in which round, from a stream of its own; empty if tasks draw their own coins."""
        rounds, n_tasks = len(self.plan.rounds), self.plan.n_tasks
        if self.apart and self.plan.sampling.independent:
            return Participation.always(0, rounds)
        if not rounds:
            return Participation.always(n_tasks, 0)
        return self.plan.sampling.draw(self.journal.source.stream("coins").numbered, n_tasks, rounds)

    def charge(self, ledger: Ledger) -> None:
        """Charge for the whole run."""
        charge(ledger, bill_of(self.plan, self.journal.posted), self.journal.run)
        self.all_runs = ledger.balance.all_runs

    def rounds(self, workers: Workers, progress: Progress | None) -> Billboard:
        """Go through all rounds: tasks listen to what is posted, and the rest is collected and posted.

        In a run of more than a thousand rounds, correlated noise has what it remembers of old sums from when
        the board was synced last: the few posted rounds since are collected once more, and not released.
        """
        plan, posted, board = self.plan, self.journal.posted, self.journal.posted.before(0)
        state = self._begun()
        remembers = state.rows > 0 and not posted.complete
        kept = self.journal.kept if remembers else posted.rounds
        for t in range(len(plan.rounds)):
            if t < kept:
                workers.listen(board, self.coins[t])
                state.listen(posted.releases[t].value)
                if remembers and t + 1 == kept:
                    self.journal.restore(state)
            else:
                channel = self.channel(board)
                total, answered = self.collect(workers, board, channel, self.coins[t])
                _ = board.head  # hashed while a device may still be computing the sum
                if t < posted.rounds:
                    state.recall(total, posted.releases[t].value)
                else:
                    board = self.post(board, channel, total, state, answered)
            if t < posted.rounds:
                board = posted.before(t + 1)
            if progress is not None:
                progress(Posted(t + 1, len(plan.rounds), board.releases[t]))
        return board

    def channel(self, board: Billboard) -> Channel:
        """Return the channel of the coming round; refuse one that the plan is not priced for."""
        found = self.plan.algorithm.channel(board)
        if found not in self.plan.rounds[board.rounds].channels:
            raise AlgorithmError(
                f"Round {board.rounds} uses a channel that its schedule did not declare: {found}."
            )
        return found

    def collect(
        self, workers: Workers, board: Billboard, channel: Channel, coins: Coins
    ) -> tuple[TaskSum, int]:
        """Return the sum of the messages of the sampled tasks in the coming round, and of how many it is."""
        collected = workers.collect(board, channel, coins)
        total = _summed(self.plan, channel, collected, coins, self.groups)
        if isinstance(total, NoisySum):
            return total, total.shares
        if isinstance(collected, GridRows):
            return total, len(collected.tasks)
        return total, self.plan.n_tasks if self.plan.sampling.independent else int(np.sum(coins))

    def post(
        self, board: Billboard, channel: Channel, total: TaskSum, state: NoiseState, answered: int
    ) -> Billboard:
        """Add noise to a round's sum and post it; return the board when it can be used."""
        return self.journal.keep(_post(self.plan, board, channel, total, state, answered), state)

    def noise_state(self) -> NoiseState:
        """Return the noise after all that is posted, where every release is synced before its use."""
        posted = self.journal.posted
        state = self._begun()
        for release in posted.releases:
            state.listen(release.value)
        if state.rows and posted.rounds and not posted.complete:
            self.journal.restore(state)
        return state

    def _begun(self) -> NoiseState:
        source = self.journal.source.sampled_by(self.sampler)
        return self.plan.trust.begin(self.plan.mechanism, self.plan.schedule, source)


def _summed(plan: Plan, channel: Channel, collected: Collected, coins: Coins, groups: Integers) -> TaskSum:
    """Return the sum of what was collected; of rows that come from elsewhere, after checking each.

    Where tasks are in groups, a row counts for the group that the roster says, whatever its sender thinks.
    """
    if not isinstance(collected, GridRows):
        return collected
    at = np.asarray(collected.tasks, dtype=np.int64)
    sampled = coins if len(coins) else np.full(plan.n_tasks, True)
    known = (at >= 0) & (at < plan.n_tasks)
    if len(at) != len(collected.values) or not known.all() or not sampled[at].all():
        raise InputError("Every message must be of one task on the roster that takes part in the round.")
    if len(np.unique(at)) < len(at):
        raise InputError("A task may send one message a round, which is what is paid for. Got two.")
    check_sent(plan, channel, collected.values)
    if plan.unit.by_record:
        total: Floats = collected.values.sum(axis=0)
        return total if plan.mechanism.exact else np.asarray(total * channel.steps)
    rows = collected.values if plan.mechanism.exact else collected.values / GRID
    return channel.lifted_sum(rows, groups[at])


@dataclass(frozen=True)
class OneRelease:
    """One noisy sum over all tasks, with nothing before or after it; priced and charged by who asks for it.

    Attributes
    ----------
    channel : Channel
        What a task sends.
    mechanism : Mechanism
        The noise; all of its budget is for this release.
    n_tasks : int
        Public number of tasks.
    relation : Relation
        The one whose sensitivity the noise is set for.
    """

    channel: Channel
    mechanism: Mechanism
    n_tasks: int
    relation: Relation

    @property
    def _schedule(self) -> Schedule:
        return Schedule((Round(1.0, (self.channel,)),), Everyone(), self.n_tasks, self.relation)

    def check(self) -> None:
        """Refuse noise that cannot be made; before anything is charged."""
        self.mechanism.check(self._schedule)

    def make(self, messages: Floats, source: Randomness) -> Floats:
        """Return the noisy sum; every one needs a source of its own."""
        state = self.mechanism.begin(self._schedule, source)
        return _perturbed(state, self.channel.total(messages, self.mechanism.exact), self.channel)


def _perturbed(state: NoiseState, total: TaskSum, channel: Channel) -> Floats:
    """Add noise: the only step from private to public."""
    return state.release(total, channel)


def _post(
    plan: Plan, board: Billboard, channel: Channel, total: TaskSum, state: NoiseState, answered: int
) -> Billboard:
    """Post a sum of so many tasks with noise; refuse fewer than the plan's quorum, before noise is drawn."""
    t, shares = board.rounds, total.shares if isinstance(total, NoisySum) else None
    if plan.quorum is not None and answered < plan.quorum:
        raise InputError(
            f"Round {t} must be of {plan.quorum} tasks at least, the quorum of its plan. Got {answered}. Ask "
            "those that are missing again."
        )
    release = Release(
        value=_perturbed(state, total, channel),
        noise=plan.noise(t, channel, shares),
        denominator=plan.denominator,
        share=plan.rounds[t].share,
        channel=plan.rounds[t].channels.index(channel),
        answered=None if plan.quorum is None else answered,
    )
    return board.post(release, plan.algorithm.update(release, board))
