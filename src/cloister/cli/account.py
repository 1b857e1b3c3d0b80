"""``cloister account``: what a plan costs, what noise gives, and what an epsilon needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.channel import Relation
from cloister.cli.options import Delta, Json, Neighbours, Types
from cloister.cli.participation import FixedSize, Hidden, OnePass, Rate, sampling_of
from cloister.cli.shell import emit, given, positive, say, show_table

if TYPE_CHECKING:
    from cloister.plan import Plan
    from cloister.privacy.sampling import Sampling

__all__ = ["account"]

_Noise = Annotated[
    float | None, typer.Option(help="Ask what epsilon this noise gives: its std over the clip.")
]


def account(
    context: typer.Context,
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan file or the folder of a run, or nothing.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Ask what noise this epsilon needs.")] = None,
    noise_multiplier: _Noise = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks, a public number.")] = None,
    rounds: Annotated[int, typer.Option(help="Number of noisy sums.")] = 1,
    delta: Delta = None,
    relation: Neighbours = Relation.REPLACE,
    rate: Rate = None,
    hidden: Hidden = False,
    fixed_size: FixedSize = None,
    one_pass: OnePass = False,
    types: Types = None,
    json: Json = False,
) -> None:
    r"""Price a plan before anyone is contacted.

    Without a plan file, rounds are plain sums of one clipped message a task. The noise multiplier is the
    standard deviation of the noise over the clip. One task moves such a sum by 1 clip if it is left out
    (zero_out) and by 2 if its data are replaced (replace).

    \b
    For example:
      cloister account exam-run
      cloister account --epsilon 1 --tasks 139 --rounds 20
      cloister account --noise-multiplier 30 --tasks 139 --rounds 20
      cloister account --noise-multiplier 2 --tasks 5000 --rounds 100 \
          --rate 0.05 --hidden
    """
    if plan is not None:
        own = ("noise_multiplier", "tasks", "rounds", "relation", "rate", "hidden", "fixed_size", "one_pass")
        if said := given(context, *own):
            raise typer.BadParameter(
                f"A plan file says {', '.join(said)} itself: only --epsilon and --delta go with it."
            )
        return _show([_from_file(plan, epsilon, delta, types)], json)
    if (epsilon is None) == (noise_multiplier is None):
        raise typer.BadParameter("Give a plan file, or exactly one of --epsilon and --noise-multiplier.")
    if tasks is None:
        raise typer.BadParameter("--tasks is needed: what delta means depends on the number of tasks.")
    sampling = sampling_of(rate, hidden, fixed_size, one_pass)
    sums = [_sum_plan(r, sampling, tasks, rounds, delta) for r in (relation, relation.other)]
    _show([_priced(each, epsilon, noise_multiplier) for each in sums], json)


def _priced(plan: Plan, epsilon: float | None, multiplier: float | None) -> Plan:
    """Return a plan of plain sums with the noise that was asked for, or that an epsilon needs."""
    from cloister.algorithm import Budget
    from cloister.privacy.mechanisms import Gaussian

    if epsilon is not None:
        return plan.calibrate(positive("--epsilon", epsilon))
    assert multiplier is not None
    rounds = plan.algorithm.schedule(plan.n_tasks, Budget(1.0, plan.mechanism.pure))
    reach = rounds[0].channels[0].sensitivity(plan.relation)
    return replace(
        plan, mechanism=Gaussian(reach * len(rounds) ** 0.5 / positive("--noise-multiplier", multiplier))
    )


def _from_file(path: Path, epsilon: float | None, delta: float | None, types: list[str] | None) -> Plan:
    from cloister.errors import PlanError
    from cloister.tables.folder import read_plan

    plan = read_plan(path, types or ())
    if delta is not None:
        plan = replace(plan, delta=delta)
    if epsilon is not None:
        return plan.calibrate(positive("--epsilon", epsilon))
    if plan.has_rounds and not plan.mechanism.calibrated:
        raise PlanError(f"{path} has no noise level yet. Add --epsilon to see what one would need.")
    return plan


def _sum_plan(relation: Relation, sampling: Sampling, tasks: int, rounds: int, delta: float | None) -> Plan:
    """Return a plan of plain clipped sums; what is summed and learned does not change the price."""
    from cloister.algorithms.mean import MeanRegularized
    from cloister.errors import PlanError
    from cloister.learners.linear.losses import LeastSquares
    from cloister.plan import Plan

    if rounds < 1:
        raise PlanError(f"--rounds must be at least 1. Got {rounds}.")
    algorithm = MeanRegularized(LeastSquares(1), rounds=rounds)
    return Plan(algorithm, sampling=sampling, n_tasks=tasks, relation=relation, delta=delta)


def _multiplier(plan: Plan) -> float | None:
    noises = {plan.noise(t, channel) for t, r in enumerate(plan.rounds) for channel in r.channels}
    return noises.pop() if len(noises) == 1 else None


def _rows(plans: list[Plan]) -> list[dict[str, Any]]:
    first = plans[0].guarantee
    rows = [
        {"relation": p.relation.value, "noise_multiplier": _multiplier(p), "epsilon": p.guarantee.epsilon}
        for p in plans
    ]
    if len(plans) == 1:
        other = rows[0] | {"relation": plans[0].relation.other.value, "epsilon": first.other_epsilon}
        rows.append(other)
    return rows


def _show(plans: list[Plan], json: bool) -> None:
    plan, rows = plans[0], _rows(plans)
    if json:
        return emit(
            {
                "tasks": plan.n_tasks,
                "rounds": len(plan.rounds),
                "delta": plan.delta,
                "relations": rows,
                "guarantee": plan.guarantee.to_dict(),
                "statement": str(plan.guarantee),
            }
        )
    say(f"{plan.n_tasks} tasks, {len(plan.rounds)} noisy sum(s); {plan.sampling.describe()}.")
    show_table(["relation", "noise multiplier", "epsilon", "delta"], (_cells(row, plan) for row in rows))
    say(plan.guarantee, apart=True)
    return None


def _cells(row: dict[str, Any], plan: Plan) -> list[str]:
    from cloister.privacy.guarantee import rounded_up

    noise = "varies" if row["noise_multiplier"] is None else rounded_up(row["noise_multiplier"], 5)
    return [row["relation"], noise, rounded_up(row["epsilon"], 5), f"{plan.delta:.4g}"]
