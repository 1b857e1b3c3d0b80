"""What `fit` proposes to run, from a method's name or a plan file: priced before data is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloister.app.choice import Vote
from cloister.app.fit import fit_in_folder
from cloister.app.folder import read_plan, unfinished_folder
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.run_record import RunRecord
from cloister.app.source import TableFile
from cloister.app.vote import vote_in_folder
from cloister.cli.methods import Method, kind_of, settings_for
from cloister.cli.shell import advance, bars, given, note
from cloister.core.errors import InputError
from cloister.estimators.base import MultiTaskEstimator
from cloister.ledger import Ledger
from cloister.plan.plan import Plan
from cloister.privacy.randomness import Origin
from cloister.tune.estimators import election_of

if TYPE_CHECKING:
    from cloister.ledger.charges import Room
    from cloister.privacy.guarantee import Guarantee
    from cloister.store.billboard import Billboard

#: The options that set a parameter of estimators.
_OPTIONS = {
    "epsilon": ("epsilon", "detection", "false_alarms"),
    "delta": ("delta",),
    "relation": ("relation",),
    "groups": ("groups",),
    "start_from": ("start_from",),
    "sampling": ("rate", "hidden", "fixed_size", "one_pass"),
    "mechanism": ("mechanism",),
    "trust": ("trust", "dropouts", "colluders", "curator_noise"),
    "unit": ("unit",),
}
_COMPLETE = "An earlier run of this command was complete, but not yet in place. It is now; nothing was run."


@dataclass(frozen=True)
class PrivacyTarget:
    """How strict a run is to be: an epsilon or, instead, how often others may detect one task's data."""

    epsilon: float
    detection: float | None
    false_alarms: float

    def calibrate(self, plan: Plan) -> Plan:
        if self.detection is None:
            return plan.calibrate(self.epsilon)
        return plan.calibrate(detection=self.detection, false_alarms=self.false_alarms)


@dataclass(frozen=True)
class OneRun:
    """One plan, and which estimator asks for it."""

    plan: Plan
    made_by: EstimatorSettings

    @property
    def guarantee(self) -> Guarantee:
        """What is promised of a run on this machine."""
        return self.plan.guarantee_with(self.plan.noise_from(Origin.SYSTEM, together=True))

    @property
    def before(self) -> list[str]:
        """What is to be said before the guarantee: who is heard, where persons are protected."""
        if (most := self.plan.unit.limit) is None:
            return []
        return [f"Of a person's rows in a task the first {most} send, as they stand in the table."]

    @property
    def forecasts(self) -> list[str]:
        return [f"Forecast, from public numbers alone: {self.plan.forecast()}"]

    @property
    def document(self) -> dict[str, object]:
        return {
            "tasks": self.plan.n_tasks,
            "guarantee": self.guarantee.to_dict(),
            "statement": str(self.guarantee),
            "forecast": self.plan.forecast().to_dict(),
        }

    def room(self, ledger: Ledger) -> Room:
        """Return what this would leave of an account's budget; nothing is charged."""
        return ledger.balance.room_for(self.plan.cost_under(ledger.relation), self.plan.trust.adversary)

    def outcome(self, run: TableRun) -> dict[str, object]:
        """Return what is to be said of a run's making, beside what was said before: nothing."""
        return {}

    def carry_out(
        self, folder: Path, table: TableFile, record: RunRecord, ledger: Ledger | None, force: bool
    ) -> TableRun:
        """Run it and leave it in a folder; what was killed goes on."""
        with table.at_hand(), bars() as bar:
            return fit_in_folder(
                folder,
                self.plan,
                table.data,
                table.codebook,
                self.made_by,
                record=record,
                ledger=ledger,
                force=force,
                bar=bar,
                resumed=_resumed,
                engine=table.engine(unfinished_folder(folder), bar),
            )


