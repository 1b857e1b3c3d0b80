"""``cloister fit`` for a codebook of several targets: one budget, and a run's folder for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.app import folder as folders
from cloister.app.outcomes import PLACE, Outcomes, has_outcomes, heads_in
from cloister.app.run_record import RunRecord
from cloister.app.source import TableFile
from cloister.cli.proposals import ComparedRuns, OneRun
from cloister.cli.shell import advance, emit, say, show_commands
from cloister.core.errors import InputError
from cloister.privacy.statement import rounded_up

if TYPE_CHECKING:
    from cloister.cli.options import RunOptions
    from cloister.ledger import Ledger
    from cloister.tables.naming import Naming


def read_shares(given: Sequence[str], names: Sequence[str]) -> dict[str, float] | None:
    """Read ``NAME=NUMBER`` for outcomes; those that are not named have 1. None if nothing is given."""
    if not given:
        return None
    found = dict.fromkeys(names, 1.0)
    said = [text.rpartition("=")[0] for text in given]
    if twice := [name for name in said if said.count(name) > 1]:
        raise InputError(f"--share {twice[0]} was given twice. Give one number for each target.")
    for text in given:
        name, equals, number = text.rpartition("=")
        try:
            if not equals or name not in found:
                raise ValueError
            found[name] = float(number)
        except ValueError:
            raise InputError(
                f"--share must read TARGET=NUMBER, with a target of the codebook: {', '.join(names)}. Got "
                f"{text!r}."
            ) from None
    return found


def fit_outcomes(
    folder: Path,
    names: Sequence[str],
    propose: Callable[[str], tuple[TableFile, OneRun | ComparedRuns]],
    epsilon: float,
    shares: Sequence[str],
    manner: RunOptions,
    ledger: Ledger | None,
) -> None:
    """Run every outcome's plan with its share of one budget; those that are complete stay as they are."""
    proposals = {}
    for name in names:
        table, proposal = propose(name)
        assert isinstance(proposal, OneRun)  # of one method
        proposals[name] = table, proposal
    plans = {name: proposal.plan for name, (_, proposal) in proposals.items()}
    naming = proposals[names[0]][0].codebook.naming
    together = Outcomes.sharing(plans, epsilon, read_shares(shares, names))
    document = {
        "guarantee": together.guarantee.to_dict(),
        "outcomes": {
            name: {"epsilon": plan.guarantee.epsilon, "forecast": plan.forecast().to_dict()}
            for name, plan in together.plans.items()
        },
    }
    room = None
    if manner.dry_run and ledger is not None:
        room = ledger.balance.room_for(together.cost_under(ledger.relation))
    done = {} if manner.dry_run else _begin(folder, together, manner.force)
    if not manner.dry_run:
        with advance("Reading"):
            for table, _ in proposals.values():
                table.check()
    if not manner.json:
        _promise(together, naming)
        say(*filter(None, [room]), apart=True)
    if manner.dry_run:
        return emit(document | ({} if room is None else {"ledger": asdict(room)})) if manner.json else None
    drafts = {name: folders.unfinished_folder(together.place(folder, name)) for name in names}
    together.check_room(ledger, done, drafts)
    folder.mkdir(parents=True, exist_ok=True)
    together.save(folder, together.guarantee, naming)
    approved = RunRecord.approved(manner.approved_by)
    for name, (table, proposal) in proposals.items():
        plan, place = together.plans[name], together.place(folder, name)
        settings = {**proposal.made_by.parameters, "epsilon": plan.guarantee.epsilon}
        one = OneRun(plan, replace(proposal.made_by, parameters=settings))
        if not done[name]:
            one.carry_out(place, table, approved, ledger, manner.force)
    together.save(folder, together.guarantee, naming, heads_in(folder))
    heads = {name: folders.manifest_head(together.place(folder, name)) for name in plans}
    if manner.json:
        return emit({"folder": folder} | document | {"heads": heads})
    say(
        f"Wrote {folder}: a run's folder for each outcome, with its public part and one model file for each "
        f"task, and {PLACE} and guarantee.txt, which are of all of them.",
        apart=True,
    )
    return show_commands(*(["cloister", command, folder] for command in ("verify", "summary", "report")))


def _promise(together: Outcomes, naming: Naming) -> None:
    told = together.guarantee
    say(
        f"{len(together.plans)} outcomes share one budget. All of them together:",
        told.statement.in_words(naming.words).short,
        f"Epsilon {rounded_up(told.epsilon)}, delta {rounded_up(told.delta)}, {told.relation}.",
    )
    for name, plan in together.plans.items():
        say(f"{name}, by itself epsilon {rounded_up(plan.guarantee.epsilon)}. {plan.forecast()}", apart=True)


def _begin(folder: Path, together: Outcomes, force: bool) -> dict[str, bool]:
    """Say which runs are complete, of what was begun in this folder; refuse another folder."""
    if not has_outcomes(folder):
        folders.check_free(folder, force=False)
        return dict.fromkeys(together.plans, False)
    if force:
        return dict.fromkeys(together.plans, False)
    done = together.begun(folder)
    if all(done.values()):
        raise InputError(f"{folder} is already there and is left as it is. Add --force, or name another.")
    return done
