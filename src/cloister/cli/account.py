"""``cloister account``: what a plan costs, what noise gives, and what an epsilon or a risk needs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.options import Delta, Detection, FalseAlarms, Json, Neighbours, ParticipationOptions, Types
from cloister.cli.shell import emit, given, positive, say, show_stages, show_table
from cloister.core.lifts import Relation
from cloister.core.spelling import counted
from cloister.privacy.statement import rounded_up

if TYPE_CHECKING:
    from cloister.plan.plan import Plan
    from cloister.privacy.sampling import Sampling

_Noise = Annotated[
    float | None, typer.Option(help="Ask what epsilon this noise gives: its std over the clip.")
]


def account(
    context: typer.Context,
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan file or the folder of a run, or nothing.")
    ] = None,
    *,
    epsilon: Annotated[float | None, typer.Option(help="Ask what noise this epsilon needs.")] = None,
    detection: Detection = None,
    false_alarms: FalseAlarms = 0.05,
    noise_multiplier: _Noise = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks, a public number.")] = None,
    rounds: Annotated[int, typer.Option(help="Number of noisy sums.")] = 1,
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    who: ParticipationOptions,
    types: Types = None,
    json: Json = False,
) -> None:
    r"""Price a plan before anyone is contacted.

    Without a plan file, rounds are plain sums of one clipped message a task. The noise multiplier is the
    standard deviation of the noise over the clip. One task moves such a sum by 1 clip if it is left out
    (zero_out) and by 2 if its data are replaced (replace): one and the same noise has two prices. The noise
    is set for --relation, and the table has both prices of it.

    \b
    For example:
      cloister account exam-run
      cloister account --epsilon 1 --tasks 139 --rounds 20
      cloister account --detection 0.10 --tasks 139 --rounds 20
      cloister account --noise-multiplier 30 --tasks 139 --rounds 20
      cloister account --noise-multiplier 2 --tasks 5000 --rounds 100 \
          --rate 0.05 --hidden
    """
    if plan is not None:
        own = ("noise_multiplier", "tasks", "rounds", "relation", "rate", "hidden", "fixed_size", "one_pass")
        if said := given(context, *own):
            raise typer.BadParameter(
                f"A plan file says {', '.join(said)} itself: only --epsilon or --detection, and --delta, go "
                "with it."
            )
        if epsilon is not None and detection is not None:
            raise typer.BadParameter("Give --epsilon or --detection, not both.")
        found = _from_file(plan, epsilon, detection, false_alarms, delta, types)
        return _show(found, false_alarms, json)
    if sum(target is not None for target in (epsilon, detection, noise_multiplier)) != 1:
        raise typer.BadParameter(
            "Give a plan file, or exactly one of --epsilon, --detection and --noise-multiplier."
        )
    if tasks is None:
        raise typer.BadParameter("--tasks is needed: what delta means depends on the number of tasks.")
    sums = _sum_plan(relation, who.sampling, tasks, rounds, delta)
    if noise_multiplier is None:
        return _show(_calibrated(sums, epsilon, detection, false_alarms), false_alarms, json)
    return _show(_with_noise(sums, noise_multiplier), false_alarms, json)


def _calibrated(plan: Plan, epsilon: float | None, detection: float | None, false_alarms: float) -> Plan:
    if epsilon is not None:
        return plan.calibrate(positive("--epsilon", epsilon))
    return plan.calibrate(detection=detection, false_alarms=false_alarms)


def _with_noise(plan: Plan, multiplier: float) -> Plan:
    """Return a plan of plain sums with the noise that was asked for."""
    from cloister.plan.algorithm import Budget
    from cloister.privacy.mechanisms import Gaussian

    rounds = plan.algorithm.schedule(plan.n_tasks, Budget(1.0, plan.mechanism.pure))
    reach = rounds[0].channels[0].sensitivity(plan.relation)
    return replace(
        plan, mechanism=Gaussian(reach * len(rounds) ** 0.5 / positive("--noise-multiplier", multiplier))
    )


def _from_file(
    path: Path,
    epsilon: float | None,
    detection: float | None,
    false_alarms: float,
    delta: float | None,
    types: list[str] | None,
) -> Plan:
    from cloister.app.folder import read_plan
    from cloister.core.errors import PlanError

    plan = read_plan(path, types or ())
    if delta is not None:
        plan = replace(plan, delta=delta)
    if epsilon is not None or detection is not None:
        return _calibrated(plan, epsilon, detection, false_alarms)
    if plan.has_rounds and not plan.mechanism.calibrated:
        raise PlanError(f"{path} has no noise level yet. Add --epsilon to see what one would need.")
    return plan


def _sum_plan(relation: Relation, sampling: Sampling, tasks: int, rounds: int, delta: float | None) -> Plan:
    """Return a plan of plain clipped sums; what is summed and learned does not change the price."""
    from cloister.algorithms.mean_regularized import MeanRegularized
    from cloister.core.errors import PlanError
    from cloister.learners.linear.losses import LeastSquares
    from cloister.plan.plan import Plan

    if rounds < 1:
        raise PlanError(f"--rounds must be at least 1. Got {rounds}.")
    algorithm = MeanRegularized(LeastSquares(1), rounds=rounds)
    return Plan(algorithm, sampling=sampling, n_tasks=tasks, relation=relation, delta=delta)


def _multiplier(plan: Plan) -> float | None:
    noises = {plan.noise(t, channel) for t, r in enumerate(plan.rounds) for channel in r.channels}
    return noises.pop() if len(noises) == 1 else None


def _rows(plan: Plan, false_alarms: float) -> list[dict[str, Any]]:
    """Return the prices of the plan's noise under both relations, its own first."""
    from cloister.privacy.accounting import price, tradeoff

    assert plan.delta is not None
    rows = []
    for relation in (plan.relation, plan.relation.other):
        cost = plan.cost_under(relation)
        curve = tradeoff(cost, delta=plan.delta)
        rate = 1.0 if curve is None else curve.detection(false_alarms)
        epsilon = price(cost, plan.delta).epsilon
        rows.append({"relation": relation.value, "epsilon": epsilon, "detection": rate})
    return [row | {"noise_multiplier": _multiplier(plan), "false_alarms": false_alarms} for row in rows]