@dataclass(frozen=True)
class ComparedRuns:
    """Several methods, all of which are run, and a vote of the tasks: one budget for everything together."""

    models: Mapping[Method, MultiTaskEstimator]
    election: Vote

    @property
    def guarantee(self) -> Guarantee:
        return self.election.guarantee

    @property
    def before(self) -> list[str]:
        """What the price is of."""
        return [
            f"All of {', '.join(self.models)} are run on {1 - self.election.holdout:.0%} of each task's "
            "rows. Every task votes for the one that predicts its other rows best, and a noisy count "
            "decides. This is the price of all of it together:",
        ]

    @property
    def forecasts(self) -> list[str]:
        return [
            f"Forecast of {method}, from public numbers alone: {plan.forecast()}"
            for method, plan in zip(self.models, self.election.plans, strict=False)
            if plan.has_rounds
        ]

    @property
    def document(self) -> dict[str, object]:
        return {
            "tasks": self.election.n_tasks,
            "methods": list(self.models),
            "guarantee": self.election.guarantee.to_dict(),
            "statement": str(self.election.guarantee),
        }

    def room(self, ledger: Ledger) -> Room:
        """Return what everything together would leave of an account's budget; nothing is charged."""
        return ledger.balance.room_for(self.election.cost_under(ledger.relation))

    def outcome(self, run: TableRun) -> dict[str, object]:
        """Return which method was chosen, and the noisy votes for each."""
        assert run.choice is not None
        votes = dict(zip(self.models, run.choice.votes, strict=True))
        return {"chosen": list(self.models)[run.choice.winner], "votes": votes}

    def carry_out(
        self, folder: Path, table: TableFile, record: RunRecord, ledger: Ledger | None, force: bool
    ) -> TableRun:
        """Run all of them, let tasks vote, and leave the chosen one in a folder; what was killed goes on."""
        made_by = [EstimatorSettings.of(model, table.ids, named=True) for model in self.models.values()]
        with advance("Runs") as progress:
            return vote_in_folder(
                folder,
                self.election,
                table.tasks,
                table.codebook,
                made_by,
                record=record,
                ledger=ledger,
                force=force,
                progress=progress,
                resumed=self._resumed,
            )

    def _resumed(self, done: int) -> None:
        if done > len(self.models):
            note(_COMPLETE)
            return
        note(f"Going on with the unfinished vote: {done} of {len(self.models)} runs are complete.")


def from_methods(
    context: typer.Context,
    methods: Sequence[Method],
    assignments: Iterable[str],
    parameters: Mapping[str, Any],
    table: TableFile,
    target: PrivacyTarget,
) -> OneRun | ComparedRuns:
    """Propose what methods' estimators would run; refuse options and settings that they do not have."""
    if twice := [method for method in methods if methods.count(method) > 1]:
        raise InputError(f"--method {twice[0]} was given twice. Of several settings tasks choose at home.")
    kinds = {method: kind_of(method, table.codebook) for method in methods}
    settings = settings_for(kinds, assignments)
    typed = {name: given(context, *options) for name, options in _OPTIONS.items()}
    taken = {method: set(signature(kind).parameters) for method, kind in kinds.items()}
    for name, options in typed.items():
        if options and not any(name in names for names in taken.values()):
            raise InputError(f"{', '.join(methods)} takes no {', '.join(options)}. Leave it out.")
    models = {
        method: kind(
            table.task,
            **{name: parameters[name] for name in typed if typed[name] and name in taken[method]},
            **settings[method],
        )
        for method, kind in kinds.items()
    }
    if len(models) > 1:
        if target.detection is not None:
            raise InputError("Several methods are compared at an epsilon: use --epsilon, not --detection.")
        election = election_of(list(models.values()), table.codebook, len(table.ids))
        return ComparedRuns(models, election)
    (model,) = models.values()
    plan = _plan_of(model, table)
    if target.detection is not None:
        plan = target.calibrate(plan)
        model.set_params(epsilon=plan.guarantee.epsilon)
    return OneRun(plan, EstimatorSettings.of(model, table.ids, named=True))


def _plan_of(model: Any, table: TableFile) -> Plan:
    labels = [] if table.labels is None else [list(table.labels.values())]
    plan: Plan = model.plan(len(table.ids), table.codebook, *labels)
    return plan


def from_plan(
    context: typer.Context, path: Path, types: Iterable[object], table: TableFile, target: PrivacyTarget
) -> OneRun:
    """Propose to run a plan file; refuse options that it settles (a draft leaves its noise level open)."""
    plan = read_plan(path, types)
    draft = plan.has_rounds and not plan.mechanism.calibrated
    open_to = {"groups", "epsilon"} if draft else {"groups"}
    options = (option for name, each in _OPTIONS.items() if name not in open_to for option in each)
    if settled := given(context, "method", "settings", *options):
        raise InputError(f"{path} settles {', '.join(settled)} itself: nothing would change. Leave it out.")
    if plan.n_tasks != len(table.ids):
        raise InputError(f"{path} is a plan for {plan.n_tasks} tasks. Got {len(table.ids)} in the table.")
    plan = replace(plan, caveats=tuple(dict.fromkeys((*plan.caveats, *table.codebook.caveats))))
    return OneRun(target.calibrate(plan) if draft else plan, EstimatorSettings())


def _resumed(board: Billboard) -> None:
    if board.complete:
        note(_COMPLETE)
    else:
        note(f"Going on with the unfinished run: {board.rounds} of {board.capacity} releases are posted.")
