"""Read a summary off a plan and its finished board, in the user's units: public, hence free."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cloister.arrays import Floats, States
from cloister.errors import InputError
from cloister.findings import Population
from cloister.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.store.billboard import BoardView
from cloister.tables.codebook import Categorical, Codebook
from cloister.tables.location import location_found
from cloister.tables.summary import Coefficient, Summary
from cloister.tables.units import coefficient_names, in_user_units

__all__ = ["summarize"]

NOTHING_SAID = "Nothing left any task: there is nothing to say about all of them."
NO_MODEL = (
    "The board has no coefficients: tasks share the directions or the columns that their weights lie in, and "
    "a task without rows is predicted where targets were found, or else in the middle of their bounds."
)
MEAN_OF_MODELS = "The board has a mean of models, and no error of it."
RELIED_ON = (
    "Asked privately, tasks said that {part:.0%} of a good model is the shared one, within {error:.0%} or "
    "so, and the rest their own; each weighs both by its own rows."
)
NOT_RELIED_ON = (
    "How far tasks can rely on the shared model was not heard above the noise: each relies on itself, unless "
    "its own rows speak clearly for the other."
)
UNHEARD = "The mean of the tasks' coefficients was not heard above the noise."
SOME_UNHEARD = "Coefficients that are not heard lie too close to zero to stand out of the noise."
STARTED = (
    "Tasks were not heard to differ from the earlier board, {source}: new tasks get the coefficients there."
)
FROM_EARLIER = "This run starts from the earlier board {source}; estimates are of its own tasks."
SPREAD = (
    "Standard deviations between tasks are what the shared prior lets tasks differ by, or the scatter of "
    "what they said if that is less: take them for orders of magnitude."
)
SPREAD_UNHEARD = "How far tasks lie apart was not heard above the noise."
RESIDUAL_UNHEARD = "The residual scale was not heard above the noise."
#: Why there are no standard errors.
CLASSES = (
    "No standard errors for classes: log-odds of tasks with few rows are biased, by more than the noise and "
    "by an amount that the board does not know."
)
DEPENDENT = "No standard errors: noise or tasks of one round are not independent of the next."
NO_SCATTER = "No standard errors: this structure does not ask how tasks scatter, which they depend on."
UNSURE = "No standard errors: too little was heard to tell how strongly the tasks' rows answer."


def summarize(
    plan: Plan,
    board: BoardView,
    codebook: Codebook | None,
    guarantee: Guarantee,
    library: str | None = None,
) -> Summary:
    """Say what a finished board has found.

    Parameters
    ----------
    plan, board : Plan, Billboard
        What was run, and every release of it.
    codebook : Codebook, optional
        The units of the user; without one there are no coefficients.
    guarantee : Guarantee
        What was promised.
    library : str, optional
        What `Summary.to_frame` makes.
    """
    algorithm = plan.algorithm
    groups = None if algorithm.groups is None else len(algorithm.groups)
    blank = Summary(algorithm.spoken_name, plan.n_tasks, len(plan.rounds), guarantee, groups, library=library)
    if not plan.rounds:
        return replace(blank, notes=(NOTHING_SAID,))
    try:
        new = algorithm.newcomer(board)
    except InputError as error:
        return replace(blank, notes=(str(error),))
    if codebook is None:
        return blank
    found = algorithm.findings(board).population
    if found is not None:
        return _of_population(blank, plan, board, codebook, found, new)
    where = tuple(filter(None, [location_found(plan, board, codebook)]))
    relied = _relied_on(board)
    if not (new["coef"][0, 1:] if where else new["coef"][0]).any():  # a new task's is the place, or zero
        return replace(blank, notes=(*where, NO_MODEL, *relied))
    values = in_user_units(codebook, new["coef"][0])[0].tolist()
    means = zip(coefficient_names(codebook), values, strict=True)
    means_only = tuple(Coefficient(name, new_task=value) for name, value in means)
    return replace(blank, coefficients=means_only, notes=(*where, MEAN_OF_MODELS, *relied))


def _relied_on(board: BoardView) -> list[str]:
    """Say how far tasks rely on what they share, where they were asked (see `ChooseAtHome`)."""
    if "blend" not in board:
        return []
    part, error = board["blend"].tolist()
    return [RELIED_ON.format(part=part, error=error) if math.isfinite(error) else NOT_RELIED_ON]


def _of_population(
    blank: Summary, plan: Plan, board: BoardView, codebook: Codebook, found: Population, new: States
) -> Summary:
    notes, size = _what_was_found(plan, board, codebook, found), len(found.significant)
    estimates, errors = np.full(size, np.nan), np.full(size, np.nan)
    model = in_user_units(codebook, new["coef"][0])[0]
    if found.mean is not None:
        why_not = _no_errors(plan, codebook, found)
        values, covariance = in_user_units(codebook, found.mean, found.covariance)
        values = model if codebook.classes is not None else values  # what few rows bias is not sharpened
        estimates = np.where(found.significant, values, np.nan)
        if why_not is None:
            errors = np.where(found.significant, np.sqrt(np.diag(covariance)), np.nan)
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
    if codebook.classes is None:
        residual = None if found.residual is None else math.sqrt(found.residual) * codebook.target_scale
        notes += [RESIDUAL_UNHEARD] * (residual is None)
    news = np.where(new["shared_weight"][0] > 0, model, np.nan)
    columns = map(_plain, (estimates, errors, spread, news))
    return replace(
        blank,
        coefficients=tuple(map(Coefficient, coefficient_names(codebook), *columns)),
        correlations=correlations,
        residual=residual,
        explained=found.explained,
        notes=tuple(notes),
    )


def _what_was_found(plan: Plan, board: BoardView, codebook: Codebook, found: Population) -> list[str]:
    """Say where targets are, what coefficients are relative to, and whether a mean was heard."""
    notes, earlier = [], plan.algorithm.start_from
    where = location_found(plan, board, codebook)
    if where:
        notes.append(where)
    if isinstance(codebook.target, Categorical):
        goal = codebook.target
        notes.append(f"Coefficients are log-odds against {goal.name} = {goal.levels[0]}.")
    if earlier is not None:
        notes.append((STARTED if found.mean is None else FROM_EARLIER).format(source=earlier.source[:16]))
    elif found.mean is None:
        notes.append(UNHEARD)
    return notes


def _no_errors(plan: Plan, codebook: Codebook, found: Population) -> str | None:
    """Say why there are no standard errors, if there are none."""
    if codebook.classes is not None:
        return CLASSES
    everyone = plan.sampling.probability(plan.n_tasks, len(plan.rounds)) == 1
    if not everyone or not (plan.mechanism.coordinatewise or math.isinf(plan.mechanism.budget)):
        return DEPENDENT
    if found.scatter is None:
        return NO_SCATTER
    return UNSURE if found.covariance is None else None


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
