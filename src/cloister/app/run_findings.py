"""What a finished board says of all tasks, in the user's units: public, hence free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cloister.algorithms.blends import majorities
from cloister.app.summary import Coefficient, Summary
from cloister.app.task_model import Prior
from cloister.core.arrays import Floats, States
from cloister.core.errors import InputError
from cloister.core.findings import Location, Population
from cloister.core.spelling import counted
from cloister.learners.linear.home_constants import TRUST
from cloister.plan.forecast import SilentSearch
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.store.billboard import BoardView
from cloister.tables.codebook import Codebook
from cloister.tables.coefficient_units import coefficient_names, in_user_units
from cloister.tables.column_types import Numeric
from cloister.tables.targets import Positive

NOTHING_SAID = "Nothing left any task: there is nothing to say about all of them."
NO_MODEL = (
    "The board has no coefficients: tasks share the directions or the columns that their weights lie in, and "
    "a task without rows is predicted where targets were found, or else in the middle of their bounds."
)
MEAN_OF_MODELS = (
    "The board has a mean of models, and no error of it: which of these coefficients stand out from the "
    "noise, the intercept among them, is not known."
)
RELIED_ON = (
    "Asked privately, {part:.0%} of the tasks that said yes or no, within {error:.0%} or so, foresee rows "
    "left out better with a little of the shared model than without; {who} by their own rows{others}."
)
NOT_RELIED_ON = (
    "It is not beyond doubt that most tasks do better with a little of the shared model than without: each "
    "relies on itself."
)
UNHEARD = "The mean of the tasks' coefficients does not stand out from the noise."
SOME_UNHEARD = 'Coefficients that are "not heard" lie too close to zero to stand out from the noise.'
INTERCEPT_UNHEARD = (
    'The intercept is "not heard": its standard error is larger than that of a guess between the bounds of '
    "the target. A new task is predicted with it all the same."
)
#: Variance of an encoded target of which its bounds, -1 and 1, are all that is known.
_BETWEEN_BOUNDS = 1 / 3
STARTED = (
    "Tasks were not heard to differ from the earlier board, {source}: new tasks get the coefficients there."
)
FROM_EARLIER = "This run starts from the earlier board {source}; estimates are of its own tasks."
SPREAD = (
    "Standard deviations between tasks are what the shared prior lets tasks differ by, or the scatter of "
    "what they said if that is less: take them for orders of magnitude."
)
SPREAD_UNHEARD = "How far tasks lie apart does not stand out from the noise."
RESIDUAL_UNHEARD = "The residual scale does not stand out from the noise."
#: Why there are no standard errors.
BIASED = (
    "No standard errors for classes and counts: logarithms from tasks with few rows are biased, by more than "
    "the noise and by an amount that the board does not know."
)
DEPENDENT = "No standard errors: noise or tasks of one round are not independent of the next."
NO_SCATTER = "No standard errors: this structure does not ask how tasks scatter, which they depend on."
UNSURE = "No standard errors: too little was heard to tell how strongly the tasks' rows answer."


@dataclass(frozen=True, eq=False, repr=False)
class RunFindings:
    """What a finished board says of all tasks; each part is computed once, when it is first needed. Public.

    Attributes
    ----------
    plan, board : Plan, Billboard
        What was run, and every release of it.
    codebook : Codebook, optional
        The units of the user; without one there are no coefficients.

    Examples
    --------
    >>> from cloister import Tasks, run
    >>> from cloister.algorithms import Locate, SharedPrior
    >>> from cloister.learners import Regression
    >>> book = Codebook((Numeric("age", 0, 100),), Numeric("kelvin", 0, 1000))
    >>> y = book.encode_target(296 + np.random.default_rng(0).normal(size=1600)).reshape(200, 8)
    >>> tasks = Tasks.from_list([np.ones((8, 2)) / 2**0.5] * 200, list(y))
    >>> plan = Plan(SharedPrior(Regression(2), locate=Locate()), n_tasks=200).calibrate(epsilon=2.0)
    >>> RunFindings(plan, run(plan, tasks, random_state=0).board, book).location  # doctest: +ELLIPSIS
    'Targets were found around 29..., most within about ... (a noisy answer, asked privately in 3 rounds: ...'
    """

    plan: Plan
    board: BoardView
    codebook: Codebook | None = None

    @cached_property
    def new_tasks(self) -> States:
        """Models of tasks without rows: of any, then one of each group; refused if the board has none."""
        return self.plan.algorithm.model_without_data(self.board)

    @cached_property
    def population(self) -> Population | None:
        return self.plan.algorithm.findings(self.board).population

    @cached_property
    def location(self) -> str | None:
        """Where targets were found, and features, as a sentence; None if nothing was asked.

        The answer is noisy, and said with the digits that another run would agree on: a center may be off by
        half of the reach around it, and a reach by a factor of two. Where that reach is all of the bounds,
        the center would say nothing, and is left out.
        """
        if self.codebook is None:
            return None
        found = self.plan.algorithm.findings(self.board).location
        return None if found is None else _location_in_words(found, self.codebook, self.plan)

    @cached_property
    def priors(self) -> Mapping[str | None, Prior]:
        """What the board says of tasks without rows: of any (None), and of those in each group."""
        if not self.plan.rounds or self.codebook is None:
            return {}
        try:
            new = self.new_tasks
        except InputError:  # it says nothing
            return {}
        groups = self.plan.algorithm.groups
        labels = (None, *(() if groups is None else groups.names))
        spread = self.population is None or self.population.spread is not None
        rows = ({name: array[i] for name, array in new.items()} for i in range(len(labels)))
        found = zip(labels, (Prior.of(self.codebook, row, spread) for row in rows), strict=True)
        return {label: prior for label, prior in found if prior is not None}

    def summary(self, guarantee: Guarantee, library: str | None = None) -> Summary:
        """Return all of it in a page: coefficients of the population, with standard errors.

        Parameters
        ----------
        guarantee : Guarantee
            What was promised.
        library : str, optional
            What `Summary.to_frame` makes.
        """
        plan, groups = self.plan, self.plan.algorithm.groups
        name, size = plan.algorithm.plain_name, None if groups is None else len(groups)
        blank = Summary(name, plan.n_tasks, len(plan.rounds), guarantee, size, library=library)
        blank = blank if self.codebook is None else replace(blank, called=self.codebook.naming.plural)
        if not plan.rounds:
            return replace(blank, notes=(NOTHING_SAID,))
        try:
            new = self.new_tasks
        except InputError as error:
            return replace(blank, notes=(str(error),))
        book = self.codebook
        if book is None:
            return blank
        if self.population is not None:
            return _of_population(blank, self, book, self.population, new)
        where, relied = tuple(filter(None, [self.location])), _relied_on(self.board)
        if not (new["coef"][0, 1:] if where else new["coef"][0]).any():  # a new task's is the place, or zero
            return replace(blank, notes=(*where, NO_MODEL, *relied))
        values = in_user_units(book, new["coef"][0])[0].tolist()
        means = zip(coefficient_names(book), values, strict=True)
        means_only = tuple(Coefficient(name, new_task=value) for name, value in means)
        return replace(blank, coefficients=means_only, notes=(*where, MEAN_OF_MODELS, *relied))


def _relied_on(board: BoardView) -> list[str]:
    """Say how far tasks rely on what they share, where they were asked (see `ChooseAtHome`)."""
    if "blend" not in board:
        return []
    part, error = board["blend"].reshape(-1, 2)[0].tolist()  # of all; then perhaps by rows
    many, few = (majority > 0 for majority in majorities(board["blend"]))
    few = few and ("located_found" not in board or int(board["located_found"]) == 2)  # as `ChooseAtHome` does
    if not (many or few):
        return [NOT_RELIED_ON]
    size = f"{TRUST.few} rows or more" if many else f"fewer than {TRUST.few} rows"
    who = "all weigh both" if many and few else f"those of {size} weigh both"
    others = "" if many and few else ", the others rely on themselves"
    return [RELIED_ON.format(part=part, error=error, who=who, others=others)]


def _of_population(
    blank: Summary, findings: RunFindings, codebook: Codebook, found: Population, new: States
) -> Summary:
    notes, size = _what_was_found(findings, codebook, found), len(found.significant)
    goal = codebook.target
    estimates, errors = np.full(size, np.nan), np.full(size, np.nan)
    model = in_user_units(codebook, new["coef"][0])[0]
    if found.mean is not None:
        why_not = _no_errors(findings.plan, codebook, found)
        values, covariance = in_user_units(codebook, found.mean, found.covariance)
        values = model if goal.biased else values  # what few rows bias is not sharpened
        estimates = np.where(found.significant, values, np.nan)
        if why_not is None:
            errors = np.where(found.significant, np.sqrt(np.diag(covariance)), np.nan)
            known = found.covariance is not None and found.covariance[0, 0] < _BETWEEN_BOUNDS
            if found.significant[0] and not known:
                estimates[0] = errors[0] = np.nan
                notes.append(INTERCEPT_UNHEARD)
        notes += [SOME_UNHEARD] * (not found.significant.all()) + ([] if why_not is None else [why_not])
    spread, correlations = np.full(size, np.nan), None
    if found.spread is not None:
        between = in_user_units(codebook, new["coef"][0], found.spread)[1]
        spread = np.sqrt(np.maximum(np.diag(between), 0.0))
        if np.count_nonzero(found.spread - np.diag(np.diag(found.spread))):
            matrix = between / np.maximum(np.outer(spread, spread), 1e-300)
            correlations = tuple(tuple(row) for row in matrix.tolist())
    notes.append(SPREAD_UNHEARD if found.spread is None else SPREAD)
    residual = None
    if not goal.biased:
        residual = None if found.residual is None else math.sqrt(found.residual) * codebook.target_scale
        notes += [RESIDUAL_UNHEARD] * (residual is None)
    news = np.where(new["shared_weight"][0] > 0, model, np.nan)
    ratios = np.exp(np.where(np.isnan(estimates), news, estimates)) if goal.ratio else np.full(size, np.nan)
    columns = map(_plain, (estimates, errors, spread, news, ratios))
    return replace(
        blank,
        ratio=goal.ratio,
        coefficients=tuple(map(Coefficient, coefficient_names(codebook), *columns)),
        correlations=correlations,
        residual=residual,
        explained=None if found.explained is None else found.explained[0],
        explained_error=None if found.explained is None else found.explained[1],
        notes=tuple(notes),
    )


def _what_was_found(findings: RunFindings, codebook: Codebook, found: Population) -> list[str]:
    """Say where targets are, what coefficients are relative to, and whether a mean was heard."""
    notes, earlier = [], findings.plan.algorithm.start_from
    if findings.location:
        notes.append(findings.location)
    if codebook.target.effects is not None:
        notes.append(f"Coefficients are {codebook.target.effects}.")
    if earlier is not None:
        notes.append((STARTED if found.mean is None else FROM_EARLIER).format(source=earlier.source[:16]))
    elif found.mean is None:
        notes.append(UNHEARD)
    return notes


def _no_errors(plan: Plan, codebook: Codebook, found: Population) -> str | None:
    """Say why there are no standard errors, if there are none."""
    if codebook.target.biased:
        return BIASED
    everyone = plan.sampling.probability(plan.n_tasks, len(plan.rounds)) == 1
    if not everyone or not (plan.mechanism.coordinatewise or math.isinf(plan.mechanism.budget)):
        return DEPENDENT
    if found.scatter is None:
        return NO_SCATTER
    return UNSURE if found.covariance is None else None


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _location_in_words(found: Location, codebook: Codebook, plan: Plan) -> str | None:
    if not isinstance(codebook.target, Numeric):
        return None
    bounds = f"{codebook.target.low:g} to {codebook.target.high:g}"
    columns = _columns_found(found, codebook)
    if not found.found:
        remedy = SilentSearch.of(plan) or "Narrower public bounds, a larger epsilon or more tasks would help."
        return (
            "The search could not find the targets above the noise: what tasks share is in the units of the "
            f"bounds, {bounds}, and each task's own model in its own. {remedy}{columns}"
        )
    how = (
        f"asked privately in {counted(found.rounds, 'round')}"
        if found.rounds
        else "which the earlier board has"
    )
    if found.unit >= 1:
        return f"Targets were found all over their bounds, {bounds} (a noisy answer, {how}).{columns}"
    center, reach = float(codebook.decode_target(found.center)), codebook.target_scale * found.unit
    if isinstance(codebook.target, Positive):
        where = f"around {center:.2g}, most within a factor of {math.exp(reach):.2g}"
        off = "by the square root of that factor"
    else:
        where, off = _around(center, reach), "by half as much"
    return (
        f"Targets were found {where} (a noisy answer, {how}: the center may be off {off}); "
        f"the bounds were {bounds}.{columns}"
    )


def _columns_found(found: Location, codebook: Codebook) -> str:
    """Say which features were found in a part of their bounds; nothing, if none was."""
    shown = []
    for one in found.columns:
        if one.unit < 1:
            center, half = codebook.column_affine(one.column)
            where = _around(center + half * one.center, half * one.unit)
            shown.append(f"{codebook.column_names[one.column - 1]} {where}")
    return f" Features were found in a part of their bounds: {'; '.join(shown)}." if shown else ""


def _around(center: float, reach: float) -> str:
    """Say where and how far, in steps of the reach's first digit."""
    size = math.floor(math.log10(reach))
    center, reach = (round(value, -size) for value in (center, reach))
    digits = max(0, -size)
    return f"around {center + 0.0:.{digits}f}, most within about {reach:.{digits}f}"