def _show(plan: Plan, false_alarms: float, json: bool) -> None:
    assert plan.delta is not None
    rows = _rows(plan, false_alarms)
    if json:
        return emit(
            {
                "tasks": plan.n_tasks,
                "rounds": len(plan.rounds),
                "stages": [asdict(stage) for stage in plan.stages],
                "delta": plan.delta,
                "relations": rows,
                "guarantee": plan.guarantee.to_dict(),
                "statement": str(plan.guarantee),
            }
        )
    noise = rows[0]["noise_multiplier"]
    level = "its level varies" if noise is None else f"noise multiplier {noise:.5g}"
    say(
        f"{plan.n_tasks} tasks, {counted(len(plan.rounds), 'noisy sum')}; {plan.sampling.describe()}.",
        f"The noise is set for {plan.relation.value} ({level}). The same noise has two prices, at delta = "
        f"{rounded_up(plan.delta)}:",
    )
    heads = ["what is hidden (relation)", "epsilon", f"detected, of {100 * false_alarms:g} % false alarms"]
    show_table(heads, (_cells(row, plan.guarantee.unit) for row in rows))
    if len(plan.stages) > 1:
        show_stages(plan)
    say(plan.guarantee, apart=True)
    return None


_HIDDEN = {"replace": "what a {}'s data are (replace)", "zero_out": "that a {} takes part (zero_out)"}


def _cells(row: dict[str, Any], unit: str) -> list[str]:
    from cloister.privacy.statement import percent

    return [
        _HIDDEN[row["relation"]].format(unit),
        rounded_up(row["epsilon"], 5),
        f"at most {percent(row['detection'])}",
    ]
