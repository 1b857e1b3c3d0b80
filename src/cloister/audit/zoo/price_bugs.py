"""Bugs in prices: a plan claims less than its noise and its coins give away."""

from __future__ import annotations

from dataclasses import replace

from cloister.audit.zoo import plans
from cloister.audit.zoo.bug import Bug, bug
from cloister.core.lifts import Relation
from cloister.plan.plan import Plan
from cloister.privacy import accountants, mechanisms, visible_sampling
from cloister.privacy.accountants import PLD
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.mechanisms import Gaussian, PerRound
from cloister.privacy.prefix import Correlated
from cloister.privacy.sampling import OnePass, Poisson
from cloister.privacy.tradeoff import GaussianCurve
from cloister.privacy.unit import PersonUnit, RecordUnit


@bug(accountants, "amplified", "price", plans.rarely_sampled)
def visible_coins_amplify(honest, cost):
    """Coins that everybody may see make the price smaller."""
    return cost.probability < 1 and bool(cost.groups)


@bug(PLD, "epsilon", "game", plans.hidden)
def hidden_rate_at_half(honest, self, cost, delta):
    """Hidden coins are priced as if they fell half as often."""
    rarer = Poisson(cost.sampling.rate / 2, hidden=True)
    return honest(self, replace(cost, sampling=rarer), delta)


@bug(PerRound, "cost", "price", plans.passes)
def several_passes_priced_as_one(honest, self, schedule, relation):
    """A task that takes part in several passes pays for one."""
    return replace(honest(self, schedule, relation), sampling=OnePass())


@bug(PersonUnit, "priced", "price", plans.persons)
def person_priced_as_one_record(honest, self, cost):
    """A person with four records pays for one."""
    return replace(RecordUnit.priced(self, cost), unit="person")


@bug(PerRound, "cost", "price", plans.mean)
def last_round_not_priced(honest, self, schedule, relation):
    """The last round costs nothing."""
    cost = honest(self, schedule, relation)
    return replace(cost, events=cost.events[:-1])


@bug(Cost, "groups", "price", plans.quiet_rounds)
def quiet_rounds_not_priced(honest, self):
    """Rounds with a thousandth of the largest round's budget, of which there are hundreds, cost nothing."""
    found = honest(self)
    return tuple(group for group in found if group[0] ** 2 > 1e-3 * found[-1][0] ** 2)


@bug(visible_sampling, "_up", "price", plans.quiet_samples)
def quiet_rounds_rounded_down(honest, ratio):
    """Squared budgets are rounded to three digits of the largest: beside a loud round quiet ones are free."""
    return round(ratio, 3)


@bug(Gaussian, "event", "price", plans.mean)
def shares_not_rooted(honest, self, round, planned, relation):
    """A round with a share of the squared budget is priced as that share of the budget."""
    mu = self.budget * round.share
    return GaussianEvent(mu, mu / 2)


@bug(accountants, "visible_epsilon", "price", plans.mean)
def delta_ten_times_as_large(honest, cost, delta, size):
    """Epsilon is computed at ten times the delta at which it is claimed."""
    return honest(cost, min(0.5, 10 * delta), size=size)


@bug(Plan, "cost", "price", plans.mean)
def price_of_the_other_relation(honest, self):
    """A plan under `replace` claims what it costs under `zero_out`."""
    return self.cost_under(Relation.ZERO_OUT)


@bug(mechanisms, "growth", "price", plans.joint)
def other_relation_by_the_mildest_channel(honest, round, planned, relation):
    """Under the relation that is not planned for, a round is priced by its mildest channel."""
    return min(c.sensitivity(relation) / c.sensitivity(planned) for c in round.channels)


@bug(GaussianCurve, "detection", "price", plans.mean)
def detection_of_one_side(honest, self, false_alarms, tasks=1):
    """The share of cases that a test detects is stated for half of mu."""
    return honest(GaussianCurve(self.mu / 2), false_alarms, tasks)


@bug(Correlated, "cost", "price", plans.banded)
def correlated_rounds_priced_apart(honest, self, schedule, relation):
    """Correlated noise is priced as if a task spoke in one round alone."""
    cost, less = honest(self, schedule, relation), len(schedule) ** -0.5
    return replace(cost, events=tuple(GaussianEvent(less * e.mu, less * e.silence) for e in cost.events))


PRICE_BUGS = tuple(each for each in vars().values() if isinstance(each, Bug))
